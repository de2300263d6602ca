"""Training by a compiled function, which draws the rows of a ticket, and then touches those alone."""
