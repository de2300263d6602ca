"""Curves over the number of workers, drawn: what was measured as points, what a model predicts as lines.

matplotlib is an extra: it is imported when something is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hogwild.run.figures import save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_Curve = tuple[str, Sequence[tuple[float, float]], Sequence[tuple[float, float]]]
"""(label, measured points, predicted points); each point is (workers, updates a second)."""


def plot_padded(found: Mapping[str, Any], path: Path) -> None:
    """Draw a bench of scaling: a panel a case, the ideal as a thin line."""
    panels: dict[str, list[_Curve]] = {}
    for case in dict.fromkeys(row["case"] for row in found["results"]):
        rows = [row for row in found["results"] if row["case"] == case]
        keys = dict.fromkeys((row["rule"], row["kind"], _slack(row)) for row in rows)
        for rule, kind, slack in keys:
            mine = [row for row in rows if (row["rule"], row["kind"], _slack(row)) == (rule, kind, slack)]
            measured = [(row["workers"], row["updates_per_second"]["median"]) for row in mine]
            predicted = [(row["workers"], row["predicted_updates_per_second"]) for row in mine]
            panels.setdefault(case, []).append((f"{rule}, {kind}{slack}", measured, predicted))
    pad = found["settings"]["pad_seconds"]
    _draw(found["machine"], panels, path, f"workers, each gradient waits {1e3 * pad:g} ms", 1 / pad)


def plot_predictions(found: Mapping[str, Any], path: Path) -> None:
    """Draw what a profile predicts for as many workers as cores, beside what it measured."""
    panels: dict[str, list[_Curve]] = {}
    for row in found["predicted"]:
        predicted = list(zip(row["cores"], row["updates_per_second"], strict=True))
        measured = list(row["measured"].items())
        panels.setdefault(row["case"], []).append((f"{row['rule']}, {row['kind']}", measured, predicted))
    _draw(found["machine"], panels, path, "workers and cores", None)


def _slack(row: Mapping[str, Any]) -> str:
    """What is said of a staleness that is more than the workers need."""
    slack = 0 if row["staleness"] is None else row["staleness"] - max(1, row["workers"] - 1)
    return f", τ = {row['staleness']}" if slack else ""


def _draw(
    machine: Mapping[str, Any], panels: Mapping[str, Sequence[_Curve]], path: Path, below: str, ideal: float | None
) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4 * max(1, len(panels)), 4.8), layout="constrained")
    figure.suptitle(f"{machine['processor']} · {machine['cores']} cores · torch {machine['torch']}", fontsize=11)
    for place, (case, curves) in enumerate(panels.items()):
        axes = figure.add_subplot(1, len(panels), place + 1)
        _panel(axes, curves, ideal)
        axes.set_title(case, fontsize=10, weight="bold")
        axes.set_xlabel(below, fontsize=8)
        axes.set_ylabel("updates per second: points measured, lines predicted", fontsize=8)
    save_figure(figure, path)


def _panel(axes: Axes, curves: Sequence[_Curve], ideal: float | None) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter

    most = max((workers for _, measured, line in curves for workers, _ in (*measured, *line)), default=1)
    if ideal is not None:
        axes.plot([1, most], [ideal, ideal * most], color="#999999", linewidth=0.8, label="ideal")
    for number, (label, measured, predicted) in enumerate(curves):
        colour = f"C{number}"
        axes.plot(*zip(*predicted, strict=True), color=colour, linewidth=1.2, linestyle="--")
        axes.plot(*zip(*measured, strict=True), color=colour, marker="o", linestyle="none", label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axis.set_minor_formatter(NullFormatter())
    axes.legend(fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
