"""Every contender of the benchmark does its work, all of it, and leaves nothing; the problems can be learned."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from clocks import Clock
from torch import Tensor, nn
from traits import SAME_BITS

from hogwild.bench import alternatives, children
from hogwild.bench import work as module
from hogwild.bench.contenders import Contender, contenders
from hogwild.bench.measure import FailedMeasurement, attempt
from hogwild.bench.ours import ours
from hogwild.bench.problems import PROBLEMS, BenchProblem, clusters, cross_entropy
from hogwild.bench.work import ContenderError, Measurement, StartLine, Work, share


def tiny() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 10))


TINY = BenchProblem("tiny", "for tests", tiny, partial(clusters, 512, 32), cross_entropy, sgd_lr=1.0)


@pytest.fixture(scope="module")
def data() -> tuple[Tensor, ...]:
    return share(TINY.generate())


EVERYONE = [*contenders(2), *(c for c in contenders(1) if c.family in ("recipe", "ddp"))]


@pytest.mark.parametrize("contender", EVERYONE, ids=lambda contender: contender.name)
def test_every_contender_trains(contender: Contender, data: tuple[Tensor, ...]) -> None:
    """The number of batches and samples is exact, and so is the loss of a model that learned from them."""
    work = Work(TINY, data, batch_size=16, optimizer="sgd", batches=80, seed=1)
    began = time.monotonic()
    done = contender.start(work)
    assert (done.batches, done.samples) == (80, 80 * 16)
    assert done.loss < 0.85 * TINY.judge(TINY.model(), data)
    assert 0 < done.seconds < time.monotonic() - began
    assert 0 < done.startup_seconds < time.monotonic() - began
    if contender.kind != "threads" and Path("/proc/self/smaps_rollup").exists():
        assert len(done.pss) == (1 if contender.family == "intra-op" else contender.workers)
        assert min(done.pss) > 1 << 20


class Counting(nn.Module):
    """Counts the samples of all forward passes in all processes, by a byte each in a file."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path
        self.inner = tiny()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)
        if torch.is_grad_enabled():
            with Path(self.path).open("ab") as file:
                file.write(b"x" * len(x))
        return out


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        ("serial", "processes"),
        ("cut", "processes"),
        ("recipe", "processes"),
        ("ddp", "processes"),
        ("apart", "processes"),
        ("apart", "threads"),
    ],
)
def test_alternatives_report_the_samples_that_the_model_saw(
    family: str, kind: str, data: tuple[Tensor, ...], tmp_path: Path
) -> None:
    problem = replace(TINY, build=partial(Counting, str(tmp_path / "count")))
    (contender,) = contenders(2, [family], [kind])
    done = contender.start(Work(problem, data, batch_size=16, optimizer="sgd", batches=72))
    assert (tmp_path / "count").stat().st_size == done.samples == 72 * 16


@pytest.mark.parametrize("family", ["serial", "cut", "recipe", "ddp", "apart", *SAME_BITS])
def test_the_loss_over_time(family: str, data: tuple[Tensor, ...]) -> None:
    contender = contenders(2, [family], ["processes"])[-1]
    done = contender.start(Work(TINY, data, batch_size=16, optimizer="adam", batches=80, looks=5))
    assert 5 <= len(done.curve) <= 7
    seconds, losses = zip(*done.curve, strict=True)
    assert list(seconds) == sorted(seconds)
    assert losses[-1] < losses[0]


def test_all_come_to_the_same_loss_when_a_batch_is_the_whole_data(data: tuple[Tensor, ...]) -> None:
    """Then the order of the samples does not matter, and one worker of anything is the plain loop."""
    work = Work(replace(TINY, sgd_lr=0.05), data, batch_size=512, optimizer="sgd", batches=20)
    losses = [
        alternatives.serial(work).loss,
        alternatives.cut(work).loss,
        alternatives.intra_op(work, workers=2).loss,
        alternatives.recipe(work, workers=1).loss,
        alternatives.ddp(work, workers=1).loss,
        ours(work, rule="hogwild", kind="threads", workers=1, options={}).loss,
    ]
    assert losses == pytest.approx([losses[0]] * 6, rel=1e-4)


@pytest.mark.parametrize("kind", ["processes", "threads"])
def test_loops_apart_share_nothing(kind: str, data: tuple[Tensor, ...]) -> None:
    """Each has the model that one makes of its own batches alone."""
    work = Work(replace(TINY, sgd_lr=0.05), data, batch_size=512, optimizer="sgd", batches=10)
    both = replace(work, batches=20)
    apart, alone, longer = (
        alternatives.apart(both, workers=2, kind=kind),
        alternatives.cut(work),
        alternatives.cut(both),
    )
    assert apart.batches == 20
    assert apart.loss == pytest.approx(alone.loss, rel=1e-4) and apart.loss > 1.01 * longer.loss


def test_exact_delay_is_measured_where_it_is_asked_for() -> None:
    (contender,) = [c for c in contenders(2, ["ordered"], ["threads"], compensation="none") if c.workers == 1]
    assert contender.about == "this package's rule ordered, staleness 1, no compensation"
    start = contender.start
    assert isinstance(start, partial) and start.keywords["options"] == {"staleness": 1, "compensation": "none"}


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_problems_can_be_learned(problem: BenchProblem, optimizer: str) -> None:
    """Within 60 updates; of the large one, where they take a while, until it is seen."""
    model, rows = problem.model(), problem.generate()
    assert len({len(tensor) for tensor in rows}) == 1 and len(rows[0]) >= 8192
    step = problem.optimizer(optimizer, 64)(list(model.parameters()))
    before, losses = problem.judge(model, rows), []
    large = sum(parameter.numel() for parameter in model.parameters()) > 1e6
    while len(losses) < 6 and not (large and losses and losses[-1] < 0.97 * before):
        for start in range(640 * len(losses), 640 * (len(losses) + 1), 64):
            step.zero_grad()
            problem.loss(model, tuple(tensor[start : start + 64] for tensor in rows)).backward()  # type: ignore[no-untyped-call]
            step.step()
        losses.append(problem.judge(model, rows))
    assert losses[-1] < 0.97 * before


# --- processes that fail


_FOR_EVER = 3600.0  # seconds: a test that waits for so long is ended by its own limit


def raises(rank: int) -> None:
    if rank == 1:
        raise KeyError("the second one")
    time.sleep(_FOR_EVER)


def dies(rank: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def sleeps(rank: int) -> None:
    time.sleep(_FOR_EVER)


@pytest.mark.parametrize(
    ("program", "told"), [(raises, "the second one"), (dies, "exit code -9"), (sleeps, "after 1 s")]
)
def test_processes_that_fail_are_told_and_none_is_left(program: Callable[[int], None], told: str) -> None:
    with pytest.raises(ContenderError, match=told):
        children.in_children(program, 2, (), limit=1 if program is sleeps else _FOR_EVER)


def lingers(rank: int) -> int:
    threading.Thread(target=time.sleep, args=(_FOR_EVER,)).start()
    return rank


def test_nothing_that_lingers_in_a_process_is_waited_for() -> None:
    """Neither a thread nor a destructor, such as that of a process group."""
    assert children.in_children(lingers, 2, (), limit=_FOR_EVER) == [0, 1]


def test_an_alternative_that_is_late_has_not_finished() -> None:
    def late(work: Work) -> Measurement:
        children.in_children(sleeps, 1, (), limit=0.5)
        raise AssertionError

    failure = attempt(Contender("ddp", "", "ddp", 2, late), Work(TINY, (), 16, "sgd", 4))
    assert isinstance(failure, FailedMeasurement) and failure.late and not failure.refused
    assert "did not finish" in failure.message


def test_nobody_starts_before_all_are_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    line, came = StartLine(2), list[float]()

    def meanwhile() -> None:
        if clock.now > 1000.01:
            came.append(line.wait(1))

    clock = Clock(meanwhile)
    monkeypatch.setattr(module, "time", clock)
    assert line.wait(0) >= came[0] > 1000.01 and len(came) == 1


def test_who_does_not_come_is_waited_for_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    with pytest.raises(ContenderError, match="worker 0 waited 5 s for the others to be ready"):
        StartLine(2).wait(0, seconds=5)
    assert 1005 < clock.now < 1006
