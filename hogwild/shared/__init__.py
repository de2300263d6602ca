"""What workers share: bytes of one arena, and what lies where. Knows no optimizer and no rule.

nameless, arena, layout     a file without a name, the memory of a run, and where tensors lie in a block of it
state                       all of it together, as the parent lays it out and a worker finds it
slots, tables               versions of the model: whole, or by rows
optimizer_state, shards     what an optimizer keeps, and in which pieces a version is stepped
gradient_slots, gradient_ring       gradients that wait to be applied
words, tickets, dealing     who computes what: the counters, the right to one gradient, several machines
alarms, bell                waiting without spinning
locks, process_locks, mutex locks that a dead worker cannot hold
journal, totals             what happened, update by update, and the sums of an audit
exchange                    the values that machines average
copying, placement          tensors into others, copies for workers; where in memory they lie, which bits may hang on
mapped_files                memory that is a file's, which workers map again
hashing, limits             the digest of a state, what this machine lets a run have
"""
