"""Plots of a run. matplotlib is an extra: it is imported when something is drawn, and not at all where it is not."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from hogwild.determinism.verdict import Verdict
from hogwild.errors import one_line
from hogwild.report.smoothed import finite_losses, smoothed_loss
from hogwild.report.words import count, is_loss
from hogwild.run.figures import BLUE, GREEN, GREY, ORANGE, row_of_axes, save_figure
from hogwild.run.result import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

_log = logging.getLogger("hogwild")
_COLOURS = (GREEN, ORANGE, BLUE, GREY)
Size = tuple[float, float]
_Drawn = TypeVar("_Drawn")
_POINTS = 2_000  # drawn of a loss curve, at most
_LEAST_SPAN = 0.05  # of a metric's axis, as a share of its values
_AGES = 20  # bars of a histogram, at most


def can_plot() -> bool:
    """True where matplotlib is installed; where it is, and cannot be imported, a warning says why."""
    if find_spec("matplotlib") is None:
        return False
    try:
        import matplotlib.figure  # noqa: F401
    except Exception as error:  # as where it was built for another numpy
        _log.warning(
            "no figure is drawn: matplotlib cannot be imported (%s: %s)", type(error).__name__, one_line(error)
        )
        return False
    return True


def plot_run(run: Run, path: Path) -> None:
    """Draw a run as PNG: its loss, its metrics where it has any, and the staleness of its updates."""
    judged = any(not is_loss(name) for name in run.metrics)
    panels = [_loss, _metrics, _staleness] if judged else [_loss, _staleness]
    title = f"{run.title} · {count(run.updates)} updates · seed {run.config.seed}"
    _draw(run, panels, title, (4.6, 4.2), path)


def _draw(what: _Drawn, panels: Sequence[Callable[[Axes, _Drawn], None]], title: str, size: Size, path: Path) -> None:
    """Panels of `size` inches in a row, under one title."""
    figure, row = row_of_axes(size[0] * len(panels), size[1], len(panels), title)
    for axes, panel in zip(row, panels, strict=True):
        panel(axes, what)
    save_figure(figure, path)


def _loss(axes: Axes, run: Run) -> None:
    losses, versions = finite_losses(run)
    step = max(1, len(losses) // _POINTS)
    axes.plot(versions[::step], losses[::step], ".", color=GREY, alpha=0.35, markersize=3, label="training, each batch")
    middle, means, width = smoothed_loss(run)
    if width > 1:
        axes.plot(middle, means, color=BLUE, linewidth=1.8, label=f"training, mean of {width}")
    evaluated = [name for name in run.metrics if is_loss(name)]
    for name in evaluated:
        _curve(axes, run, name, ORANGE)
    above_0 = not any(row[name] <= 0 for row in run.evaluations for name in evaluated if name in row)
    if len(losses) and losses.min() > 0 and above_0:
        axes.set_yscale("log")
        _plainly(axes.yaxis)
    axes.set(title="Loss", xlabel="updates", ylabel="loss")
    _finish(axes)


def _plainly(axis: Axis) -> None:
    """Numbers at a logarithmic axis as they are, 0.1 for 10⁻¹, at the ticks that have any."""
    from matplotlib.ticker import LogFormatter

    class Plain(LogFormatter):
        def __call__(self, x: float, pos: int | None = None) -> str:
            return f"{x:g}" if super().__call__(x, pos) else ""

    axis.set_major_formatter(Plain())
    axis.set_minor_formatter(Plain())


def _finish(axes: Axes) -> None:
    """Updates from 0, with few and readable ticks; a legend that curves do not run through."""
    axes.set_xlim(left=0)
    axes.locator_params(axis="x", nbins=5)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.legend(fontsize=9, framealpha=0.9, edgecolor="none")


def _metrics(axes: Axes, run: Run) -> None:
    names = [name for name in run.metrics if not is_loss(name)]
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


def _staleness(axes: Axes, run: Run) -> None:
    ours = run.staleness
    ages = run.journal["version"] - 1 - run.journal["version_read"]
    counts = np.bincount(ages) if len(ages) else np.zeros(1, int)
    _draw_ages(axes, counts, ORANGE, f"mean {ours.mean:.2f}, p99 {ours.p99:.0f}, max {ours.max}")


def _draw_ages(axes: Axes, counts: NDArray[np.int64], colour: str, label: str) -> None:
    """`counts[a]` updates read a version that was a updates old."""
    most = len(counts) - 1
    shown = np.append(counts[:_AGES], counts[_AGES:].sum()) if most > _AGES else counts
    last = max(len(shown) - 1, 4)
    axes.bar(range(len(shown)), 100 * shown / max(counts.sum(), 1), color=colour, width=0.8, label=label)
    axes.set_xlim(-0.6, last + 0.6)
    ticks = range(0, last + 1, 1 if last <= 10 else 5)
    axes.set_xticks(ticks, [f"≥ {tick}" if tick == _AGES and most > _AGES else str(tick) for tick in ticks])
    if counts.sum():
        axes.set_yscale("log")
        _plainly(axes.yaxis)
    axes.set(title="Staleness", xlabel="age of the version read, in updates", ylabel="share of updates, %")
    axes.legend(frameon=False, fontsize=9)


def plot_check(verdict: Verdict, path: Path) -> None:
    """Draw a check as PNG: how far each pair of runs is apart along the way, beside one flipped bit; and how old the
    versions were that updates were computed on."""
    panels = [_courses, _ages] if verdict.ages else [_courses]
    _draw(verdict, panels, verdict.headline, (6.2, 4.6), path)


def _courses(axes: Axes, verdict: Verdict) -> None:
    axes.set(title="How runs drift apart", xlabel="updates", ylabel="relative L2 distance of the parameters")
    drawn = 0
    for course in verdict.courses:
        points = [(u, d) for u, d in zip(course.updates, course.relative_l2, strict=True) if 0 < d < np.inf]
        if points:
            label = f"each of {len(verdict.courses)} pairs of runs" if not drawn else None
            axes.plot(*zip(*points, strict=True), "-", color=BLUE, alpha=0.45, linewidth=1.2, label=label)
            drawn += 1
    drift = verdict.controls.drift
    if drift is not None:
        points = [(u, d) for u, d in zip(drift.updates, drift.relative_l2, strict=True) if 0 < d < np.inf]
        if points:
            axes.plot(
                *zip(*points, strict=True), "o--", color=ORANGE, ms=3, label="one ULP more in one weight, serially"
            )
            drawn += 1
    if not drawn:
        told = "all versions are identical" if verdict.identical else "nothing was noted on the way"
        axes.text(0.5, 0.5, told, ha="center", va="center", transform=axes.transAxes)
        return
    axes.set(xscale="log", yscale="log")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.legend(fontsize=9, framealpha=0.9, edgecolor="none", loc="lower right")


def _ages(axes: Axes, verdict: Verdict) -> None:
    label = f"{sum(verdict.ages):,} updates of {len(verdict.runs)} runs"
    _draw_ages(axes, np.array(verdict.ages), GREEN, label)
