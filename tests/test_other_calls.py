"""Calls with arguments that a function does not have say which was meant."""

from __future__ import annotations

from typing import Any

import problems
import pytest
import torch

import hogwild

FITTING: dict[str, Any] = {"optimizer": problems.SGD, "updates": 1}


def notes_of(call: Any, *args: Any, **named: Any) -> list[str]:
    with pytest.raises(TypeError) as caught:
        call(*args, **named)
    return getattr(caught.value, "__notes__", [])


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ({"lr": 0.1}, "the optimizer has it: optimizer=functools.partial(torch.optim.SGD, lr=0.1)"),
        ({"num_workers": 2}, "it is workers: each fetches its own batches, and trains on them"),
        ({"n_workers": 2}, "did you mean workers?"),
        ({"collate_fn": list}, "did you mean collate?"),
        ({"max_epochs": 2}, "did you mean epochs?"),
        ({"device": "cpu"}, "models are trained on the CPU"),
        ({"grad_clip": 1.0}, "it is clip_grad_norm"),
        ({"accumulate_grad_batches": 4}, "it is accumulate"),
        ({"fast_dev_run": True}, "it is limit_updates=20, or as many as are enough"),
        ({"resume_from": "runs/a"}, "it is resume, the folder of a run"),
        (
            {"patience": 3},
            "it is a callback's: callbacks=[hogwild.EarlyStopping('accuracy', patience=3)]",
        ),
        ({"num_steps": 3}, "it is updates"),
    ],
)
def test_train_says_which_argument_was_meant(named, said):
    assert notes_of(hogwild.train, torch.nn.Linear(1, 1), torch.zeros(2, 1), sum, **FITTING, **named) == [said]


def test_train_says_that_the_optimizer_is_named():
    given = torch.nn.Linear(1, 1), torch.zeros(2, 1), sum, problems.SGD
    assert notes_of(hogwild.train, *given, updates=1) == ["the others are given by name: optimizer=…"]


def test_launch_says_what_a_loop_of_ones_own_has_in_their_place():
    said = ["a loop of your own has none: updates says how long it is"]
    assert notes_of(hogwild.launch, print, torch.nn.Linear(1, 1), optimizer=problems.SGD, epochs=2) == said
    said = ["functools.partial gives the loop what else it needs"]
    assert notes_of(hogwild.launch, print, torch.nn.Linear(1, 1), **FITTING, args=(1,)) == said


def test_what_nobody_knows_and_what_is_missing_is_left_as_it_is():
    assert notes_of(hogwild.train, torch.nn.Linear(1, 1), torch.zeros(2, 1), sum, **FITTING, xyzzy=1) == []
    assert notes_of(hogwild.train, torch.nn.Linear(1, 1)) == []


def test_an_error_of_ones_own_code_is_left_as_it_is():
    def evaluate(model):
        return print(lr=1)

    model = torch.nn.Linear(8, 3)
    assert not any("optimizer" in note for note in notes_of(problems.train, model, evaluate=evaluate, update="ordered"))
