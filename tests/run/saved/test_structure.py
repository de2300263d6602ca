"""A model of the same shapes that computes otherwise is another one, and no run of the first goes on with it."""

from __future__ import annotations

import json
from collections.abc import Callable

import problems
import pytest
import torch
from torch import nn

import hogwild
from hogwild.run.saved.structure import structure_differences, structure_of

pytestmark = pytest.mark.filterwarnings("ignore:staleness")


def model(p: float = 0.2, momentum: float = 0.1, frozen: float = 1.0, slope: float = 0.01) -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Linear(8, 16), nn.BatchNorm1d(16, momentum=momentum), nn.LeakyReLU(slope), nn.Dropout(p))
    net = nn.Sequential(*layers, nn.Linear(16, 3))
    net[4].bias.requires_grad_(False).data.fill_(frozen)
    return net


def in_part_evaluated(net: nn.Module) -> nn.Module:
    net[1].eval()
    return net


OTHERS: dict[str, Callable[[], nn.Module]] = {
    "p of module '3' was 0.2 and is 0.3": lambda: model(p=0.3),
    "momentum of module '1' was 0.1 and is 0.9": lambda: model(momentum=0.9),
    "the mode of module '1' was train and is eval": lambda: in_part_evaluated(model()),
    "negative_slope of module '2' was 0.01 and is 0.5": lambda: model(slope=0.5),
    "frozen parameter '4.bias' was ": lambda: model(frozen=2.0),
}


@pytest.mark.parametrize(("told", "other"), OTHERS.items())
def test_a_run_does_not_go_on_with_a_model_that_computes_otherwise(told, other, tmp_path):
    """It went on, and ended in bits of neither model."""
    settings = {"update": "ordered", "kind": "processes", "updates": 30}
    problems.train(model(), out=tmp_path, checkpoint_every=10, **settings)
    record = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps({**record, "stopped": "interrupted"}))
    with pytest.raises(hogwild.RunDirectoryError, match="another model") as caught:
        problems.train(other(), resume=tmp_path, **settings)
    assert told in str(caught.value)
    whole = problems.train(model(), **settings)
    assert problems.train(model(), resume=tmp_path, **settings).digest == whole.digest


def test_what_an_older_record_or_another_torch_does_not_tell_is_no_difference():
    now = structure_of(model(), ["0.weight"])
    assert not list(structure_differences(now, now))
    older = {kind: now[kind] for kind in ("parameters", "buffers", "modules")}
    assert not list(structure_differences(older, now))
    fewer = {**now, "options": {"1": {"eps": "1e-05"}}}
    assert not list(structure_differences(fewer, now))


def test_options_are_told_by_name_or_place_and_without_addresses():
    class Odd(nn.Module):
        def extra_repr(self) -> str:
            return f"3, size=(2, 3), by={object()!r}"

    class Broken(nn.Module):
        def extra_repr(self) -> str:
            raise RuntimeError

    options = structure_of(nn.Sequential(Odd(), Broken()), [])["options"]
    assert options == {"0": {"0": "3", "size": "(2, 3)", "by": "<object object>"}}
