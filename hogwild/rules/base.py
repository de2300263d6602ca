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
    loss_told: bool  # of the gradient being committed: NaN is what it is, and not for want of one
    gradient_lost: bool  # it is not finite, and was dropped for that

    def ignores_nonfinite(self, update: int) -> bool:
        """True where the run says `on_nonfinite="ignore"` for that update."""
        ...

    def usable(self, ticket: Ticket, loss: float, gradients: Gathered) -> bool:
        """False: loss or gradient is not finite, and the ticket's update is to be left out.

        Raises:
            NonFiniteError: they are not, and the run says `on_nonfinite="raise"`.
        """
        ...

    def finite(self, update: int, loss: float, gradients: Gathered) -> bool:
        """True where they may be applied: loss and gradient are finite, or the run does not care."""
        ...

    def take_not_finite(self, ticket: Ticket, loss: float) -> None:
        """That loss is of an update that has been applied already, in place.

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
        """What was left out is so for good: its version is published, or there is none, and nobody makes it again."""
        ...

    @property
    def audited(self) -> bool:
        """True where the run keeps an account of the gradients it computes."""
        ...

    def enter(self, update: int, gradients: Sequence[Tensor | None], share: float) -> None:
        """Enter gradients in the account, of which that update is made to a `share`, if there is one."""
        ...

    def leave_out(self) -> None:
        """The update being committed is not applied, on purpose, and will not be computed again."""
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
        """Let whatever is due look at the version in that slot. A rule calls it before it publishes the version, or
        under the commit lock, so that nobody writes the slot meanwhile. `holds_ticket`: the version has nothing of the
        ticket that this worker owns."""
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
    combines: ClassVar[bool] = False  # whoever has nothing better to do makes versions of gradients that wait
    staleness: int | None = None  # how old each version is that is read, where the rule sets it
    compensation: str = "none"  # what is done about the age of gradients
    tickets_per_update: int = 1
    batches_per_ticket: int = 1  # whose gradients a worker averages into one
    gradient_by: str = "grad"
    version_read: int = 0
    dealing: Dealing = ALONE  # whose tickets are computed here, where machines train apart
    averaging: Averaging | None = None  # what is done about versions that machines average; once attached
    rechecks: Rechecks | None = None  # what is computed twice, where a rule has it and the run wants it; once attached

    @classmethod
    def options_for(cls, workers: int) -> Mapping[str, Any]:  # noqa: ARG003
        """The options of this rule that keep so many workers busy, at least its own."""
        return {}

    def made_up_for(self, workers: int) -> Age:  # noqa: ARG002
        """How old the gradients are taken to be by what makes up for it; 0 updates: nothing does."""
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
        """The same with its first batch, where a ticket stands for several that follow each other, or is one of those
        of several machines."""
        ticket, several = self.ticket(number, total), self.batches_per_ticket
        if several == 1 and self.dealing.averages is None:
            return ticket
        return Ticket(ticket, ticket.update, self.dealing.of_all(ticket.batch) * several, ticket.share)

    def ready(self, ticket: Ticket) -> bool:
        """True when the version that this ticket reads exists; no worker computes before."""
        return self.averaging is None or self.averaging.passed(ticket.update)

    def awaits(self, ticket: Ticket) -> int:  # noqa: ARG002
        """The version whose making this ticket waits for, which is then told to `Control.alarms`; NOBODY where it waits
        for none."""
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
        """Take a gradient that a loop of the user's own computed, not `gradient` of this rule."""

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
        """Rows of tables to be trained in place: those numbers, int64 (n,), each once and inside, by the positions of
        the parameters → their values at the version that this ticket reads, (n, width), in memory of the ticket's."""
        raise NotImplementedError(f"{self.name} lends no rows")

    def take_back(self, ticket: Ticket, loss: float) -> None:
        """The rows that were lent are trained: what became of them is added to the shared model."""
        raise NotImplementedError(f"{self.name} lends no rows")

    def compare(self, ticket: Ticket, gradient: Gradient) -> str | None:  # noqa: ARG002
        """What differs between a second computation and the first, in words; None where nothing does."""
        return None

    def worker_of(self, ticket: Ticket) -> int:  # noqa: ARG002
        """Who computed the first."""
        return NOBODY

    def over(self) -> bool:
        """False while there are no more tickets, and may be again: another machine has not brought all of its own, or
        the last version is yet to be averaged."""
        return self.averaging is None or bool(self.control[Word.STOP]) or self.averaging.over()

    def observe(self, version: int, slot: int) -> None:
        """Let whatever is due look at a version in that slot; at one that machines average, once it is the mean."""
        if self.averaging is None or not self.averaging.at(version):
            self.seat.observe(version, slot)

    def adopt(self, mean: Exchange) -> int:
        """Put the mean in place of the newest version; returns its slot. Called under the commit lock, while nobody of
        this machine trains."""
        version, slot = self.newest(self.state)
        mean.give(self.state.values(version, slot))
        return slot

    def close(self) -> None:  # noqa: B027
        """Called in each worker when there are no more tickets."""

    def settle(self, state: SharedState, ticket: int, phase: Phase) -> Settled:  # noqa: ARG002
        """After the owner of the ticket of that number died in that phase: what is to become of the ticket?

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

    def newest(self, state: SharedState) -> tuple[int, int]:
        """(version, number of its slot) of the newest complete version."""
        return state.control.commits(), 0
