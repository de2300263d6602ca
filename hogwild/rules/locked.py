"""`locked`: private gradients, applied in place under one lock.

What holds when workers race: no step is lost or applied twice; steps follow one another, so the optimizer's state is
that of a serial sequence of steps, and versions are exact.
What does not: a read takes no lock, so it may mix elements of versions; which worker commits first is left to
chance. After a kill inside the lock one update may be applied in part; the lock itself is free again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from hogwild.optim.gradients import Gathered
from hogwild.rules.any_age import AnyAge
from hogwild.rules.base import Gradient
from hogwild.rules.in_place import InPlace
from hogwild.shared.tickets import Ticket


class Locked(AnyAge, InPlace):
    """`torch.autograd.grad`; read in place, write in place under one lock."""

    name: ClassVar[str] = "locked"
    summary: ClassVar[str] = "a private gradient, applied in place under one lock"
    exact: ClassVar[bool] = True

    def _apply(self, ticket: Ticket, gradient: Gradient, gathered: Gathered) -> None:
        with self.control.commit_lock:
            super()._apply(ticket, gradient, gathered)

    def _train(self, ticket: Ticket, step: Callable[[], float]) -> None:
        with self.control.commit_lock:
            super()._train(ticket, step)
