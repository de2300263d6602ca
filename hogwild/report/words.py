"""How numbers and runs are put into words, the same everywhere."""

from __future__ import annotations

import math
from collections.abc import Container


def count(value: float) -> str:
    """A whole number with its thousands set apart."""
    return f"{value:,.0f}" if math.isfinite(value) else "–"


def plural(number: float, noun: str) -> str:
    """So many of something: 1 update, 2,820 updates."""
    return f"{count(number)} {noun}" if number == 1 else f"{count(number)} {noun}s"


def figure(value: float) -> str:
    """A measured number, to three or four digits."""
    if not math.isfinite(value):
        return "–" if math.isnan(value) else str(value)
    return f"{value:.4f}" if 1e-3 <= abs(value) < 10 or value == 0 else f"{value:.4g}"


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    if not math.isfinite(seconds):
        return "–"
    if 0 < seconds < 0.095:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02} min"


def short_digest(digest: str) -> str:
    """The first letters of a digest, as tables have it; `--json` has all of it."""
    return f"{digest[:16]}…"


def size(number: float) -> str:
    """Bytes as a person says them."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:,.0f} {unit}" if unit in ("bytes", "KiB") or number >= 100 else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:,.1f} TiB"


def training_loss(metrics: Container[str]) -> str:
    """What the training loss is called beside those metrics."""
    return "training loss" if "loss" in metrics else "loss"


def is_loss(metric: str) -> bool:
    """True for a metric that has the unit of the training loss, as far as its name tells: it is drawn beside it."""
    return metric == "loss" or metric.endswith("_loss")
