"""What is checked: a training that can be repeated, and, where it is ours, varied in one thing at a time.

    subject.repeat()           → Outcome      the training as it is
    subject.repeat(variation)  → Outcome      with one thing changed

Ours are trainings by `hogwild.train`; others are any function that trains, and any command.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hogwild.config import AUTO, RunConfig
from hogwild.data.sources import Source, batches_of
from hogwild.determinism.flip import add_one_ulp, most_sensitive
from hogwild.determinism.states import StateLike
from hogwild.errors import ArgumentError, WorkerError, a_type
from hogwild.experiment import Problem, Training, bound, optimizer_named
from hogwild.nodes.party import party_from_environment
from hogwild.optim.factory import Factory
from hogwild.rules import Rule, make_rule
from hogwild.rules.registry import title_of
from hogwild.run.callback import CallbackList
from hogwild.run.job import source_in
from hogwild.run.progress import Trace
from hogwild.run.result import Run
from hogwild.run.state_dicts import tensors_of
from hogwild.run.training import train_config

_SILENCE = 60.0  # seconds; no machine is to be lost in a check


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
        stops: whether its `stop` may end it.
        nodes: how many machines train, each in an interpreter of its own (`hogwild.determinism.fresh`).
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    rule: Rule | None = None
    ulp: int = 0
    intra_op: int = 1
    at: frozenset[int] = frozenset()
    stops: bool = True
    nodes: int = 1


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

    def settle(self, outcome: Outcome) -> None:  # noqa: B027
        """Have what a first repeat has chosen, as the kind of worker, in all that follow."""


class OwnTraining(Subject):
    """A training by `hogwild.train`.

    Args:
        config: its settings.
        build: seed → the problem; called for every repeat.
        optimizer: the factory.
        rule: in place of the one that the settings name.
        others: further arguments of `train_config`: `collate`, `lr_schedule`, `stop`, `callbacks`.
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
        self.config = replace(config, on_worker_failure="raise", checkpoint_every=None, keep_best=None, patience=None)
        self.build = build
        self.optimizer = optimizer
        self.rule = rule
        self.others = dict(others or {})

    @property
    def title(self) -> str:  # type: ignore[override]
        """What is trained, on one line."""
        return title_of(self.config)

    @classmethod
    def of_experiment(cls, training: Training, config: RunConfig) -> OwnTraining:
        """An experiment of the command line, with these settings."""
        data = Path(config.data) if config.data else None
        return cls(
            config,
            partial(_built, bound(training, config), data),
            optimizer_named(config.optimizer or "sgd", config.lr, config.groups),
        )

    def rule_of(self, variation: Variation = AS_IT_IS) -> Rule:
        """The rule under which it trains; one in place of its own takes gradients as its own does."""
        config = replace(self.config, **variation.settings)
        own = self.rule if config.update == self.config.update else None
        rule = make_rule(own or config.update, config)
        if variation.rule is None:
            return rule
        variation.rule.gradient_by = rule.gradient_by
        return make_rule(variation.rule, config)

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
            refuses_hidden_state=False,
            party=party_from_environment(None, _SILENCE) if variation.nodes > 1 else None,
            **self._others(problem, variation),
        )
        refuse_incomplete(run)
        logits, targets = _predicted(problem)
        state = tensors_of(run.state)
        outcome = Outcome(state, run.digest, run, {**trace, run.updates: state}, logits, targets)
        self.settle(outcome)
        return outcome

    def settle(self, outcome: Outcome) -> None:
        """Train by the kind of worker that this one was trained by, where it is left open."""
        if self.config.kind == AUTO and outcome.run is not None:
            self.config = replace(self.config, kind=outcome.run.kind)

    def _others(self, problem: Problem, variation: Variation) -> dict[str, Any]:
        """The further arguments, with those callbacks that may stop it, where any may: the others change nothing."""
        if not variation.stops:
            return {key: value for key, value in self.others.items() if key not in ("stop", "callbacks")}
        given = CallbackList([*problem.callbacks, *self.others.get("callbacks", ())])
        return {**self.others, "callbacks": given.that_have("should_stop")}

    def source(self) -> tuple[Problem, Source]:
        """The problem and the source of its batches."""
        problem = self.build(self.config.seed)
        config = self.config
        return problem, source_in(problem.data, config, self.others.get("collate"))

    @cached_property
    def updates(self) -> int:
        """The updates that it makes, unless its `stop` ends it before.

        Raises:
            ArgumentError: epochs are given, and the source does not say how long one is.
        """
        rule = self.rule_of()
        per_update = rule.tickets_per_update * rule.batches_per_ticket
        _, source = self.source()
        epochs, updates, limit = self.config.epochs, self.config.updates, self.config.limit_updates
        batches = batches_of(source, epochs=epochs, updates=updates, per_update=per_update, limit=limit)
        return -(-batches // per_update)

    def _flip(self, problem: Problem, number: int) -> None:
        _, source = self.source()
        by = self.rule_of().gradient_by
        add_one_ulp(*most_sensitive(problem.model, problem.loss, source, self.config.seed, number, by=by))


def _predicted(problem: Problem) -> tuple[Tensor | None, Tensor | None]:
    """Logits and targets of its trained model, in eval mode, where it has a function that gives them."""
    if problem.predict is None:
        return None, None
    with torch.no_grad():
        predicted: Any = problem.predict(problem.model.eval())
    if not isinstance(predicted, tuple | list) or len(predicted) != 2:
        shape = f" of shape {tuple(predicted.shape)}" if isinstance(predicted, Tensor) else ""
        found = f"predict gave {a_type(predicted)}{shape}"
        raise ArgumentError(f"{found}; it must give (logits of shape (N, C), targets of shape (N,))")
    logits, targets = predicted
    return logits, targets


def _built(training: Training, data: Path | None, seed: int) -> Problem:
    return training.build(seed, data)


def refuse_incomplete(run: Run) -> None:
    """A run that did nothing, or lost a worker, is no evidence of anything."""
    if run.failures:
        raise WorkerError(f"a repeat lost a worker and is not counted: {'; '.join(run.failures)}")
    if run.updates == 0:
        raise WorkerError("a repeat made no update; there is nothing to compare")


def logits_of(outcome: Outcome) -> tuple[Tensor, Tensor | None] | None:
    """The predictions of an outcome, and the targets where it tells them; None where it has none."""
    return None if outcome.logits is None else (outcome.logits, outcome.targets)
