"""Which settings differ, which run is best, and which settings are best over seeds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hogwild.errors import ArgumentError
from hogwild.report.ranking import (
    choices,
    conclusion_of,
    low_is_good,
    setting_text,
    shared_settings,
    sorted_runs,
    tied_for_best,
)
from hogwild.run.found import DONE, UNFINISHED, FoundRun, differing_settings


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


def test_two_experiments_are_not_compared() -> None:
    with pytest.raises(ArgumentError, match="of toy and of other cannot be compared"):
        choices([*RUNS, run(5, 0.99, name="other")], "accuracy", lowest=False)


def test_the_conclusion_says_whether_it_is_settled() -> None:
    def told(*values: tuple[float, float]) -> str:
        runs = [run(n, value, lr=lr, seed=n) for n, (lr, value) in enumerate(values)]
        return conclusion_of(choices(runs, "accuracy", lowest=False), "accuracy", lowest=False)

    close = told((0.1, 0.90), (0.1, 0.92), (0.5, 0.80), (0.5, 0.82))
    assert (
        close
        == "highest mean accuracy: lr 0.1. Its interval overlaps with 1 of the 1 others: these runs do not settle it."
    )
    clear = told((0.1, 0.90), (0.1, 0.9001), (0.5, 0.80), (0.5, 0.8001))
    assert clear == "highest mean accuracy: lr 0.1. Its interval overlaps with none of the others."
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
