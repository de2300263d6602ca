"""Two trainings at once in one program, in threads: neither hears of the other."""

from __future__ import annotations

import copy
import itertools
import random
import threading
from typing import Any

import numpy as np
import problems
import pytest
import torch
from side_by_side import at_once
from torch import nn
from traits import SAME_BITS


def drawing(model: nn.Module) -> dict[str, float]:
    return {"drawn": torch.rand(()).item() + np.random.rand() + random.random()}


MODEL = problems.conv_bn()


def trained(update: str, **arguments: Any) -> str:
    model = copy.deepcopy(MODEL)  # to make one would draw, beside the other training
    return problems.train(
        model, update=update, evaluate=drawing, evaluate_every=3, **{"kind": "threads", **arguments}
    ).digest


@pytest.mark.parametrize("kinds", [("threads", "threads"), ("threads", "processes")])
@pytest.mark.parametrize("update", SAME_BITS)
def test_both_have_the_bits_of_one_alone(update, kinds):
    alone, short = trained(update), trained(update, updates=12)
    for _ in range(3):
        both = [lambda kind=kind, n=n: trained(update, kind=kind, updates=n) for n, kind in zip((40, 12), kinds)]  # noqa: B905
        assert at_once(*both, *both) == [alone, short] * 2


def test_short_trainings_beside_a_long_one():
    """Their trial steps fall into its updates."""
    alone, done = trained("ordered", updates=300), threading.Event()

    def long() -> str:
        try:
            return trained("ordered", updates=300)
        finally:
            done.set()

    def short() -> set[str]:
        return {trained("ordered", updates=3) for _ in itertools.takewhile(lambda _: not done.is_set(), range(1000))}

    assert at_once(long, short) == [alone, {trained("ordered", updates=3)}]


def test_a_training_in_the_evaluation_of_another():
    inner: list[str] = []

    def evaluate(model: nn.Module) -> dict[str, float]:
        inner.append(trained("ordered", updates=6))
        return drawing(model)

    run = problems.train(update="ordered", evaluate=evaluate, evaluate_every=20)
    assert run.digest == problems.train(update="ordered").digest
    assert set(inner) == {trained("ordered", updates=6)} and inner


def test_torchs_threads_are_given_back_whoever_ends_last():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for _ in range(3):
            digests = at_once(*[lambda n=n: trained("ordered", updates=n) for n in (3, 30, 12)])
            assert all(isinstance(digest, str) for digest in digests), digests
            seen: list[int] = at_once(torch.get_num_threads)
            assert seen == [2] and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
