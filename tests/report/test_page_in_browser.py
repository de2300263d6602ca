"""The report in a real browser: nothing raised, nothing fetched, every figure drawn, nothing wider than the page.

HOGWILD_SCREENSHOTS=FOLDER keeps the pictures, to be looked at.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import CHROMIUM, Page, chromium
from made_up_bench import bench_of
from saved import save_run

import hogwild
from hogwild.cli import main

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here to look at the report with")

LONG = "a_metric_whose_name_is_much_longer_than_a_telephone_is_wide_and_has_no_space"
EVIL = "<img src=x onerror=alert(1)><b>&"

DRAWN = """new Promise((seen) => {
    const look = () => document.documentElement.dataset.drawn === "LIGHT" ? seen() : setTimeout(look, 10);
    look();
})"""
LOOK = """({
    width: document.documentElement.scrollWidth,
    figures: document.querySelectorAll("figure").length,
    drawn: [...document.querySelectorAll("figure .plot")].filter(
        (plot) => plot.querySelector(".main-svg") && plot.querySelector(".trace, .barlayer .point")).length,
    outside: [...document.querySelectorAll("figure .plot")].filter(
        (plot) => plot.querySelector(".main-svg").getBoundingClientRect().right > innerWidth).length,
    cut: [...document.querySelectorAll("figure text")].filter((text) => {
        const box = text.getBoundingClientRect(), plot = text.closest(".plot").getBoundingClientRect();
        return box.width && (box.left < plot.left - 1 || box.right > plot.right + 1);
    }).map((text) => text.textContent),
    wide: [...document.querySelectorAll("table")].filter((table) => table.scrollWidth > innerWidth).length,
    paper: getComputedStyle(document.documentElement).backgroundColor,
    ink: getComputedStyle(document.querySelector("figure .xtick text")).fill,
    images: document.images.length,
})"""


def look(page: Page, scheme: str) -> dict[str, Any]:
    """What there is to see once all figures are drawn in that light."""
    page.value(DRAWN.replace("LIGHT", scheme))
    found: dict[str, Any] = page.value(LOOK)
    return found


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, a sweep, a check and a bench, with names that are long or mean harm."""
    folder = tmp_path_factory.mktemp("pages")
    for number, lr in enumerate((0.1, 0.2, 0.05)):
        for seed in (0, 1):
            save_run(folder / f"sweep/{number}-{seed}", lr=lr, seed=seed, evaluate_every=4, config={"note": LONG[:40]})

    def measured(model: object) -> dict[str, float]:
        return {LONG: 0.5, EVIL: 0.7}

    save_run(folder / EVIL, name=EVIL, evaluate=measured, evaluate_every=4, update="hogwild", epochs=20)
    scale = iter((1.0, 1.01, 1.02))
    found = hogwild.check(lambda: {"w": np.full(3, next(scale))}, runs=3).to_dict()
    found |= {"ages": [50, 30, *[1] * 30], "staleness": {"mean": 1.0, "p99": 9, "max": 31}}
    found["courses"] = [{"updates": [1, 10, 100, 1000], "relative_l2": [1e-9, 1e-6, 1e-3, 1e-1], "slope": 0.01}] * 3
    found["controls"]["drift"] = {"updates": [1, 10, 1000], "relative_l2": [1e-10, 1e-9, 1e-8], "slope": 0.01}
    (folder / "check.json").write_text(json.dumps(found))
    (folder / "bench.json").write_text(json.dumps(bench_of({"hogwild": [1.8, 1.9, 2.0], "ordered": [1.5, 1.6, 1.7]})))
    for name in ("sweep", EVIL, "check.json", "bench.json"):
        page = {EVIL: "run.html"}.get(name, f"{name.partition('.')[0]}.html")
        assert main(["report", str(folder / name), "--out", str(folder / page), "--json"]) == 0
    return folder


@pytest.mark.parametrize(("name", "figures"), [("run", 8), ("sweep", 6), ("check", 2), ("bench", 1)])
def test_the_report_is_whole_at_both_widths_in_both_lights(
    name: str, figures: int, pages: Path, tmp_path: Path
) -> None:
    """Opened in the one light, and the other comes while it is open."""
    shots = Path(os.environ.get("HOGWILD_SCREENSHOTS", tmp_path))
    papers, inks = set(), set()
    with chromium() as page:
        for width, schemes in ((1280, ("light", "dark")), (390, ("dark", "light"))):
            page.open(pages / f"{name}.html", width, schemes[0])
            for scheme in schemes:
                page.scheme(scheme)
                seen = look(page, scheme)
                where = f"{name} at {width}, {scheme}: {seen}"
                assert page.errors == [] and page.requests == [], where
                assert seen["width"] == width, f"the page scrolls sideways: {where}"
                assert seen["figures"] == seen["drawn"] == figures, where
                assert (seen["outside"], seen["cut"], seen["images"]) == (0, [], 0), where
                papers.add((scheme, seen["paper"]))
                inks.add((scheme, seen["ink"]))
                shot = shots / f"{name}-{width}-{scheme}.png"
                page.screenshot(shot)
                assert shot.read_bytes()[16:20] == width.to_bytes(4), "as wide as the page"
    for found in (papers, inks):
        assert len(found) == len({colour for _, colour in found}) == 2, "each light has its own look, figures too"


def test_every_table_opens_and_scrolls_inside_itself(pages: Path) -> None:
    with chromium() as page:
        page.open(pages / "run.html", 390, "light")
        page.value("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        seen = look(page, "light")
        assert seen["width"] == 390 and seen["wide"] > 0, "a table is wider than the page, and the page is not"
