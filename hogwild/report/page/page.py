"""From what was saved to one HTML file: nothing in it is fetched, and whatever came from outside is escaped."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from hogwild.determinism.two_runs import compare_runs
from hogwild.errors import ArgumentError, RunDirectoryError
from hogwild.report.page.figures import can_draw
from hogwild.report.page.given import Given
from hogwild.report.page.of_bench import bench_section
from hogwild.report.page.of_check import check_section
from hogwild.report.page.of_run import run_section
from hogwild.report.page.of_runs import runs_section
from hogwild.report.page.parts import Section
from hogwild.report.ranking import LOSS, metric_names, value_of
from hogwild.report.run_list import remark_of
from hogwild.report.words import plural
from hogwild.run.saved.found import FoundFolders, FoundRun

_HERE = Path(__file__).parent


def refuse_without_plotly() -> None:
    """Refuse to draw where the extra is not installed.

    Raises:
        ArgumentError: it is not.
    """
    if not can_draw():
        raise ArgumentError("hogwild report needs plotly; pip install 'hogwild[report]'")


def sections_of(given: Given, metric: str = "") -> list[Section]:
    """A section for each check and bench, and for the runs of one experiment: at length where it is one run.

    Args:
        given: what is reported.
        metric: what runs are compared by; by default the first metric of their evaluations, or the training loss.

    Raises:
        ArgumentError: no run has that metric.
        RunDirectoryError: a check or a bench lacks something.
    """
    if metric and not any(value_of(run, metric) is not None for run in given.found.runs):
        known = ", ".join([*metric_names(given.found.runs), LOSS])
        raise ArgumentError(f"--metric {metric!r} is in no run; {known} are")
    found = list(_of_runs(given, metric))
    for saved, section_of in ((given.checks, check_section), (given.benches, bench_section)):
        for path, content in saved:
            try:
                found.append(section_of(content, path))
            except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
                why = f"{type(error).__name__}: {error}"
                raise RunDirectoryError(f"{path} is not what hogwild saves: {why}") from error
    return found


def _of_runs(given: Given, metric: str) -> Iterator[Section]:
    by_path = {run.out: run for run in given.runs}
    experiments: dict[str, list[FoundRun]] = {}
    for run in given.found.runs:
        experiments.setdefault(str(run.settings.get("name", "")), []).append(run)
    left = []
    for runs in experiments.values():
        whole = [by_path[run.path] for run in runs if run.path in by_path]
        if len(whole) == 1 and len(runs) == 1:
            yield run_section(runs[0], whole[0])
        elif whole:
            between = None
            if len(whole) == 2:
                between = compare_runs(*(Path(str(run.out)) for run in whole))
            wanted = _metric_of([run for run in runs if run.path in by_path], metric)
            listed = FoundFolders(tuple(runs), given.found.others)
            yield runs_section(listed, whole, given.folders, wanted, between)
        else:
            left.extend(runs)
    if left:
        yield _left_out(left)


def _metric_of(runs: Sequence[FoundRun], wanted: str) -> str:
    """What these runs are compared by: the wanted metric, else the first that one of them has a number of."""
    names = [wanted, *metric_names(runs)] if wanted else metric_names(runs)
    return next((name for name in names if any(value_of(run, name) is not None for run in runs)), LOSS)


def _left_out(runs: Sequence[FoundRun]) -> Section:
    return Section(
        kind="runs",
        title="Not in this report",
        about="",
        verdict=f"{plural(len(runs), 'run')} could not be read, or did not end.",
        good=False,
        lines=[(str(run.path), f"{run.status}{': ' * bool(told)}{told}") for run in runs for told in (remark_of(run),)],
    )


def page_of(sections: Sequence[Section], made_by: str, *, plotly: str | None = None) -> str:
    """The HTML of a report.

    Args:
        sections: its parts, in order.
        made_by: what made it, for the foot of the page.
        plotly: the JavaScript that draws; by default all of Plotly's, which is nearly 5 MB.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from plotly.offline import get_plotlyjs

    environment = Environment(loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined)
    text: str = environment.get_template("page.html").render(
        title=" · ".join(list(dict.fromkeys(section.title for section in sections))[:3]),
        sections=sections,
        style=(_HERE / "page.css").read_text(encoding="utf-8"),
        script=(_HERE / "page.js").read_text(encoding="utf-8"),
        plotly=get_plotlyjs() if plotly is None else plotly,
        foot=f"{made_by} · {time.strftime('%Y-%m-%d %H:%M')}",
    )
    return text


def write_page(text: str, out: Path) -> None:
    """Write a report.

    Raises:
        ArgumentError: it cannot be written there.
    """
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ArgumentError(f"out {str(out)!r} cannot be written: {error.strerror}") from error
