"""The protocol of a rule: read → gradient → commit; and the gradient every rule of ours computes.

A rule object is configuration until `attach` gives it to a worker; it is pickled to process workers before that.
One batch goes through it as

    replica  = rule.read(update)              a module whose parameters are views of a slot
    gradient = rule.gradient(loss, replica)   loss(replica) is the loss on the batch of that update
    applied  = rule.commit(update, gradient)  False: the ticket was handed back, and somebody will take it again
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from hogwild.control import Control, Phase, Seam, Settled, Word
from hogwild.errors import ArgumentError
from hogwild.optimizer import Gathered, SharedOptimizer
from hogwild.replica import Binding
from hogwild.state import Needs, SharedState

Loss = Callable[[nn.Module], Any]
"""The loss of one batch: replica → a scalar, a list of scalars, or a generator of scalars."""


@dataclass
class Gradient:
    """What one update computed.

    `values` has one tensor, or None, for each trained parameter, in the order of the replica's parameters;
    `loss` is the batch's loss; `version` the version that was read.
    """

    values: Sequence[Tensor | None]
    loss: float
    version: int


class Seat(Protocol):
    """What a rule finds where it is attached: the worker, as far as a rule may see it."""

    index: int
    state: SharedState
    control: Control
    binding: Binding
    optimizer: SharedOptimizer

    @property
    def ignores_nonfinite(self) -> bool:
        """True where the run says `on_nonfinite="ignore"`."""
        ...

    def usable(self, update: int, loss: float, gradients: Gathered) -> bool:
        """False: loss or gradient is not finite, and the update is to be left out.

        Raises:
            NonFiniteError: they are not, and the run says `on_nonfinite="raise"`.
        """
        ...

    @property
    def audited(self) -> bool:
        """True where the worker keeps an account of the gradients it computes."""
        ...

    def leave_out(self) -> None:
        """The update being committed is not applied, on purpose, and will not be computed again."""
        ...

    def clip(self, gradients: Gathered) -> None:
        """Clip gathered gradients in place to the run's `clip_grad_norm`, by the norm of the per-tensor norms."""
        ...

    def due(self, version: int) -> bool:
        """True when something looks at that version: an evaluation, a checkpoint, a digest."""
        ...

    def observe(self, version: int, slot: int) -> None:
        """Let whatever is due look at the version in that slot. A rule calls it before it publishes the version, or
        under the commit lock, so that nobody writes the slot meanwhile."""
        ...

    def pause(self, seam: Seam) -> None:
        """A named seam of the protocol, at which tests plant delays and kills."""
        ...


class Rule(ABC):
    """How a gradient is computed and reaches the shared model.

    Subclass one of ours from `hogwild.rules`, mostly to change `gradient` or `prepare`, and pass an instance as
    `update=`. A rule that subclasses this one itself must also do what the supervisor and the journal count on, as
    `hogwild.rules.inplace.InPlace` does: say in its row when it writes and what it has applied, write a row of the
    journal for each update, and let `seat.observe` look at the versions that are due. Attributes set before `attach`
    must be picklable.
    """

    name: ClassVar[str] = "custom"
    replayable: ClassVar[bool] = False  # a journal is enough to compute the run again
    same_bits: ClassVar[bool] = False  # the result depends on neither worker count nor kind nor timing
    shares_gradients: ClassVar[bool] = False  # other workers see a gradient before it is checked
    tickets_per_update: int = 1
    gradient_by: str = "grad"
    version_read: int = 0

    def needs(self, workers: int) -> Needs:  # noqa: ARG002
        """The shared memory this rule needs for that many workers."""
        return Needs()

    def check(self, workers: int) -> None:  # noqa: B027
        """Refuse, with an `ArgumentError`, a number of workers that cannot work."""

    def attach(self, seat: Seat) -> None:
        """Called once in each worker, before its first update."""
        self.seat = seat
        self.state = seat.state
        self.control = seat.control

    def detach(self) -> None:
        """Called once in each worker, after its last update: let go of what `attach` took, for it refers back."""
        del self.seat, self.state, self.control

    def ready(self, update: int) -> bool:  # noqa: ARG002
        """True when the version that this update reads exists; no worker computes before."""
        return True

    @abstractmethod
    def read(self, update: int) -> nn.Module:
        """The replica to compute this update on; sets `version_read`."""

    def gradient(self, loss: Loss, replica: nn.Module) -> Gradient:
        """Compute the gradient of `loss(replica)`, touching nothing that is shared."""
        compute = autograd_gradients if self.gradient_by == "grad" else backward_gradients
        value, gradients = compute(loss(replica), self.seat.binding.parameters)
        return Gradient(gradients, value, self.version_read)

    def take(self, gradient: Gradient) -> None:  # noqa: B027
        """Take a gradient that a loop of the user's own computed, not `gradient` of this rule."""

    def prepare(self, update: int, gradient: Gradient) -> Gathered | None:
        """The gradient gathered, checked and clipped; None where the update is to be left out.

        What it returns is this worker's own until its next update, and may be written to.
        """
        gathered = self.seat.optimizer.gather(gradient.values)
        if not self.seat.usable(update, gradient.loss, gathered):
            return None
        self.seat.clip(gathered)
        return gathered

    @abstractmethod
    def commit(self, update: int, gradient: Gradient) -> bool:
        """Apply the gradient to the shared model. False: not applied, the ticket was handed back.

        Called without grad mode, as `ready` and `close` are.
        """

    def close(self) -> None:  # noqa: B027
        """Called in each worker when there are no more tickets."""

    def settle(self, state: SharedState, ticket: int, phase: Phase) -> Settled:  # noqa: ARG002
        """After the owner of a ticket died in that phase: what is to become of the ticket?

        Asked by the parent, which holds the ticket lock.
        """
        if phase is Phase.WRITING:
            return Settled.DOUBTED
        return Settled.AGAIN if phase is Phase.COMPUTING else Settled.DONE

    def begin(self, control: Control, version: int) -> None:
        """Before any worker starts: the run goes on from this version, which lies in the slot `place(version)`."""
        control[Word.BASE] = version
        control[Word.OBSERVED] = control[Word.EVALUATED] = version

    def place(self, version: int) -> int:  # noqa: ARG002
        """The slot in which a version lies that a run begins with."""
        return 0

    def window(self, version: int) -> range:
        """The versions that updates from `version` on will read, itself included."""
        return range(version, version + 1)

    def batch_of(self, ticket: int) -> int:
        """The number of the batch that a ticket trains on, which also decides what it draws."""
        return ticket

    def update_of(self, ticket: int) -> int:
        """The update that a ticket's gradient becomes part of."""
        return self.batch_of(ticket)

    def share_of(self, ticket: int) -> float:  # noqa: ARG002
        """The share of that update that a ticket's gradient is."""
        return 1.0

    def newest(self, state: SharedState) -> tuple[int, int]:
        """(version, number of its slot) of the newest complete version."""
        return state.control.commits(), 0


def losses_of(output: Any) -> tuple[Iterable[Tensor], bool]:
    """(the scalars in what a loss returned, whether each is backpropagated as it comes).

    Raises:
        ArgumentError: the output is not a scalar tensor, a list of them, or a generator of them.
    """
    if isinstance(output, Generator):
        return (_scalar(part) for part in output), True
    if isinstance(output, list | tuple):
        if not output:
            raise ArgumentError("loss returned an empty list; it must return a scalar, or a list with at least one")
        return [torch.stack([_scalar(part).reshape(()) for part in output]).mean()], False
    return [_scalar(output)], False


def _scalar(value: Any) -> Tensor:
    if not isinstance(value, Tensor) or value.numel() != 1:
        form = f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise ArgumentError(f"loss returned {form}; it must return a scalar tensor (take .mean() or .sum())")
    if value.is_complex():
        raise ArgumentError(f"loss returned a {value.dtype} value; it must return a real one (take .real or .abs())")
    if not value.requires_grad:
        raise ArgumentError(
            "loss returned a value that no parameter of the model takes part in; nothing can be trained"
        )
    return value


def autograd_gradients(output: Any, parameters: Sequence[nn.Parameter]) -> tuple[float, list[Tensor | None]]:
    """(loss, gradients) by `torch.autograd.grad`, which leaves every `.grad` alone.

    A list of losses is averaged; a generator's are differentiated one at a time, each graph freed before the next is
    built, and the sum divided by their count.
    """
    scalars, streamed = losses_of(output)
    total, count = 0.0, 0
    inputs = tuple(parameters)
    sums: list[Tensor | None] = [None] * len(inputs)
    for scalar in scalars:
        gradients = differentiate(scalar, inputs)
        total, count = total + scalar.item(), count + 1
        for i, gradient in enumerate(gradients):
            if gradient is not None:
                held = sums[i]
                sums[i] = gradient if held is None else held + gradient
    return _averaged(total, count, sums, streamed)


def differentiate(scalar: Tensor, parameters: tuple[nn.Parameter, ...] = ()) -> tuple[Tensor | None, ...]:
    """`torch.autograd.grad(scalar, parameters, allow_unused=True)`, or `scalar.backward()` where none are given.

    By the engine that both call: the checks that they make in Python before, of which `_scalar` has made those that
    matter here, take a third as long as the backward pass of a small model.
    """
    start = (torch.ones_like(scalar),)
    gradients: tuple[Tensor | None, ...] = torch.autograd.Variable._execution_engine.run_backward(
        (scalar,), start, False, False, parameters, allow_unreachable=True, accumulate_grad=not parameters
    )
    return gradients


def backward_gradients(output: Any, parameters: Sequence[nn.Parameter]) -> tuple[float, list[Tensor | None]]:
    """The same by `backward()` into `.grad`, which is empty before and after."""
    scalars, streamed = losses_of(output)
    total, count = 0.0, 0
    for parameter in parameters:
        parameter.grad = None
    for scalar in scalars:
        differentiate(scalar)
        total, count = total + scalar.item(), count + 1
    sums = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    return _averaged(total, count, sums, streamed)


def _averaged(total: float, count: int, sums: list[Tensor | None], streamed: bool) -> tuple[float, list[Tensor | None]]:
    if count == 0:
        raise ArgumentError("loss yielded nothing; a generator of losses must yield at least one")
    if streamed:
        return total / count, [None if gradient is None else gradient / count for gradient in sums]
    return total, sums
