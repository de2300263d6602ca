"""A worker process: how it is started, what it is sent, and what it does there.

spawn                  the start method, and the one fork server of the program (early: it is started before torch)
preload, preloaded     what the fork server imports, and whether this process came from it
process_main           what a process does from its start to its end
package                the model, the data, the loss and the rule, as they are sent
named_by, twins        what a function names beside, and what would be sent, made in this process to look at it
"""
