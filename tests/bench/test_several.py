"""Several machines beside DistributedDataParallel: what is planned, measured and shown."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console
from slow_links import links

from hogwild.bench import several
from hogwild.bench.measure import Spread
from hogwild.bench.plan import BenchSettings, several_plan_of
from hogwild.bench.several import SeveralResult, busy_at, measure_several
from hogwild.bench.several_table import several_report, several_summary
from hogwild.bench.summary import Machine
from hogwild.cli.bench import BenchCommand
from hogwild.errors import ArgumentError

IDLE = Machine("a system", "a processor", 4, "3", "2", 0.1)
QUICK = BenchSettings(repeats=1, seconds=1.0)


def test_all_are_busy_with_a_round_of_slack():
    assert [busy_at(4, 20, delay) for delay in (0, 5, 20)] == [3 + 4, 4 + 4, 7 + 4]
    assert busy_at(2, 20, 0) == 3


def test_what_is_planned():
    plan = several_plan_of(QUICK, 20.0, (2, 4), (0, 5), ())
    assert [case.name for case in plan.cases] == ["small-mlp · batch 16 · sgd"]
    assert [(one.nodes, one.delay, list(one.staleness)) for one in plan.crowds] == [
        (2, 0.0, [3]),
        (2, 0.005, [4]),
        (4, 0.0, [7]),
        (4, 0.005, [8]),
    ]
    given = several_plan_of(QUICK, 20.0, (2, 4), (), (1, 7))
    assert [(one.nodes, one.delay, list(one.staleness)) for one in given.crowds] == [(2, 0.0, [1, 7]), (4, 0.0, [7])]


def test_machines_far_apart_go_on_where_one_step_of_all_waits():
    plan, told = several_plan_of(QUICK, 20.0, (2,), (20,), ()), []
    with links(1):
        (found,) = measure_several(plan, told.append)
    assert [(step.done, step.total, step.what.rpartition(": ")[2]) for step in told] == [
        (0, 3, "repeat 1 of 1, together, staleness 5"),
        (1, 3, "repeat 1 of 1, apart"),
        (2, 3, "repeat 1 of 1, ddp"),
    ]
    assert (found.nodes, found.delay, found.staleness, found.ideal) == (2, 0.02, 5, 100)
    assert found.over_ddp.median > 1.2 and found.updates_per_second.median < found.ideal
    assert 1.2 * found.ddp.median < found.averaging.median < found.ideal


def test_the_command_runs_on_loopback(capsys, tmp_path):
    saved = tmp_path / "bench.json"
    command = BenchCommand(nodes=(2,), pad_ms=5.0, repeats=1, seconds=0.1, staleness=(3,), json=True, save=saved)
    assert command.run() == 0
    found = json.loads(capsys.readouterr().out)
    (row,) = found["results"]
    assert (row["nodes"], row["delay_seconds"], row["staleness"]) == (2, 0, 3)
    assert 0 < row["share_of_ideal"] < 1
    assert row["ddp_updates_per_second"]["median"] > 0
    assert row["average_every"] == 10 and 0 < row["averaging_updates_per_second"]["median"] < 400
    assert json.loads(saved.read_text())["results"] == [row]


def test_the_table_fits_a_terminal():
    plan = several_plan_of(QUICK, 20.0, (4,), (20,), (15, 31))
    spread = Spread(1234.5, 1200.1, 1300.2, 3)
    row = SeveralResult(
        plan.cases[0], 4, 0.02, 15, spread, 1400.0, Spread(14, 13, 15, 3), Spread(88.2, 80, 100, 3), spread
    )
    found = several_summary(IDLE, plan, ["a warning"], [row, replace(row, staleness=31)])
    json.dumps(found, allow_nan=False)
    console = Console(width=80, file=io.StringIO())
    with console.capture() as captured:
        console.print(several_report(found))
    shown = captured.get()
    assert "…" not in shown and "1,234 " in shown and "88 %" in shown and "80.0–100.0" in shown


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (BenchCommand(nodes=(2,)), "--nodes 2 given without --pad-ms"),
        (BenchCommand(pad_ms=5.0, delay_ms=(5.0,)), "--delay-ms 5 given without --nodes"),
        (BenchCommand(nodes=(2,), pad_ms=5.0, contenders=("hogwild",)), "--contenders given with --nodes"),
        (BenchCommand(nodes=(2,), pad_ms=5.0, kind=("threads",)), "--kind given with --nodes"),
        (BenchCommand(nodes=(1, 2), pad_ms=5.0), "--nodes 1 is not between 2 and 16"),
        (BenchCommand(nodes=(2,), pad_ms=0.0), "--pad-ms 0 is not above 0"),
        (BenchCommand(nodes=(2, 4), pad_ms=5.0, staleness=(1, 2)), "--staleness 2 keeps no 4 machines busy; 3 is"),
        (BenchCommand(nodes=(2,), pad_ms=5.0, delay_ms=(-1.0,)), "--delay-ms -1 is not between 0 and 1000"),
    ],
)
def test_what_cannot_be_measured(command, told):
    with pytest.raises(ArgumentError, match=told):
        command.run()


def test_an_interrupted_crowd_has_the_repeats_that_are_whole(monkeypatch):
    speeds, done = iter(range(100, 200)), SimpleNamespace(batches=40, seconds=1.0)
    monkeypatch.setattr(several, "start_server", lambda: None)
    monkeypatch.setattr(several, "_speeds", lambda *_: [float(next(speeds))])
    monkeypatch.setattr(several, "ddp", lambda *_, **__: done)
    plan = several_plan_of(replace(QUICK, repeats=5), 20.0, (2,), (0,), (3, 5))

    def tell(step):
        if step.done == 10:  # of 20: two whole repeats of four, and two measurements of the third
            raise KeyboardInterrupt

    found = []
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - what came before it is kept
        for row in measure_several(plan, tell):
            found.append(row)  # noqa: PERF402
    assert [(row.staleness, row.updates_per_second.number, row.over_ddp.number) for row in found] == [
        (3, 2, 2),
        (5, 2, 2),
    ]
    assert found[0].averaging.number == 2
