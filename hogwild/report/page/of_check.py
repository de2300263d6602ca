"""A saved check as a section: how far runs diverge along the way, beside the controls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hogwild.report.page.figures import ACCENT, OTHER, Curve, ages, curves
from hogwild.report.page.parts import DataTable, Drawing, Section
from hogwild.report.words import count

Found = Mapping[str, Any]


def check_section(found: Found, path: Path) -> Section:
    """What `hogwild check` found, from its check.json."""
    name, _, rest = str(found.get("headline", found["title"])).partition(" · ")
    return Section(
        kind="check",
        title=name,
        about=" · ".join(part for part in (rest or str(found["title"]), str(path)) if part),
        verdict=_sentence(str(found["verdict"])),
        good=bool(found["passed"]),
        facts=_facts(found),
        lines=[(str(what), str(finding)) for what, finding in found.get("lines", ())],
        drawings=[*_courses(found), *_ages(found)],
        tables=list(_sources(found)),
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _facts(found: Found) -> list[tuple[str, str]]:
    apart = found["divergence"]["relative_l2"]
    digests = found["digests"]
    facts = [("runs", str(found["runs"])), ("different results", str(len(set(digests))))]
    if isinstance(apart, int | float):
        facts.append(("relative L2, worst pair", f"{apart:.3g}"))
    harm = found["controls"].get("harm")
    if isinstance(harm, int | float) and not found["identical"]:
        facts.append(("times as far as one flipped bit", count(float(f"{harm:.2g}")) if harm >= 100 else f"{harm:.2g}"))
    remedy = found.get("remedy")
    if remedy:
        facts.append((f"speed with {remedy['flags']}", f"{remedy['relative_speed']:.2f} ×"))
    return facts


def _points(course: Found) -> tuple[list[float], list[float]]:
    pairs = zip(course["updates"], course["relative_l2"], strict=True)
    kept = [(u, d) for u, d in pairs if isinstance(d, int | float) and d > 0]
    return [u for u, _ in kept], [d for _, d in kept]


def _courses(found: Found) -> Iterator[Drawing]:
    drawn: list[Curve] = []
    for course in found["courses"]:
        x, y = _points(course)
        if x:
            drawn.append(Curve("a pair of runs", x, y, ACCENT, "thin"))
    drift = found["controls"].get("drift")
    x, y = _points(drift) if drift else ([], [])
    if x:
        drawn.append(Curve("control: one flipped bit", x, y, OTHER, "dashed"))
    if drawn:
        plot = curves(drawn, "updates", "relative L2 distance", log_x=True, log_y=True)
        yield Drawing("How runs drift apart", _in_words(found, controlled=bool(x)), plot, wide=True)


def _in_words(found: Found, *, controlled: bool) -> str:
    pairs = len(found["courses"])
    if found["identical"]:
        told = "No two runs ever differed, so there is no line for them."
    else:
        each = f"Each blue line is one of {pairs} pairs of runs" if pairs > 1 else "The blue line is the pair of runs"
        told = f"{each}: the distance of their parameters, relative to their size, after so many updates."
    if controlled:
        told += (
            " The dashed line is the control: the same training with one worker, once more with one weight changed by "
            "one unit in the last place. It shows how far chaos alone takes two runs."
        )
    serial = found["controls"].get("serial")
    if serial:
        same = "gave the same bits" if serial["identical"] else "differed already"
        told += f" Two serial runs of one seed {same}."
    return told


def _ages(found: Found) -> Iterator[Drawing]:
    counts = np.array(found.get("ages") or [0], np.int64)
    if counts.sum():
        old = found["staleness"]
        told = (
            f"How old the model was that a gradient was computed on, over all runs: {old['mean']:.2f} updates in "
            f"the mean, {old['max']} at most."
        )
        yield Drawing("Staleness", told, ages({"": counts}), wide=True)


def _sources(found: Found) -> Iterator[DataTable]:
    rows = []
    for source in found.get("sources", ()):
        comparison = source.get("comparison")
        apart = "–"
        if comparison:
            apart = "identical" if comparison["identical"] else f"{comparison['relative_l2']:.2g}"
        rows.append((str(source.get("name", "")), str(source.get("varied") or source.get("note") or "–"), apart))
    if rows:
        headings = ("source", "varied alone", "relative L2")
        yield DataTable("What each source of differences does alone", headings, rows)
