"""What is to be done: the arguments of `train` or `launch`, checked one by one but not yet together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from hogwild.config import RunConfig
from hogwild.data.before import DataBefore
from hogwild.data.sources import DatasetSource, Source, TensorSource, as_source, batches_of
from hogwild.nodes.party import Party
from hogwild.optim.factory import Factory
from hogwild.optim.rates import RateTable, SchedulerFactory
from hogwild.rules.base import Rule
from hogwild.run.callback import CallbackList
from hogwild.run.progress import Trace
from hogwild.shared.dealing import Averages
from hogwild.shared.tickets import Ticket
from hogwild.workers.worker import Worker

Loss = Callable[[nn.Module, Any], Any]
Evaluate = Callable[[nn.Module], dict[str, float]]
Again = Callable[[Worker, Ticket, nn.Module], tuple[Sequence[Tensor | None] | Mapping[str, Any], float]]


@dataclass(frozen=True)
class Job:
    """A run that is asked for.

    Attributes:
        config: its settings.
        rule: its rule, not yet attached to a worker.
        model, optimizer, loss, lr_schedule, evaluate: what the caller gave.
        source: the batches of the data; None where a loop of the caller's makes them.
        work: the loop that each worker runs.
        callbacks: the caller's, with `stop` and `progress` among them.
        out, resume: the folder to save the run in, and the folder of the run to go on with.
        trace: versions of the model that are shown to somebody during the run.
        intra_op: torch threads that each worker computes with.
        overwrite: whether a run that is in `out` is replaced.
        maker: the function that was called: train, train_kernel, launch; or "experiment".
        caller_config: settings of the caller's own, for the record.
        refuses_hidden_state: whether a run that promises the same bits is refused where the code that it is given keeps
            state.
        change: settings that a resumed run goes on with in place of its own.
        again: computes a gradient a second time, where `work` is the caller's.
        sparse: the names of the tables that `work` commits row gradients of.
        party: the machines that train together, where there are several.
        kind, kind_because: "threads" or "processes", and why, where "auto" was asked for. Empty until it is decided.
        data_before: what the data set held before it was used.
        copied_together: model and loss have something in common, or reach each other by a closure or a global, so that
            workers that are processes get copies of both, made together. A copy of the model alone is something else.
        out_as_given: `out` as the caller wrote it; set when `out` becomes an absolute path.
    """

    config: RunConfig
    rule: Rule
    model: nn.Module
    optimizer: Factory
    source: Source | None
    loss: Loss | None
    work: Callable[[Worker], None]
    lr_schedule: Callable[[int], float] | SchedulerFactory | RateTable | None
    evaluate: Evaluate | None
    callbacks: CallbackList
    out: Path | None
    resume: Path | None
    trace: Trace | None = None
    intra_op: int = 1
    overwrite: bool = False
    maker: str = "train"
    caller_config: Mapping[str, Any] = field(default_factory=dict)
    refuses_hidden_state: bool = True
    change: Mapping[str, Any] = field(default_factory=dict)
    again: Again | None = None
    sparse: Sequence[str] = ()
    party: Party | None = None
    kind: str = ""
    kind_because: str = ""
    data_before: DataBefore | None = None
    copied_together: bool = False
    out_as_given: Path | None = None

    @property
    def anchored(self) -> Job:
        """The same, with folders that stay where they are wherever the caller's code goes."""
        out, resume = (folder.absolute() if folder is not None else None for folder in (self.out, self.resume))
        return replace(self, out=out, resume=resume, out_as_given=self.out)

    @property
    def averages(self) -> Averages | None:
        """How its machines average, where they train apart."""
        config = self.config
        if self.party is None or config.average_every is None:
            return None
        momentum = 0.9 if config.outer_momentum is None else config.outer_momentum
        return Averages(config.average_every, config.outer_lr, momentum)

    @property
    def _shares(self) -> int:
        """Machines that the batches are dealt to, where each makes updates of its own."""
        return self.party.nodes if self.party is not None and self.averages is not None else 1

    @property
    def factors(self) -> Callable[[int], float] | None:
        """The schedule, where it is a function that workers ask."""
        schedule = self.lr_schedule
        return None if isinstance(schedule, SchedulerFactory | RateTable) else schedule

    @property
    def goes_on(self) -> bool:
        """True where it goes on with a run in that run's own folder."""
        return self.out is not None and self.resume is not None and self.out.resolve() == self.resume.resolve()

    @property
    def judges(self) -> bool:
        """True where versions are evaluated here: of several machines one does."""
        return self.party is None or self.party.leads

    @property
    def batches(self) -> int:
        """Batches of the whole run, those of other machines included.

        Raises:
            ArgumentError: epochs are given, and the source does not say how long one is.
        """
        return self._batches(self.config.limit_updates)

    @property
    def planned_batches(self) -> int:
        """Those that it would have without `limit_updates`, so that a schedule is the same with it."""
        return self._batches(None)

    def _batches(self, limit: int | None) -> int:
        epochs, updates = self.config.epochs, self.config.updates
        return batches_of(self.source, epochs=epochs, updates=updates, per_update=self._per_update, limit=limit)

    @property
    def tickets(self) -> int:
        """Tickets of the whole run; of machines that train apart those of each. Errors are those of `batches`."""
        return self._tickets(self.batches)

    def _tickets(self, batches: int) -> int:
        return -(-batches // self.rule.batches_per_ticket) // self._shares

    @property
    def updates(self) -> int:
        """Updates of the whole run; errors are those of `batches`."""
        return -(-self.tickets // self.rule.tickets_per_update)

    @property
    def planned_updates(self) -> int:
        """Those that it would make without `limit_updates`."""
        return -(-self._tickets(self.planned_batches) // self.rule.tickets_per_update)

    @property
    def updates_per_epoch(self) -> int | None:
        """Updates of an epoch, to the nearest; None where the run is not of whole epochs."""
        epochs = self.config.whole_epochs
        return max(1, round(self.updates / epochs)) if epochs else None

    @property
    def evaluate_every(self) -> int:
        """Updates between evaluations; 0 where nothing is to be evaluated on the way, or waited for."""
        if not self.callbacks.may_stop and (self.evaluate is None or not self.judges):
            return 0
        length = self._epoch_length
        epoch = -(-length // self._per_update) if length is not None else 0
        if self.averages is not None:
            epoch = self.averages.from_or_after(epoch)
        return self.config.evaluate_every or epoch

    def epochs_made(self) -> Callable[[int], float | None]:
        """What tells the passes over the data that so many updates make; None where an epoch has no length."""
        try:
            length = self._epoch_length
        except Exception:  # of a source that nobody else asks
            length = None
        per_update, batches = self._per_update, self.batches
        return lambda updates: min(updates * per_update, batches) / length if length else None

    @property
    def _epoch_length(self) -> int | None:
        """Batches of an epoch; None where the source does not say."""
        length = getattr(self.source, "__len__", None)
        return None if length is None else int(length())

    @property
    def awaits_evaluations(self) -> bool:
        """True where a version that is to be evaluated is not passed before it is: the run may end there, or a later
        checkpoint is to know the best version up to it."""
        return self.callbacks.may_stop or (self.config.keep_best is not None and self.out is not None)

    @property
    def _per_update(self) -> int:
        """Batches of an update, on all machines together."""
        return self.rule.tickets_per_update * self.rule.batches_per_ticket * self._shares

    def samples_between(self, first: int, last: int, first_batch: int) -> int:
        """Samples that updates `first` to `last` − 1 train on; `first_batch` is the size of a batch, for sources that
        do not say."""
        return self._samples_before(last, first_batch) - self._samples_before(first, first_batch)

    def _samples_before(self, update: int, first_batch: int) -> int:
        batches = min(update * self._per_update, self.batches)
        if isinstance(self.source, TensorSource | DatasetSource):
            schedule = self.source.schedule
            epochs, rest = divmod(batches, len(schedule))
            return epochs * schedule.visited + min(rest * schedule.batch_size, schedule.visited)
        return batches * first_batch


def source_in(data: Any, config: RunConfig, collate: Callable[[list[Any]], Any] | None) -> Source:
    """The source of the batches of `data` under these settings.

    Raises:
        ArgumentError: it has none, as `as_source` says.
    """
    return as_source(
        data,
        batch_size=config.batch_size,
        drop_last=config.drop_last,
        shuffle=config.shuffle,
        seed=config.seed,
        collate=collate,
    )
