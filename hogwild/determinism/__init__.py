"""What the parallelism did to a training: distances between states, digests, and replay."""
