"""Plots of a run. matplotlib is an extra: it is imported when something is drawn, and not at all where it is not."""

from __future__ import annotations

from importlib.util import find_spec
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
_AGES = 40  # bars of a histogram, at most


def can_plot() -> bool:
    """True where matplotlib is installed."""
    return find_spec("matplotlib") is not None


def plot_run(run: Run, path: Path) -> None:
    """Draw a run as PNG: its loss, its metrics where it has any, and the staleness of its updates."""
    from matplotlib.figure import Figure

    panels = [_loss, _metrics, _staleness] if run.evaluations and run.metrics else [_loss, _staleness]
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
    axes.plot(versions[::step], losses[::step], ".", color=GREY, alpha=0.35, markersize=3, label="each batch")
    width = max(1, len(losses) // 50)
    if width > 1:
        middle = versions[width // 2 :][: len(losses) - width + 1]
        axes.plot(middle, _running_mean(losses, width), color=BLUE, linewidth=1.8, label=f"mean of {width} updates")
    if len(losses) and losses.min() > 0:
        axes.set_yscale("log")
    axes.set(title="Training loss", xlabel="updates", ylabel="loss of the batch")
    axes.legend(frameon=False, fontsize=9)


def _running_mean(values: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    sums = np.cumsum(np.insert(values, 0, 0.0))
    return (sums[width:] - sums[:-width]) / width


def _metrics(axes: Axes, run: Run) -> None:
    for number, name in enumerate(run.metrics):
        rows = [row for row in run.evaluations if name in row]
        label = f"{name}, in the end {rows[-1][name]:.4g}"
        colour = _COLOURS[number % len(_COLOURS)]
        axes.plot([row["update"] for row in rows], [row[name] for row in rows], "o-", ms=3, color=colour, label=label)
    axes.set(title="Evaluation", xlabel="updates", ylabel=next(iter(run.metrics)) if len(run.metrics) == 1 else "value")
    axes.legend(frameon=False, fontsize=9, loc="best")


def _staleness(axes: Axes, run: Run) -> None:
    ages = run.journal["version"] - 1 - run.journal["version_read"]
    shown = np.minimum(ages, _AGES)
    values, counts = np.unique(shown, return_counts=True)
    ours = run.staleness
    label = f"mean {ours.mean:.2f}, p99 {ours.p99:.0f}, max {ours.max}"
    axes.bar(values, 100 * counts / max(len(ages), 1), color=ORANGE, width=0.8, label=label)
    axes.set_xlim(-0.6, max(int(shown.max(initial=0)), 4) + 0.6)
    axes.xaxis.get_major_locator().set_params(integer=True)
    beyond = f" (the last bar: {_AGES} and more)" if ours.max > _AGES else ""
    axes.set(title="Staleness", xlabel=f"age of the version read, in updates{beyond}", ylabel="share of updates, %")
    axes.legend(frameon=False, fontsize=9)
