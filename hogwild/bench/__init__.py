"""This machine, measured: every rule and worker kind beside what one would use instead.

plan         from settings to what is measured
problems     what is trained
work         what one measurement is, and what comes of it
alternatives the loops that others would write, in processes of their own (children)
ours         this package's rules
contenders   all of them by name, each with a line that says what it is
measure      repeats in turn, and ratios within a repeat
summary, table, plot  what a person sees
saved, then_and_now, comparison_table, threshold      a bench beside an older one
profile, profile_table       where a worker's step goes, and the commit beside the memory bandwidth
model, predict, plot_curves  what more cores would do
padded, padded_table         many workers on few cores
several, several_table, links     several machines, by links that are slow
cases        what the tables share
doctor       what will bite on this machine
"""
