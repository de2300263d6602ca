"""Plots of a run. matplotlib is an extra: it is imported when something is drawn, and not at all where it is not."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hogwild.report.words import count, title_of
from hogwild.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, ORANGE, GREEN, GREY = "#2f6db3", "#e07b26", "#3a9a5b", "#7c8794"
_COLOURS = (GREEN, ORANGE, BLUE, GREY)
_POINTS = 2_000  # drawn of a loss curve, at most
_LEAST_SPAN = 0.05  # of a metric's axis, as a share of its values
_AGES = 20  # bars of a histogram, at most


def can_plot() -> bool:
    """True where matplotlib is installed."""
    return find_spec("matplotlib") is not None


def plot_run(run: Run, path: Path) -> None:
    """Draw a run as PNG: its loss, its metrics where it has any, and the staleness of its updates."""
    from matplotlib.figure import Figure

    judged = any(not _is_loss(name) for name in run.metrics)
    panels = [_loss, _metrics, _staleness] if judged else [_loss, _staleness]
    figure = Figure(figsize=(4.6 * len(panels), 4.2), layout="constrained")
    title = f"{title_of(run.config)} · {count(run.updates)} updates · seed {run.config.seed}"
    figure.suptitle(title, fontsize=12, weight="bold")
    for axes, panel in zip(figure.subplots(1, len(panels)), panels, strict=True):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(True, color="#e6e9ed", linewidth=0.8)
        axes.set_axisbelow(True)
        panel(axes, run)
    figure.savefig(path, dpi=150)


def _loss(axes: Axes, run: Run) -> None:
    versions, losses = run.journal["version"], run.losses
    finite = np.isfinite(losses)
    versions, losses = versions[finite], losses[finite]
    step = max(1, len(losses) // _POINTS)
    axes.plot(versions[::step], losses[::step], ".", color=GREY, alpha=0.35, markersize=3, label="training, each batch")
    width = max(1, len(losses) // 50)
    if width > 1:
        middle = versions[width // 2 :][: len(losses) - width + 1]
        axes.plot(middle, _running_mean(losses, width), color=BLUE, linewidth=1.8, label=f"training, mean of {width}")
    for name in filter(_is_loss, run.metrics):
        _curve(axes, run, name, ORANGE)
    if len(losses) and losses.min() > 0:
        axes.set_yscale("log")
    axes.set(title="Loss", xlabel="updates", ylabel="loss")
    _finish(axes)


def _finish(axes: Axes) -> None:
    """Updates from 0, with few and readable ticks; a legend that curves do not run through."""
    axes.set_xlim(left=0)
    axes.locator_params(axis="x", nbins=5)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.legend(fontsize=9, framealpha=0.9, edgecolor="none")


def _running_mean(values: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    sums = np.cumsum(np.insert(values, 0, 0.0))
    return (sums[width:] - sums[:-width]) / width


def _metrics(axes: Axes, run: Run) -> None:
    names = [name for name in run.metrics if not _is_loss(name)]
    for name, colour in zip(names, cycle(_COLOURS), strict=False):
        _curve(axes, run, name, colour)
    low, high = axes.get_ylim()
    missing = _LEAST_SPAN * max(abs(low), abs(high)) - (high - low)
    if missing > 0:  # what differs by a sample or two shall not look like a storm
        axes.set_ylim(low - missing / 2, high + missing / 2)
    axes.set(title="Evaluation", xlabel="updates", ylabel=names[0] if len(names) == 1 else "value")
    _finish(axes)


def _curve(axes: Axes, run: Run, name: str, colour: str) -> None:
    rows = [row for row in run.evaluations if name in row]
    label = f"{name.replace('_', ' ')}, in the end {rows[-1][name]:.4g}"
    axes.plot([row["update"] for row in rows], [row[name] for row in rows], "o-", ms=3, color=colour, label=label)


def _is_loss(name: str) -> bool:
    """Such a metric has the unit of the training loss, and is drawn beside it."""
    return name == "loss" or name.endswith("_loss")


def _staleness(axes: Axes, run: Run) -> None:
    ages = run.journal["version"] - 1 - run.journal["version_read"]
    values, counts = np.unique(np.minimum(ages, _AGES), return_counts=True)
    ours = run.staleness
    label = f"mean {ours.mean:.2f}, p99 {ours.p99:.0f}, max {ours.max}"
    axes.bar(values, 100 * counts / max(len(ages), 1), color=ORANGE, width=0.8, label=label)
    axes.set_xlim(-0.6, max(int(values.max(initial=0)), 4) + 0.6)
    ticks = range(0, max(int(values.max(initial=0)), 4) + 1, 1 if values.max(initial=0) <= 10 else 5)
    axes.set_xticks(ticks, [f"≥ {tick}" if tick == _AGES and ours.max > _AGES else str(tick) for tick in ticks])
    if len(values):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
    axes.set(title="Staleness", xlabel="age of the version read, in updates", ylabel="share of updates, %")
    axes.legend(frameon=False, fontsize=9)
