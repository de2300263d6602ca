"""Sweeps: one training at every point of a grid of settings, each point a normal run in a process of its own.

plan         which runs it is, and in which folders
jobs         so many at once, until all have ended
child        one of them, in its process
rows         what each has come to
missing      which have come to nothing
"""
