"""Inner loops of knowledge graphs, compiled by numba: ComplEx, DistMult and TransE with row-wise Adagrad.

Shapes: N entities, R relations, D width, T triples, K entities that stand against each.

A triple and a side make a query q [D] from the known entity a and the relation r; an entity c is scored against it:

    DistMult   q = a r            score q · c
    ComplEx    q = a r, or a r̄    score q · c, real parts in the first half of a row, imaginary ones in the second
    TransE     q = a + r, or a − r    score −|q − c|²

The loss is the softmax of the true entity against the K others. Row-wise Adagrad (PyTorch-BigGraph, Lerer et al. 2019)
keeps one sum of mean squares a row, and divides by what it has itself computed: no step is larger than it could be
serially, whatever other workers write.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from ._random import below, next_bits

MODELS = ("complex", "distmult", "transe")
_COMPLEX, _TRANSE = 0, 2
_EPS = np.float32(1e-10)


@njit(nogil=True, cache=True)
def draw_triples(triples, order, first, entities, seed, known, relations, sides, candidates):  # type: ignore[no-untyped-def]
    """Triples order[first:first + T], and which of their entities is sought, with K others for each.

    Args:
        triples: int32 (P, 3): head, relation, tail.
        order: int64 (P,).
        first: where the ticket begins.
        entities: N.
        seed: of this ticket.
        known, relations: int32 (T,), to be filled with the entity that is known and the relation.
        sides: int8 (T,), with 1 where the tail is sought and −1 where the head is.
        candidates: int32 (T, 1 + K), with the true entity and K drawn evenly; the true one again stands for none.
    """
    state = np.uint64(seed)
    for t in range(len(known)):
        triple = triples[order[first + t]]
        state, bits = next_bits(state)
        sides[t] = 1 if bits & np.uint64(1) else -1
        known[t] = triple[0] if sides[t] == 1 else triple[2]
        relations[t] = triple[1]
        candidates[t, 0] = triple[2] if sides[t] == 1 else triple[0]
        for k in range(1, candidates.shape[1]):
            state, bits = next_bits(state)
            candidates[t, k] = below(bits, entities)


@njit(nogil=True, cache=True, fastmath=True)
def queries(model, a, r, side, q):  # type: ignore[no-untyped-def]
    """Fill in q [D] for one known entity and relation [D]."""
    half, sign = len(a) // 2, np.float32(side)
    if model == _COMPLEX:
        for d in range(half):
            imaginary = sign * r[half + d]
            q[d] = a[d] * r[d] - a[half + d] * imaginary
            q[half + d] = a[d] * imaginary + a[half + d] * r[d]
    elif model == _TRANSE:
        for d in range(len(a)):
            q[d] = a[d] + sign * r[d]
    else:
        for d in range(len(a)):
            q[d] = a[d] * r[d]


@njit(nogil=True, cache=True, fastmath=True)
def _back(model, a, r, side, g, ga, gr):  # type: ignore[no-untyped-def]
    """The gradients of a and r, both [D], of that of their query."""
    half, sign = len(a) // 2, np.float32(side)
    if model == _COMPLEX:
        for d in range(half):
            imaginary = sign * r[half + d]
            ga[d] = g[d] * r[d] + g[half + d] * imaginary
            ga[half + d] = g[half + d] * r[d] - g[d] * imaginary
            gr[d] = g[d] * a[d] + g[half + d] * a[half + d]
            gr[half + d] = sign * (g[half + d] * a[d] - g[d] * a[half + d])
    elif model == _TRANSE:
        for d in range(len(a)):
            ga[d] = g[d]
            gr[d] = sign * g[d]
    else:
        for d in range(len(a)):
            ga[d] = g[d] * r[d]
            gr[d] = g[d] * a[d]


@njit(nogil=True, cache=True, fastmath=True, inline="always", error_model="numpy")
def _adagrad(table, sums, row, gradient, rate):  # type: ignore[no-untyped-def]
    """One step of one row by a gradient [D]."""
    own, square = table[row], np.float32(0)
    for d in range(len(own)):
        square += gradient[d] * gradient[d]
    total = sums[row, 0] + square / np.float32(len(own))
    sums[row, 0] = total
    step = rate / (np.sqrt(total) + _EPS)
    for d in range(len(own)):
        own[d] -= step * gradient[d]


@njit(nogil=True, cache=True, fastmath=True)
def _score(model, q, c):  # type: ignore[no-untyped-def]
    found = np.float32(0)
    if model == _TRANSE:
        for d in range(len(q)):
            difference = q[d] - c[d]
            found -= difference * difference
    else:
        for d in range(len(q)):
            found += q[d] * c[d]
    return found


@njit(nogil=True, cache=True, fastmath=True, error_model="numpy")
def descend(model, entity, relation, entity_sum, relation_sum, known, relations, sides, candidates, rate):  # type: ignore[no-untyped-def]
    """One step for each triple; tables float32 (N, D), (R, D), (N, 1), (R, 1). Returns the mean loss."""
    width, others, step, total = entity.shape[1], candidates.shape[1], np.float32(rate), 0.0
    q, g, ga, gr, gc = np.empty((5, width), np.float32)
    weights = np.empty(others, np.float32)
    for t in range(len(known)):
        row, a, r = candidates[t], entity[known[t]], relation[relations[t]]
        queries(model, a, r, sides[t], q)
        top = np.float32(-np.inf)
        for k in range(others):
            weights[k] = _score(model, q, entity[row[k]]) if k == 0 or row[k] != row[0] else np.float32(-1e30)
            top = max(top, weights[k])
        true, mass = weights[0] - top, np.float32(0)
        for k in range(others):
            weights[k] = np.exp(weights[k] - top)
            mass += weights[k]
        total += np.log(mass) - true
        for d in range(width):
            g[d] = 0
        for k in range(others):
            error = weights[k] / mass - (np.float32(1) if k == 0 else np.float32(0))
            c = entity[row[k]]
            if model == _TRANSE:
                for d in range(width):
                    gc[d] = np.float32(2) * error * (q[d] - c[d])
                    g[d] -= gc[d]
            else:
                for d in range(width):
                    gc[d] = error * q[d]
                    g[d] += error * c[d]
            if k == 0 or row[k] != row[0]:
                _adagrad(entity, entity_sum, row[k], gc, step)
        _back(model, a, r, sides[t], g, ga, gr)
        _adagrad(entity, entity_sum, known[t], ga, step)
        _adagrad(relation, relation_sum, relations[t], gr, step)
    return total / max(1, len(known))
