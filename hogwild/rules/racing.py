"""`racing`: every worker's `backward()` accumulates into one shared `.grad`; step and zero take no lock.

What holds when workers race: every element of the model and of `.grad` is a value that some worker wrote there.
What does not: a step applies whatever lies in `.grad` at that moment, so a gradient may be applied twice (two workers
step before either zeroes), wiped before it was applied (zeroed by another), or half of each. A parameter that a
batch did not reach is stepped by what the others left there, zero included. After a kill `.grad` may keep part of
the dead worker's gradient, and one update may be applied in part. A loss that is not finite never reaches `.grad`; a
gradient that is not finite although its loss is has been added before anybody can look, and may be applied by another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from torch import Tensor, nn

from hogwild.rules.base import Gradient
from hogwild.rules.gradients import BatchLoss, backward_gradients, differentiate, gradients_of, losses_of
from hogwild.rules.in_place import InPlace
from hogwild.rules.row_gradients import is_told
from hogwild.shared.state import Needs
from hogwild.shared.tickets import Ticket


class Racing(InPlace):
    """`backward()` into one shared `.grad`; step and zero, unlocked."""

    name: ClassVar[str] = "racing"
    summary: ClassVar[str] = "one shared .grad; step and zero without a lock"
    shares_gradients: ClassVar[bool] = True
    dense_gradients: ClassVar[bool] = True
    gradient_by: str = "backward"

    def needs(self, workers: int) -> Needs:  # noqa: ARG002
        """One slot and the one shared gradient."""
        return Needs(gradients=1)

    def read(self, ticket: Ticket) -> nn.Module:
        """The replica, on the one slot there is."""
        self._update = ticket.update
        return super().read(ticket)

    def gradient(self, loss: BatchLoss, replica: nn.Module) -> Gradient:
        """Accumulate the batch's gradient into the shared `.grad`; what is returned is for the audit alone."""
        parameters = self.seat.binding.parameters
        shared = self.state.gradients[0].tensors
        output = loss(replica)
        if is_told(output):
            value, gradients = gradients_of(output, parameters, self.state.plan.trained_names, self.gradient_by)
            told = Gradient(gradients, value, self.version_read)
            if math.isfinite(value) or self.seat.ignores_nonfinite(self._update):
                self.take(told)
            return told
        scalars, streamed = losses_of(output)
        if streamed:  # how many there are is known only at the end, so their mean is added in one go
            value, gradients = backward_gradients((scalar for scalar in scalars), parameters)
            if not math.isfinite(value) and not self.seat.ignores_nonfinite(self._update):
                return Gradient([], value, self.version_read)
            for target, gradient in zip(shared, gradients, strict=True):
                if gradient is not None:
                    target.add_(gradient)
            return Gradient(gradients, value, self.version_read)
        (scalar,) = scalars
        value = float(scalar.detach())
        if not math.isfinite(value) and not self.seat.ignores_nonfinite(self._update):
            return Gradient([], value, self.version_read)  # and the shared .grad does not learn of it
        for parameter, target in zip(parameters, shared, strict=True):
            parameter.grad = target
        seen = self._backward(scalar, parameters)
        for parameter in parameters:
            parameter.grad = None
        return Gradient(seen, value, self.version_read)

    def _backward(self, scalar: Tensor, parameters: Sequence[nn.Parameter]) -> list[Tensor | None]:
        """Accumulate; returns what this worker added, where the run is audited, and else nothing."""
        if not self.seat.audited:
            differentiate(scalar)
            return []
        seen: list[Tensor | None] = [None] * len(parameters)
        hooks = [p.register_hook(partial(seen.__setitem__, i)) for i, p in enumerate(parameters)]  # type: ignore[no-untyped-call]
        differentiate(scalar)
        for hook in hooks:
            hook.remove()
        return seen

    def take(self, gradient: Gradient) -> None:
        """Add what another loop computed to the shared `.grad`, unless it is not finite."""
        given = [value._values() if value.is_sparse else value for value in gradient.values if value is not None]
        seat, ignored = self.seat, self.seat.ignores_nonfinite(self._update)
        seat.gradient_lost = not ignored and not all(bool(value.isfinite().all()) for value in given)
        if seat.gradient_lost:
            seat.loss_told, gradient.loss = True, math.nan
        if not ignored and seat.loss_told and not math.isfinite(gradient.loss):
            return  # the shared .grad does not learn of it
        if not seat.loss_told:
            gradient.loss = 0.0
        for target, value in zip(self.state.gradients[0].tensors, gradient.values, strict=True):
            if value is not None:
                target.add_(value)

    def commit(self, ticket: Ticket, gradient: Gradient) -> bool:
        """Step by whatever the shared `.grad` holds, then zero it."""
        shared = self.state.gradients[0]
        gathered = self.seat.optimizer.gather_shared(shared.tensors, shared.flats)
        if self.seat.usable(ticket, gradient.loss, gathered):
            self.seat.clip(ticket.update, gathered)
            self._apply(ticket, gradient, gathered)
        if math.isfinite(gradient.loss) or self.seat.ignores_nonfinite(ticket.update):
            for flat in shared.flats:
                flat.zero_()
        self._observe(ticket)
        return True
