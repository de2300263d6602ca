"""What the parent does while workers train: evaluates the versions they show, keeps the best, tells the callbacks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hogwild.data.seeding import preserved_generators
from hogwild.errors import ArgumentError
from hogwild.kernels.kernel import Kernel
from hogwild.model.computed import compute_weights
from hogwild.run.asked import metrics_of
from hogwild.run.divergence import usual_loss
from hogwild.run.job import Evaluate, Job
from hogwild.run.loss_watch import LossWatch
from hogwild.run.progress import Progress
from hogwild.run.saved.best import BestKeeper
from hogwild.run.saved.metrics import metrics_in
from hogwild.run.state_dicts import own_copies
from hogwild.shared.arena import as_tensor
from hogwild.shared.optimizer_state import AVERAGE
from hogwild.shared.state import SharedState
from hogwild.shared.words import NOBODY, Field, Word
from hogwild.workers.surroundings.blas_threads import TORCHS_TOO, blas_threads

_REPORT_EVERY = 0.2  # seconds
_RECENT = 50  # updates whose mean loss is reported


@contextmanager
def _as_workers_do() -> Iterator[None]:
    """Inside, NumPy computes with one thread; the generators are put back."""
    with blas_threads.one(but=TORCHS_TOO), preserved_generators():
        yield


class Evaluator:
    """Evaluates the versions of a run, in the parent.

    Args:
        job: what is being done.
        state: the parent's view of the shared memory.
        samples: version → samples trained on up to it, in this run.
        keeper: keeps the best version.
        earlier: evaluations of the parts before it was resumed.
        seconds_before: what those parts took.

    Attributes:
        evaluations: of the run, those before it included.
        decided: called with a question; returns what another machine has decided, or None where it has not yet.
        loss_watch: looks whether the loss has risen.
        note: called after each evaluation, before the worker that waits for it goes on; writes it to the record.

    The caller's model is where versions are evaluated: between evaluations it holds the last one shown, in the end
    the newest. It is evaluated in eval mode, without grad. Its training flags are put back after every evaluation, and
    the random generators with them. No worker touches that model or this object; what workers show lies in shared
    memory, and two published words hand it over.
    """

    def __init__(
        self,
        job: Job,
        state: SharedState,
        samples: Callable[[int], int],
        keeper: BestKeeper,
        earlier: Iterable[dict[str, float]] = (),
        seconds_before: float = 0.0,
    ) -> None:
        self.evaluations: list[dict[str, float]] = [*earlier]
        self._seconds_before = seconds_before
        self._samples = samples
        self._model = job.model
        self._parameters = [(parameter, parameter.data) for parameter in job.model.parameters()]
        self._buffers = [(m, name, own) for m in job.model.modules() for name, own in m._buffers.items()]
        self._state = state
        self._rule = job.rule
        self._kind = job.kind
        self._epochs_made = job.epochs_made()
        self._party = job.party
        self.decided: Callable[[str], Any] = job.party.decided if job.party is not None else lambda _: None
        self.note: Callable[[], None] = lambda: None
        self._judges = job.judges
        self._evaluate = job.evaluate if job.judges else None
        self._callbacks = job.callbacks
        self._follows = bool(job.callbacks.that_have("on_progress"))
        self.keeper = keeper
        self._evaluate_every = job.evaluate_every
        self._trace = job.trace
        self._reported = 0.0
        self.loss_watch = LossWatch(state, job.rule, kernel=isinstance(job.source, Kernel))
        self._untold = NOBODY  # a version that was evaluated, and the waiting worker could not be told yet
        self._seen = state.control[Word.OBSERVED]

    def look(self) -> None:
        """Evaluate a version that is shown, if any, and report progress when it is time."""
        with self._state.control.without_waiting():  # a worker may hang with the lock, and is to be found
            self._look()

    def _look(self) -> None:
        control = self._state.control
        version = control.observe(Word.OBSERVED)
        if version > control[Word.EVALUATED] and (version == self._untold or self._look_at(version)):
            self._untold = NOBODY if control.tries_to_publish(Word.EVALUATED, version) else version
        if self._follows and time.monotonic() - self._reported > _REPORT_EVERY:
            self._reported = time.monotonic()
            self._callbacks.tell("on_progress", self.progress())
        self.loss_watch.look()

    def _look_at(self, version: int) -> bool:
        """Evaluate that version. Where another machine evaluates, hear what it decided. False: it has not yet."""
        if self._judges:
            self._take_shown()
            with _as_workers_do():
                self._see(version)
            self.note()
        elif not self._heard(version):
            return False
        self._seen = version
        return True

    def _heard(self, version: int) -> bool:
        """True once another machine has decided whether the run ends at that version; end it there if so."""
        decided = self.decided(f"stop {version}")
        if decided:
            self._end_at(version)
        return decided is not None

    def _end_at(self, version: int) -> None:
        control = self._state.control
        control[Word.TOTAL] = min(control[Word.TOTAL], version * self._rule.tickets_per_update)

    def _see(self, version: int) -> None:
        """Trace and evaluate that version, whichever is due, and end the run there if a callback says so."""
        if self._trace is not None and version in self._trace.at:
            self._trace.see(version, self._model.state_dict())
        if not self._evaluate_every or version % self._evaluate_every:
            return
        self._judge(version, self._take_shown, self._state.observed_average)

    def _judge(self, version: int, take: Callable[[], None], average: Sequence[torch.Tensor]) -> None:
        """Evaluate that version, as `_evaluate_model` does, and end the run there if a callback says so."""
        self._evaluate_model(version, take, average)
        if not self._callbacks.may_stop:
            return
        stops = bool(self._callbacks.says_stop(self.progress(version)))
        if self._party is not None:
            stops = bool(self._party.decide(f"stop {version}", stops))
        if stops:
            self._end_at(version)

    def try_evaluate(self) -> None:
        """Call `evaluate` once before a new run, where a metric is named, so that a name that it does not return is an
        error before anything is trained. What it returns is not kept.

        Where several machines train this is left out, because the others would wait.
        """
        wanted = self.keeper.wanted is not None or bool(self._callbacks.that_have("on_trial"))
        if not wanted or self._party is not None or self._rule.newest(self._state)[0]:
            return
        metrics: dict[str, float] = {}
        if self._evaluate is not None:
            self.take_newest()
            try:
                with _as_workers_do():
                    metrics = self._metrics_of(self._evaluate, "was asked on trial, before the run")
            finally:
                self.take_newest()
            if self._state.average(0):
                metrics = _with_averaged(metrics, metrics)
            self.keeper.try_metrics(metrics)
        self._callbacks.tell("on_trial", MappingProxyType(metrics))

    def take_newest(self) -> None:
        """Give the model the newest complete version; no worker runs any more."""
        version, slot = self._rule.newest(self._state)
        names = [entry.name for entry in self._state.plan.parameters.entries]
        parameters = dict(self._model.named_parameters())
        with torch.no_grad():
            self._state.give_parameters(version, slot, [parameters[name] for name in names])
            self._take_buffers(self._state.slots[slot].buffers)
            compute_weights(self._model)

    def _take_shown(self) -> None:
        self._take(self._state.observed.parameters, self._state.observed.buffers)

    @property
    def shown(self) -> int:
        """The last version whose evaluation is complete, as a checkpoint of the newest version records it. Where `stop`
        is asked, an evaluation is complete once it has decided."""
        if self._rule.versioned:
            return self._rule.newest(self._state)[0]
        if self._callbacks.may_stop or not self.evaluations:
            return self._seen
        return max(self._seen, int(self.evaluations[-1]["update"]))  # an interruption may come right after the row

    def evaluate_start(self, version: int, owed: Iterable[int] = ()) -> None:
        """Evaluate what a resumed run owes: the version that it goes on from, if that was due and the program was
        killed before; under the rules in place, the versions in `owed`.
        """
        for number in owed:
            if number <= self._state.control[Word.TOTAL]:  # the run has not ended at the one before
                self._evaluate_owed(number)
        if not self._rule.versioned:
            return
        if version and self._judges and self._evaluate_every and version % self._evaluate_every == 0:
            self.take_newest()
            if not self._has_evaluated(version):
                self._evaluate_newest()
                self.note()

    def _evaluate_owed(self, version: int) -> None:
        self.take_newest()
        with _as_workers_do():
            self._judge(version, self.take_newest, self._state.average(version))
        self.note()
        self._seen = version
        self._state.control[Word.OBSERVED] = self._state.control[Word.EVALUATED] = version

    def evaluate_newest(self) -> None:
        """Evaluate the final version, unless that was done already, and report progress a last time.

        Under the rules in place what was shown last may lack an update with a lower number.
        """
        version, slot = self._newest()
        if not (self._has_evaluated(version) and (self._rule.versioned or self._was_shown(slot))):
            self._evaluate_newest()
        self._callbacks.tell("on_progress", self.progress())

    def _newest(self) -> tuple[int, int]:
        """The final version and its slot. Under the rules in place it is that of the last evaluation at least, which is
        named by tickets, of which one may be in doubt."""
        version, slot = self._rule.newest(self._state)
        if not self._rule.versioned and self.evaluations:
            version = max(version, int(self.evaluations[-1]["update"]))
        return version, slot

    def _evaluate_newest(self) -> None:
        version, _ = self._newest()
        self._seen = max(self._seen, version)  # which no `stop` is asked about
        with _as_workers_do():
            self._evaluate_model(version, self.take_newest, self._state.average(version))

    def _has_evaluated(self, version: int) -> bool:
        return bool(self.evaluations) and self.evaluations[-1]["update"] == version

    def _was_shown(self, slot: int) -> bool:
        state = self._state
        averages = zip(state.observed_average, state.average(self._rule.newest(state)[0]), strict=True)
        same = torch.equal(as_tensor(state.observed.bytes), as_tensor(state.slots[slot].bytes))
        return same and all(torch.equal(shown, value) for shown, value in averages)

    def progress(self, updates: int | None = None) -> Progress:
        """How the run stands; `updates` are those applied, counted now if None."""
        state = self._state
        control = state.control
        if updates is None:
            updates, _ = self._rule.newest(state)
        first, last = self.span()
        seconds = max(last - first, 0.0)
        recent = state.journal.recent(updates, _RECENT)
        return Progress(
            updates=updates,
            total=-(-control[Word.TOTAL] // self._rule.tickets_per_update),
            seconds=seconds,
            samples_per_second=self._samples(updates) / seconds if seconds else 0.0,
            loss=usual_loss(recent["loss"]),
            per_worker=tuple(control.row(i)[Field.COMPUTED] for i in range(control.workers)),
            metrics=metrics_in(self.evaluations[-1]) if self.evaluations else {},
            staleness=_median(recent["version"] - 1 - recent["version_read"]),
            kind=self._kind,
            epoch=self._epochs_made(updates),
        )

    def span(self) -> tuple[float, float]:
        """CLOCK_MONOTONIC seconds of the first claim and the last commit so far; equal before there are any."""
        rows = [self._state.control.row(i) for i in range(self._state.control.workers)]
        starts = [row[Field.STARTED] for row in rows if row[Field.STARTED]]
        first = min(starts) / 1e9 if starts else time.monotonic()
        return first, max([row[Field.ENDED] / 1e9 for row in rows if row[Field.ENDED]], default=first)

    @torch.no_grad()
    def _take(self, own: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> None:
        """Give the model those parameters and those buffers."""
        self._take_parameters(own)
        self._take_buffers(others)

    @torch.no_grad()
    def _take_buffers(self, others: Sequence[torch.Tensor]) -> None:
        for module, name, buffer in self._buffers:  # a forward pass of `evaluate` may have put another in its place
            module._buffers[name] = buffer
        buffers = dict(self._model.named_buffers())
        _copy(buffers, [entry.name for entry in self._state.plan.buffers.entries], others)

    @torch.no_grad()
    def _take_parameters(self, own: Sequence[torch.Tensor]) -> None:
        parameters = dict(self._model.named_parameters())
        _copy(parameters, [entry.name for entry in self._state.plan.parameters.entries], own)

    def _evaluate_model(self, version: int, take: Callable[[], None], average: Sequence[torch.Tensor]) -> None:
        """Evaluate that version, which the model holds and `take` gives it again, and its moving average, if any."""
        if self._evaluate is None:
            return
        metrics = self._metrics_of(self._evaluate, given := f"was given version {version}")
        if average:
            take()  # the first may have moved buffers
            self._take_parameters(average)
            metrics = _with_averaged(metrics, self._metrics_of(self._evaluate, given))
            take()
        if self._has_evaluated(version):
            self.evaluations.pop()  # it was of a version that was never published, or of a model that was still written
        now = time.monotonic()
        first, _ = self.span()  # later than that where no worker has started yet: the run has taken no time then
        row = {"update": version, "seconds": self._seconds_before + max(now - first, 0.0)}
        self.evaluations.append({**row, **metrics})
        averages = {True: average, False: ()}
        self.keeper.see(self.evaluations[-1], lambda metric: self._state_of(take, averages[_is_averaged(metric)]))
        self._callbacks.tell("on_evaluation", self.progress(version))

    def _metrics_of(self, evaluate: Evaluate, given: str) -> dict[str, float]:
        try:
            return metrics_of(self._model, evaluate, given)
        finally:
            for parameter, own in self._parameters:  # it may have been cast, or moved to another device
                parameter.data = own

    def newest_state(self, average: Sequence[torch.Tensor] = ()) -> dict[str, Any]:
        """The state of the newest version, in memory of its own, or of its moving average; no worker runs any more."""
        return self._state_of(self.take_newest, average)

    def _state_of(self, take: Callable[[], None], average: Sequence[torch.Tensor]) -> dict[str, Any]:
        """The state of a version that `take` gives the model, with its moving average in place of its parameters where
        that is not empty."""
        take()  # an evaluation in training mode moves running averages
        if not average:
            return own_copies(self._model)
        self._take_parameters(average)
        copies = own_copies(self._model)
        take()
        return copies


def _with_averaged(metrics: dict[str, float], of_average: dict[str, float]) -> dict[str, float]:
    """Metrics of a version and, under names of their own, of its moving average."""
    averaged = {f"{AVERAGE}_{name}": value for name, value in of_average.items()}
    if taken := [name for name in averaged if name in metrics]:
        raise ArgumentError(f"evaluate returned a metric {taken[0]!r}, as one of the moving average is named")
    return metrics | averaged


def _is_averaged(metric: str) -> bool:
    """True for a metric of the moving average."""
    return metric.startswith(f"{AVERAGE}_")


def _median(values: NDArray[Any]) -> float:
    return float(np.median(values)) if len(values) else float("nan")


def _copy(targets: Mapping[str, torch.Tensor], names: Sequence[str], values: Sequence[torch.Tensor]) -> None:
    for name, value in zip(names, values, strict=True):
        targets[name].copy_(value)
