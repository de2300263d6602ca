"""The caller's module: taken apart, and put on shared bytes."""
