"""A number → the batch of that number, whoever asks.

sources                where batches come from: tensors, a data set, or a source of one's own
schedule, seeding      which samples a batch has, and what its random generators begin with
generators             which generator of the process has been drawn from
before, holders        what a data set held before its samples were looked at, and how it is given that back
"""
