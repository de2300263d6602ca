"""Adaptive optimizers whose step is torch's own, under rules that do not lock: told before the run."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import problems
import pytest
import torch
from traits import EXACT

import hogwild

NOT_EXACT = [name for name in hogwild.rules.NAMES if name not in EXACT]
IN_DANGER: dict[str, Any] = {
    "adamax": torch.optim.Adamax,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "adadelta": torch.optim.Adadelta,
    "rprop": torch.optim.Rprop,
    "amsgrad": partial(torch.optim.Adam, amsgrad=True),
    "fused": partial(torch.optim.AdamW, fused=True),
    "centred": partial(torch.optim.RMSprop, centered=True),
}
SAFE: dict[str, Any] = {
    "adam": torch.optim.Adam,
    "adam with decay": partial(torch.optim.Adam, weight_decay=0.1),
    "adamw": torch.optim.AdamW,
    "adagrad": torch.optim.Adagrad,
    "rmsprop": torch.optim.RMSprop,
    "sgd": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "sgd in one call": partial(torch.optim.SGD, lr=0.1, foreach=True),
    "asgd": torch.optim.ASGD,
    "adafactor": torch.optim.Adafactor,
}


@pytest.mark.parametrize("update", NOT_EXACT)
@pytest.mark.parametrize("name", IN_DANGER)
def test_it_is_told_in_one_line_what_can_happen_and_what_helps(name, update):
    with pytest.warns(UserWarning, match=rf"under {update} a lost write can make a step of any size") as told:
        problems.train(optimizer=IN_DANGER[name], update=update, workers=2, updates=2)
    (one,) = told
    assert "\n" not in str(one.message)
    assert "'locked'" in str(one.message)
    assert one.filename == problems.__file__


@pytest.mark.parametrize(
    ("name", "update", "workers"),
    [
        *((name, "hogwild", 2) for name in SAFE),
        ("adamax", "hogwild", 1),
        *(("adamax", update, 2) for update in EXACT),
    ],
)
def test_nothing_is_told_where_nothing_can_happen(name, update, workers):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        problems.train(optimizer=(SAFE | IN_DANGER)[name], update=update, workers=workers, updates=2, micro_batches=2)
