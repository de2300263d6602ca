"""The drawings of a report, by Plotly: an extra, imported when something is drawn.

Colours are names of page.css, so that a figure follows the page into the dark. Words from outside are escaped: Plotly
takes a few HTML tags in text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.util import find_spec
from textwrap import wrap
from typing import Any

import numpy as np
from numpy.typing import NDArray

SERIES = tuple(f"var(--series-{number})" for number in range(8))
"""Colours that are told apart in the light, in the dark, and by colour-blind people (Okabe & Ito, muted)."""
ACCENT, OTHER, SOFT, INK, RULE = SERIES[0], SERIES[1], "var(--soft)", "var(--ink)", "var(--rule)"
NO_RESULT = "without a result"  # what such curves are called together, in grey
_HEIGHT = 320  # pixels
_LOWEST = 260  # pixels of bars, at least
_ROW = 30  # pixels of a horizontal bar
_POINTS, _LEAST_POINTS = 1_200, 60  # drawn of a curve, at most
_ALL_POINTS = 24_000  # of all curves of a figure, about
_TOGETHER = 6  # curves whose values are shown together where the pointer is
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_AGES = 20  # bars of a histogram, at most
_LABEL = 22  # letters of a bar's name on one line
_MOST = 0.9  # share of values above 0, from which on an axis may be logarithmic
_NEAR, _FAR = 1.5, 4.5  # decades of an axis, up to which there are ticks between them, or all of them have one


@dataclass(frozen=True)
class Plot:
    """A figure as Plotly's JSON has it, and its legend, which is text of the page: (name, colour, style)."""

    figure: Mapping[str, Any]
    legend: Sequence[tuple[str, str, str]] = ()


@dataclass(frozen=True)
class Curve:
    """A line or a cloud of points: `x` and `y` of one length, in a colour.

    Attributes:
        style: "line", "thin", "points", "dots" (small, many) or "dashed".
    """

    name: str
    x: Sequence[float] | NDArray[Any]
    y: Sequence[float] | NDArray[Any]
    colour: str
    style: str = "line"


_STYLES: Mapping[str, Mapping[str, Any]] = {
    "line": {"mode": "lines", "line": {"width": 2}},
    "thin": {"mode": "lines", "line": {"width": 1.2}, "opacity": 0.6},
    "dashed": {"mode": "lines+markers", "line": {"width": 1.5, "dash": "dash"}, "marker": {"size": 5}},
    "points": {"mode": "lines+markers", "line": {"width": 1.6}, "marker": {"size": 5}},
    "dots": {"mode": "markers", "marker": {"size": 3}, "opacity": 0.35, "hoverinfo": "skip"},
}


def can_draw() -> bool:
    """True where Plotly is installed."""
    return find_spec("plotly") is not None and find_spec("jinja2") is not None


def curves(
    found: Sequence[Curve],
    x: str,
    y: str,
    *,
    log_x: bool = False,
    log_y: bool | None = None,
    ticks_x: Sequence[float] = (),
) -> Plot:
    """Curves over one axis, the first on top; y is logarithmic where the values span a decade, unless that is said.

    Curves of one name share an entry of the legend, in the style of the first; so do several in grey, which no legend
    tells apart.
    """
    import plotly.graph_objects as go

    figure = go.Figure()
    points = min(_POINTS, max(_LEAST_POINTS, _ALL_POINTS // max(len(found), 1)))
    for curve in reversed(found):
        style = dict(_STYLES[curve.style])
        for part in ("line", "marker"):
            if part in style:
                style[part] = {**style[part], "color": curve.colour}
        xs, ys = _thinned(np.asarray(curve.x, float), np.asarray(curve.y, float), points)
        figure.add_scatter(
            x=xs,
            y=ys,
            name=escape(curve.name, quote=False),
            hovertemplate=None if "hoverinfo" in style else "%{y:.4g}",
            **style,
        )
    _axes(figure, x, y)
    if log_x:
        _logarithmic(figure.update_xaxes, _all([curve.x for curve in found]))
    else:
        figure.update_xaxes(rangemode="tozero", tickformat=",~r", nticks=6)
    if ticks_x:
        figure.update_xaxes(tickmode="array", tickvals=list(ticks_x), ticktext=[f"{tick:,g}" for tick in ticks_x])
    values = _all([curve.y for curve in found])
    if _decades(values) > 1 if log_y is None else log_y:
        _logarithmic(figure.update_yaxes, values)
    figure.update_layout(hovermode="x unified" if not log_x and len(found) <= _TOGETHER else "closest")
    entries: dict[str, tuple[str, str, str]] = {}
    for curve in found:
        entries.setdefault(curve.name, (curve.name, curve.colour, curve.style))
    return _plot(figure, _grey_as_one(list(entries.values())) if len(entries) > 1 else ())


def _grey_as_one(entries: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    told = [entry for entry in entries if entry[1] != SOFT or entry[0] == NO_RESULT]
    others = len(entries) - len(told)
    return [*told, (f"{others:,} others", SOFT, "thin")] if told and others > 1 else entries


def _all(parts: Sequence[Sequence[float] | NDArray[Any]]) -> NDArray[np.float64]:
    return np.concatenate([np.asarray(part, float) for part in parts]) if parts else np.zeros(0)


def _logarithmic(update: Callable[..., Any], values: NDArray[np.float64]) -> None:
    """Ticks at 1, 2, 5 where there are few decades, else at powers of ten."""
    decades = _decades(values)
    if decades <= _FAR:
        update(type="log", dtick="D2" if decades <= _NEAR else 1, tickformat=",~r")
        return
    positive = values[(values > 0) & np.isfinite(values)]
    low, high = math.floor(math.log10(positive.min())), math.ceil(math.log10(positive.max()))
    powers = range(low, high + 1, math.ceil((high - low) / 6))
    texts = [f"{10**power:,}" if 0 <= power <= 3 else "10" + str(power).translate(_RAISED) for power in powers]
    update(type="log", tickmode="array", tickvals=[10.0**power for power in powers], ticktext=texts)


def ages(counts: Mapping[str, NDArray[np.int64]]) -> Plot:
    """Staleness: name → how many updates read a version that was 0, 1, 2 … updates old."""
    import plotly.graph_objects as go

    figure = go.Figure()
    most = max(len(found) for found in counts.values()) - 1
    for colour, (name, found) in zip(_cycle(len(counts)), counts.items(), strict=True):
        shown = np.append(found[:_AGES], found[_AGES:].sum()) if most > _AGES else found
        share = 100 * shown / max(shown.sum(), 1)
        figure.add_bar(
            x=list(range(len(shown))),
            y=[float(value) or None for value in share],
            customdata=shown,
            name=escape(name, quote=False),
            marker={"color": colour, "line": {"width": 0}},
            hovertemplate="%{customdata:,} updates, %{y:.3g} %<extra></extra>",
        )
    _axes(figure, "age of the model, in updates", "share of updates")
    last = max(min(most, _AGES), 4)
    ticks = list(range(0, last + 1, 1 if last <= 10 else 5))
    names = [f"{tick}+" if tick == _AGES and most > _AGES else str(tick) for tick in ticks]
    figure.update_xaxes(tickvals=ticks, ticktext=names, range=[-0.6, last + 0.6], showgrid=False)
    figure.update_yaxes(type="log", ticksuffix=" %", tickformat="~g", dtick=1)
    figure.update_layout(bargap=0.25, hovermode="closest")
    entries = [(name, colour, "bar") for colour, name in zip(_cycle(len(counts)), counts, strict=True)]
    return _plot(figure, entries if len(entries) > 1 else ())


@dataclass(frozen=True)
class Bar:
    """A horizontal bar: its length, in how many units, and, where it is known, its range."""

    name: str
    value: float | None
    colour: str
    low: float | None = None
    high: float | None = None
    told: str = ""


def bars(found: Sequence[Bar], x: str, *, at: float | None = None, start_at_zero: bool = True) -> Plot:
    """Bars from the top down, each with its range; a line at `at`. Of bars that do not start at zero, their ends."""
    import plotly.graph_objects as go

    figure = go.Figure()
    names = ["<br>".join(wrap(escape(bar.name, quote=False), _LABEL)) for bar in found]
    low = [bar.value - bar.low if bar.value is not None and bar.low is not None else 0 for bar in found]
    high = [bar.high - bar.value if bar.value is not None and bar.high is not None else 0 for bar in found]
    shared: dict[str, Any] = {
        "x": [bar.value for bar in found],
        "y": names,
        "customdata": [escape(bar.told, quote=False) for bar in found],
        "hovertemplate": "%{customdata}<extra></extra>",
    }
    if any(low) or any(high):
        shared["error_x"] = {
            "type": "data",
            "symmetric": False,
            "array": high,
            "arrayminus": low,
            "color": INK,
            "thickness": 1.4,
            "width": 4,
        }
    colours = [bar.colour for bar in found]
    height = max(90 + _ROW * len(found), _LOWEST)
    if start_at_zero:
        thick = min(0.62, _ROW * len(found) / (height - 90))
        figure.add_bar(orientation="h", marker={"color": colours, "line": {"width": 0}}, width=thick, **shared)
    else:
        figure.add_scatter(mode="markers", marker={"color": colours, "size": 10}, **shared)
    if at is not None:
        figure.add_vline(x=at, line={"color": SOFT, "width": 1, "dash": "dot"})
    _axes(figure, x, "")
    figure.update_yaxes(autorange="reversed", showgrid=False, automargin=True, type="category")
    if start_at_zero:
        figure.update_xaxes(rangemode="tozero")
    figure.update_layout(hovermode="closest", height=height)
    return _plot(figure)


def _cycle(number: int) -> list[str]:
    return [SERIES[place % len(SERIES)] for place in range(number)]


def _thinned(x: NDArray[Any], y: NDArray[Any], points: int) -> tuple[list[float], list[float | None]]:
    """At most so many points, as text needs them: what is not finite is a gap."""
    step = -(-len(x) // points) if len(x) else 1
    kept = range(0, len(x), step)
    chosen = [*kept, len(x) - 1] if len(x) and kept[-1] != len(x) - 1 else list(kept)
    return (
        [float(f"{x[place]:.6g}") for place in chosen],
        [float(f"{y[place]:.6g}") if np.isfinite(y[place]) else None for place in chosen],
    )


def _decades(values: NDArray[np.float64]) -> float:
    """How many powers of ten lie between the values above 0; 0 where more than a few are not."""
    finite = values[np.isfinite(values)]
    positive = finite[finite > 0]
    if not len(positive) or len(positive) < _MOST * len(finite):
        return 0.0
    return math.log10(positive.max() / positive.min())


def _axes(figure: Any, x: str, y: str) -> None:
    axis = {
        "gridcolor": RULE,
        "linecolor": RULE,
        "zeroline": False,
        "automargin": True,
        "ticks": "",
        "tickfont": {"color": SOFT, "size": 12},
        "title": {"font": {"color": SOFT, "size": 13}, "standoff": 10},
    }
    figure.update_xaxes(**axis, title_text=escape(x, quote=False), showgrid=False, showline=True)
    figure.update_yaxes(**axis, title_text=escape(y, quote=False), showline=False)
    figure.update_layout(
        template="none",
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "inherit", "size": 13, "color": INK},
        margin={"l": 8, "r": 12, "t": 8, "b": 8},
        height=_HEIGHT,
        showlegend=False,
        hoverlabel={"bgcolor": "var(--card)", "bordercolor": RULE, "font": {"color": INK}},
        dragmode=False,
    )
    figure.update_xaxes(fixedrange=True)
    figure.update_yaxes(fixedrange=True)


def _plot(figure: Any, legend: Sequence[tuple[str, str, str]] = ()) -> Plot:
    found = json.loads(figure.to_json())
    return Plot({"data": found["data"], "layout": found["layout"]}, legend)
