"""The sessions of two runs: a run that was gone on with has several, each with an environment of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hogwild.run.saved.environment import differing_among
from hogwild.run.saved.origin import Origin

Pair = tuple[str, Any, Any]  # name, the value in the one run, the value in the other


def differing_environments(one: Origin, other: Origin) -> list[Pair]:
    """What is not the same in all sessions of both runs. Where a run has several values, they are told in one text,
    each with the version from which it held."""
    first = len(one.environments)
    found = differing_among([*one.environments, *other.environments])
    return [(name, _told(values[:first], one), _told(values[first:], other)) for name, values in found]


def _told(values: Sequence[Any], run: Origin) -> Any:
    """The value of a run that has one; else all of them: 2.12.0, from update 40 on 2.13.0."""
    known = [(start, value) for start, value in zip((0, *run.starts), values, strict=True) if value is not None]
    kept = [pair for place, pair in enumerate(known) if not place or pair[1] != known[place - 1][1]]
    if len(kept) < 2:
        return kept[0][1] if kept else None
    return ", ".join([str(kept[0][1]), *(f"from update {start:,} on {value}" for start, value in kept[1:])])
