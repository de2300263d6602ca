"""Training by a compiled function, which draws the rows of a ticket, and then touches those alone.

kernel                 what one is, and which rows of which table it touches
overlay, trained_rows  what it is given of a table, and what becomes of that
passes, numbers        passes over rows, compiled
memory                 what compiled code says of the order of memory
"""
