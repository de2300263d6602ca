"""Several machines: who takes part, and how gradients travel between them."""
