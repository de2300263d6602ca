"""Several machines: who takes part, and how gradients travel between them.

invitation, meeting, party    where they meet, how, and what is decided for all
courier, averager      a process of its own on each machine, for those that train together and those that train apart
correspondent, peer    what both do, and another machine as they see it
gloo, messages         what moves bytes, and what they mean
outer                  an average as a step
arrival, returning, brought   a machine that comes back: what it is told, and what it is brought
store_calls, store_watch      the store at which they meet
loopback               machines that are processes of one
"""
