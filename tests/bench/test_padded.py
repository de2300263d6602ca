"""Many workers whose gradients wait: what is counted, what the plan chooses, and the predictions beside a profile."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console
from torch import nn
from traits import KINDS

from hogwild.bench import padded
from hogwild.bench.measure import Case, Spread
from hogwild.bench.padded import Padded, PaddedPlan, PaddedResult, Runner, measure_padded
from hogwild.bench.padded_table import padded_report, padded_summary
from hogwild.bench.plan import BenchSettings, padded_plan_of
from hogwild.bench.plot_curves import plot_padded, plot_predictions
from hogwild.bench.predict import CORES, prediction_table, predictions
from hogwild.bench.problems import BenchProblem, clusters, cross_entropy
from hogwild.bench.profile import PHASES, Profile
from hogwild.bench.summary import Machine
from hogwild.cli.bench import BenchCommand
from hogwild.errors import ArgumentError

IDLE = Machine("a system", "a processor", 4, "3", "2", 0.1)


@pytest.fixture(autouse=True)
def _profiled_shortly(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is predicted is looked at roughly."""
    monkeypatch.setattr(padded, "_PROFILED", 0.03)


def tiny() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 10))


TINY = BenchProblem("tiny", "for tests", tiny, partial(clusters, 512, 32), cross_entropy, sgd_lr=1.0)
CASE = Case(TINY, "sgd", 16)


def text_of(found: dict, width: int = 80) -> str:
    console = Console(width=width, file=io.StringIO())
    with console.capture() as captured:
        console.print(padded_report(found))
    return captured.get()


@pytest.mark.parametrize("kind", KINDS)
def test_workers_that_wait_go_side_by_side(kind: str) -> None:
    pad = 0.02
    runners = [Runner("hogwild", kind, number, {}) for number in (1, 4)]
    one, four = measure_padded(PaddedPlan([CASE], runners, pad, 2, repeats=1, seconds=0.3))
    assert isinstance(one, PaddedResult) and isinstance(four, PaddedResult)
    assert (one.ideal, four.ideal) == (1 / pad, 4 / pad)
    assert 0.3 * one.ideal < one.updates_per_second.median < one.ideal
    assert 2 * one.updates_per_second.median < four.updates_per_second.median < four.ideal
    assert 0.9 <= one.voluntary.median < 20, "the wait gives the core away once"
    assert 0 < one.cpu.median < pad
    assert 0.5 * one.ideal < one.predicted < one.ideal


def test_a_staleness_and_micro_batches_are_those_of_the_runner() -> None:
    slack, averaged = (
        Runner("ordered", "threads", 2, {"staleness": 5}),
        Runner("sync", "threads", 2, {"micro_batches": 2}),
    )
    assert (slack.staleness, averaged.staleness) == (5, None)
    first, second = measure_padded(PaddedPlan([CASE], [slack, averaged], 0.01, 2, repeats=1, seconds=0.2))
    assert isinstance(first, PaddedResult) and isinstance(second, PaddedResult)
    assert second.ideal == first.ideal / 2, "an update is two batches"
    assert 0 < second.updates_per_second.median < second.ideal


def test_one_that_is_refused_says_why() -> None:
    (line,) = measure_padded(
        PaddedPlan([CASE], [Runner("ordered", "threads", 4, {"staleness": 1})], 0.01, 2, repeats=1, seconds=0.1)
    )
    assert isinstance(line, str) and "4 workers are over the 2" in line


def test_what_is_planned() -> None:
    plan = padded_plan_of(BenchSettings(workers=4, contenders=["hogwild", "ordered"]), 5.0, (), cores=2)
    assert [case.name for case in plan.cases] == ["mlp · batch 4 · sgd"]
    assert plan.pad == 0.005
    assert [(r.rule, r.workers, r.staleness) for r in plan.runners] == [
        *(("hogwild", number, None) for number in (1, 2, 4)),
        ("ordered", 1, 1),
        ("ordered", 2, 1),
        ("ordered", 4, 3),
    ]
    given = padded_plan_of(BenchSettings(workers=4, contenders=["hogwild", "ordered"]), 5.0, (2, 7), cores=2)
    assert [(r.workers, r.staleness) for r in given.runners if r.rule == "ordered"] == [
        (1, 2),
        (1, 7),
        (2, 2),
        (2, 7),
        (4, 7),
    ]


def test_exact_delay_is_planned_for_the_rule_that_has_one() -> None:
    settings = BenchSettings(workers=2, contenders=["hogwild", "ordered", "sync"], compensation="none")
    told = {r.rule: r.options.get("compensation") for r in padded_plan_of(settings, 5.0, (), cores=2).runners}
    assert told == {"hogwild": None, "ordered": "none", "sync": None}


@pytest.mark.parametrize("pad", [0.0, -1.0, float("nan"), float("inf")])
def test_a_wait_that_cannot_be(pad: float) -> None:
    with pytest.raises(ArgumentError, match="--pad-ms"):
        padded_plan_of(BenchSettings(), pad, (), cores=2)


def test_a_loss_that_waits_is_the_loss() -> None:
    rows = TINY.generate()
    batch = tuple(tensor[:16] for tensor in rows)
    model = TINY.model()
    assert Padded(cross_entropy, 0.001)(model, batch).item() == cross_entropy(model, batch).item()


def made_up(workers: int, staleness: int | None) -> PaddedResult:
    runner = Runner("ordered", "processes", workers, {} if staleness is None else {"staleness": staleness})
    spread = Spread(2.0, 1.0, 3.0, 3)
    return PaddedResult(CASE, runner, Spread(1234.0, 1200.0, 1300.0, 3), 2000.0, 2468.0, spread, spread, spread)


def test_the_table_fits_a_terminal_and_json_and_figure_can_be_made(tmp_path: Path) -> None:
    plan = PaddedPlan([CASE], [], 0.005, 2, 3, 0.5)
    slow = replace(made_up(32, 47), compensation=("momentum 0 → 0.99",))
    found = padded_summary(IDLE, plan, ["a warning"], [made_up(1, 1), made_up(32, 31), slow, "no luck"])
    json.dumps(found, allow_nan=False)
    shown = text_of(found)
    assert "…" not in shown and "1,234" in shown and "50 %" in shown and "2.0 + 2.0" in shown and "no luck" in shown
    assert shown.count("ordered*") == 1 and found["results"][2]["compensation"] == ["momentum 0 → 0.99"]
    plot_padded(found, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def profile(workers: int, step: float) -> Profile:
    share = Spread(step / len(PHASES), step / len(PHASES), step, 3)
    phases = dict.fromkeys(PHASES, share)
    return Profile(CASE, "ordered", "processes", workers, 100, phases, Spread(step, step, step, 3), share, 10, 120, 1e9)


def test_predictions_stand_beside_a_profile(tmp_path: Path) -> None:
    rows = predictions([profile(1, 8e-4), "refused", profile(2, 1e-3)], 2, 1e9)
    (row,) = rows
    assert row["cores"] == list(CORES) and len(row["updates_per_second"]) == len(CORES)
    assert row["measured"] == pytest.approx({1: 1250, 2: 2000})
    assert row["updates_per_second"][1] == pytest.approx(2000, rel=0.2)
    console = Console(width=80, file=io.StringIO())
    with console.capture() as captured:
        console.print(prediction_table(rows))
    assert "Predicted, not measured" in captured.get() and "…" not in captured.get()
    plot_predictions({"machine": vars(IDLE), "predicted": rows}, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert predictions([replace(profile(2, 1e-3))], 2, 1e9) == [], "nothing to be over"


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    command = BenchCommand(
        problems=("small-mlp",),
        contenders=("ordered",),
        kind=("threads",),
        workers=2,
        repeats=1,
        seconds=0.05,
        pad_ms=2.0,
        staleness=(3,),
        json=True,
    )
    assert command.run() == 0
    found = json.loads(capsys.readouterr().out)
    assert [(row["workers"], row["staleness"]) for row in found["results"]] == [(1, 3), (2, 3)]
    assert all(row["voluntary_switches"]["median"] > 0 for row in found["results"])


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (BenchCommand(profile=True, pad_ms=5.0), "--profile, --pad-ms and --peers"),
        (BenchCommand(staleness=(3,)), "--staleness 3"),
    ],
)
def test_settings_that_do_not_fit_together(command: BenchCommand, told: str) -> None:
    with pytest.raises(ArgumentError, match=told):
        command.run()
