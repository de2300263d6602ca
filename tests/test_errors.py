"""What messages are made of, and what is shown of the code that a failure came through."""

from __future__ import annotations

import traceback
from typing import Any

import problems
import pytest

import hogwild
from hogwild.errors import some_of, with_type


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ([], ""),
        (["a"], "a"),
        (["a", "b", "c"], "a, b, c"),
        (["a", "b", "c", "d"], "a, b, c and 1 more"),
        ([str(number) for number in range(2000)], "0, 1, 2 and 1,997 more"),
    ],
)
def test_a_message_names_a_few_and_counts_the_rest(names, told):
    assert some_of(names) == told


def test_how_many_and_what_stands_between_them_can_be_chosen():
    assert some_of(["a: 1", "b: 2", "c: 3"], 2, between="; ") == "a: 1; b: 2 and 1 more"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (KeyError("loss"), "KeyError: 'loss'"),
        (hogwild.WorkerError("worker 0 raised RuntimeError: no\n\nTraceback (most recent call last):\n"), None),
        (RuntimeError("one line\nand another"), "RuntimeError: one line and another"),
        (RuntimeError("\n\n"), "RuntimeError"),
    ],
    ids=repr,
)
def test_other_machines_are_told_one_line_without_a_traceback(error, told):
    assert with_type(error) == (told or "worker 0 raised RuntimeError: no")


def test_names_that_a_file_chose_stay_on_one_line():
    assert some_of(["a\nb", "\x1b[2J"]) == "a b, �[2J"


# --- tracebacks


def frames(error: BaseException) -> list[str]:
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


CALLS = {
    "train": lambda: hogwild.train(3, 3, 3, optimizer=3, epochs=1),
    "launch": lambda: hogwild.launch(3, problems.mlp(), optimizer=problems.SGD, updates=1),
    "train_kernel": lambda: hogwild.train_kernel(problems.mlp(), 3, epochs=1),
    "check": lambda: hogwild.check(problems.mlp(), updates=1, batch_size=0, data=1, loss=1, optimizer=1),
    "probe": lambda: hogwild.probe(workers=0),
    "replay": lambda: hogwild.replay("nowhere"),
    "load_run": lambda: hogwild.load_run("nowhere"),
    "distance": lambda: hogwild.distance({"a": object()}, {}),
    "digest": lambda: hogwild.digest({"a": object()}),
}


@pytest.mark.parametrize("name", CALLS)
def test_of_ours_one_frame_is_shown(name, monkeypatch):
    with pytest.raises(hogwild.HogwildError) as raised:
        CALLS[name]()
    assert frames(raised.value) == ["test_of_ours_one_frame_is_shown", "<lambda>", name]
    monkeypatch.setenv("HOGWILD_TRACEBACK", "full")
    with pytest.raises(hogwild.HogwildError) as raised:
        CALLS[name]()
    assert len(frames(raised.value)) > 3


def test_the_cause_is_shown_from_the_callers_code_on(monkeypatch):
    def loss(model: Any, batch: Any) -> Any:
        return inner()

    def inner() -> Any:
        raise KeyError("missing")

    def raised() -> hogwild.HogwildError:
        with pytest.raises(hogwild.ArgumentError, match="loss raised at the first step: KeyError") as raised:
            problems.train(loss=loss, updates=3)
        return raised.value

    error = raised()
    assert frames(error)[-1] == "train" and isinstance(error.__cause__, KeyError)
    assert frames(error.__cause__) == ["loss", "inner"]
    monkeypatch.setenv("HOGWILD_TRACEBACK", "full")
    assert frames(raised().__cause__) == ["gradients", "loss", "inner"]


def test_one_of_ours_that_the_callers_own_code_meets_is_shown_there():
    def evaluate(model: Any) -> Any:
        return hogwild.load_run("nowhere").metrics

    with pytest.raises(hogwild.RunDirectoryError) as raised:
        problems.train(evaluate=evaluate, updates=3)
    assert frames(raised.value)[-3:] == ["train", "evaluate", "load_run"]


def test_of_what_may_be_our_own_mistake_all_is_shown(monkeypatch):
    def mistaken(*arguments: Any, **others: Any) -> Any:
        raise KeyError("a mistake")

    monkeypatch.setattr("hogwild.run.training.run_job", mistaken)
    with pytest.raises(KeyError) as raised:
        problems.train(updates=3)
    assert frames(raised.value)[-2:] == ["train_config", "mistaken"]


def test_what_the_caller_was_handling_keeps_its_traceback():
    seen = []

    def handling() -> None:
        try:
            int("three")
        except ValueError as error:
            seen.append((error, frames(error)))
            problems.train(updates=0)

    with pytest.raises(hogwild.ArgumentError) as raised:
        handling()
    ((first, before),) = seen
    assert raised.value.__context__ is first and frames(first) == before == ["handling"]
