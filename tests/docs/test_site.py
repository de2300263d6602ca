"""The site of docs/: each page is in its navigation, each public name in the reference, and it builds.

Links and anchors are looked at by test_docs.py, which needs nothing but the pages.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, chromium

import hogwild

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SITE = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]
REFERENCE = ("hogwild.testing", "hogwild.autograd", "hogwild.reference")  # whole modules

built = pytest.mark.skipif(
    find_spec("zensical") is None or find_spec("mkdocstrings_handlers") is None,
    reason="the site is built with the extra `docs`, which is not installed",
)
seen = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here to look at the site with")

SEARCH = """new Promise((ready) => {
    const look = () => {
        if (document.activeElement.shadowRoot?.activeElement?.matches("input")) return ready();
        document.querySelector(".md-search__button").click();
        setTimeout(look, 500);
    };
    look();
})"""
FOUND = """new Promise((found) => {
    const answer = () => document.activeElement.shadowRoot.querySelector('a[href*="rules.html"][href$="#staleness"]');
    const look = () => answer() ? found() : setTimeout(look, 50);
    look();
})"""


def _pages(entry: Any) -> Iterator[str]:
    """The pages of a part of the navigation: a page, a list of parts, or parts by title."""
    if isinstance(entry, str):
        yield entry
    else:
        for part in entry.values() if isinstance(entry, dict) else entry:
            yield from _pages(part)


# --- without a build


def test_every_page_is_in_the_navigation_once():
    assert sorted(_pages(SITE["nav"])) == sorted(path.name for path in DOCS.glob("*.md"))


def test_pages_link_within_the_site():
    """What lies beside docs/ is there on disk, and not on the site."""
    pages = [path for path in DOCS.glob("*.md") if "](../" in path.read_text(encoding="utf-8")]
    assert pages == []


def test_every_public_name_is_in_the_reference_once():
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("api*.md")))
    shown = re.findall(r"^::: (\S+)$", text, re.MULTILINE)
    assert len(shown) == len(set(shown))
    assert [name for name in hogwild.__all__ if f"hogwild.{name}" not in shown] == []
    assert [name for name in REFERENCE if name not in shown] == []


def test_nothing_is_fetched():
    """No fonts of a third party; the script that searches a page opened as a file is ours."""
    assert SITE["theme"]["font"] is False
    assert [path for path in SITE["extra"]["polyfills"] if "iframe-worker" in path]  # else one of the network is put in
    for path in [*SITE["extra"]["polyfills"], *SITE["extra_css"], SITE["theme"]["logo"], SITE["theme"]["favicon"]]:
        assert (DOCS / path).is_file()


# --- built


def _copy(to: Path) -> Path:
    for name in ("docs", "hogwild"):
        shutil.copytree(ROOT / name, to / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "zensical.toml", to)
    return to


def _build(at: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"], capture_output=True, text=True, cwd=at, timeout=120
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = _copy(tmp_path_factory.mktemp("built"))
    done = _build(folder)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "griffe:" not in said, "a docstring whose arguments cannot be read"
    return folder / "site"


@built
def test_the_site_has_every_page_and_loads_nothing_from_elsewhere(site):
    assert {path.stem for path in site.glob("*.html")} == {path.stem for path in DOCS.glob("*.md")} | {"404"}
    assert 'id="hogwild.train"' in (site / "api.html").read_text(encoding="utf-8")
    assert "staleness" in (site / "search.js").read_text(encoding="utf-8")
    loaded = re.compile(r"""<(?:script|img|iframe)[^>]+src=["']?(?:https?:)?//|<link[^>]+href=["']?(?:https?:)?//""")
    assert [path.name for path in site.glob("*.html") if loaded.search(path.read_text(encoding="utf-8"))] == []


@built
@seen
def test_pages_fit_a_telephone_and_raise_nothing(site):
    with chromium() as page:
        for name in _pages(SITE["nav"]):
            page.open((site / name).with_suffix(".html"), 390, "dark")
            found = page.value("({width: document.documentElement.scrollWidth, links: document.links.length})")
            assert found["width"] <= 390 and found["links"] > 10, name
            assert page.errors == [] and page.requests == [], name


@built
@seen
def test_the_search_works_on_files(site):
    with chromium() as page:
        page.open(site / "index.html", 1280, "light")
        page.value(SEARCH)
        page.ask("Input.insertText", text="staleness")
        page.value(FOUND)
        assert page.errors == [] and page.requests == []


@built
def test_a_dead_link_fails_the_build(tmp_path):
    root = _copy(tmp_path)
    page = root / "docs" / "references.md"
    page.write_text(page.read_text(encoding="utf-8") + "\n[dead](gone.md) [dead](guide.md#gone)\n", encoding="utf-8")
    done = _build(root)
    assert done.returncode != 0
    assert "2 issues found" in done.stdout + done.stderr
