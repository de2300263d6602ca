"""`hogwild bench --profile`: every moment of a step counts once, for what was running."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import psutil
import pytest
from torch import Tensor, nn
from traits import NAMES, OWN_GRADIENTS

from hogwild.bench import profile
from hogwild.bench.measure import Case
from hogwild.bench.plan import BenchSettings, profile_plan_of
from hogwild.bench.problems import PROBLEMS, BenchProblem, clusters, cross_entropy, small_mlp
from hogwild.bench.profile import PHASES, Clock, Profile, ProfilePlan, TimedLock, copy_rate, profiles
from hogwild.cli.bench import BenchCommand
from hogwild.data.sources import TensorSource
from hogwild.errors import ArgumentError
from hogwild.optim.gradients import Gathered
from hogwild.optim.stepping import SharedOptimizer
from hogwild.workers import worker_info


@pytest.fixture(autouse=True)
def _few_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of as many bytes: they are the most of what a short profile takes."""
    monkeypatch.setattr(profile, "_COPIES", 1)


class Hand:
    """A clock that goes on only when it is told to, in nanoseconds."""

    def __init__(self) -> None:
        self.at = 0

    def __call__(self) -> int:
        return self.at

    def before(self, function: Callable[..., Any], nanoseconds: int) -> Callable[..., Any]:
        """The function, which now takes that long."""

        def call(*arguments: Any, **named: Any) -> Any:
            self.at += nanoseconds
            return function(*arguments, **named)

        return call


@pytest.fixture
def hand(monkeypatch: pytest.MonkeyPatch) -> Hand:
    hand = Hand()
    monkeypatch.setattr(profile, "_now", hand)
    return hand


TINY = replace(PROBLEMS["small-mlp"], generate=partial(clusters, 256, 64), build=small_mlp)


def profiled(problem: BenchProblem, rule: str, kind: str = "threads", workers: int = 1, **plan: Any) -> Profile:
    settings = {"allow": 2, "repeats": 1, "seconds": 0.05} | plan
    (found,) = profiles(ProfilePlan([Case(problem, "sgd", 16)], [(rule, kind, workers)], **settings), 1e9)
    assert isinstance(found, Profile), found
    return found


class Lock:
    def __init__(self, enter: Callable[[], None]) -> None:
        self._enter = enter

    def acquire(self, blocking: bool = True) -> bool:
        self._enter()
        return True

    def release(self) -> None:
        pass


def test_a_clock_counts_each_moment_once(hand: Hand) -> None:
    clock = Clock()
    inner = clock.timed("wait", hand.before(lambda: None, 5))
    clock.timed("commit", hand.before(inner, 3))()
    with TimedLock(clock, Lock(hand.before(lambda: None, 7))):
        hand.at += 11
    assert clock.stop() == dict.fromkeys(PHASES, 0) | {"commit": 3, "wait": 12, "rest": 11}


def test_a_call_that_raises_ends_its_phase(hand: Hand) -> None:
    def fails() -> None:
        raise KeyError

    clock = Clock()
    with pytest.raises(KeyError):
        clock.timed("batch", hand.before(fails, 3))()
    hand.at += 5
    assert clock.stop() == dict.fromkeys(PHASES, 0) | {"batch": 3, "rest": 5}


@pytest.mark.parametrize("rule", NAMES)
def test_time_is_counted_where_it_goes(rule: str, hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        value = hand.before(cross_entropy, 5)(model, batch)
        value.register_hook(hand.before(lambda gradient: None, 7))
        return value

    monkeypatch.setattr(worker_info, "mix", hand.before(worker_info.mix, 11))
    monkeypatch.setattr(TensorSource, "batch", hand.before(TensorSource.batch, 13))
    monkeypatch.setattr(Gathered, "finite", hand.before(Gathered.finite, 17))
    monkeypatch.setattr(SharedOptimizer, "_set_options", hand.before(SharedOptimizer._set_options, 20))
    found = profiled(replace(TINY, loss=loss), rule)
    spent = {phase: round(1e9 * spread.median, 6) for phase, spread in found.phases.items()}
    assert spent == {
        "schedule": 11,
        "batch": 13,
        "forward": 5,
        "backward": 7,
        "wait": 0,
        "commit": 10 if rule == "sync" else 20,  # half a step of the optimizer per batch
        "telemetry": 17,
        "rest": 0,
    }
    assert 1e9 * found.step.median == pytest.approx(sum(spent.values()))


def slow_loss(model: nn.Module, batch: Any) -> Tensor:
    time.sleep(0.004)
    return cross_entropy(model, batch)


def test_workers_that_wait_for_each_other() -> None:
    """Under `sync` whoever has a micro-batch done waits for the other one."""
    found = profiled(replace(TINY, loss=slow_loss), "sync", kind="processes", workers=2)
    assert found.phases["wait"].median > 0
    assert found.phases["forward"].median >= 0.004


def test_the_limit_of_a_commit() -> None:
    found = profiled(TINY, "hogwild")
    assert found.parameters == 2410 and found.traffic == 3 * 4 * 2410
    assert found.limit == pytest.approx(found.traffic / 1e9)
    assert profiled(replace(TINY, sparse=True), "hogwild").limit is None


def test_the_copy_rate_is_that_of_a_machine() -> None:
    assert 1e8 < copy_rate() < 1e13


def test_a_rule_that_is_refused_is_told() -> None:
    def refused(model: nn.Module, batch: Any) -> Tensor:
        raise ValueError("no")

    plan = ProfilePlan([Case(replace(TINY, loss=refused), "sgd", 16)], [("hogwild", "threads", 1)], 2, 1, 0.05)
    (line,) = profiles(plan, 1e9)
    assert isinstance(line, str) and "small-mlp" in line and "hogwild" in line and "no" in line


def test_settings() -> None:
    plan = profile_plan_of(BenchSettings())
    assert [case.problem.name for case in plan.cases] == [*PROBLEMS]
    assert {(case.batch_size, case.optimizer) for case in plan.cases} == {(16, "sgd")}
    assert plan.runners == [(rule, "processes", number) for rule in ("hogwild", "ordered") for number in (1, 2)]
    with pytest.raises(ArgumentError, match="'serial'"):
        profile_plan_of(BenchSettings(contenders=["serial"]))


def bench(**arguments: Any) -> BenchCommand:
    chosen = {"problems": ("small-mlp",), "contenders": ("hogwild",), "kind": ("threads",), "workers": 1}
    return BenchCommand(profile=True, repeats=1, seconds=0.02, **(chosen | arguments))


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(json=True).run() == 0
    out, err = capsys.readouterr()
    (row,) = json.loads(out)["profiles"]
    assert (row["rule"], row["workers"], set(row["phases"])) == ("hogwild", 1, set(PHASES))
    assert row["timers"]["median"] > 0 and row["commit_over_limit"] > 0 and json.loads(out)["copy_bytes_per_second"] > 0
    assert "hogwild" in err


def test_the_table_fits_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    bench(contenders=OWN_GRADIENTS).run()
    out, _ = capsys.readouterr()
    assert "…" not in out and "telemetry" in out and "GB/s" in out
    assert all(len(line) <= 80 for line in out.splitlines())


def test_a_profile_draws_what_it_predicts(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    bench(plot=tmp_path / "figure.png").run()
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert "Predicted, not measured" in " ".join(capsys.readouterr().out.split())


def test_a_profile_leaves_no_shared_memory_to_the_garbage_collector() -> None:
    """What is wrapped around a worker's methods refers back to it; a profile takes it off again."""
    profiled(TINY, "hogwild")  # what is opened once
    gc.collect()
    gc.disable()
    try:
        before = psutil.Process().num_fds()
        profiled(TINY, "hogwild")
        assert psutil.Process().num_fds() == before
    finally:
        gc.enable()
