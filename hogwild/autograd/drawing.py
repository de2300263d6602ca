"""Draw the graph behind a loss, with matplotlib alone.

The loss is at the top and arrows point the way a gradient flows, as `backward()` walks them. Boxes are placed
in layers, each below all that leads to it (the layers of Sugiyama, Tagawa & Toda 1981): an edge that skips a
layer gets an invisible place there, the order within a layer is improved by barycentre sweeps, and the places
are then drawn towards their neighbours without overlapping.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from hogwild.autograd.graph import Ledger, leaf_of, operation_name, saved_tensors, walk

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BOX_HEIGHT, _LAYER, _GAP, _CHARACTER = 0.52, 0.98, 0.3, 0.085
"""Inches: of a box, from one layer to the next, between neighbours, and of one character."""


@dataclass(eq=False)
class _Box:
    """One thing with a place in the drawing. `kind` is operation, saving, leaf, absent or passing."""

    kind: str
    lines: tuple[str, ...]
    layer: int = 0
    x: float = 0.0
    below: list[_Box] = field(default_factory=list)
    above: list[_Box] = field(default_factory=list)

    @property
    def width(self) -> float:
        return max((len(line) * _CHARACTER + 0.22 for line in self.lines), default=0.12)

    @property
    def y(self) -> float:
        return -self.layer * _LAYER


def draw_graph(
    loss: Tensor, path: Path, *, names: Mapping[str, Tensor] | None = None, title: str | None = None
) -> tuple[Path, Path]:
    """Draw the graph behind a loss as an SVG and a PNG file.

    Each operation shows what it saved for the backward pass, memory shared by several counted once; a
    dashed arrow to a dot is an input at which the graph ends because nothing there needs a gradient.

    Args:
        loss: a tensor with a graph, before `backward()` has freed it. Up to some dozens of nodes read well.
        path: where to, with or without a suffix; `.svg` and `.png` replace it. The folder is made.
        names: names for the leaves, such as `dict(model.named_parameters())`.
        title: what stands above the drawing.

    Returns:
        The paths of the SVG and of the PNG.

    Raises:
        ValueError: the tensor has no graph, or the graph has been freed.
        ImportError: matplotlib is not installed.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    layers = _layers(_boxes(loss, names or {}))
    _place(layers)
    boxes = [box for layer in layers for box in layer]
    kinds = {box.kind for box in boxes}
    left, right = min(box.x - box.width / 2 for box in boxes), max(box.x + box.width / 2 for box in boxes)
    middle, width = (left + right) / 2, max(right - left + 0.5, 4.4, 0.11 * len(title or ""))
    left, right = middle - width / 2, middle + width / 2
    bottom, top = -(len(layers) - 1) * _LAYER - 0.6 - 0.21 * len(kinds & _MEANINGS.keys()), 0.8
    figure = Figure(figsize=(right - left, top - bottom))
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0), xlim=(left, right), ylim=(bottom, top))
    axes.set_axis_off()
    for box in boxes:
        _draw(axes, box)
    _legend(axes, kinds)
    axes.text(middle, top - 0.15, title or "", ha="center", va="top", fontsize=12, weight="bold")
    path.parent.mkdir(parents=True, exist_ok=True)
    svg, png = path.with_suffix(".svg"), path.with_suffix(".png")
    with rc_context({"svg.hashsalt": "hogwild", "svg.fonttype": "none"}):
        figure.savefig(svg, metadata={"Date": None})
    figure.savefig(png, dpi=160)
    return svg, png


def _boxes(loss: Tensor, names: Mapping[str, Tensor]) -> list[_Box]:
    """One box for the loss, each node, and each way that is absent; joined, not yet placed."""
    nodes = walk(loss)
    ledger = Ledger(nodes)
    called = {id(tensor): name for name, tensor in names.items()}
    boxes = {}
    for node in nodes:
        leaf = leaf_of(node)
        if leaf is not None:
            boxes[node] = _Box("leaf", (called.get(id(leaf), "leaf"), _shape(leaf)))
            continue
        sizes = [ledger.enter(tensor) for tensor in saved_tensors(node)]
        name = operation_name(node).removesuffix("0").removesuffix("Backward")
        saves = (f"saves {_bytes(sum(sizes))}",) if sum(sizes) else ()
        boxes[node] = _Box("saving" if saves else "operation", (name, *saves))
    root = _Box("loss", ("loss", _shape(loss)))
    _join(root, boxes[nodes[0]])
    found = [root, *boxes.values()]
    for node in nodes:
        for following, _ in node.next_functions:
            end = _Box("absent", ()) if following is None else boxes[following]
            if following is None:
                found.append(end)
            _join(boxes[node], end)
    return found


def _layers(boxes: list[_Box]) -> list[list[_Box]]:
    """The boxes by layer, each below all that leads to it, with an invisible one wherever an edge passes."""
    waiting = {box: len(box.above) for box in boxes}
    ready = [box for box in boxes if not box.above]
    for box in ready:
        for child in box.below:
            child.layer = max(child.layer, box.layer + 1)
            waiting[child] -= 1
            if not waiting[child]:
                ready.append(child)
    layers: list[list[_Box]] = [[] for _ in range(max(box.layer for box in boxes) + 1)]
    for box in ready:
        layers[box.layer].append(box)
        for place, child in enumerate(box.below):
            if child.layer > box.layer + 1:
                box.below[place] = _passing(box, child, layers)
    return layers


def _passing(box: _Box, child: _Box, layers: list[list[_Box]]) -> _Box:
    """A chain of invisible boxes from one box to another some layers down; the first of them."""
    child.above.remove(box)
    chain = [_Box("passing", (), layer=layer) for layer in range(box.layer + 1, child.layer)]
    for link in chain:
        layers[link.layer].append(link)
    for upper, lower in zip(chain, [*chain[1:], child], strict=True):
        _join(upper, lower)
    chain[0].above.append(box)
    return chain[0]


def _place(layers: list[list[_Box]]) -> None:
    """Order each layer to cross few edges, and give every box its x in inches."""
    for layer in layers:
        _spread(layer, [float(index) for index in range(len(layer))])
    for sweep in range(24):
        down = sweep % 2 == 0
        for layer in layers if down else reversed(layers):
            wanted = [_mean([one.x for one in (box.above if down else box.below)], box.x) for box in layer]
            if sweep < 12:
                order = sorted(range(len(layer)), key=lambda index, at=wanted: at[index])  # type: ignore[misc]
                layer[:] = [layer[index] for index in order]
                wanted = [wanted[index] for index in order]
            _spread(layer, wanted)


def _spread(layer: Sequence[_Box], wanted: Sequence[float]) -> None:
    """Put the boxes of a layer as near to where they are wanted as their order and widths allow.

    Neighbours that would overlap are merged into a run, which is centred on the mean of its wishes (pool
    adjacent violators).
    """
    offsets = [0.0]
    for a, b in pairwise(layer):
        offsets.append(offsets[-1] + (a.width + b.width) / 2 + _GAP)
    runs: list[tuple[float, int]] = []
    for want, offset in zip(wanted, offsets, strict=True):
        start, size = want - offset, 1
        while runs and runs[-1][0] > start:
            other, count = runs.pop()
            start, size = (start * size + other * count) / (size + count), size + count
        runs.append((start, size))
    starts = [start for start, size in runs for _ in range(size)]
    for box, start, offset in zip(layer, starts, offsets, strict=True):
        box.x = start + offset


_COLOURS = {"loss": "#f3d9b1", "operation": "#eceff3", "saving": "#bcd4ee", "leaf": "#cfe8cf"}
_MEANINGS = {
    "operation": "operation that saved nothing more",
    "saving": "operation that saved tensors (each counted once)",
    "leaf": "leaf that receives its .grad",
    "absent": "absent: nothing there needs a gradient",
}
_EDGE, _ABSENT = "#5a6472", "#a9b0ba"


def _draw(axes: Axes, box: _Box) -> None:
    from matplotlib.patches import FancyBboxPatch

    for child in box.below:
        _arrow(axes, box, child)
    if box.kind == "absent":
        axes.plot([box.x], [box.y + 0.3], "o", color=_ABSENT, markersize=6)
    if not box.lines:
        return
    corner = (box.x - box.width / 2, box.y - _BOX_HEIGHT / 2)
    axes.add_patch(
        FancyBboxPatch(
            corner,
            box.width,
            _BOX_HEIGHT,
            boxstyle="round,pad=0,rounding_size=0.1",
            facecolor=_COLOURS[box.kind],
            edgecolor=_EDGE,
            linewidth=0.9,
            zorder=2,
        )
    )
    for line, (text, shift) in enumerate(zip(box.lines, _shifts(box), strict=True)):
        weight = "bold" if line == 0 else "normal"
        size = 9.5 if line == 0 else 8.5
        axes.text(box.x, box.y + shift, text, ha="center", va="center", fontsize=size, weight=weight, zorder=3)


def _arrow(axes: Axes, box: _Box, child: _Box) -> None:
    from matplotlib.patches import FancyArrowPatch

    absent = child.kind == "absent"
    start = (box.x, box.y - (_BOX_HEIGHT / 2 if box.lines else 0.0))
    end = (child.x, child.y + (0.34 if absent else _BOX_HEIGHT / 2 if child.lines else 0.0))
    axes.add_patch(
        FancyArrowPatch(
            start,
            end,
            arrowstyle="-" if child.kind == "passing" else "-|>",
            mutation_scale=9,
            shrinkA=0,
            shrinkB=0,
            color=_ABSENT if absent else _EDGE,
            linestyle="--" if absent else "-",
            linewidth=1.0,
            zorder=1,
        )
    )


def _legend(axes: Axes, kinds: set[str]) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D(
            [],
            [],
            linestyle="",
            marker="o" if kind == "absent" else "s",
            markersize=6 if kind == "absent" else 10,
            markerfacecolor=_COLOURS.get(kind, _ABSENT),
            markeredgecolor=_ABSENT if kind == "absent" else _EDGE,
            label=meaning,
        )
        for kind, meaning in _MEANINGS.items()
        if kind in kinds
    ]
    axes.legend(handles=handles, loc="lower center", frameon=False, fontsize=8.5, labelspacing=0.4)


def _shifts(box: _Box) -> tuple[float, ...]:
    return (0.0,) if len(box.lines) == 1 else (0.1, -0.11)


def _join(upper: _Box, lower: _Box) -> None:
    upper.below.append(lower)
    lower.above.append(upper)


def _mean(values: Iterable[float], otherwise: float) -> float:
    found = list(values)
    return sum(found) / len(found) if found else otherwise


def _shape(tensor: Tensor) -> str:
    return "[" + ", ".join(str(size) for size in tensor.shape) + "]"


def _bytes(count: int) -> str:
    if count < 1000:
        return f"{count} B"
    return f"{count / 1000:.3g} kB" if count < 1_000_000 else f"{count / 1e6:.3g} MB"
