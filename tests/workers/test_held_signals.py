"""Signals that wait: none is lost, none is heard twice, and all handlers are back, whenever a signal comes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from hogwild.workers import held_signals
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


# --- children that are forked meanwhile


def waits_in_a_lock(taken: Any) -> None:
    """What a process of a pool does while there is nothing to do."""
    taken.acquire()


@pytest.mark.parametrize("attempt", range(5))
def test_a_child_that_is_forked_inside_is_ended_by_sigterm_however_early(attempt: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    forked = multiprocessing.get_context("fork")
    taken = forked.Lock()
    taken.acquire()
    with HeldSignals():
        children = [forked.Process(target=waits_in_a_lock, args=(taken,)) for _ in range(8)]
        for child in children:
            child.start()
            child.terminate()
        for child in children:
            child.join(20)
        late = [child for child in children if child.exitcode is None]
        for child in late:
            child.kill()
            child.join()
    assert not late and [child.exitcode for child in children] == [-signal.SIGTERM] * len(children)
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, []) & {*INTERRUPTING}


class SignalledMeanwhile:
    """The C library, by which a signal comes as soon as signals wait."""

    def __init__(self) -> None:
        self._real = held_signals._library

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def sigaddset(self, *arguments: Any) -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        self._real.sigaddset(*arguments)


def test_a_signal_that_comes_while_a_child_is_forked_is_heard_by_the_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what its handler raises is raised, and not ignored as in a function that is called after a fork."""
    monkeypatch.setattr(held_signals, "_library", SignalledMeanwhile())
    hears_it, tells = os.pipe()

    def forks() -> None:
        with HeldSignals():
            if not os.fork():
                os.write(tells, str(os.getpid()).encode())
                os._exit(0)

    interrupted(forks)
    assert are_back() and HEARD == [signal.SIGTERM]
    assert os.waitpid(int(os.read(hears_it, 20)), 0)[1] == 0
    os.close(hears_it)
    os.close(tells)


def test_handlers_are_back_in_a_child() -> None:
    with HeldSignals():
        pid = os.fork()
        if not pid:
            blocked = signal.pthread_sigmask(signal.SIG_BLOCK, []) & {*INTERRUPTING}
            os._exit(0 if are_back() and not blocked and not _active else 1)
        assert not are_back()
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
