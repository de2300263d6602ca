"""Workers: the one loop, as threads or processes, and what supervises them."""
