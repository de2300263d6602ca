"""Evaluations that a run still owes when it is resumed under a rule in place.

A worker shows a version to the parent by copying it out; the parent then evaluates it. When a run is interrupted, some
versions were due and had not been shown. This module finds them.

Under a rule in place a version is numbered by tickets: version v is due once ticket v − 1 is done. That is not the
number of updates, because some updates may have been skipped; and tickets below v may still have to be computed again.
"""

from __future__ import annotations

from collections.abc import Sequence

from hogwild.run.saved.checkpoint import ResumePoint
from hogwild.run.saved.metrics import Row
from hogwild.shared.words import NOBODY


def shown_before(start: ResumePoint, rows: Sequence[Row], every: int, *, rows_are_whole: bool) -> int:
    """The last version up to which nothing is owed: every due version up to it was shown, and none after it.

    Args:
        start: where the run goes on.
        rows: evaluations of the earlier parts of the run, those after the checkpoint included.
        every: versions between evaluations from here on; 0 is never.
        rows_are_whole: every version that was shown should have a row, so one without a row is shown again.
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
    """The versions after `shown` that were due, one in `every`, and that no worker will reach any more, because the
    model that the run goes on with already holds their updates."""
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
