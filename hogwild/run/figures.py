"""The one style of figures, and how one is saved. matplotlib is an extra: it is imported when something is drawn."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from hogwild.run.saved.directory import writing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

BLUE, ORANGE, GREEN, RED, GREY = "#2f6db3", "#e07b26", "#3a9a5b", "#c73e3a", "#7c8794"
_DPI = 150


def row_of_axes(width: float, height: float, columns: int, title: str) -> tuple[Figure, list[Axes]]:
    """A figure of `width` × `height` inches with one row of axes; it belongs to no window and no global state."""
    from matplotlib.figure import Figure

    made = Figure(figsize=(width, height), layout="constrained")
    made.suptitle(title, fontsize=12, weight="bold")
    axes = list(made.subplots(1, columns, squeeze=False)[0])
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
        one.grid(True, color="#e6e9ed", linewidth=0.8)
        one.set_axisbelow(True)
    return made, axes


def _numbers_of(axes: Axes) -> Iterator[Text]:
    """The texts at its ticks, where they are matplotlib's own: it writes powers of ten as formulas."""
    from matplotlib.ticker import LogFormatter, ScalarFormatter

    for axis in (axes.xaxis, axes.yaxis):
        if isinstance(axis.get_major_formatter(), LogFormatter | ScalarFormatter):
            yield from (axis.offsetText, *axis.get_ticklabels(which="both"))


def save_figure(made: Figure, path: Path) -> Path:
    """Write a figure, as what its name ends with, making its folder; returns the path. Its texts are drawn as they are:
    `$` is no formula, but in the numbers at an axis, which matplotlib writes so.

    Raises:
        RunDirectoryError: the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    numbers = {id(text) for axes in made.axes for text in _numbers_of(axes)}
    for text in made.findobj(Text):
        text.set_parse_math(id(text) in numbers)
    path.parent.mkdir(parents=True, exist_ok=True)
    with writing(path), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ ")  # letters that the font has not are boxes
        if path.suffix == ".png":
            made.set_dpi(_DPI)
            FigureCanvasAgg(made).print_png(path)  # type: ignore[no-untyped-call] # `savefig` would draw it twice
        else:
            made.savefig(path, dpi=_DPI)
    return path
