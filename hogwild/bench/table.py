"""A benchmark as a person reads it in a terminal: while it runs, and its tables."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hogwild.bench.cases import ruled_table
from hogwild.bench.measure import BenchProgress, TellProgress

_LINE_EVERY = 5.0  # seconds between plain lines
_NOTE = """samples/s: median over the repeats
× serial: over the serial loop's within the same repeat, median and range; × best: over the best alternative's (bold)
start: seconds until all workers were ready, which is not in the speed; all processes come from one fork server
MiB: proportional set size of a worker process, mean, measured at its end
workers: speed over that of one worker in the same repeat, median, and that per worker
target: seconds to the loss that the serial loop has after all batches, start-up left out
All contenders train on the same number of batches, summed over workers. What each of them is:"""


@contextmanager
def following_bench(console: Console) -> Iterator[TellProgress]:
    """What to give `measure_cases(tell=...)`: a live line in a terminal, now and then a plain one elsewhere.

    It is drawn between measurements, by no thread of its own, so that it takes no time from them.
    """
    if console.is_terminal:
        with Live(Text("starting …", "dim"), console=console, auto_refresh=False, transient=True) as live:
            yield lambda step: live.update(_display(step), refresh=True)
    else:
        yield _Lines(console)


class _Lines:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._told = float("-inf")

    def __call__(self, step: BenchProgress) -> None:
        if time.monotonic() - self._told >= _LINE_EVERY:
            self._told = time.monotonic()
            line = f"{step.done} of {step.total} measurements, {_remaining(step)}; {step.what}"
            self._console.print(line, soft_wrap=True, highlight=False, markup=False)


def _display(step: BenchProgress) -> RenderableType:
    bar = Table.grid(padding=(0, 2), expand=True)
    bar.add_column(ratio=1)
    bar.add_column(justify="right", no_wrap=True)
    figures = f"{step.done:,} of {step.total:,} measurements, {_remaining(step)}"
    bar.add_row(ProgressBar(total=max(step.total, 1), completed=step.done), figures)
    return Group(bar, Text(step.what, "dim"))


def _remaining(step: BenchProgress) -> str:
    if not step.done:
        return "–"
    seconds = round(step.seconds * (step.total - step.done) / step.done)
    return f"{seconds // 60}:{seconds % 60:02} min to go"


def bench_report(found: Mapping[str, Any]) -> RenderableType:
    """The tables of a summary."""
    machine = found["machine"]
    head = (
        f"{machine['processor']} · {machine['cores']} cores · {machine['system']} · "
        f"Python {machine['python']} · torch {machine['torch']}"
    )
    parts: list[RenderableType] = [Text(head, "bold")]
    parts.extend(Text(f"warning: {line}", "yellow") for line in found["warnings"])
    for case in found["cases"]:
        parts.append(Text())
        parts.extend(_case(case))
    return Group(*parts, Text(), Text(_NOTE, "dim"), Text(), _legend(found["contenders"]))


def _case(case: Mapping[str, Any]) -> Iterator[RenderableType]:
    yield Text.assemble((case["name"], "bold"), f" · {case['batches']:,} batches · {case['about']}")
    results = case["results"]
    optional = {
        "MiB": any(row["memory_per_worker"] for row in results),
        "target": case["target_loss"] is not None,
    }
    table = ruled_table()
    own = tuple(heading for heading, wanted in optional.items() if wanted)
    headings = ("contender", "samples/s", "× serial", "× best", "start", *own)
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "contender" else "right", no_wrap=True)
    for row in results:
        best = row["name"] == case["best_alternative"]
        table.add_row(*_cells(row, optional), style="bold" if best else "")
    yield table
    yield from _remarks(case)


def _cells(row: Mapping[str, Any], optional: Mapping[str, bool]) -> list[str]:
    speed, serial, best = row["samples_per_second"], row["over_serial"], row["over_best_alternative"]
    startup, memory = row["startup_seconds"], row["memory_per_worker"]
    cells = [
        row["name"],
        f"{speed['median']:,.0f}" if speed else _why_not(row),
        f"{serial['median']:.2f} {serial['min']:.2f}–{serial['max']:.2f}" if serial else "–",
        f"{best['median']:.2f}" if best else "–",
        f"{startup:.2f}" if startup is not None else "–",
    ]
    if optional["MiB"]:
        cells.append(f"{memory / 2**20:.0f}" if memory else "–")
    if optional["target"]:
        to_target = row["seconds_to_target"]
        cells.append(f"{to_target['median']:.2f}" if to_target else "missed" if row["target_missed"] else "–")
    return cells


def _why_not(row: Mapping[str, Any]) -> str:
    return "refused" if row["refused"] else "unfinished" if row["unfinished"] else "failed"


def _remarks(case: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Under a case's table: its target, the pairs people ask for, and whatever failed."""
    if case["target_loss"] is not None:
        yield Text(f"target: a loss of {case['target_loss']:.4g}", "dim")
    for pair in case["comparisons"]:
        ratio = pair["ratio"]
        if ratio:
            runs = f"{ratio['runs']} pair{'s' if ratio['runs'] > 1 else ''}"
            figures = f"{ratio['median']:.2f} ({ratio['min']:.2f}–{ratio['max']:.2f}, {runs})"
            yield Text.assemble(f"{pair['of']} ÷ {pair['over']}: ", (figures, "cyan"))
    for curve in case["scaling"]:
        points = (
            f"{point['workers']}: {point['over_one']['median']:.2f} × ({100 * point['efficiency']:.0f} %)"
            for point in curve["points"]
        )
        yield Text.assemble(f"{curve['rule']}, {curve['kind']}, workers: ", ("  ".join(points), "cyan"))
    yield from _failures(case["results"])


def _failures(results: Sequence[Mapping[str, Any]]) -> Iterator[Text]:
    """A line per message, with all who gave it."""
    who: dict[tuple[bool, str], list[str]] = {}
    for row in results:
        for message in dict.fromkeys(_short(message) for message in row["failures"]):
            who.setdefault((row["refused"], message), []).append(f"{row['name']} ({row['failed_runs']})")
    for (refused, message), names in who.items():
        word = "refused" if refused else "failed, in so many runs"
        yield Text(f"{word}: {'; '.join(names)}: {message}", "dim" if refused else "red")


def _short(message: str) -> str:
    """The last line of a message that is a traceback; `--json` has all of it."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[-1] if lines else "no message"


def _legend(everyone: Sequence[Mapping[str, Any]]) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(style="dim")
    for family, about in {contender["family"]: contender["about"] for contender in everyone}.items():
        grid.add_row(family, Text(about))
    return grid
