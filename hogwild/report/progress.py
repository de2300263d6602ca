"""A run while it is under way: a live display in a terminal, now and then a plain line elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hogwild.report.terminal import terminal
from hogwild.report.words import count, duration, figure, training_loss
from hogwild.run.progress import Progress

_LINE_EVERY = 5.0  # seconds between plain lines
_WORKERS_SHOWN = 8


@contextmanager
def following(
    title: Callable[[str], str], console: Console, *, quiet: bool
) -> Iterator[Callable[[Progress], None] | None]:
    """What to give `train(progress=...)` so that a person can follow the run; None where nothing is to be shown.

    Args:
        title: what is run; it is given the kind of the workers, which is empty until that is known.
        console: where to show it; standard error, for a person who pipes the result on.
        quiet: show nothing.
    """
    if quiet:
        yield None
    elif console.is_terminal:
        starting = Group(Text(title(""), "bold"), Text("starting the workers …", "dim"))
        # Without a thread of its own that refreshes: it would take the interpreter's lock from worker threads.
        with Live(starting, console=console, auto_refresh=False, transient=True) as live:
            live.refresh()
            pace = Pace()
            yield lambda found: live.update(display(title(found.kind), found, pace.remaining(found)), refresh=True)
    else:
        yield _Lines(title, console)


class Pace:
    """How long the rest will take, at the pace since the first look: a resumed run does not start at update 0."""

    def __init__(self) -> None:
        self._first: Progress | None = None

    def remaining(self, progress: Progress) -> float:
        """Seconds to go; NaN at the first look."""
        if self._first is None:
            self._first = progress
        made = progress.updates - self._first.updates
        seconds = progress.seconds - self._first.seconds
        return seconds * (progress.total - progress.updates) / made if made > 0 else float("nan")


def display(title: str, progress: Progress, remaining: float) -> RenderableType:
    """The live display of a run; `remaining` are the seconds to go."""
    done = Table.grid(padding=(0, 2), expand=True)
    done.add_column(ratio=1)
    done.add_column(justify="right", no_wrap=True)
    done.add_row(
        ProgressBar(total=max(progress.total, 1), completed=progress.updates),
        f"{count(progress.updates)} of {count(progress.total)} updates, {duration(remaining)} to go",
    )
    return Group(Text(title, "bold"), done, _figures(progress), *_workers(progress))


def _figures(progress: Progress) -> Text:
    return Text("  ").join(
        Text.assemble((f"{name} ", "dim"), (value, "cyan"))
        for name, value in (
            (training_loss(progress.metrics), figure(progress.loss)),
            *((name, figure(value)) for name, value in progress.metrics.items()),
            ("samples/s", count(progress.samples_per_second)),
        )
    )


def _workers(progress: Progress) -> list[RenderableType]:
    """A bar per worker: how many gradients it has computed, beside the one that has computed most."""
    most = max(progress.per_worker, default=0)
    grid = Table.grid(padding=(0, 2), expand=True)
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(ratio=1)
    for number, computed in enumerate(progress.per_worker[:_WORKERS_SHOWN]):
        bar = ProgressBar(total=max(most, 1), completed=computed, complete_style="green", finished_style="green")
        grid.add_row(f"worker {number}", count(computed), bar)
    rest = progress.per_worker[_WORKERS_SHOWN:]
    if not rest:
        return [grid]
    return [grid, Text(f"and {len(rest)} more, {count(min(rest))} to {count(max(rest))} each", "dim")]


class _Lines:
    """A plain line every few seconds, without control codes: for logs."""

    def __init__(self, title: Callable[[str], str], console: Console) -> None:
        self._title = title
        self._console = console
        self._told = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        if time.monotonic() - self._told < _LINE_EVERY:
            return
        self._told = time.monotonic()
        metrics = "".join(f"  {name} {figure(value)}" for name, value in progress.metrics.items())
        loss = f"{training_loss(progress.metrics)} {figure(progress.loss)}"
        line = (
            f"{self._title(progress.kind)}: {count(progress.updates)} of {count(progress.total)} updates"
            f"  {loss}{metrics}  {count(progress.samples_per_second)} samples/s"
        )
        self._console.print(line, soft_wrap=True, highlight=False, markup=False)


@contextmanager
def telling(title: str, *, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Gives a function that says on standard error what is being done, where somebody looks at it."""
    console = terminal(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda text: None  # noqa: ARG005
        return
    with console.status(Text(title)) as status:
        yield lambda text: status.update(Text(f"{title} · {text} …"))
