"""What a person sees: progress, tables and plots; in `page/` a report as HTML.

progress, sweep_table  what is under way
tables, shown, side_by_side   one run, a check or a bench; a saved run; two of them
ranking, run_list      many runs
plots, smoothed        figures
objects                the same as JSON
words, run_words       how numbers and runs are put into words
terminal               where all of it is printed
"""
