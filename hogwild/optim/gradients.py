"""The gradients of one update, where they may be written to: looked at for NaN, scaled, clipped."""

from __future__ import annotations

import cmath
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Gathered:
    """One update's gradients where they may be written to: per parameter in layout order (None: it received none),
    and per range, padding included, where the optimizer is stepped by range (else empty). `whole`: it is known that
    every parameter has a dense one."""

    tensors: list[Tensor | None]
    flats: Sequence[Tensor]
    whole: bool = False

    @property
    def sparse(self) -> bool:
        """True when some parameter received a sparse gradient."""
        return (
            not self.flats
            and not self.whole
            and any(gradient is not None and gradient.is_sparse for gradient in self.tensors)
        )

    @property
    def dense(self) -> bool:
        """True when every parameter received a gradient, and none a sparse one."""
        return self.whole or (not self.sparse and not any(gradient is None for gradient in self.tensors))

    def finite(self) -> bool:
        """True when no element is NaN or infinite."""
        dense = self.flats or [t._values() if t.is_sparse else t for t in self.tensors if t is not None]
        # A sum is finite unless an element is not, or it overflowed; only then is every element looked at.
        return not [t for t in dense if not (cmath.isfinite(t.sum().item()) or bool(t.isfinite().all()))]

    def scale(self, factor: float) -> None:
        """Multiply all of them by a number, in place."""
        for gradient in self.flats or [t for t in self.tensors if t is not None]:
            gradient.mul_(factor)

    def clip(self, order: Iterable[int], max_norm: float) -> None:
        """Clip in place as `torch.nn.utils.clip_grad_norm_` does to the gradients in that order.

        Of sparse ones, which it does not take, the rows that come twice are added up first, as in a dense one.
        """
        holders = []
        for i in order:
            gradient = self.tensors[i]
            if gradient is None:
                continue
            if gradient.is_sparse:
                self.tensors[i] = gradient = gradient.coalesce()
                gradient = gradient._values()
            holder = gradient.detach()
            holder.grad = gradient
            holders.append(holder)
        torch.nn.utils.clip_grad_norm_(holders, max_norm)


def mean_of(gradients: Sequence[Tensor], number: int, into: Tensor) -> Tensor:
    """Some gradients summed in order, divided by a number: `into`, which has their form."""
    first, *others = gradients
    if others:
        torch.add(first, others[0], out=into)
    else:
        into.copy_(first)
    for gradient in others[1:]:
        into.add_(gradient)
    return into.div_(number)


def added_in_order(values: Iterable[float]) -> float:
    """The sum of numbers, from left to right. `sum` rounds otherwise since Python 3.12, and bits hang on it."""
    total = 0.0
    for value in values:
        total += value
    return total


def mean_gradient(gradients: Sequence[Tensor | None]) -> Tensor | None:
    """The mean gradient of one parameter over the micro-batches; None where none of them has any. That of sparse ones
    has the rows of them all, one after the other."""
    present = [gradient for gradient in gradients if gradient is not None]
    if present and all(gradient.is_sparse for gradient in present):
        rows = torch.cat([gradient._indices() for gradient in present], 1)
        values = torch.cat([gradient._values() for gradient in present]).div_(len(gradients))
        return torch.sparse_coo_tensor(rows, values, present[0].shape, check_invariants=False)
    present = [gradient.to_dense() if gradient.is_sparse else gradient for gradient in present]
    return mean_of(present, len(gradients), torch.empty_like(present[0])) if present else None
