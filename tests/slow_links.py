"""A network for tests, whose links are slow and can be cut; where none can be made, a test that asks is skipped."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hogwild.bench.links import Network, network
from hogwild.errors import ArgumentError


@functools.cache
def _why_not() -> str:
    try:
        with network(2, 0.0):
            return ""
    except ArgumentError as error:
        return str(error)


@contextmanager
def links(hosts: int, delay: float = 0.0) -> Iterator[Network]:
    """So many hosts, `delay` seconds apart."""
    if why := _why_not():
        pytest.skip(why)
    with network(hosts, delay) as made:
        yield made
