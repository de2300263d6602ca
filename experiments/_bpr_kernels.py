"""BPR's inner loop, compiled by numba. Shapes: U users, I items, D width, T triples, P pairs."""

from __future__ import annotations

import numpy as np
from numba import njit

from ._random import below, next_bits


@njit(nogil=True, cache=True)
def draw_triples(users, items, starts, seed, drawn_users, liked, other):  # type: ignore[no-untyped-def]
    """Pairs drawn evenly, and for each an item drawn by how often it comes; the liked one again where the user likes
    that too, which stands for no triple.

    Args:
        users, items: int32 (P,), sorted by user and then by item.
        starts: int64 (U + 1,), where the pairs of each user begin.
        seed: of this ticket.
        drawn_users, liked, other: int32 (T,), to be filled.
    """
    state = np.uint64(seed)
    for t in range(len(liked)):
        state, bits = next_bits(state)
        pair = below(bits, len(users))
        user = drawn_users[t] = users[pair]
        liked[t] = items[pair]
        state, bits = next_bits(state)
        item = items[below(bits, len(users))]
        low, high = starts[user], starts[user + 1]
        while low < high:
            middle = (low + high) >> 1
            if items[middle] < item:
                low = middle + 1
            else:
                high = middle
        known = low < starts[user + 1] and items[low] == item
        other[t] = liked[t] if known else item


@njit(nogil=True, cache=True, fastmath=True, error_model="numpy")
def descend(user_table, item_table, users, liked, other, rate, decay):  # type: ignore[no-untyped-def]
    """One step for each triple: user_table (U, D), item_table (I, D + 1), whose last column is the bias, float32.

    Returns the mean of −log σ(score of the liked − score of the other).
    """
    width, total, count = user_table.shape[1], 0.0, 0
    step, keep = np.float32(rate), np.float32(1 - rate * decay)
    for t in range(len(users)):
        if liked[t] == other[t]:
            continue
        u, i, j = user_table[users[t]], item_table[liked[t]], item_table[other[t]]
        score = np.float32(0)
        for d in range(width):
            score += u[d] * (i[d] - j[d])
        score += i[width] - j[width]
        error = step / (np.float32(1) + np.exp(score))
        for d in range(width):
            before, difference = u[d], i[d] - j[d]
            u[d] = keep * before + error * difference
            i[d] = keep * i[d] + error * before
            j[d] = keep * j[d] - error * before
        i[width] = keep * i[width] + error
        j[width] = keep * j[width] - error
        if t % 8 == 0:
            total += np.log1p(np.exp(-score))
            count += 1
    return total / max(1, count)
