"""Signals that wait: none is lost, none is heard twice, and all handlers are back, whenever a signal comes."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from hogwild.workers.held_signals import INTERRUPTING, HeldSignals, _active, holding

HEARD: list[int] = []


def hears(number: int, frame: Any) -> None:
    HEARD.append(number)
    raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = [signal.signal(number, hears) for number in INTERRUPTING]
    HEARD.clear()
    yield
    for number, handler in zip(INTERRUPTING, before, strict=True):
        signal.signal(number, handler)
    assert not _active


def are_back() -> bool:
    return [signal.getsignal(number) for number in INTERRUPTING] == [hears] * len(INTERRUPTING)


def interrupted(body: Callable[[], object]) -> None:
    with pytest.raises(KeyboardInterrupt):
        body()


@pytest.mark.parametrize("number", INTERRUPTING)
@pytest.mark.parametrize("at", range(2 * len(INTERRUPTING)))
@pytest.mark.parametrize("nested", [False, True], ids=["alone", "nested"])
def test_a_signal_while_handlers_change_is_heard_once(nested, at, number, monkeypatch):
    """Three are put in place, and three are put back."""
    real, calls = signal.signal, []

    def planted(which: int, handler: Any) -> Any:
        before = real(which, handler)
        calls.append(which)
        if len(calls) == at + 1:
            signal.raise_signal(number)
        return before

    def inner() -> None:
        monkeypatch.setattr(signal, "signal", planted)
        try:
            with HeldSignals():
                pass
        finally:
            monkeypatch.undo()

    def outer() -> None:
        with HeldSignals() if nested else nullcontext():
            inner()

    interrupted(outer)
    assert [number] == HEARD and are_back()


def test_all_that_waited_are_heard_though_the_first_raises():
    def body() -> None:
        with HeldSignals() as signals:
            signals.hold()
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGHUP)

    interrupted(body)
    assert [signal.SIGTERM, signal.SIGHUP] == HEARD and are_back()


def test_a_signal_waits_for_a_moment_where_it_would_be_heard():
    passed = []

    def body() -> None:
        with HeldSignals():
            with holding():
                signal.raise_signal(signal.SIGINT)
                passed.append("what must not be cut")
            passed.append("too late")

    interrupted(body)
    assert passed == ["what must not be cut"] and [signal.SIGINT] == HEARD and are_back()


def test_where_signals_wait_already_they_go_on_waiting():
    passed = []

    def body() -> None:
        with HeldSignals() as signals:
            signals.hold()
            with holding():
                signal.raise_signal(signal.SIGINT)
            passed.append("still inside")

    interrupted(body)
    assert passed == ["still inside"] and [signal.SIGINT] == HEARD and are_back()


def test_where_nothing_holds_signals_they_are_heard_at_once():
    passed = []

    def body() -> None:
        with holding():
            signal.raise_signal(signal.SIGINT)
            passed.append("too late")

    interrupted(body)
    assert not passed and [signal.SIGINT] == HEARD
