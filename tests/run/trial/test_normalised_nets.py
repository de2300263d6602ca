"""A net whose weights go into normalisations may be stepped on three times as far: its loss gets no more curved."""

from __future__ import annotations

import json
from functools import partial

import problems
import pytest
import torch
from stale import TAU, by_reference, train
from torch import nn

from hogwild.run.trial import curvature

FAR = partial(torch.optim.SGD, lr=2.0)


def seeded(*layers: nn.Module) -> nn.Module:
    """A net of these layers, drawn anew."""
    torch.manual_seed(0)
    net = nn.Sequential(*layers)
    for layer in net:
        if isinstance(layer, nn.Linear | nn.Conv1d):
            nn.init.normal_(layer.weight, std=0.4)
            nn.init.normal_(layer.bias, std=0.4)
    return net


def layer_norm() -> nn.Module:
    return seeded(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 3))


def group_norm() -> nn.Module:
    return seeded(nn.Unflatten(1, (1, 8)), nn.Conv1d(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(24, 3))


def normalised_input() -> nn.Module:
    """What the first weight makes is not."""
    return seeded(nn.BatchNorm1d(8), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


def two_layers_after() -> nn.Module:
    return seeded(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))


def one_layer() -> nn.Module:
    return seeded(nn.Linear(8, 3))


@pytest.mark.parametrize("model", [problems.conv_bn, layer_norm, group_norm])
def test_normalised(model):
    run = train(workers=2, optimizer=FAR, model=model)
    assert run.curvature is not None
    assert run.compensation[-1].endswith(f"for a curvature of {run.curvature:.3g}, which does not grow")
    rate = 1 / (run.curvature * (TAU + 1) ** 2)
    assert run.compensation[-1].startswith(f"lr 2 → {rate:.6g},")
    assert run.digest == by_reference(optimizer=FAR, model=model)


@pytest.mark.parametrize("model", [problems.mlp, normalised_input, two_layers_after, one_layer])
def test_not_normalised(model):
    run = train(workers=2, optimizer=FAR, model=model)
    assert run.curvature is not None
    assert run.compensation[-1].endswith(f"for a curvature of {run.curvature:.3g}")
    rate = 1 / (3 * run.curvature * (TAU + 1) ** 2)
    assert run.compensation[-1].startswith(f"lr 2 → {rate:.6g},")
    assert run.digest == by_reference(optimizer=FAR, model=model)


def test_adam_is_left_no_room_to_grow_anyway():
    run = train(optimizer=partial(torch.optim.Adam, lr=5.0))
    assert run.compensation[-1].endswith(f"for a curvature of {run.curvature:.3g}")


def interrupted(out) -> None:
    """Begin a run of the net with BatchNorm, and break it off."""
    with pytest.raises(KeyboardInterrupt):
        train(out=out, optimizer=FAR, evaluate=problems.interrupting(2), evaluate_every=7, stop=lambda progress: False)


def test_a_run_goes_on_with_what_was_found_where_it_began(tmp_path):
    interrupted(tmp_path)
    assert json.loads((tmp_path / "origin.json").read_text())["curvature_grows"] == 1
    run = train(workers=4, out=tmp_path, resume=tmp_path, optimizer=FAR)
    assert run.digest == by_reference(optimizer=FAR)


def test_a_run_that_was_begun_before_this_was_known_goes_on_as_it_began(tmp_path, monkeypatch):
    with monkeypatch.context() as before:
        before.setattr(curvature, "_is_normalised", lambda *of_layers: False)
        whole = train(optimizer=FAR)
        interrupted(tmp_path)
    origin = json.loads((tmp_path / "origin.json").read_text())
    del origin["curvature_grows"]
    (tmp_path / "origin.json").write_text(json.dumps(origin))
    run = train(workers=4, out=tmp_path, resume=tmp_path, optimizer=FAR)
    assert run.digest == whole.digest != by_reference(optimizer=FAR)
