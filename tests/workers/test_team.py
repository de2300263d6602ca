"""What a worker tells of itself as it ends."""

from __future__ import annotations

import resource
import sys

import pytest

from hogwild.workers.team import usage


@pytest.mark.parametrize(("system", "unit"), [("linux", 1024), ("darwin", 1)])
def test_the_most_that_was_resident_is_told_in_bytes(system, unit, monkeypatch):
    """macOS counts in bytes, others in KiB."""
    counted = resource.getrusage(resource.RUSAGE_SELF)
    monkeypatch.setattr(resource, "getrusage", lambda _: counted)
    monkeypatch.setattr(sys, "platform", system)
    assert usage(0, owns_process=False).rss == counted.ru_maxrss * unit
