"""A benchmark drawn. matplotlib is an extra: it is imported when something is drawn."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hogwild.run.figures import BLUE, GREY, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLUMNS = 2
_ALTERNATIVE, _RULE = GREY, BLUE


def plot(found: Mapping[str, Any], path: Path) -> None:
    """Draw a summary: a panel per case, a bar per contender, its speed over the serial loop's with its range."""
    from matplotlib.figure import Figure

    cases = found["cases"]
    rules = {contender["name"] for contender in found["contenders"] if contender["rule"]}
    columns = min(_COLUMNS, len(cases))
    rows = -(-len(cases) // columns)
    height = 1.2 + 0.24 * len(found["contenders"])
    figure = Figure(figsize=(6.4 * columns, 0.6 + height * rows), layout="constrained")
    machine = found["machine"]
    figure.suptitle(f"{machine['processor']} · {machine['cores']} cores · torch {machine['torch']}", fontsize=11)
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes, case in zip(panels, cases, strict=False):
        _panel(axes, case, rules)
    for axes in panels[len(cases) :]:
        axes.set_visible(False)
    save_figure(figure, path)


def _panel(axes: Axes, case: Mapping[str, Any], rules: Collection[str]) -> None:
    results = case["results"]
    for place, row in enumerate(results):
        ratio = row["over_serial"]
        if ratio is None:
            axes.text(0.02, place, "refused" if row["refused"] else "failed", va="center", fontsize=8, color="#a33")
            continue
        around = [[ratio["median"] - ratio["min"]], [ratio["max"] - ratio["median"]]]
        colour = _RULE if row["name"] in rules else _ALTERNATIVE
        axes.barh(place, ratio["median"], xerr=around, color=colour, ecolor="#333333", height=0.7)
    axes.set_yticks(range(len(results)), [row["name"] for row in results], fontsize=8)
    axes.set_ylim(len(results) - 0.5, -0.5)
    axes.axvline(1, color="#333333", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(case["name"], fontsize=10, weight="bold")
    axes.set_xlabel("samples per second, serial loop = 1 (median and range)", fontsize=8)
