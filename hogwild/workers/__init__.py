"""Workers: the one loop, as threads or processes, and what supervises them.

worker, loop           the calls that a loop is written in, and the loop that `train` runs: claim, read, compute, commit
task, seat, worker_info       what a worker is given, what its rule finds there, what your code may know of it
own_loop, kernel_loop, recompute      a loop of yours, a kernel's, a gradient computed a second time
account, milestones    what it counts for an audit, and who looks at the version that it has made
supervisor, team, failures    the parent: it watches, hears, and decides what a failure means
kinds, threads, processes     the two teams
spawn, preload, preloaded, early, process_main    how a process is started, and what it does
package, named_by, twins      what it is sent, what a function names beside, and the same made in this process
held_signals           what is not to be interrupted
bit_flags, torch_threads, vector_math, scripted, no_grad      what of torch decides bits, or is one for all threads
own_generators, shared_generator      random generators, of a process and of all threads
interpreter, shared_code, allocator   the GIL, what threads write to without it, and large blocks of memory
planting               delays and faults at the hooks of the protocol
"""
