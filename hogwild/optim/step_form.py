"""The form of a step that is written out, and what those of single rows share.

Invariant: a step by a sparse gradient reads and writes the rows that the gradient names, and no others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

StepState = Mapping[str, Tensor]


@dataclass(frozen=True)
class Rooms:
    """`ROOMS` pieces of private memory of a tensor's form; `races` says that others step that tensor meanwhile."""

    tensors: Sequence[Tensor]
    races: bool


WrittenStep = Callable[[Mapping[str, Any], Tensor, Tensor, StepState, StepState, Tensor, Rooms, bool], None]
"""(options, parameter, gradient, before, after, into, rooms, begun): one step from `parameter` and the state `before`
into `into` and `after`, which may be the same memory. Parameter, gradient, each room and what has a value per element
of the state have one shape, dtype and strides; nobody else writes to gradient and rooms. Not `begun`: it is the first
step, and `before` is as it begins."""

ROOMS = 3


def named_rows(state: Tensor, gradient: Tensor) -> Tensor:
    """A copy of the elements that a coalesced sparse gradient names, of what lies as the parameter does."""
    indices = gradient._indices()
    return state.index_select(0, indices[0]) if len(indices) == 1 else state[tuple(indices)]


def store_rows(target: Tensor, gradient: Tensor, values: Tensor) -> None:
    """Write the elements that a sparse gradient names."""
    indices = gradient._indices()
    if len(indices) == 1:
        target.index_copy_(0, indices[0], values)
    else:
        target[tuple(indices)] = values


def like_gradient(gradient: Tensor, values: Tensor) -> Tensor:
    """Those values where a sparse gradient has its own."""
    return torch.sparse_coo_tensor(gradient._indices(), values, gradient.shape, check_invariants=False)
