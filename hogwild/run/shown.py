"""Which versions a run that is resumed under a rule in place has shown to be evaluated, and which it owes.

They are numbered by their tickets: v is due once ticket v − 1 is done. There are fewer updates than that where some
were skipped, tickets below it may be computed again, and of those that are done some were not shown before it ended.
"""

from __future__ import annotations

from collections.abc import Sequence

from hogwild.run.saved.checkpoint import ResumePoint
from hogwild.run.saved.metrics import Row
from hogwild.shared.words import NOBODY


def shown_before(start: ResumePoint, rows: Sequence[Row], every: int, *, rows_are_whole: bool) -> int:
    """The version up to which all that are due were shown, none after it; a due one comes next.

    Args:
        start: where the run goes on.
        rows: evaluations of the parts before, those after the checkpoint included.
        every: versions between evaluations from here on; 0 is never.
        rows_are_whole: what was shown, and has no row, is shown again.
    """
    last = _last_done(start)
    if every and every == start.shown_every and start.shown != NOBODY:
        shown = start.shown
        evaluated = [int(row["update"]) for row in rows if row["update"] <= shown]
        if rows_are_whole and evaluated:  # after an error workers may have shown more than was looked at
            shown = min(shown, _next_due(max(evaluated), every) - 1)
    else:  # what was due by another measure, or of a file that does not say it, is known by its rows alone
        undone = min((start.following, *start.again))
        shown = max([undone, *(int(row["update"]) for row in rows if row["update"] <= last)])
    if not every:
        return last
    if rows_are_whole and shown and shown % every == 0 and not any(row["update"] == shown for row in rows):
        shown -= 1
    return max(shown, min(last, _next_due(shown, every) - 1))


def owed(start: ResumePoint, shown: int, every: int) -> range:
    """The versions that are due after `shown`, one in `every`, and that no worker comes to: the model that a run goes
    on with has the update of the last of them."""
    if not every:
        return range(0)
    newest = _last_done(start) // every * every
    while newest > shown and not start.done(newest - 1):
        newest -= every
    return range(_next_due(shown, every), newest + 1, every)


def _next_due(version: int, every: int) -> int:
    return version - version % every + every


def _last_done(start: ResumePoint) -> int:
    """One more than the highest ticket that is done."""
    again, last = {*start.again}, start.following
    while last and last - 1 in again:
        last -= 1
    return last
