"""Words, tables, progress and plots."""

from __future__ import annotations

import io
import json
import math
import re
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from rich.console import Console
from torch import nn

import hogwild
from hogwild.config import KINDS, RunConfig
from hogwild.experiment import Findings, Study, Table
from hogwild.report.objects import to_json
from hogwild.report.plots import can_plot, plot_run
from hogwild.report.progress import Pace, display, following
from hogwild.report.tables import run_report, study_report
from hogwild.report.words import count, duration, figure, plural, size
from hogwild.rules.registry import title_of
from hogwild.run.figures import row_of_axes, save_figure
from hogwild.run.progress import Progress
from hogwild.run.result import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

pytestmark = pytest.mark.usefixtures("fonts")

MANY = Progress(
    updates=500,
    total=1000,
    seconds=2.0,
    samples_per_second=1234.5,
    loss=0.25,
    per_worker=(300, 200),
    metrics={"accuracy": 0.875},
    kind="threads",
)


def _text(renderable: object, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.fixture(scope="module")
def run() -> Run:
    return hogwild.train(
        nn.Linear(2, 1),
        torch.ones(16, 2),
        lambda model, batch: (model(batch) - 1).square().mean(),
        optimizer=partial(torch.optim.SGD, lr=0.1),
        kind="threads",
        updates=30,
        batch_size=4,
        evaluate=lambda model: {"accuracy": 0.5, "test_loss": 1.5},
        name="toy",
    )


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "0.0 s"),
        (0.004, "4 ms"),
        (0.5, "0.5 s"),
        (59.94, "59.9 s"),
        (61, "1:01 min"),
        (3661, "1:01:01"),
        (math.nan, "–"),
    ],
)
def test_duration(value: float, words: str) -> None:
    assert duration(value) == words


def test_what_is_said_of_a_digest_is_what_is_promised_of_it(run):
    def told(**changed):
        text = " ".join(_text(run_report(replace(run, **changed)), 200).split())
        return re.search(r"digest \w+… (.*?) (machine )?worker gradients", text).group(1)

    same, ordered = "the same on every run, at any --workers and --kind", replace(run.config, update="ordered")
    assert "differs from run to run" in told()
    assert told(config=ordered, nodes=2) == same
    apart = {"config": replace(ordered, average_every=5), "nodes": 2}
    assert told(**apart) == f"{same}, on 2 machines"
    assert "a machine that averaged was lost" in told(**apart, failures=("machine 1 was lost at update 7: it closed",))
    assert told(**apart, failures=("worker 0 raised",)) == f"{same}, on 2 machines"


def test_one_is_no_plural() -> None:
    assert [plural(number, "update") for number in (0, 1, 2820)] == ["0 updates", "1 update", "2,820 updates"]


@pytest.mark.parametrize(
    ("value", "words"), [(12, "12 bytes"), (2048, "2 KiB"), (3 << 19, "1.5 MiB"), (5 << 40, "5.0 TiB")]
)
def test_size(value: float, words: str) -> None:
    assert size(value) == words


@pytest.mark.parametrize(
    ("value", "words"), [(0, "0.0000"), (0.98316, "0.9832"), (1234.5, "1234"), (1.5e-7, "1.5e-07"), (math.nan, "–")]
)
def test_figure(value: float, words: str) -> None:
    assert figure(value) == words


def test_count() -> None:
    assert count(1234567.8) == "1,234,568" and count(math.nan) == "–"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "run · hogwild · 2 workers"),
        ({"workers": 1}, "run · hogwild · 1 worker"),
        ({"workers": 1, "kind": "processes"}, "run · hogwild · 1 process"),
        ({"workers": 1, "kind": "threads"}, "run · hogwild · 1 thread"),
        ({"update": "ordered", "staleness": 3}, "run · ordered, staleness 3 · 2 workers"),
        ({"update": "sync", "micro_batches": 4}, "run · sync, 4 micro-batches · 2 workers"),
    ],
)
def test_title(settings: dict[str, object], words: str) -> None:
    assert title_of(RunConfig(epochs=1, **settings)) == words  # type: ignore[arg-type]


@pytest.mark.parametrize("chosen", KINDS)
def test_a_title_tells_a_kind_that_was_chosen_from_one_that_was_given(chosen: str) -> None:
    assert title_of(RunConfig(epochs=1), chosen) == f"run · hogwild · 2 {chosen} (auto)"
    assert title_of(RunConfig(epochs=1, kind=chosen), chosen) == f"run · hogwild · 2 {chosen}"


@pytest.mark.parametrize("width", [80, 120])
def test_the_display_fits_the_terminal(width: int) -> None:
    shown = _text(display("toy", MANY, 2.0), width)
    for word in ("toy", "500 of 1,000 updates", "2.0 s to go", "loss 0.25", "accuracy 0.875", "1,234", "worker 1"):
        assert word in shown
    assert max(map(len, shown.splitlines())) <= width
    assert len(shown.splitlines()) == 5


def test_the_display_of_many_workers_stays_short() -> None:
    shown = _text(display("toy", replace(MANY, per_worker=tuple(range(100))), 2.0))
    assert "and 92 more, 8 to 99 each" in shown
    assert len(shown.splitlines()) < 15


def test_the_pace_of_a_resumed_run_is_its_own() -> None:
    pace = Pace()
    assert math.isnan(pace.remaining(replace(MANY, updates=900, seconds=0.0)))
    assert pace.remaining(replace(MANY, updates=950, seconds=5.0)) == 5.0


def test_a_log_gets_plain_lines_and_not_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("hogwild.report.progress.time.monotonic", lambda: now[0])
    console = Console(file=io.StringIO(), width=40, force_terminal=False)
    with following(partial(title_of, RunConfig("toy", epochs=1)), console, quiet=False) as progress:
        assert progress is not None
        for second in range(12):
            now[0] = float(second)
            progress(MANY)
    assert isinstance(console.file, io.StringIO)
    line = "toy · hogwild · 2 threads (auto): 500 of 1,000 updates  loss 0.2500  accuracy 0.8750  1,234 samples/s\n"
    assert console.file.getvalue() == 2 * line


def test_quiet_shows_nothing() -> None:
    with following(
        partial(title_of, RunConfig("toy", epochs=1)), Console(file=io.StringIO(), force_terminal=True), quiet=True
    ) as progress:
        assert progress is None


def test_the_table_tells_what_the_run_came_to(run: Run) -> None:
    shown = _text(run_report(run))
    for word in (
        "toy · hogwild · 2 threads · 30 updates",
        "accuracy",
        f"{run.digest[:16]}…",
        "differs from run to run",
    ):
        assert word in shown
    assert re.search(r"[0-9] [MG]iB", shown), "the memory of a process; with a torch built for CUDA over a GiB"
    ordered = replace(run, config=replace(run.config, update="ordered"), failures=("worker 1 died of SIGKILL",))
    shown = _text(run_report(ordered))
    assert "the same on every run" in shown and "worker 1 died of SIGKILL" in shown


def test_a_name_is_no_markup(run: Run) -> None:
    shown = _text(run_report(replace(run, config=replace(run.config, name="[red]x[/red]"))))
    assert "[red]x[/red]" in shown


@pytest.mark.parametrize(("width", "last"), [(26, "gradients"), (40, "share"), (54, "waited"), (80, "memory")], ids=str)
def test_the_workers_of_a_run_fit_the_terminal(width: int, last: str, run: Run) -> None:
    lines = _text(run_report(run), width).splitlines()
    headings = next(line for line in lines if line.split()[:2] == ["worker", "gradients"])
    assert headings.split()[-1] == last and len(headings) <= width
    assert not any("…" in line for line in lines[lines.index(headings) :])


def test_matplotlib_that_cannot_be_imported_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "matplotlib").mkdir()
    (tmp_path / "matplotlib" / "__init__.py").write_text("raise ImportError('built for another numpy')\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert not can_plot()
    assert "no figure is drawn: matplotlib cannot be imported (ImportError: built for another numpy)" in caplog.text


@pytest.mark.parametrize("width", [60, 80, 140])
def test_a_table_of_measurements_is_whole_at_any_width(width: int) -> None:
    """Its figures were cut in a window of 80 columns, and what stands in brackets was taken for markup."""
    name, values = "a convolution net with BatchNorm, SGD 0.05", ("0.1234 [0.1230–0.1299]", "diverged [diverged]")
    table = Table(("median", "τ = 0", "τ = 1", "τ = 3"), ((name, *values, ".983 [.980]"),))
    told = _text(
        study_report(Study("one", "Is it?", lambda _: Findings((), "")), Findings((), "", (), (table,))), width
    )
    assert "…" not in told and max(map(len, told.splitlines())) <= width
    assert not [word for cell in (name, *values) for word in cell.split() if word not in told]
    assert ("diverged [diverged]" in told) is (width == 140)


def test_a_plot_is_drawn_with_and_without_evaluations(run: Run, tmp_path: Path) -> None:
    for number, drawn in enumerate((run, replace(run, evaluations=()), replace(run, journal=run.journal[:0]))):
        plot_run(drawn, tmp_path / f"{number}.png")
        assert (tmp_path / f"{number}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("suffix", "begins"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_a_figure_is_what_its_name_ends_with(suffix: str, begins: bytes, tmp_path: Path) -> None:
    figure, _ = row_of_axes(3, 2, 1, "a")
    assert save_figure(figure, tmp_path / f"figure.{suffix}").read_bytes().startswith(begins)


def test_a_figure_is_laid_out_once(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is half of what drawing takes, and the end of each run waits for that."""
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    laid_out: list[Figure] = []
    execute = ConstrainedLayoutEngine.execute

    def counted(engine: ConstrainedLayoutEngine, figure: Figure) -> None:
        laid_out.append(figure)
        execute(engine, figure)

    monkeypatch.setattr(ConstrainedLayoutEngine, "execute", counted)
    plot_run(run, tmp_path / "run.png")
    assert len(laid_out) == 1


@pytest.mark.parametrize(("lowest", "scale"), [(0.1, "log"), (0.0, "linear"), (-0.5, "linear"), (math.nan, "log")])
def test_evaluated_losses_that_no_logarithm_has_are_drawn(
    lowest: float, scale: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Figure] = []
    monkeypatch.setattr("hogwild.report.plots.save_figure", lambda figure, path: made.append(figure))
    journal = run.journal.copy()
    journal["loss"] = 1.0
    first, *others = run.evaluations
    evaluations = ({**first, "test_loss": lowest}, *others)
    plot_run(replace(run, journal=journal, evaluations=evaluations), tmp_path / "run.png")
    assert made[0].axes[0].get_yscale() == scale


def test_a_metric_named_as_a_formula_is_drawn_by_its_name(run: Run, tmp_path: Path) -> None:
    """One that is no formula, after all, ended the command with a traceback of matplotlib's."""
    named = replace(run, evaluations=tuple({**row, "$x^$": 0.5} for row in run.evaluations))
    assert "$x^$" in named.metrics
    plot_run(replace(named, config=replace(named.config, name="a $b$ c$_$")), tmp_path / "run.png")
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")


def test_names_are_drawn_as_they_are_and_numbers_as_powers(tmp_path: Path) -> None:
    figure, (axes, named) = row_of_axes(6, 3, 2, "$a$")
    axes.plot([1, 2], [1e-8, 1.0], label="$x^$")
    axes.set_yscale("log")
    axes.legend()
    named.set_xticks([0], labels=["$y^$"])
    save_figure(figure, tmp_path / "figure.png")
    names = [figure._suptitle, *axes.get_legend().get_texts(), *named.get_xticklabels()]
    assert [text.get_text() for text in names] == ["$a$", "$x^$", "$y^$"]
    assert not any(text.get_parse_math() for text in names)
    powers = [text for text in axes.get_yticklabels() if text.get_text()]
    assert powers
    assert all(text.get_parse_math() and "10^" in text.get_text() for text in powers)


def test_a_name_in_letters_that_the_font_has_not_brings_no_warning(
    run: Run, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    plot_run(replace(run, config=replace(run.config, name="数字")), tmp_path / "run.png")
    assert not [str(one.message) for one in recwarn]


def test_json_holds_no_number_that_json_has_not() -> None:
    text = to_json({"a": math.nan, "b": [math.inf, 1.5], "c": Path("x"), 3: (True, None)})
    assert json.loads(text) == {"a": None, "b": [None, 1.5], "c": "x", "3": [True, None]}
