"""What is checked: a training that can be repeated, and, where it is ours, varied in one thing at a time.

    subject.repeat()  → Outcome          the training as it is
    subject.vary(…)   → Outcome          with one thing changed; None where that cannot be done

Ours are trainings by `hogwild.train`; others are any function that trains, and any command.
"""

from __future__ import annotations

import copy
import shlex
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from hogwild.config import RunConfig
from hogwild.determinism.flip import add_one_ulp, most_sensitive
from hogwild.determinism.states import StateLike, digest, opened
from hogwild.errors import ArgumentError, WorkerError
from hogwild.experiment import Problem, Training, optimizer_named
from hogwild.optimizer_state import Factory
from hogwild.rules import Rule, make_rule
from hogwild.run import Run
from hogwild.schedule import Source, as_source
from hogwild.trainer import train_config
from hogwild.watcher import Trace


@dataclass(frozen=True)
class Outcome:
    """What one training came to.

    `trace` holds the state dict of versions on the way; `logits` (N, C) and `targets` (N,) are predictions on the
    evaluation set, where there are any; `run` is None for a training that is not ours.
    """

    state: StateLike
    digest: str
    run: Run | None = None
    trace: Mapping[int, Mapping[str, Tensor]] = field(default_factory=dict)
    logits: Tensor | None = None
    targets: Tensor | None = None

    @property
    def accuracy(self) -> float | None:
        """The share of evaluation samples classified right, where the training tells it."""
        return self.run.metrics.get("accuracy") if self.run is not None else None


@dataclass(frozen=True)
class Variation:
    """What is changed of a training.

    Attributes:
        settings: fields of its `RunConfig`.
        rule: in place of its own.
        ulp: k adds one ULP to the k-th most sensitive weight of the initial model; 0 to none.
        intra_op: torch threads of a worker.
        at: versions to trace.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    rule: Rule | None = None
    ulp: int = 0
    intra_op: int = 1
    at: frozenset[int] = frozenset()


AS_IT_IS = Variation()


class Subject(ABC):
    """A training that can be repeated."""

    title: str

    @abstractmethod
    def repeat(self, variation: Variation = AS_IT_IS) -> Outcome:
        """Train once more, from the beginning, with that variation.

        Raises:
            WorkerError: the training could not be done.
            ArgumentError: it cannot be varied, or gave no state.
        """


class OwnTraining(Subject):
    """A training by `hogwild.train`.

    Args:
        config: its settings.
        build: seed → the problem; called for every repeat.
        optimizer: the factory.
        rule: in place of the one that the settings name.
        others: further arguments of `train_config`: `collate`, `lr_schedule`.
    """

    def __init__(
        self,
        config: RunConfig,
        build: Callable[[int], Problem],
        optimizer: Factory,
        rule: Rule | None = None,
        others: Mapping[str, Any] | None = None,
    ) -> None:
        # A worker that dies must not be passed over: a run without it is not a repeat.
        self.config = replace(config, on_worker_failure="raise", checkpoint_every=None)
        self.title = self.config.title
        self.build = build
        self.optimizer = optimizer
        self.rule = rule
        self.others = dict(others or {})

    @classmethod
    def of_experiment(cls, training: Training, config: RunConfig) -> OwnTraining:
        """An experiment of the command line, with these settings."""
        data = Path(config.data) if config.data else None
        return cls(config, partial(_built, training, data), optimizer_named(config.optimizer or "sgd", config.lr))

    def rule_of(self, variation: Variation = AS_IT_IS) -> Rule:
        """The rule under which it trains."""
        config = replace(self.config, **variation.settings)
        if variation.rule is not None:
            return variation.rule
        if self.rule is not None and config.update == self.config.update:
            return self.rule
        return make_rule(
            config.update, staleness=config.staleness, micro_batches=config.micro_batches, gradient=config.gradient
        )

    def repeat(self, variation: Variation = AS_IT_IS) -> Outcome:
        """Train once more; every worker is a new one."""
        config = replace(self.config, **variation.settings)
        problem = self.build(config.seed)
        if variation.ulp:
            self._flip(problem, variation.ulp - 1)
        trace: dict[int, dict[str, Tensor]] = {}

        def see(version: int, state: Mapping[str, Tensor]) -> None:
            trace[version] = {name: value.clone() for name, value in state.items() if isinstance(value, Tensor)}

        run = train_config(
            config,
            problem.model,
            problem.data,
            problem.loss,
            optimizer=self.optimizer,
            rule=copy.deepcopy(self.rule_of(variation)),
            evaluate=problem.evaluate,
            trace=Trace(variation.at, see) if variation.at else None,
            intra_op=variation.intra_op,
            **self.others,
        )
        _refuse_incomplete(run)
        logits, targets = problem.predict(problem.model) if problem.predict is not None else (None, None)
        return Outcome(run.state, run.digest, run, {**trace, run.updates: dict(run.state)}, logits, targets)

    def source(self) -> tuple[Problem, Source]:
        """The problem and the source of its batches."""
        problem = self.build(self.config.seed)
        config = self.config
        return problem, as_source(
            problem.data,
            batch_size=config.batch_size,
            shuffle=config.shuffle,
            seed=config.seed,
            collate=self.others.get("collate"),
        )

    def _flip(self, problem: Problem, number: int) -> None:
        _, source = self.source()
        add_one_ulp(*most_sensitive(problem.model, problem.loss, source, self.config.seed, number))


def _built(training: Training, data: Path | None, seed: int) -> Problem:
    return training.build(seed, data)


def _refuse_incomplete(run: Run) -> None:
    """A run that did nothing, or lost a worker, is no evidence of anything."""
    if run.failures:
        raise WorkerError(f"a repeat lost a worker and is not counted: {'; '.join(run.failures)}")
    if run.updates == 0:
        raise WorkerError("a repeat made no update; there is nothing to compare")


class Function(Subject):
    """Any function that trains and returns a module, a state dict or a `Run`. It knows no variation."""

    def __init__(self, make_run: Callable[[], Any], title: str | None = None) -> None:
        self.title = title or str(getattr(make_run, "__name__", type(make_run).__name__))
        self._make_run = make_run
        self._seen: list[Any] = []  # held, so that no later result can have the same identity or memory

    def repeat(self, variation: Variation = AS_IT_IS) -> Outcome:
        """Call it, and copy what it returns."""
        if variation != AS_IT_IS:
            raise ArgumentError(f"{self.title} is a function that trains by itself, and cannot be varied")
        made = self._make_run()
        self._refuse_seen(made)
        if isinstance(made, Run):
            _refuse_incomplete(made)
            return Outcome(made.state, made.digest, made)
        state = _copied(made)
        return Outcome(state, digest(state))

    def _refuse_seen(self, made: Any) -> None:
        if made is None:
            raise ArgumentError("make_run returned None; it must return a Run, a module or a state dict")
        if any(made is earlier or _places(made) & _places(earlier) for earlier in self._seen):
            raise ArgumentError(
                "make_run returned an object that it returned before, or tensors in the same memory, and a run is not "
                "compared with itself; build the model inside make_run"
            )
        self._seen.append(made)


def _places(made: Any) -> set[int]:
    """The addresses of the tensors in a result."""
    tensors = made.state if isinstance(made, Run) else made.state_dict() if isinstance(made, nn.Module) else made
    values = tensors.values() if isinstance(tensors, Mapping) else ()
    return {value.data_ptr() for value in values if isinstance(value, Tensor) and value.numel()}


def _copied(made: Any) -> dict[str, Tensor]:
    """The state in memory that later runs do not write to.

    Raises:
        ArgumentError: it is no state, or holds nothing.
    """
    tensors = made.state_dict() if isinstance(made, nn.Module) else made
    if not isinstance(tensors, Mapping):
        raise ArgumentError(
            f"make_run returned a {type(made).__name__}; it must return a Run, a module or a state dict"
        )
    state = {name: value.detach().clone() for name, value in tensors.items() if isinstance(value, Tensor)}
    if not state:
        raise ArgumentError("make_run returned a state without a tensor; there is nothing to compare")
    return state


class Command(Subject):
    """A command that trains in an interpreter of its own and writes its final state to a file.

    Args:
        command: for the shell; `{out}` in it is replaced by the path of a file that does not exist yet.
    """

    def __init__(self, command: str) -> None:
        if "{out}" not in command:
            raise ArgumentError(
                f"command {command!r} does not say where to save its state; write {{out}} where the path belongs"
            )
        self.title = command
        self._command = command
        self._folder = tempfile.TemporaryDirectory(prefix="hogwild-check-")
        self._repeats = 0

    def repeat(self, variation: Variation = AS_IT_IS) -> Outcome:
        """Run it, and find the file it wrote."""
        if variation != AS_IT_IS:
            raise ArgumentError("a command trains by itself, and cannot be varied")
        self._repeats += 1
        out = Path(self._folder.name) / f"run-{self._repeats}"
        command = self._command.replace("{out}", shlex.quote(str(out)))
        done = subprocess.run(command, shell=True, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode != 0:
            told = done.stdout.decode(errors="replace").strip()
            raise WorkerError(f"repeat {self._repeats} of the command ended with status {done.returncode}\n{told}")
        path = out / "model.safetensors" if out.is_dir() else out
        if not path.is_file():
            raise WorkerError(f"repeat {self._repeats} of the command ended well but wrote no file to {{out}}")
        with opened(path, f"what repeat {self._repeats} wrote") as state:
            if not state.names:
                raise WorkerError(f"repeat {self._repeats} of the command wrote a file without a tensor")
        return Outcome(path, digest(path))

    def close(self) -> None:
        """Remove what the command wrote."""
        self._folder.cleanup()


def logits_of(outcome: Outcome) -> tuple[Tensor, Tensor] | None:
    """The predictions of an outcome, where it has any."""
    if outcome.logits is None or outcome.targets is None:
        return None
    return outcome.logits, outcome.targets
