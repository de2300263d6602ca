"""word2vec's inner loops, compiled by numba: what a ticket trains on, and the step.

Shapes: V words, D width, G groups of two pairs that share a centre and its negatives, C centres, N contexts of all
centres, K = 1 + 5 targets: a centre and its negatives.
A target that is the centre again stands for none (a negative that was drawn so, or fewer than five).
The sigmoid is read from a table of 1,000 values on (−6, 6), as in word2vec and gensim: six calls of exp would
take longer. Beyond ±6 its value is that at the end. Two pairs share their negatives, and are trained on what both find:
each row of a target is loaded and stored once for two, which takes two thirds of the time, and touches fewer rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from ._random import below, next_bits

TARGETS = 6
_STEPS, _EDGE = 1000, 6.0
_SCALE = np.float32(_STEPS / (2 * _EDGE))
_LIMIT = np.float32(_EDGE - 0.01)
_TOLD = 4  # the loss is the mean over one pair of every so many groups

_points = (np.arange(_STEPS) / _STEPS * 2 - 1) * _EDGE
SIGMOID: Any = (1 / (1 + np.exp(-_points))).astype(np.float32)
SOFTPLUS: Any = np.log1p(np.exp(_points)).astype(np.float32)  # −log σ(−x)
"""Both at the 1,000 points."""


@njit(nogil=True, cache=True)
def subsample(words, ends, keep, seed, kept, kept_ends):  # type: ignore[no-untyped-def]
    """Leave frequent words out: word w stays with probability keep[w] ÷ 2^32. Returns how many stay."""
    state, n = np.uint64(seed), 0
    for i in range(len(words)):
        state, bits = next_bits(state)
        if bits >> np.uint64(32) < keep[words[i]]:
            kept[n], kept_ends[n] = words[i], ends[i]
            n += 1
    return n


@njit(nogil=True, cache=True)
def windows(ends, n, window, seed, first, last):  # type: ignore[no-untyped-def]
    """The window of each word: from 1 to `window` words to either side, inside its sentence; [first, last)."""
    state, start, pairs = np.uint64(seed), 0, 0
    for i in range(n):
        if i > 0 and ends[i] != ends[i - 1]:
            start = i
        state, bits = next_bits(state)
        reach = 1 + int(bits % np.uint64(window))
        first[i], j = max(start, i - reach), i + 1
        while j < n and j <= i + reach and ends[j] == ends[i]:
            j += 1
        last[i] = j
        pairs += last[i] - first[i] - 1
    return pairs


@njit(nogil=True, cache=True)
def negatives(targets, count, odds, aliases, seed, pool):  # type: ignore[no-untyped-def]
    """Fill in `count` negatives of each row; the other places are the centre. They are taken from a pool in turn, which
    is filled first, int32, by the alias method (Walker 1977)."""
    state, words, at = np.uint64(seed), len(odds), 0
    for i in range(len(pool)):
        state, bits = next_bits(state)
        word = below(bits, words)
        low = bits & np.uint64(0xFFFFFFFF)
        pool[i] = word if low < odds[word] else aliases[word]
    for p in range(len(targets)):
        centre = targets[p, 0]
        for k in range(1, targets.shape[1]):
            targets[p, k] = centre
            if k <= count:
                targets[p, k] = pool[at]
                at = at + 1 if at + 1 < len(pool) else 0


@njit(nogil=True, cache=True)
def pairs_of(kept, n, first, last, contexts, sizes, targets):  # type: ignore[no-untyped-def]
    """Skip-gram: each word of a window predicts the centre, two at a time; fills contexts [G, 2], where a single one
    stands twice, sizes [G] and the first column of targets. Returns G."""
    g = 0
    for i in range(n):
        size = 0
        for j in range(first[i], last[i]):
            if j == i:
                continue
            contexts[g, size] = kept[j]
            size += 1
            if size == 2:
                sizes[g], targets[g, 0] = 2, kept[i]
                g, size = g + 1, 0
        if size == 1:
            contexts[g, 1], sizes[g], targets[g, 0] = contexts[g, 0], 1, kept[i]
            g += 1
    return g


@njit(nogil=True, cache=True)
def windows_of(kept, n, first, last, contexts, offsets, targets):  # type: ignore[no-untyped-def]
    """CBOW: the mean of a window predicts the centre; fills contexts [N], offsets [C + 1] and the first column of
    targets. Returns C: a word without a window is no centre."""
    p = c = 0
    offsets[0] = 0
    for i in range(n):
        if last[i] - first[i] < 2:
            continue
        for j in range(first[i], last[i]):
            if j != i:
                contexts[p] = kept[j]
                p += 1
        targets[c, 0] = kept[i]
        c += 1
        offsets[c] = p
    return c


@njit(nogil=True, cache=True, fastmath=True, inline="always")
def _errors(dots, row, errors, sigmoid, rate):  # type: ignore[no-untyped-def]
    """rate × (label − σ(dot)) for the targets of one row; 0 for those that stand for none."""
    for k in range(TARGETS):
        dot = max(-_LIMIT, min(_LIMIT, dots[k]))
        found = sigmoid[int((dot + np.float32(_EDGE)) * _SCALE)]
        if k == 0:
            errors[k] = (np.float32(1) - found) * rate
        else:
            errors[k] = -found * rate if row[k] != row[0] else np.float32(0)


@njit(nogil=True, cache=True, fastmath=True, inline="always")
def _loss(dots, row, softplus):  # type: ignore[no-untyped-def]
    """−log σ of the centre − Σ log σ(−) of the negatives."""
    total = np.float32(0)
    for k in range(TARGETS):
        dot = max(-_LIMIT, min(_LIMIT, dots[k] if k > 0 else -dots[k]))
        if k == 0 or row[k] != row[0]:
            total += softplus[int((dot + np.float32(_EDGE)) * _SCALE)]
    return total


@njit(nogil=True, cache=True, fastmath=True, inline="always")
def _products(x, z, outputs, row, dots):  # type: ignore[no-untyped-def]
    """dots [2, K] = the products of two hidden vectors [D] with their targets, each of which is loaded once."""
    y0, y1, y2 = outputs[row[0]], outputs[row[1]], outputs[row[2]]
    y3, y4, y5 = outputs[row[3]], outputs[row[4]], outputs[row[5]]
    a0 = a1 = a2 = a3 = a4 = a5 = np.float32(0)
    b0 = b1 = b2 = b3 = b4 = b5 = np.float32(0)
    for d in range(len(x)):
        a0 += x[d] * y0[d]
        b0 += z[d] * y0[d]
        a1 += x[d] * y1[d]
        b1 += z[d] * y1[d]
        a2 += x[d] * y2[d]
        b2 += z[d] * y2[d]
        a3 += x[d] * y3[d]
        b3 += z[d] * y3[d]
        a4 += x[d] * y4[d]
        b4 += z[d] * y4[d]
        a5 += x[d] * y5[d]
        b5 += z[d] * y5[d]
    dots[0, 0], dots[0, 1], dots[0, 2], dots[0, 3], dots[0, 4], dots[0, 5] = a0, a1, a2, a3, a4, a5
    dots[1, 0], dots[1, 1], dots[1, 2], dots[1, 3], dots[1, 4], dots[1, 5] = b0, b1, b2, b3, b4, b5


@njit(nogil=True, cache=True, fastmath=True, inline="always")
def _change(outputs, row, errors, change):  # type: ignore[no-untyped-def]
    """change [D] = Σ errors × targets: what is to be added to a hidden vector."""
    y0, y1, y2 = outputs[row[0]], outputs[row[1]], outputs[row[2]]
    y3, y4, y5 = outputs[row[3]], outputs[row[4]], outputs[row[5]]
    e0, e1, e2, e3, e4, e5 = errors[0], errors[1], errors[2], errors[3], errors[4], errors[5]
    for d in range(len(change)):
        change[d] = e0 * y0[d] + e1 * y1[d] + e2 * y2[d] + e3 * y3[d] + e4 * y4[d] + e5 * y5[d]


@njit(nogil=True, cache=True, fastmath=True)
def skipgram(inputs, outputs, contexts, sizes, targets, sigmoid, softplus, rate):  # type: ignore[no-untyped-def]
    """Train every pair: inputs and outputs (V, D) float32, contexts (G, 2), targets (G, K) int32, sizes (G,) int8.

    Returns the mean loss of a pair.
    """
    changes = np.empty((2, inputs.shape[1]), np.float32)
    dots, errors = np.empty((2, TARGETS), np.float32), np.empty((2, TARGETS), np.float32)
    step, total, told = np.float32(rate), 0.0, 0
    for g in range(len(targets)):
        x, z, row = inputs[contexts[g, 0]], inputs[contexts[g, 1]], targets[g]
        _products(x, z, outputs, row, dots)
        _errors(dots[0], row, errors[0], sigmoid, step)
        _errors(dots[1], row, errors[1], sigmoid, step if sizes[g] == 2 else np.float32(0))
        _change(outputs, row, errors[0], changes[0])
        _change(outputs, row, errors[1], changes[1])
        for k in range(TARGETS):
            e, f, y = errors[0, k], errors[1, k], outputs[row[k]]
            for d in range(len(y)):
                y[d] += e * x[d] + f * z[d]
        for d in range(len(x)):
            x[d] += changes[0, d]
        for d in range(len(z)):
            z[d] += changes[1, d]
        if g % _TOLD == 0:
            total += _loss(dots[0], row, softplus)
            told += 1
    return total / max(1, told)


@njit(nogil=True, cache=True, fastmath=True)
def cbow(inputs, outputs, contexts, offsets, targets, sigmoid, softplus, rate):  # type: ignore[no-untyped-def]
    """Train every centre by the mean of its window; contexts (N,), offsets (C + 1,), targets (C, K) int32."""
    width = inputs.shape[1]
    change, hidden = np.empty(width, np.float32), np.empty(width, np.float32)
    dots, errors = np.empty((2, TARGETS), np.float32), np.empty(TARGETS, np.float32)
    step, total, told = np.float32(rate), 0.0, 0
    for c in range(len(offsets) - 1):
        first, last = offsets[c], offsets[c + 1]
        share = np.float32(1) / np.float32(last - first)
        hidden[:] = 0
        for p in range(first, last):
            x = inputs[contexts[p]]
            for d in range(width):
                hidden[d] += share * x[d]
        row = targets[c]
        _products(hidden, hidden, outputs, row, dots)
        _errors(dots[0], row, errors, sigmoid, step)
        _change(outputs, row, errors, change)
        for k in range(TARGETS):
            e, y = errors[k], outputs[row[k]]
            for d in range(width):
                y[d] += e * hidden[d]
        for p in range(first, last):
            x = inputs[contexts[p]]
            for d in range(width):
                x[d] += change[d]
        if c % _TOLD == 0:
            total += _loss(dots[0], row, softplus)
            told += 1
    return total / max(1, told)
