"""What the parallelism did to a training: distances between states, digests, and replay.

check, subject, foreign       a training, ours or any, repeated
verdict, advice        what was found, as data and in words
first, explain, damage, controls      where runs differ first, why, and how bad that is
distance, measure, ulp, states, predictions       how far two states are apart
compare, interval      many pairs, and how well a mean is known
flip, fresh            the smallest change there is; a fresh interpreter for each run
replay, probe          a recorded run computed again; updates that a rule loses
two_runs, sessions     two records side by side
"""
