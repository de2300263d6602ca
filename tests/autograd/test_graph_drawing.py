"""The drawing: its files, what is written in them, and that its boxes do not cover each other."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

from hogwild.autograd import draw_graph
from hogwild.autograd.drawing import _boxes, _layers, _place

pytest.importorskip("matplotlib")


class Residual(nn.Module):
    """Two ways round: edges that skip layers."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        inner = self.first(x)
        return inner + self.second(inner.relu()) * inner


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(Residual(), Residual())


def loss_of(model):
    return model(torch.ones(3, 4)).square().mean()


def test_both_files_are_written_and_say_what_is_in_the_graph(model, tmp_path):
    svg, png = draw_graph(
        loss_of(model), tmp_path / "new" / "graph.png", names=dict(model.named_parameters()), title="Two blocks"
    )
    assert svg == tmp_path / "new" / "graph.svg"
    assert png.read_bytes().startswith(b"\x89PNG")
    text = svg.read_text()
    for word in ("Two blocks", "Addmm", "Relu", "1.second.weight", "[4, 4]", "saves 48 B", "absent"):
        assert word in text


def test_the_same_graph_gives_the_same_file(model, tmp_path):
    texts = [draw_graph(loss_of(model), tmp_path / str(run))[0].read_bytes() for run in range(2)]
    assert texts[0] == texts[1]


def test_boxes_stand_below_what_leads_to_them_and_apart(model):
    layers = _layers(_boxes(loss_of(model), {}))
    _place(layers)
    for layer in layers:
        for a, b in pairwise(layer):
            assert a.x + a.width / 2 < b.x - b.width / 2
        for box in layer:
            assert all(child.layer == box.layer + 1 for child in box.below)
            assert all(box in child.above for child in box.below)


def test_every_node_has_its_box(model):
    loss = loss_of(model)
    kinds = [box.kind for layer in _layers(_boxes(loss, {})) for box in layer]
    assert kinds.count("loss") == 1
    assert kinds.count("leaf") == 8
    assert kinds.count("absent") == 1
    assert "passing" in kinds


def test_no_graph_is_refused(tmp_path):
    with pytest.raises(ValueError, match="has no graph"):
        draw_graph(torch.ones(1), tmp_path / "none")
