"""Modules with a parametrization, of a class that torch makes for each of them, reach worker processes."""

from __future__ import annotations

import os

import problems
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize
from traits import KINDS

import hogwild


class Doubled(nn.Module):
    """A parametrization of one's own, with a state that a module of the user's keeps besides."""

    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight

    def right_inverse(self, weight: Tensor) -> Tensor:
        return weight / 2


class Remembers(nn.Linear):
    """Says itself what of it is pickled."""

    def __init__(self) -> None:
        super().__init__(8, 16)
        self.seen = ["much"]

    def __getstate__(self) -> dict:
        return {**vars(self), "seen": []}


def net(layer: nn.Module) -> nn.Module:
    return nn.Sequential(layer, nn.ReLU(), nn.Linear(16, 3))


def spectral() -> nn.Module:
    return net(parametrizations.spectral_norm(nn.Linear(8, 16)))


def weight_norm() -> nn.Module:
    return net(parametrizations.weight_norm(nn.Linear(8, 16)))


def orthogonal() -> nn.Module:
    return net(parametrizations.orthogonal(nn.Linear(8, 16)))


def two_of_one_and_a_chain() -> nn.Module:
    layer = Remembers()
    for _ in range(2):
        parametrize.register_parametrization(layer, "weight", Doubled())
    parametrize.register_parametrization(layer, "bias", Doubled())
    return net(layer)


def seeded(make) -> nn.Module:
    torch.manual_seed(0)
    return make()


@pytest.mark.parametrize("make", [spectral, weight_norm, orthogonal, two_of_one_and_a_chain])
def test_they_train_as_they_do_in_threads(make):
    runs = [problems.train(seeded(make), update="ordered", kind=kind, workers=2) for kind in KINDS]
    assert runs[0].digest == runs[1].digest
    serial = seeded(make)
    problems.train_serially(serial, update="ordered")
    assert runs[0].digest == hogwild.digest(serial)


def test_what_a_module_leaves_out_of_a_pickle_is_left_out():
    here = os.getpid()

    def loss(model: nn.Module, batch) -> Tensor:
        assert model[0].seen == (["much"] if os.getpid() == here else [])
        return problems.cross_entropy(model, batch)

    problems.train(seeded(two_of_one_and_a_chain), update="hogwild", kind="processes", loss=loss, updates=4)
