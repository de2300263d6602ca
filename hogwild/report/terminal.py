"""Where all is printed: text as it is, for names of metrics, settings and folders are no markup of rich, and without
the control characters that they may have."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from hogwild.errors import without_controls


class _Terminal(Console):
    """A console on which only what is rendered moves the cursor, and no text."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """The segments of it, their text without control characters."""
        for one in super().render(renderable, options):
            yield one if one.control else one._replace(text=without_controls(one.text))


def terminal(*, stderr: bool = False) -> Console:
    """Standard output, or standard error."""
    return _Terminal(stderr=stderr, markup=False, emoji=False)
