"""The one loop: what a worker does, thread or process, ours or a user's.

    claim → read → batch and gradient → commit → claim …

A worker waits only in `claim` (for the version it is to read) and in `commit` (for its turn), and in both it gives
its ticket back when an earlier one was left by a dead worker and nobody has taken it.
"""

from __future__ import annotations

import copy
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hogwild.audit import Account
from hogwild.checkpoint import Checkpointer
from hogwild.control import Field, Seam, Word, nothing_planted
from hogwild.errors import ArgumentError, NonFiniteError
from hogwild.optimizer import Gathered, SharedOptimizer
from hogwild.optimizer_state import Factory
from hogwild.replica import Binding
from hogwild.rules import Gradient, Rule
from hogwild.schedule import DatasetSource, Source, TensorSource
from hogwild.seeding import BitFlags, mix, seed_generators
from hogwild.state import SharedState, StatePlan
from hogwild.workers.generator import SharedGenerator
from hogwild.workers.grad import WithoutGrad
from hogwild.workers.observer import Observer


@dataclass(frozen=True)
class Task:
    """What every worker of a run is given; the parts that are functions may be lambdas and closures.

    `evaluate_every`, `checkpoint_every` and the plan's `digest_every` count versions; 0 is never. The versions in
    `traced` are shown to the parent too. `stops` says that an evaluation may end the run, so that training waits for
    it. `pause` is called at each named seam.
    """

    plan: StatePlan
    rule: Rule
    work: Callable[[Worker], None]
    source: Source | None
    loss: Callable[[nn.Module, Any], Any] | None
    optimizer: Factory
    lr_schedule: Callable[[int], float] | None
    clip_grad_norm: float | None
    on_nonfinite: str
    seed: int
    flags: BitFlags
    evaluate_every: int
    traced: frozenset[int]
    stops: bool
    checkpoint: Checkpointer | None
    pause: Pause | None


Pause = Callable[[Seam, "Worker"], None]
"""What a test plants: called in the worker at every seam."""

Log = Callable[[int, int, dict[str, float]], None]
"""Called with update, batch and named numbers."""

planted: ContextVar[Pause | None] = ContextVar("planted", default=None)
"""What the runs started in this context carry to their workers."""


class WorkerInfo:
    """What code inside a worker may know about it, as `torch.utils.data.get_worker_info` does for loaders.

    Attributes:
        index: number of the worker, from 0.
        workers: how many there are.
        update: number of the update being computed.
        batch: number of the batch it is computed on: that of the update, except under `sync`, whose updates are made of
            several.
        seed: of the run.
        generator: a `torch.Generator` seeded by (seed, batch). Until it is first asked for nobody can draw from it,
            and it is not seeded; from then on it is at every batch, for it may be kept.
    """

    def __init__(self, index: int, workers: int, seed: int, log: Log) -> None:
        self.index = index
        self.workers = workers
        self.update = -1
        self.batch = -1
        self.seed = seed
        self._generator = torch.Generator()
        self._known = False  # somebody may hold the generator
        self._number = 0
        self._log = log

    @property
    def generator(self) -> torch.Generator:
        """A generator seeded by (seed, batch)."""
        if not self._known:
            self._known = True
            self._generator.manual_seed(self._number)
        return self._generator

    def log(self, **metrics: float) -> None:
        """Record named numbers for this batch; they appear in `run.logged`."""
        self._log(self.update, self.batch, {name: float(value) for name, value in metrics.items()})

    def start(self, update: int, batch: int) -> int:
        """Begin a batch of that update; returns the number that its generators are seeded by."""
        self.update = update
        self.batch = batch
        self._number = mix(self.seed, batch)
        if self._known:
            self._generator.manual_seed(self._number)
        return self._number


_UNUSED = torch.Generator()
_local = threading.local()


def worker_info() -> WorkerInfo | None:
    """Inside a worker, what it may know of itself; outside, None."""
    return getattr(_local, "info", None)


@contextmanager
def informed(info: WorkerInfo) -> Iterator[None]:
    """Inside, this thread is that worker."""
    _local.info = info
    try:
        yield
    finally:
        _local.info = None


class Worker:
    """One worker, as the loop, the rules and a user's own `work(worker)` see it.

    Attributes:
        index: number of the worker, from 0.
        replica: its module.
        info: the `WorkerInfo` of this worker.
    """

    def __init__(
        self,
        index: int,
        task: Task,
        state: SharedState,
        replica: nn.Module,
        parameters: Sequence[nn.Parameter],
        *,
        owns_process: bool,
        log: Log,
    ) -> None:
        self.index = index
        self.task = task
        self.state = state
        self.control = state.control
        self.control.announce_waits(index)
        self.replica = replica
        self.binding = Binding(replica, parameters, task.plan.buffers)
        self.optimizer = SharedOptimizer(
            task.optimizer,
            list(replica.named_parameters()),
            parameters,
            task.plan.optimizer,
            task.lr_schedule,
        )
        self.info = WorkerInfo(index, task.plan.workers, task.seed, log)
        self.rule = copy.deepcopy(task.rule)
        self._observer = Observer(
            state,
            self.rule,
            index,
            evaluate_every=task.evaluate_every,
            traced=task.traced,
            stops=task.stops,
            checkpoint=task.checkpoint,
        )
        self._owns_process = owns_process
        self._row = self.control.row(index)
        self._quietly = WithoutGrad()
        self._account = Account(task.plan.parameters) if task.plan.audited else None
        self._left_out = False
        watched = self.rule.same_bits and not owns_process
        self._generator = SharedGenerator(state.control, index, self.rule.name) if watched else None
        trained = {id(parameter): i for i, parameter in enumerate(parameters)}
        self._order = [trained[id(p)] for p in replica.parameters() if id(p) in trained]
        if task.pause is not None:
            self.control.pause = self.pause
        self.rule.attach(self)

    def run(self) -> None:
        """Do the task's work until there are no more tickets, and let go of the shared memory."""
        try:
            with informed(self.info):
                self.task.work(self)
            self._report()
        finally:
            self.rule.detach()
            self.control.pause = nothing_planted

    @property
    def ticket(self) -> int:
        """The number of the ticket this worker owns; −1 where it owns none."""
        return self._row[Field.TICKET]

    @property
    def tickets_handed_out(self) -> int:
        """How many tickets all workers together have taken."""
        return self.control[Word.NEXT]

    # --- the calls that a loop is written in

    def claim(self) -> int | None:
        """The number of an update that is this worker's to compute, once the version it reads exists. None: done."""
        with self._quietly:
            while True:
                self.pause(Seam.CLAIMING)
                ticket = self.control.claim(self.index)
                if ticket is None:
                    self.rule.close()
                    return None
                if not self._row[Field.STARTED]:
                    self._row[Field.STARTED] = time.monotonic_ns()
                self.pause(Seam.CLAIMED)
                if not self.rule.ready(ticket):
                    self.control.wait_until(partial(self._may_start, ticket), self.index)
                if self.rule.ready(ticket) and ticket < self.control[Word.TOTAL]:  # a version may have ended the run
                    self._begin(ticket)
                    return ticket
                self._leave(ticket)

    def _may_start(self, ticket: int) -> bool:
        control = self.control
        return self.rule.ready(ticket) or ticket >= control[Word.TOTAL] or control.orphan_before(ticket)

    def _leave(self, ticket: int) -> None:
        """Give up a ticket that cannot start: for an orphan, or because the run was stopped before it."""
        if ticket >= self.control[Word.TOTAL]:
            self.control.finish(self.index)
        else:
            self.control.hand_back(self.index)

    def _begin(self, ticket: int) -> None:
        number = self.info.start(self.rule.update_of(ticket), self.rule.batch_of(ticket))
        if self._owns_process:
            seed_generators(number)

    def read(self, update: int) -> nn.Module:
        """The replica, at the version that this update is to be computed on."""
        return self.rule.read(update)

    def batch(self, update: int) -> Any:
        """The batch of that update."""
        source = self.task.source
        if source is None:
            raise ArgumentError("launch() has no data to make batches of; make them in work(worker), or call train()")
        draws = type(source) not in (TensorSource, DatasetSource)  # our own leave the generator alone
        return source.batch(self.rule.batch_of(update), self.info.generator if draws else _UNUSED)

    def gradient(self, update: int, replica: nn.Module) -> Gradient:
        """The gradient of the task's loss on the batch of that update."""
        loss = self.task.loss
        if loss is None:
            raise ArgumentError("launch() has no loss; compute the gradient in work(worker), or call train()")
        batch = self.batch(update)
        self.pause(Seam.COMPUTING)
        gradient = self.rule.gradient(lambda module: loss(module, batch), replica)
        if self._generator is not None and self._generator.moved(self.rule.update_of(update)):
            self._begin(update)
            return self.gradient(update, self.read(update))
        return gradient

    def commit(self, update: int, gradient: Gradient | Sequence[Tensor | None], loss: float = float("nan")) -> bool:
        """Apply a gradient to the shared model.

        `gradient` is what `gradient` returned, or one tensor or None for each trainable parameter in the order of
        `replica.parameters()`. Returns False where the update was handed back because an earlier one was orphaned:
        go on with `claim`, somebody will compute it again.
        """
        if not isinstance(gradient, Gradient):
            values: list[Tensor | None] = [None] * len(self._order)
            for i, value in zip(self._order, gradient, strict=True):
                values[i] = value
            gradient = Gradient(values, loss, self.rule.version_read)
            with self._quietly:
                self.rule.take(gradient)
        self._row[Field.COMPUTED] += 1
        self.pause(Seam.COMMITTING)
        with self._quietly:
            applied = self.rule.commit(update, gradient)
            if not applied:
                self.control.hand_back(self.index)
                return False
            if self._account is not None:
                self._enter(update, gradient)
        self._row[Field.ENDED] = time.monotonic_ns()
        self.control.finish(self.index)
        return True

    # --- what a rule may ask of its worker

    @property
    def ignores_nonfinite(self) -> bool:
        """True where losses and gradients that are not finite are applied like any other."""
        return self.task.on_nonfinite == "ignore"

    def usable(self, update: int, loss: float, gradients: Gathered) -> bool:
        """False where the update is to be left out; see `hogwild.rules.base.Seat`."""
        unknown = math.isnan(loss) and self.task.loss is None  # a loop of the user's own need not tell the loss
        if self.ignores_nonfinite or ((math.isfinite(loss) or unknown) and gradients.finite()):
            return True
        if self.task.on_nonfinite == "skip":
            self._row[Field.SKIPPED] += 1
            self.leave_out()
            return False
        what, untouched = f"the loss is {loss}", "the shared model was not touched by it"
        if math.isfinite(loss):
            what = "the gradient is not finite"
            if self.rule.shares_gradients:
                untouched = "it is in the shared .grad, and another worker may have applied it"
        number, batch = self.rule.update_of(update), self.rule.batch_of(update)
        raise NonFiniteError(
            f"{what} at update {number} (batch {batch}), worker {self.index}; {untouched} "
            f"(a lower learning rate, clip_grad_norm, or on_nonfinite='skip' may help)",
            worker=self.index,
            update=number,
            batch=batch,
        )

    @property
    def audited(self) -> bool:
        """True where this worker keeps an account of the gradients it computes."""
        return self._account is not None

    def leave_out(self) -> None:
        """The update being committed is not applied, on purpose; it stays out of the account."""
        self._left_out = True

    def clip(self, gradients: Gathered) -> None:
        """Clip to `clip_grad_norm` as `torch.nn.utils.clip_grad_norm_` does; see `hogwild.rules.base.Seat`."""
        if self.task.clip_grad_norm is not None:
            gradients.clip(self._order, self.task.clip_grad_norm)

    def due(self, version: int) -> bool:
        """True when something looks at that version."""
        return self._observer.due(version)

    def observe(self, version: int, slot: int) -> None:
        """Let whatever is due look at a version that is complete and not yet published."""
        self._observer.observe(version, slot)

    def pause(self, seam: Seam) -> None:
        """A named seam of the protocol, at which tests plant delays and kills."""
        if self.task.pause is not None:
            self.task.pause(seam, self)

    def _enter(self, ticket: int, gradient: Gradient) -> None:
        """Enter a gradient in the account, unless it was left out on purpose."""
        left_out, self._left_out = self._left_out, False
        if self._account is None or left_out:
            return
        rates = self.optimizer.rates(self.rule.update_of(ticket))
        self._account.add(gradient.values, self.binding.parameters, rates, self.rule.share_of(ticket))

    def _report(self) -> None:
        """Add this worker's account to those of the others."""
        if self._account is not None and self.state.audit is not None:
            with self.control.commit_lock:
                self.state.audit.take(self._account)


def train_loop(worker: Worker) -> None:
    """Our own work: compute and commit every update there is."""
    while (update := worker.claim()) is not None:
        replica = worker.read(update)
        worker.commit(update, worker.gradient(update, replica))  # no name holds a gradient while the next is computed
