"""The protocol of a rule: read → gradient → commit.

A rule object is configuration until `attach` gives it to a worker; it is pickled to process workers before that.
One batch goes through it as

    replica  = rule.read(ticket)              a module whose parameters are views of a slot
    gradient = rule.gradient(loss, replica)   loss(replica) is the loss on the batch of that ticket
    applied  = rule.commit(ticket, gradient)  False: the ticket was handed back, and somebody will take it again
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from numpy.typing import NDArray
from torch import Tensor, nn

from hogwild.model.replica import Binding
from hogwild.optim.gradients import Gathered
from hogwild.optim.stepping import SharedOptimizer
from hogwild.rules.averaging import Averaging
from hogwild.rules.gradients import BatchLoss, gradients_of
from hogwild.rules.rechecks import Chosen, Rechecks
from hogwild.shared.dealing import Dealing
from hogwild.shared.exchange import Exchange
from hogwild.shared.state import Needs, SharedState
from hogwild.shared.tickets import ALONE, Control, Settled, Ticket
from hogwild.shared.words import NOBODY, Hook, Phase, Word


@dataclass
class Gradient:
    """What one update computed.

    Attributes:
        values: one tensor, or None, for each trained parameter, in the order of the replica's parameters.
        loss: of the batch.
        version: the version that was read.
    """

    values: Sequence[Tensor | None]
    loss: float
    version: int


@dataclass(frozen=True)
class Age:
    """How old gradients are taken to be: so many updates, or so many on average where it `varies`."""

    updates: int = 0
    varies: bool = False


FRESH = Age()


class Seat(Protocol):
    """What a rule finds where it is attached: what one worker has, and nothing that knows of the rule."""

    index: int
    state: SharedState
    control: Control
    binding: Binding
    optimizer: SharedOptimizer
    chosen: Chosen | None  # the tickets whose gradients are computed twice
    loss_told: bool  # the loss of the gradient being committed is known, so NaN does not mean that none was told
    gradient_lost: bool  # the gradient being committed was dropped because it is not finite

    def ignores_nonfinite(self, update: int) -> bool:
        """True where the run says `on_nonfinite="ignore"` for that update."""
        ...

    def usable(self, ticket: Ticket, loss: float, gradients: Gathered) -> bool:
        """True where the gradient may be applied. False: loss or gradient is not finite, and the update is left out.

        Raises:
            NonFiniteError: they are not, and the run says `on_nonfinite="raise"`.
        """
        ...

    def finite(self, update: int, loss: float, gradients: Gathered) -> bool:
        """True where they may be applied: loss and gradient are finite, or the run does not care."""
        ...

    def take_not_finite(self, ticket: Ticket, loss: float) -> None:
        """Report a loss that is not finite, of an update that has been applied in place already.

        Raises:
            NonFiniteError: the run does not say `on_nonfinite="ignore"`.
        """
        ...

    def skip(self, ticket: Ticket, loss: float, worker: int) -> None:
        """Leave out what that worker computed for this ticket, for it is not finite.

        Raises:
            NonFiniteError: the run says `on_nonfinite="raise"`.
        """
        ...

    def count_skipped(self) -> None:
        """Count the updates that were left out since the last call. A rule calls it when nobody can make their version
        again: after it is published, or at the end of the commit where there are no versions."""
        ...

    @property
    def audited(self) -> bool:
        """True where the run keeps an account of the gradients it computes."""
        ...

    def enter(self, update: int, gradients: Sequence[Tensor | None], share: float) -> None:
        """Enter gradients in the account, of which that update is made to a `share`, if there is one."""
        ...

    def leave_out(self) -> None:
        """Keep the update being committed out of the account: it is not applied, on purpose."""
        ...

    @property
    def clips(self) -> bool:
        """True where gradients of some update are clipped."""
        ...

    def clip(self, update: int, gradients: Gathered) -> None:
        """Clip gathered gradients in place to the run's `clip_grad_norm`, by the norm of the per-tensor norms."""
        ...

    def due(self, version: int) -> bool:
        """True when something looks at that version: an evaluation, a checkpoint, a digest."""
        ...

    def observe(self, version: int, slot: int, *, holds_ticket: bool = False) -> None:
        """Let whatever is due look at the version in that slot: an evaluation, a checkpoint, a digest.

        A rule calls it before it publishes the version, or under the commit lock, so that nobody writes the slot
        meanwhile. `holds_ticket`: this worker owns a ticket whose update is not in the version.
        """
        ...

    def pause(self, hook: Hook) -> None:
        """A hook: a named moment of the protocol, at which tests plant delays and kills."""
        ...


class Rule(ABC):
    """How a gradient is computed and reaches the shared model.

    Subclass one of ours from `hogwild.rules`, mostly to change `gradient` or `prepare`, and pass an instance as
    `update=`. A rule that subclasses this one itself must also do what the supervisor and the journal count on, as
    `hogwild.rules.in_place.InPlace` does: say in its row when it writes and what it has applied, write a row of the
    journal for each update, and let `seat.observe` look at the versions that are due. Attributes set before `attach`
    must be picklable.
    """

    name: ClassVar[str] = "custom"
    summary: ClassVar[str] = ""  # one line that says how a gradient is computed and how it reaches the shared model
    versioned: ClassVar[bool] = False  # whole versions are made one after another; the journal replays to the same bits
    same_bits: ClassVar[bool] = False  # the result depends on neither worker count nor kind nor timing
    exact: ClassVar[bool] = False  # no step is lost, and none applied twice
    shares_gradients: ClassVar[bool] = False  # other workers see a gradient before it is checked
    dense_gradients: ClassVar[bool] = False  # gradients lie in shared memory, and all of them are dense there
    combines: ClassVar[bool] = False  # gradients wait in shared memory, and any worker makes versions of them
    staleness: int | None = None  # how many updates old the version is that is read; None: the rule does not set it
    compensation: str = "none"  # how the age of gradients is compensated
    tickets_per_update: int = 1
    batches_per_ticket: int = 1  # a worker averages the gradients of so many batches into one
    gradient_by: str = "grad"
    version_read: int = 0
    dealing: Dealing = ALONE  # how tickets are dealt to machines
    averaging: Averaging | None = None  # once attached, where several machines train apart and average
    rechecks: Rechecks | None = None  # once attached, where some gradients are computed twice

    @classmethod
    def options_for(cls, workers: int) -> Mapping[str, Any]:  # noqa: ARG003
        """The options of this rule that keep so many workers busy, at least its own."""
        return {}

    def made_up_for(self, workers: int) -> Age:  # noqa: ARG002
        """The age of gradients that compensation assumes. 0 updates: nothing is compensated."""
        return FRESH

    def needs(self, workers: int) -> Needs:  # noqa: ARG002
        """The shared memory this rule needs for that many workers."""
        return Needs()

    @property
    def most_workers(self) -> int | None:
        """Workers that can be busy at once; None: any number."""
        return None

    def check(self, workers: int) -> None:  # noqa: B027
        """Refuse, with an `ArgumentError`, a number of workers that cannot work."""

    def attach(self, seat: Seat) -> None:
        """Called once in each worker, before its first update."""
        self.seat = seat
        self.state = seat.state
        self.control = seat.control
        if seat.state.exchange is not None:
            self.averaging = Averaging(self)

    def detach(self) -> None:
        """Called once in each worker, after its last update: let go of the shared memory."""
        self.averaging = None
        del self.seat, self.state, self.control

    def ticket(self, number: int, total: int) -> Ticket:  # noqa: ARG002
        """What that number stands for, of `total` tickets in the run."""
        return Ticket(number, update=number, batch=number)

    def deal(self, number: int, total: int) -> Ticket:
        """The ticket of that number, as the worker gets it: `ticket`, with the batch that it begins with where a ticket
        has several batches, or where several machines train apart and each has a share of the batches."""
        ticket, several = self.ticket(number, total), self.batches_per_ticket
        if several == 1 and self.dealing.averages is None:
            return ticket
        return Ticket(ticket, ticket.update, self.dealing.of_all(ticket.batch) * several, ticket.share)

    def ready(self, ticket: Ticket) -> bool:
        """True when the version that this ticket reads exists; no worker computes before."""
        return self.averaging is None or self.averaging.passed(ticket.update)

    def awaits(self, ticket: Ticket) -> int:  # noqa: ARG002
        """The version that this ticket waits for; NOBODY where it waits for none. The worker sleeps until that version
        is made, and whoever makes it wakes it (`Control.alarms`)."""
        return NOBODY

    @abstractmethod
    def read(self, ticket: Ticket) -> nn.Module:
        """The replica to compute this ticket's gradient on; sets `version_read`."""

    def gradient(self, loss: BatchLoss, replica: nn.Module) -> Gradient:
        """Compute the gradient of `loss(replica)`, touching nothing that is shared."""
        value, gradients = gradients_of(
            loss(replica), self.seat.binding.parameters, self.state.plan.trained_names, self.gradient_by
        )
        return Gradient(gradients, value, self.version_read)

    def take(self, gradient: Gradient) -> None:  # noqa: B027
        """Called with a gradient that a loop of the user's own computed, in place of this rule's `gradient`."""

    def prepare(self, ticket: Ticket, gradient: Gradient) -> Gathered | None:
        """The gradient gathered, checked and clipped; None where the update is to be left out.

        What it returns is this worker's own until its next gradient, and may be written to.
        """
        gathered = self.seat.optimizer.gather(gradient.values)
        if not self.seat.usable(ticket, gradient.loss, gathered):
            return None
        self.seat.clip(ticket.update, gathered)
        return gathered

    @abstractmethod
    def commit(self, ticket: Ticket, gradient: Gradient) -> bool:
        """Apply the gradient to the shared model. False: not applied, the ticket was handed back.

        Called without grad mode, as `ready` and `close` are.
        """

    def train_in_place(self, ticket: Ticket, step: Callable[[], float]) -> None:
        """Let `step`, which returns the loss, write where the model lies: for rules in place with private gradients."""
        raise NotImplementedError(f"{self.name} does not let a step write where the model lies")

    @property
    def lends(self) -> bool:
        """True where the rule has `lend` and `take_back`, and the run is one that they are for."""
        return False

    def lend(self, ticket: Ticket, rows: Mapping[int, NDArray[Any]]) -> Mapping[int, NDArray[Any]]:
        """Rows of tables that a kernel may train in place, as they are at the version that this ticket reads.

        Args:
            ticket: of this worker. The memory that is returned belongs to it.
            rows: position of a parameter → numbers of rows, int64 (n,), each once, none out of range.

        Returns the values of those rows, (n, width), by position.
        """
        raise NotImplementedError(f"{self.name} lends no rows")

    def take_back(self, ticket: Ticket, loss: float) -> None:
        """Called when the kernel has trained the rows that were lent: add what it changed to the shared model."""
        raise NotImplementedError(f"{self.name} lends no rows")

    def compare(self, ticket: Ticket, gradient: Gradient) -> str | None:  # noqa: ARG002
        """Compare a second computation with the first: what differs, in words; None where nothing does."""
        return None

    def worker_of(self, ticket: Ticket) -> int:  # noqa: ARG002
        """The number of the worker that computed this ticket's gradient first."""
        return NOBODY

    def over(self) -> bool:
        """True where no more tickets will come. False where there are none now and more may come: because another
        machine has not sent all its gradients, or because the last version is not averaged yet."""
        return self.averaging is None or bool(self.control[Word.STOP]) or self.averaging.over()

    def observe(self, version: int, slot: int) -> None:
        """`Seat.observe`; a version that machines average is looked at later, when it has become the mean."""
        if self.averaging is None or not self.averaging.at(version):
            self.seat.observe(version, slot)

    def adopt(self, mean: Exchange) -> int:
        """Write the mean of several machines over the newest version; returns its slot. Called under the commit lock,
        while no worker of this machine trains."""
        version, slot = self.newest(self.state)
        mean.give(self.state.values(version, slot))
        return slot

    def close(self) -> None:  # noqa: B027
        """Called in each worker when there are no more tickets."""

    def settle(self, state: SharedState, ticket: int, phase: Phase) -> Settled:  # noqa: ARG002
        """What becomes of a ticket whose owner died in that phase. The parent asks, and holds the ticket lock."""
        if phase is Phase.WRITING:
            return Settled.DOUBTED
        return Settled.AGAIN if phase is Phase.COMPUTING else Settled.DONE

    def begin(self, control: Control, version: int) -> None:
        """Called in the parent before any worker starts. The run begins with this version, which lies in the slot
        `place(version)`."""
        control[Word.BASE] = version
        control[Word.OBSERVED] = control[Word.EVALUATED] = version

    def place(self, version: int) -> int:  # noqa: ARG002
        """The number of the slot in which that version lies."""
        return 0

    def window(self, version: int) -> range:
        """The versions that a run needs to go on from this one: it, and older ones that later updates still read."""
        return range(version, version + 1)

    def newest(self, state: SharedState) -> tuple[int, int]:
        """(version, number of its slot) of the newest complete version."""
        return state.control.commits(), 0
