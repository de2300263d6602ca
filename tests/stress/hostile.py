"""What is done to files from elsewhere, and how a reader must take it."""

from __future__ import annotations

import os
import resource
import warnings
from contextlib import contextmanager

import psutil
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

import hogwild

FUZZ = int(os.environ.get("HOGWILD_FUZZ", "0"))
MEMORY = 1 << 30  # bytes that reading a small file may take at most
fuzz = settings(
    max_examples=FUZZ or 100,
    derandomize=not FUZZ,
    database=None,
    deadline=2000,
    suppress_health_check=list(HealthCheck),
)


@contextmanager
def little_memory():
    """Inside, this process gets no more than `MEMORY` on top of what it has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + MEMORY, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def read_or_refused(read):
    """What was read; None where it was refused, in one line of ours."""
    with little_memory(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return read()
        except hogwild.HogwildError as error:
            message = str(error)
    assert "\n" not in message and 0 < len(message) < 1000, message[:3000]
    return None


WORDS = [0, 1, -1, 255, 1 << 31, 1 << 32, 1 << 40, (1 << 62) + 1, (1 << 63) - 1, -(1 << 63)]
LONG = "9" * 5000
HOSTILE_NUMBERS = st.sampled_from([*WORDS, 1 << 64, 10**30, float("nan"), float("inf"), -0.0, 1e308])
hostile = st.one_of(
    HOSTILE_NUMBERS,
    st.none(),
    st.booleans(),
    st.text(max_size=8),
    st.sampled_from(["../../etc/passwd", "a\nb\x1b[31m", "x" * 100_000, "__import__('os')"]),
    st.recursive(st.integers(), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner)),
)


@st.composite
def damaged(draw, data):
    """The bytes with some of them changed, cut off, doubled or put in."""
    content = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(0, len(content) - 1)))
        how = draw(st.sampled_from(["flip", "cut", "word", "double", "insert", "number"]))
        if how == "flip" and content:
            content[place] ^= draw(st.integers(1, 255))
        elif how == "cut":
            del content[place:]
        elif how == "word":
            content[place : place + 8] = (draw(st.sampled_from(WORDS)) % (1 << 64)).to_bytes(8, "little")
        elif how == "double":
            content[place:place] = content[place : place + draw(st.integers(1, 200))]
        elif how == "insert":
            content[place:place] = draw(st.binary(max_size=20))
        else:
            content[place : place + 1] = str(draw(st.sampled_from(WORDS))).encode()
    return bytes(content)
