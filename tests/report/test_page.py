"""The report as HTML: what it is made of, what it says, and that nothing from outside is taken for markup."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up_bench import bench_of
from saved import save_run, seem_killed

import hogwild
from hogwild.cli import main
from hogwild.errors import ArgumentError, RunDirectoryError
from hogwild.report.page.figures import Curve, Plot, ages, curves
from hogwild.report.page.given import read_given
from hogwild.report.page.of_run import seconds_of, smoothed_loss
from hogwild.report.page.page import page_of, sections_of
from hogwild.report.page.parts import DataTable, Drawing, Section, paired
from hogwild.report.run_words import at_updates

EVIL = "<img src=x onerror=alert(1)>&</script>"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of four, a run that was killed, one that is broken, a check and a bench."""
    folder = tmp_path_factory.mktemp("saved")
    for lr in (0.1, 0.2):
        for seed in (0, 1):
            save_run(folder / f"sweep/lr{lr}-{seed}", lr=lr, seed=seed, evaluate_every=5)
    seem_killed(shutil.copytree(folder / "sweep/lr0.1-0", folder / "sweep/killed"))
    (shutil.copytree(folder / "sweep/lr0.1-0", folder / "sweep/broken") / "journal.npy").write_bytes(b"x")
    numbers = iter([1.0, 1.5, 2.0])
    verdict = hogwild.check(lambda: {"w": np.full(3, next(numbers))}, runs=3)
    found = {**verdict.to_dict(), "ages": [5, 3, 1], "staleness": {"mean": 0.5, "p99": 2, "max": 2}}
    found["courses"] = [{"updates": [1, 2, 4], "relative_l2": [0.0, 1e-3, "inf"], "slope": None}]
    found["controls"]["drift"] = {"updates": [1, 2, 4], "relative_l2": [1e-9, 1e-8, 1e-7], "slope": 1.0}
    (folder / "check-x").mkdir()
    (folder / "check-x/check.json").write_text(json.dumps(found))
    (folder / "bench.json").write_text(json.dumps(bench_of({"hogwild": [1.8, 1.9, 2.0], "ordered": [1.5, 1.6, 1.7]})))
    return folder


def sections(*paths: Path, metric: str = "") -> list[Section]:
    return sections_of(read_given(paths), metric)


def html(found: list[Section]) -> str:
    return page_of(found, "hogwild report here", plotly="/* Plotly */")


def test_one_run_is_reported_at_length(saved: Path) -> None:
    (section,) = sections(saved / "sweep/lr0.1-0")
    assert (section.kind, section.title) == ("run", "line")
    assert section.about.startswith("ordered, staleness 1 · 2 threads · ")
    assert section.verdict.startswith("20 updates in ") and "accuracy 0.1000 and test loss 0.9000" in section.verdict
    assert section.verdict.endswith("Under ordered these bits are the same in every run, with any number of workers.")
    assert [drawing.title for drawing in section.drawings] == [
        "Loss over updates",
        "Loss over seconds",
        "Accuracy over updates",
        "Accuracy over seconds",
        "Staleness",
        "Work per worker",
    ]
    assert [table.title for table in section.tables] == ["Workers", "Settings", "Where it was made"]
    assert all(drawing.caption.endswith(".") for drawing in section.drawings)


def test_runs_are_compared_by_their_settings(saved: Path) -> None:
    (section,) = sections(saved / "sweep")
    assert section.title == "line: lr, seed compared"
    assert section.verdict.startswith("Highest mean accuracy: lr 0.2. Its interval overlaps with none")
    assert [table.title for table in section.tables] == ["Settings, best first", "All runs"]
    assert len(section.tables[1].rows) == 6
    assert section.notes[0].startswith("broken: broken: ") and section.notes[1].startswith(
        "killed: killed: there is no checkpoint"
    )
    other = sections(saved / "sweep", metric="test_loss")[0]
    assert other.verdict.startswith("Lowest mean test_loss: lr 0.2")
    with pytest.raises(ArgumentError, match="--metric 'speed' is in no run; accuracy, test_loss, loss are"):
        sections(saved / "sweep", metric="speed")


def test_curves_in_grey_share_an_entry_of_the_legend(tmp_path: Path) -> None:
    for number in range(11):
        save_run(tmp_path / f"lr{number}", evaluate=lambda model: {"accuracy": 0.5}, lr=0.1 + number)
    (section,) = sections(tmp_path)
    for drawing in section.drawings[:4]:
        assert isinstance(drawing.plot, Plot)
        names = [name for name, _, _ in drawing.plot.legend]
        assert len(names) == 9 and names[-1] == "3 others", names


def test_a_run_that_cannot_be_read_is_said_to_be_left_out(saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved / "sweep/lr0.1-0", tmp_path / "whole")
    broken = shutil.copytree(saved / "sweep/lr0.1-0", tmp_path / "broken")
    (broken / "config.toml").write_text("= =")
    section, left = sections(tmp_path)
    assert section.kind == "run" and left.title == "Not in this report"
    assert left.lines[0][0] == str(broken) and left.lines[0][1].startswith("broken: ")


def test_two_runs_say_where_they_differ(saved: Path) -> None:
    (section,) = sections(saved / "sweep/lr0.1-0", saved / "sweep/lr0.2-0")
    assert section.verdict == "The runs differ from update 0 on; settings differ in lr, environment equal."
    assert [what for what, _ in section.lines][:2] == ["final state", "first difference"]
    assert [table.title for table in section.tables] == ["The two runs side by side", "All runs"]


def test_a_check_says_its_verdict(saved: Path) -> None:
    for path in (saved / "check-x", saved / "check-x/check.json"):
        (section,) = sections(path)
        assert section.kind == "check" and section.good is False
        assert section.verdict.startswith("Runs diverge.")
        assert [drawing.title for drawing in section.drawings] == ["How runs drift apart", "Staleness"]
        assert dict(section.facts)["different results"] == "3"
        assert dict(section.lines)["identical"] == "no: 3 digests in 3 runs"


def test_a_bench_says_which_rule_is_fastest(saved: Path) -> None:
    (section,) = sections(saved / "bench.json")
    assert section.verdict == (
        "The fastest rule does 1.90 times the samples per second of the serial loop written by hand."
    )
    assert section.lines == [("mlp · batch 64 · sgd", "hogwild, 2 processes: 1.90 × (1.80–2.00)")]


def test_everything_in_one_page(saved: Path) -> None:
    found = sections(saved, saved / "bench.json")
    assert [section.kind for section in found] == ["runs", "check", "bench"]
    page = html(found)
    assert page.count("<figure") == page.count("</figure>") == sum(len(one.drawings) for one in found)


# --- from outside


def test_what_comes_from_outside_is_escaped(tmp_path: Path) -> None:
    folder = tmp_path / "<b>bold"
    save_run(
        folder,
        name=EVIL,
        config={EVIL: EVIL},
        evaluate=lambda model: {EVIL: 0.5, "a<b": 1.0},
        evaluate_every=5,
    )
    page = html(sections(folder))
    assert "<img" not in page and "<b>bold" not in page
    assert "&lt;img src=x onerror=alert(1)&gt;&amp;&lt;/script&gt;" in page
    scripts = re.findall(r'<script type="application/json">(.*?)</script>', page, re.DOTALL)
    plots = [json.loads(script) for script in scripts]
    assert len(plots) == 8
    names = {str(trace.get("name", "")) for plot in plots for trace in plot["data"]}
    assert any("&lt;img" in name for name in names) and not any("<img" in name for name in names)


class Addresses(HTMLParser):
    """What a page would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [f"{tag} {name}={value}" for name, value in attrs if name in ("src", "href", "srcset", "data")]


def test_nothing_is_fetched(saved: Path) -> None:
    page = html(sections(saved))
    addresses = Addresses()
    addresses.feed(page)
    assert addresses.found == [] and "@import" not in page and "url(" not in page
    assert "default-src 'none'" in page


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{}", "neither a check nor a bench"),
        ("[]", "does not hold a JSON object"),
        ("{", "cannot be read as JSON"),
        ('{"machine": 1, "settings": 2, "warnings": 3}', "neither a check nor a bench"),
        ('{"machine": 1, "settings": 2, "warnings": 3, "profiles": []}', "is a profile"),
    ],
)
def test_a_file_that_is_neither_is_refused(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ArgumentError, match=told):
        read_given([tmp_path / "x.json"])


def test_where_there_is_nothing_to_report(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", saved / "sweep/killed"):
        with pytest.raises(ArgumentError, match="nothing to report"):
            read_given([path])
    with pytest.raises(ArgumentError, match=r"nothing to report .*journal\.npy"):
        read_given([saved / "sweep/broken"])
    with pytest.raises(ArgumentError, match="does not exist"):
        read_given([tmp_path / "nothing"])


@pytest.mark.parametrize("break_it", [{"courses": [1]}, {"divergence": None}, {"controls": []}, {"digests": 3}])
def test_a_check_that_lacks_something_is_told(break_it: dict[str, Any], saved: Path, tmp_path: Path) -> None:
    found = json.loads((saved / "check-x/check.json").read_text()) | break_it
    (tmp_path / "check.json").write_text(json.dumps(found))
    with pytest.raises(RunDirectoryError, match="is not what hogwild saves"):
        sections(tmp_path / "check.json")


# --- figures


def values(plot: Any, trace: int, axis: str) -> list[Any]:
    return list(plot.figure["data"][trace][axis])


def test_a_curve_is_thinned_and_keeps_its_ends() -> None:
    plot = curves([Curve("a", np.arange(1, 100_001), np.arange(1, 100_001), "red")], "x", "y")
    xs = values(plot, 0, "x")
    assert len(xs) <= 1_201 and (xs[0], xs[-1]) == (1, 100_000)
    assert plot.figure["layout"]["yaxis"]["type"] == "log" and plot.legend == ()


def test_what_is_not_finite_is_a_gap() -> None:
    plot = curves([Curve("a", [1, 2, 3], [1.0, float("nan"), float("inf")], "red")], "x", "y")
    assert values(plot, 0, "y") == [1.0, None, None]
    json.dumps(plot.figure, allow_nan=False)


def test_ages_beyond_the_last_bar_are_added_up() -> None:
    plot = ages({"": np.array([90, 0, *[0] * 25, 4, 6])})
    shares = values(plot, 0, "y")
    assert len(shares) == 21 and shares[0] == 90 and shares[1] is None and shares[20] == 10


def test_the_seconds_of_an_update_are_interpolated(tmp_path: Path) -> None:
    run = save_run(tmp_path / "run")
    known = replace(run, evaluations=({"update": 10, "seconds": 4.0, "accuracy": 0.5},), seconds=5.0)
    assert seconds_of(known, np.array([0, 5, 10, 15, 20])).tolist() == [0, 2, 4, 4.5, 5]
    at, means, width = smoothed_loss(known)
    assert width == 1 and means.tolist() == run.losses.tolist() and at.tolist() == list(range(1, 21))


def test_a_mean_over_seeds_is_drawn_where_all_runs_were_measured(tmp_path: Path) -> None:
    """Elsewhere a run's first or last value stood for it, so that a line told of a mean that no run had."""
    for seed in (0, 1):
        save_run(tmp_path / f"{seed}", seed=seed, evaluate_every=5)
    given = read_given([tmp_path])

    def over_seconds(*begins: float, rows: int = 4) -> list[list[Any]]:
        """The seconds of all curves, where the runs are evaluated once a second from those seconds on."""
        runs = [
            replace(run, evaluations=tuple({**row, "seconds": at + i} for i, row in enumerate(run.evaluations[:rows])))
            for run, at in zip(given.runs, begins, strict=True)
        ]
        (section,) = sections_of(replace(given, runs=runs), "accuracy")
        plot = next(one.plot for one in section.drawings if one.title == "Accuracy over seconds")
        return sorted(values(plot, trace, "x") for trace in range(len(plot.figure["data"])))

    thin, mean, other = over_seconds(1.0, 3.5)
    assert (thin, other) == ([1, 2, 3, 4], [3.5, 4.5, 5.5, 6.5]) and (mean[0], mean[-1]) == (3.5, 4)
    assert over_seconds(1.0, 11.0) == [[1, 2, 3, 4], [11, 12, 13, 14]]
    assert over_seconds(1.0, 2.0, rows=1) == [[1], [2]]


def test_losses_that_are_not_finite_are_said(saved: Path) -> None:
    given = read_given([saved / "sweep/lr0.1-0"])
    given.runs[0].journal["loss"][3:5] = float("nan")
    (section,) = sections_of(given)
    assert section.notes == ["The loss of 2 updates is not finite; the curves leave them out."]


def test_a_long_curve_is_smoothed_over_its_neighbours(tmp_path: Path) -> None:
    run = save_run(tmp_path / "run")
    rows = np.repeat(run.journal[:1], 5_000)
    rows["version"], rows["loss"] = np.arange(1, 5_001), np.arange(5_000.0)
    at, means, width = smoothed_loss(replace(run, journal=rows))
    assert width == 100 and np.allclose(at, means + 1), "the mean of a line is the line, in the middle of its batches"


def test_powers_of_ten_are_ticks_of_an_axis_of_many_decades() -> None:
    plot = curves([Curve("a", [1, 2, 3], [1e-9, 1e-3, 10.0], "red")], "x", "y")
    axis = plot.figure["layout"]["yaxis"]
    assert axis["ticktext"][0] == "10⁻⁹" and "10" in axis["ticktext"][-1] and len(axis["ticktext"]) <= 7


def test_a_drawing_without_a_neighbour_takes_the_whole_width() -> None:
    plot = curves([Curve("a", [1], [1], "red")], "x", "y")
    narrow, wide = Drawing("n", "", plot), Drawing("w", "", plot, wide=True)
    assert [one.wide for one in paired([narrow, narrow, narrow])] == [False, False, True]
    assert [one.wide for one in paired([narrow, wide, narrow, narrow])] == [True, True, False, False]


def test_columns_of_numbers_are_seen() -> None:
    rows = [("a1", "0.93", "± 0.01", "1.2 s", "709c56f7", "–"), ("b", "1,410", "± 2e-05", "3:20 min", "4184e048", "5")]
    table = DataTable("t", ["x"] * 6, rows)
    assert table.numeric == [False, True, True, False, False, True]


# --- the command


def test_the_command(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(saved / "sweep"), "-o", "a.html", "--json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert err == "" and (found["out"], found["runs"], found["checks"]) == ("a.html", 4, 0)
    page = Path("a.html").read_text(encoding="utf-8")
    assert found["bytes"] == Path("a.html").stat().st_size and "Plotly" in page
    assert main(["report", str(saved / "bench.json")]) == 0, "report.html is the default"
    out, _ = capsys.readouterr()
    assert "written to report.html" in out and Path("report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nothing"], "does not exist"),
        ([".", "-o", "report.pdf"], "does not end with .html"),
        ([".", "--out", "nowhere/report.html"], "is not a file in a folder that exists"),
        ([], "there is no folder 'runs' here"),
        (["."], "nothing to report"),
    ],
)
def test_what_cannot_be_reported_is_refused(
    arguments: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and told in err and err.count("\n") == 1


def test_without_plotly_one_line_names_the_extra(
    saved: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hogwild.report.page.page.can_draw", lambda: False)
    assert main(["report", str(saved / "bench.json")]) == 2
    assert capsys.readouterr().err == "hogwild: hogwild report needs plotly; pip install 'hogwild[report]'\n"


def test_what_a_run_was_made_with_and_when_it_was_resumed_is_told(tmp_path: Path) -> None:
    settings = {"compensation": "auto", "checkpoint_every": 5, "evaluate_every": 5, "keep_best": "accuracy"}
    save_run(tmp_path / "run", **settings)
    seem_killed(tmp_path / "run")
    save_run(tmp_path / "run", resume=tmp_path / "run", **settings)
    save_run(tmp_path / "other", lr=0.2)
    (section,) = sections(tmp_path / "run")
    told = dict(section.lines)
    assert told["optimizer"] == "SGD, lr 0.1" and told["resumed"] == "at update 20"
    assert [at_updates(versions) for versions in ((), (616, 616), (40, 1600, 1600), (1, 2))] == [
        "",
        "twice, at update 616",
        "3 times, at updates 40 and 1,600",
        "twice, at updates 1 and 2",
    ]
    assert told["compensated by"].startswith("momentum 0 → ")
    table = next(table for table in sections(tmp_path)[0].tables if table.title == "All runs")
    place = list(table.headings).index("best accuracy")
    assert [row[place] for row in table.rows] == ["–", "0.1000 at 5"] and table.numeric[place], "on one line each"


def test_what_goes_on_with_an_interrupted_run_is_told(tmp_path: Path) -> None:
    def interrupted(model: Any) -> dict[str, float]:
        raise KeyboardInterrupt

    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        save_run(out, evaluate=interrupted, evaluate_every=5)
    told = f"The run was interrupted; hogwild.train(..., resume={str(out)!r}, out={str(out)!r}) goes on."
    assert told in sections(out)[0].verdict
