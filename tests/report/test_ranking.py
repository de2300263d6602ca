"""Which settings differ, which run is best, and which settings are best over seeds."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hogwild.determinism.interval import MeanInterval
from hogwild.errors import ArgumentError
from hogwild.report.ranking import (
    choices,
    conclusion_of,
    low_is_good,
    not_ended,
    setting_text,
    shared_settings,
    sorted_runs,
    tied_for_best,
)
from hogwild.report.run_list import choices_csv, choices_report, half_widths
from hogwild.run.saved.found import DONE, FAILED, UNFINISHED, FoundRun, differing_settings


def run(number: int, accuracy: float | None, status: str = DONE, **settings: Any) -> FoundRun:
    metrics = {} if accuracy is None else {"accuracy": accuracy}
    given = {"name": "toy", "update": "ordered", "epochs": 5, **settings}
    return FoundRun(Path(f"runs/{number}"), status, "", given, metrics, loss=1.0 - (accuracy or 0.0), seconds=1.0)


RUNS = [
    run(0, 0.90, lr=0.1, seed=0),
    run(1, 0.92, lr=0.1, seed=1),
    run(2, 0.80, lr=0.5, seed=0),
    run(3, 0.82, lr=0.5, seed=1),
]


def test_intervals_of_a_column_have_the_same_decimals() -> None:
    def told(*halves: float | None) -> list[str]:
        return half_widths([MeanInterval(0.5, half, 3 if half is not None else 1) for half in halves])

    assert told(0.01, 0.073, 0.0093) == ["± 0.0100", "± 0.0730", "± 0.0093"]
    assert told(0.0042) == ["± 0.0042"] and told(0.01) == ["± 0.010"]
    assert told(12.3, None, 4.56, 0.0) == ["± 12.3", "one run", "±  4.6", "±  0.0"]
    assert told(0.07, 1e-9) == ["± 0.07000", "±   1e-09"], "a very small one adds no more than two, and is not 0"
    assert told(1234.5) == ["± 1,234"] and told(0.0) == ["± 0"]


def test_only_what_differs_is_shown() -> None:
    assert differing_settings(RUNS) == ["lr", "seed"]
    assert shared_settings(RUNS) == {"name": "toy", "update": "ordered", "epochs": 5}, "defaults are left out"
    mixed = [*RUNS, run(4, 0.5, lr=0.1, seed=0, width=8)]
    assert differing_settings(mixed) == ["lr", "seed", "width"], "one's own settings come last"
    assert differing_settings([run(0, 0.5), run(1, 0.5, workers=2)]) == [], "what is not in a file has its default"
    assert differing_settings([]) == [] and shared_settings([]) == {}


def test_the_best_come_first() -> None:
    accuracies = [one.metrics.get("accuracy") for one in sorted_runs([*RUNS, run(9, None)], "accuracy", lowest=False)]
    assert accuracies == [0.92, 0.90, 0.82, 0.80, None]
    assert [one.settings["lr"] for one in sorted_runs(RUNS, "lr", lowest=True)] == [0.1, 0.1, 0.5, 0.5]
    assert [one.path.name for one in sorted_runs(RUNS, "loss", lowest=True)] == ["1", "0", "3", "2"]
    with pytest.raises(ArgumentError, match=r"'acuracy' is in no run; accuracy, loss, .* such as lr"):
        sorted_runs(RUNS, "acuracy", lowest=False)


@pytest.mark.parametrize("name", ["loss", "test_loss", "val-error", "seconds", "MSE", "lr", "seed"])
def test_low_is_good_for(name: str) -> None:
    assert low_is_good(name)


@pytest.mark.parametrize("name", ["accuracy", "f1", "samples_per_second", "glossary", "reward"])
def test_high_is_good_for(name: str) -> None:
    assert not low_is_good(name)


def test_settings_are_compared_over_seeds() -> None:
    found = choices(RUNS, "accuracy", lowest=False)
    assert [dict(choice.settings) for choice in found] == [{"lr": 0.1}, {"lr": 0.5}]
    best = found[0]
    assert (best.interval.mean, best.interval.number) == (pytest.approx(0.91), 2) and best.seeds == (0, 1)
    assert (best.least, best.most) == (0.90, 0.92)
    assert best.interval.half == pytest.approx(12.7062 * 0.01, rel=1e-4), "t of one degree of freedom × s ÷ √2"
    assert choices(RUNS, "accuracy", lowest=True)[0].settings == {"lr": 0.5}


def test_runs_that_have_not_ended_do_not_count() -> None:
    found = choices([*RUNS, run(5, 0.99, UNFINISHED, lr=0.5, seed=2)], "accuracy", lowest=False)
    assert [choice.interval.number for choice in found] == [2, 2]
    with pytest.raises(ArgumentError, match="no run that has ended"):
        choices([run(5, 0.99, UNFINISHED)], "accuracy", lowest=False)
    with pytest.raises(ArgumentError, match="there is none"):
        choices([], "accuracy", lowest=False)


def failed(number: int, why: str = "NonFiniteError: the loss is nan", **settings: Any) -> FoundRun:
    return replace(run(number, None, FAILED, **settings), why=why, metrics={"accuracy": 0.99}, loss=None)


def diverged(number: int, **settings: Any) -> FoundRun:
    return replace(run(number, None, **settings), metrics={"accuracy": None}, loss=None)


@pytest.mark.parametrize("lost", [failed, diverged])
def test_settings_some_of_whose_runs_diverged_are_told_and_come_last(lost: Any) -> None:
    runs = [*RUNS, run(4, 0.99, lr=5.0, seed=0), lost(5, lr=5.0, seed=1), lost(6, lr=9.0, seed=0)]
    found = choices(runs, "accuracy", lowest=False)
    assert [one.settings["lr"] for one in found] == [0.1, 0.5, 5.0, 9.0]
    assert [len(one.diverged) for one in found] == [0, 0, 1, 1] and [len(one.runs) for one in found] == [2, 2, 1, 0]
    told = conclusion_of(found, "accuracy", lowest=False)
    assert told.startswith("highest mean accuracy: lr 0.1. ")
    assert told.endswith("have no accuracy, and these come last: lr 5 (1 of 2), lr 9 (1 of 1).")
    last = json.loads(json.dumps(found[-1].to_dict(), allow_nan=False))
    assert (last["mean"], last["min"], last["number"], last["diverged"]) == (None, None, 0, ["runs/6"])
    assert choices_csv(found, "accuracy").splitlines()[-1] == "9.0,,,,,0,1"
    console = Console(file=io.StringIO(), width=100)
    console.print(choices_report(found, "accuracy", lowest=False))
    shown = console.file.getvalue()
    assert "diverged" in shown and "1 of 2" in shown


def test_a_run_that_failed_by_something_else_tells_nothing_of_its_settings() -> None:
    runs = [*RUNS, failed(5, "OSError: no space left", lr=0.1, seed=2)]
    found = choices(runs, "accuracy", lowest=False)
    assert [len(one.diverged) for one in found] == [0, 0] and not_ended(runs, found) == 1
    assert not_ended([*RUNS, failed(5, lr=0.1, seed=2)], choices([*RUNS, failed(5, lr=0.1)], "loss", lowest=True)) == 0


def test_where_some_runs_of_all_settings_failed_the_best_mean_is_named() -> None:
    runs = [run(0, 0.9, lr=0.1, seed=0), failed(1, lr=0.1, seed=1), diverged(2, lr=0.5, seed=0)]
    told = conclusion_of(choices(runs, "accuracy", lowest=False), "accuracy", lowest=False)
    assert "highest mean accuracy: lr 0.1" in told and "lr 0.1 (1 of 2), lr 0.5 (1 of 1)" in told


def test_a_run_that_kept_no_best_version_though_it_should_have_counts_as_failed() -> None:
    kept = replace(run(0, 0.9, lr=0.1, keep_best="accuracy"), best={"metric": "accuracy", "value": 0.9, "update": 5})
    found = choices([kept, diverged(1, lr=0.5, keep_best="accuracy")], "best_accuracy", lowest=False)
    assert [len(one.diverged) for one in found] == [0, 1]


def test_what_came_to_no_number_is_not_offered_to_select_by() -> None:
    with pytest.raises(ArgumentError) as caught:
        choices([diverged(0, seed=0), diverged(1, seed=1)], "accuracy", lowest=False)
    assert str(caught.value) == (
        "'accuracy' came to no finite number in any run that has ended; seconds can be selected by"
    )
    with pytest.raises(ArgumentError, match="^'speed' is measured in no run that has ended; accuracy, loss, seconds "):
        choices([*RUNS, diverged(4)], "speed", lowest=False)
    with pytest.raises(ArgumentError, match="^'accuracy' is measured in no run that has ended$"):
        choices([run(0, 0.9, UNFINISHED)], "accuracy", lowest=False)


def test_two_experiments_are_not_compared() -> None:
    with pytest.raises(ArgumentError, match="of toy and of other cannot be compared"):
        choices([*RUNS, run(5, 0.99, name="other")], "accuracy", lowest=False)


def test_the_conclusion_says_whether_it_is_settled() -> None:
    def told(*values: tuple[float, float]) -> str:
        runs = [replace(run(n, value, lr=lr, seed=n), digest=f"{n:064x}") for n, (lr, value) in enumerate(values)]
        return conclusion_of(choices(runs, "accuracy", lowest=False), "accuracy", lowest=False)

    close = told((0.1, 0.90), (0.1, 0.92), (0.5, 0.80), (0.5, 0.82))
    assert (
        close
        == "highest mean accuracy: lr 0.1. Its interval overlaps with 1 of the 1 others: these runs do not settle it."
    )
    clear = told((0.1, 0.90), (0.1, 0.9001), (0.5, 0.80), (0.5, 0.8001))
    assert clear == "highest mean accuracy: lr 0.1. Its interval overlaps with none of the others."
    flat = told((0.1, 0.10), (0.1, 0.10), (0.1, 0.10), (0.5, 0.05), (0.5, 0.0501))  # of which the mean is not 0.1
    assert flat == (
        "highest mean accuracy: lr 0.1. Its interval overlaps with none of the others, "
        "but all runs of lr 0.1 came to one value: more seeds would tell how far they spread."
    )
    assert "more seeds would tell" in told((0.1, 0.9), (0.5, 0.8))
    assert "differ in the seed alone" in told((0.1, 0.9), (0.1, 0.8))


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (True, "true"), (3.0, "3"), (1e-05, "1e-05"), (0.10000001, "0.10000001"), ("adam", "adam"), (7, "7")],
)
def test_a_setting_as_a_table_has_it(value: Any, text: str) -> None:
    assert setting_text(value) == text


def with_digest(found: FoundRun, digest: str) -> FoundRun:
    return replace(found, digest=digest)


def test_settings_with_equal_means_are_tied() -> None:
    pairs = [(one, replace(one, settings={**one.settings, "workers": 4})) for one in RUNS[:2]]
    runs = [with_digest(one, f"d{one.settings['seed']}") for pair in pairs for one in pair]
    found = choices([*runs, RUNS[2], RUNS[3]], "accuracy", lowest=False)
    assert [dict(choice.settings) for choice in tied_for_best(found)] == [
        {"workers": 2, "lr": 0.1},
        {"workers": 4, "lr": 0.1},
    ]
    told = conclusion_of(found, "accuracy", lowest=False)
    assert told.startswith(
        "tied for the highest mean accuracy: workers 2, lr 0.1; workers 4, lr 0.1. Their runs have the same bits."
    )
    assert "1 of the 1 others" in told or "none of the others" in told
    other = choices([*runs[:3], with_digest(runs[3], "x")], "accuracy", lowest=False)
    assert "same bits" not in conclusion_of(other, "accuracy", lowest=False)
    assert conclusion_of(choices(runs, "accuracy", lowest=False), "accuracy", lowest=False) == (
        "tied for the highest mean accuracy: workers 2; workers 4. Their runs have the same bits."
    )


def test_the_best_version_can_be_sorted_and_selected_by() -> None:
    runs = [
        replace(one, best={"metric": "f1", "value": value, "update": 5})
        for one, value in zip(RUNS, (4, 3, 2, 9), strict=True)
    ]
    assert [one.path.name for one in sorted_runs(runs, "best_f1", lowest=False)] == ["3", "0", "1", "2"]
    assert [choice.interval.mean for choice in choices(runs, "best_f1", lowest=False)] == [5.5, 3.5]
    with pytest.raises(ArgumentError, match="'f1' is in no run; accuracy, best_f1, loss"):
        sorted_runs(runs, "f1", lowest=False)


def test_what_changes_nothing_of_the_training_makes_no_other_settings() -> None:
    kept = [with_digest(replace(one, settings={**one.settings, "keep_best": "accuracy"}), "b") for one in RUNS[1:2]]
    runs = [*(with_digest(one, "ab"[number % 2]) for number, one in enumerate(RUNS)), *kept]
    found = choices(runs, "accuracy", lowest=False)
    assert [dict(choice.settings) for choice in found] == [{"lr": 0.1}, {"lr": 0.5}]
    assert [len(choice.runs) for choice in found] == [2, 2], "the same run made again counts once"
    assert [len(choice.runs) for choice in choices(runs, "seconds", lowest=True)] == [3, 2], "its time is another"


def test_a_run_made_again_counts_once_by_its_training_loss_and_its_best_version_too() -> None:
    def kept(one: FoundRun, update: int = 5) -> FoundRun:
        best = {"metric": "accuracy", "value": one.metrics["accuracy"], "update": update, "digest": "best"}
        return replace(one, digest=f"d{one.path}", best=best)

    runs = [kept(one) for one in RUNS[:2]]
    again = replace(runs[0], path=Path("again"))
    for metric in ("loss", "best_accuracy"):
        once, twice = (choices(found, metric, lowest=True)[0] for found in (runs, [*runs, again]))
        assert twice.interval == once.interval, metric
    other = replace(kept(RUNS[0], update=9), path=Path("again"))  # its best is of the versions that it evaluated
    assert len(choices([*runs, other], "best_accuracy", lowest=False)[0].runs) == 3
