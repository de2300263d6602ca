"""This machine, measured: every rule and worker kind beside what one would use instead.

problems     what is trained
work         what one measurement is, and what comes of it
alternatives the loops that others would write, in processes of their own
ours         this package's rules
contenders   all of them by name, each with a line that says what it is
measure      repeats in turn, and ratios within a repeat
table, plot  what a person sees
profile      where a worker's step goes, and the commit beside the memory bandwidth
doctor       what will bite on this machine
"""
