"""What a command prints in the end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import RenderableType

from hogwild.cli.aside import for_the_result
from hogwild.config import RunConfig
from hogwild.report.objects import to_json
from hogwild.report.terminal import terminal


def tell_usual_lr(config: RunConfig, usual: str, *, quiet: bool) -> None:
    """On standard error, before training: that a run has the learning rate that its optimizer begins with in place of
    the experiment's; `usual` says why, see `hogwild.experiment.why_usual_lr`."""
    if ";" in usual and not quiet:
        sys.stderr.write(f"hogwild: {config.optimizer}, lr {config.lr:g} ({usual}; --lr names another)\n")


@contextmanager
def saving_nothing(found: Callable[[], str] = str) -> Iterator[None]:
    """Where what is inside is interrupted, say on standard error what was `found` until then, and that nothing of it is
    saved."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        told = ("interrupted", found(), "nothing is saved")
        sys.stderr.write(f"hogwild: {'; '.join(part for part in told if part)}\n")
        raise


def show(found: Any, report: RenderableType, *, json: bool) -> None:
    """On standard output: what was found as one JSON object and nothing else, or the report for a person."""
    if json:
        for_the_result().write(to_json(found) + "\n")
    else:
        terminal().print(report)
