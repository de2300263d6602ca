"""The table of a sweep: it fits the terminal, shows what is under way, and names what failed."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from hogwild.config import RunConfig
from hogwild.report.sweep_table import following_sweep, sweep_report, sweep_table
from hogwild.sweep.plan import PlannedRun, SweepPlan
from hogwild.sweep.rows import DONE, RUNNING, SweepRow, failed_row

METRICS = {"accuracy": 0.91, "f1": 0.5, "recall": None, "precision": 0.25, "loss": 0.125}
ROWS = [
    SweepRow(
        f"lr0.1-seed{seed}", {"update": "ordered", "lr": 0.1, "seed": seed}, DONE, 9, 9, METRICS, 61.0, "abcdef" * 9
    )
    for seed in range(40)
]


def plan(runs: int = 40) -> SweepPlan:
    planned = tuple(PlannedRun(row.folder, row.settings, RunConfig(name="toy", epochs=1)) for row in ROWS[:runs])
    return SweepPlan("toy", {"seed": tuple(range(runs))}, {"epochs": 3}, None, 0, planned)


def drawn(shown: object, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(shown)
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("width", "figures"),
    [
        (60, ["0.9100", "1:01", "min"]),
        (80, ["0.9100", "0.1250", "1:01", "min", "abcdefab"]),
        (120, ["0.9100", "0.5000", "–", "0.2500", "0.1250", "1:01", "min", "abcdefab"]),
    ],
)
def test_it_is_not_wider_than_the_terminal_and_leaves_out_what_matters_least(width, figures):
    rows = [*ROWS[:2], failed_row(ROWS[2], "loss raised at the first step: ValueError: " + "long " * 30)]
    text = drawn(sweep_report(plan(3), rows, Path("out")), width)
    assert ("no room for" in text) is (width < 120)
    assert max(map(len, text.splitlines())) <= width
    assert "sweep of toy · 3 runs, 2 done, 1 failed" in text and "all with epochs 3" in text
    line = next(line for line in text.splitlines() if line.split()[:3] == ["ordered", "0.1", "1"])
    assert line.split() == ["ordered", "0.1", "1", "done", *figures]
    assert "next: hogwild runs out --select accuracy" in text
    assert "failed  lr0.1-seed2" in text and "ValueError" in text and "logs are in out/logs" in text


def test_rates_that_came_to_the_same_bits_are_told():
    rates = (0.1, 5.0, 50.0)
    rows = [replace(ROWS[0], settings={"lr": lr, "seed": 0}, digest="ab" if lr > 1 else "cd") for lr in rates]
    text = " ".join(drawn(sweep_report(plan(3), [*rows, ROWS[3]], Path("out")), 80).split())
    assert "lr 5, 50 (seed 0): the same bits, for each is lowered to what stale gradients allow" in text
    assert "the same bits" not in drawn(sweep_report(plan(3), rows[:2], Path("out")), 80)


def test_of_more_rows_than_there_is_room_for_those_under_way_are_shown():
    rows = [
        *ROWS[:20],
        replace(ROWS[20], status=RUNNING, updates=1, total=4, metrics={}, seconds=None, digest=""),
        *ROWS[21:],
    ]
    text = drawn(sweep_table(rows, 9), 80)
    assert "25 % of 4" in text and "… 16 more" in text and "… 15 more" in text
    assert sum("ordered" in line for line in text.splitlines()) == 9


def test_elsewhere_than_in_a_terminal_each_run_that_ends_is_a_line(capsys):
    with following_sweep("sweep of toy", quiet=False) as (look, tell):
        look([ROWS[0], SweepRow("b", {"seed": 1})])
        look([ROWS[0], failed_row(SweepRow("b", {"seed": 1}), "no")])
        look([ROWS[0], failed_row(SweepRow("b", {"seed": 1}), "no")])
        tell("stopping")
    lines = ["sweep of toy", "1 of 2 are done already", "2 of 2 · seed 1: failed: no", "stopping"]
    assert capsys.readouterr().err.splitlines() == lines
    with following_sweep("sweep of toy", quiet=True) as (look, tell):
        look(ROWS)
        tell("stopping")
    assert capsys.readouterr().err == ""


def test_the_best_version_of_each_run_has_a_column_where_there_is_room():
    best = {"metric": "accuracy", "update": 1200, "value": 0.95}
    rows = [replace(ROWS[0], best=best), replace(ROWS[1], best={**best, "metric": "f1"}), ROWS[2]]
    one = drawn(sweep_table(rows[::2]), 120)
    assert "best accuracy" in one and "0.9500 at 1,200" in one
    both = drawn(sweep_table(rows), 140)
    assert " best " in both and "accuracy 0.9500 at 1,200" in both and "f1 0.9500 at 1,200" in both
    narrow = drawn(sweep_table(rows[::2]), 80)
    assert "0.9500 at 1,200" in narrow and "abcdefab" not in narrow and max(map(len, narrow.splitlines())) <= 80
    assert "best" not in drawn(sweep_table(rows), 50) and "best" not in drawn(sweep_table(ROWS[:2]), 140)


def test_the_learning_rates_that_come_with_optimizers_are_told():
    planned = plan(2)
    runs = [
        replace(run, config=replace(run.config, optimizer=name, lr=lr))
        for run, name, lr in zip(planned.runs, ("sgd", "adam"), (0.1, 0.001), strict=True)
    ]
    swept = replace(planned, axes={"optimizer": ("sgd", "adam")}, runs=tuple(runs))
    assert "lr 0.1 for sgd, 0.001 for adam" in drawn(sweep_report(swept, ROWS[:2], Path("out")), 80)
    given = replace(swept, fixed={"lr": 0.1})
    assert "for sgd" not in drawn(sweep_report(given, ROWS[:2], Path("out")), 80)
