"""Workers: the one loop, as threads or processes, and what supervises them.

worker, loop           the calls that a loop is written in, and the loop that `train` runs: claim, read, compute, commit
task, seat, make_seat, worker_info    what a worker is given, what its rule finds there, what your code may know of it
own_loop, kernel_loop, recompute      a loop of yours, a kernel's, a gradient computed a second time
late_buffers           what a forward pass makes that no other worker has
account, milestones    what it counts for an audit, and who looks at the version that it has made
supervisor, team, failures    the parent: it watches, hears, and decides what a failure means
kinds, threads, processes     the two teams
held_signals           what is not to be interrupted
planting               delays and faults at the hooks of the protocol

process                how a process is started, what it is sent, and what it does
surroundings           settings of torch, generators and the interpreter
"""
