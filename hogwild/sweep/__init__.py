"""Sweeps: one training at every point of a grid of settings, each point a normal run in a process of its own."""
