"""Where all is printed: text as it is, for names of metrics, settings and folders are no markup of rich."""

from __future__ import annotations

from rich.console import Console


def terminal(*, stderr: bool = False) -> Console:
    """Standard output, or standard error."""
    return Console(stderr=stderr, markup=False, emoji=False)
