"""Every interleaving of who waits for a version and who makes it, on a processor that holds stores back.

    who waits    word := 1 · fence · look at the head · sleep while the word is 1
    who makes    head := 1 · fence · look at the word · word := 0, wake who sleeps

A store goes into a buffer of its own processor first, out of which it comes at any later moment, and at the latest at a
fence or a call of the kernel. What must never be: the version is there, its maker has gone on, and who waits sleeps.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

pytestmark = pytest.mark.stress

WAITS = ("arm", "fence", "look", "sleep", "asleep", "end")
MAKES = ("publish", "fence", "check", "wake", "end")


class State(NamedTuple):
    head: int = 0
    word: int = 0
    waits: str = WAITS[0]
    makes: str = MAKES[0]
    held_by_waiter: tuple[tuple[str, int], ...] = ()
    held_by_maker: tuple[tuple[str, int], ...] = ()


def stored(state, held):
    """All stores that were held back are made."""
    for name, value in getattr(state, held):
        state = state._replace(**{name: value})
    return state._replace(**{held: ()})


def seen(state, held, name):
    """A processor sees its own stores at once."""
    return next((value for one, value in reversed(getattr(state, held)) if one == name), getattr(state, name))


def waiter(state, fenced):
    held, at = "held_by_waiter", state.waits
    then = state._replace(waits=WAITS[min(WAITS.index(at) + 1, len(WAITS) - 1)])
    if at == "arm":
        return then._replace(held_by_waiter=(*state.held_by_waiter, ("word", 1)))
    if at == "fence":
        return stored(then, held) if fenced else then
    if at == "look":
        return then._replace(waits="end") if seen(state, held, "head") else then
    if at == "sleep":  # a call of the kernel, which looks at the word and puts to sleep in one
        ready = stored(then, held)
        return ready if ready.word else ready._replace(waits="end")
    return None


def maker(state, fenced):
    held, at = "held_by_maker", state.makes
    then = state._replace(makes=MAKES[min(MAKES.index(at) + 1, len(MAKES) - 1)])
    if at == "publish":
        return then._replace(held_by_maker=(*state.held_by_maker, ("head", 1)))
    if at == "fence":
        return stored(then, held) if fenced else then
    if at == "check":
        return then if seen(state, held, "word") else then._replace(makes="end")
    if at == "wake":
        woken = stored(then, held)._replace(word=0)
        return woken._replace(waits="end") if woken.waits == "asleep" else woken
    return None


def moves(state, fences):
    yield waiter(state, "waiter" in fences)
    yield maker(state, "maker" in fences)
    for held in ("held_by_waiter", "held_by_maker"):
        if getattr(state, held):  # the oldest comes out by itself
            (name, value), *rest = getattr(state, held)
            yield state._replace(**{name: value, held: tuple(rest)})


def ends(fences):
    """Every state in which nothing can happen any more."""
    found, left, over = {State()}, [State()], []
    while left:
        state = left.pop()
        then = [one for one in moves(state, fences) if one is not None]
        over += [] if then else [state]
        fresh = set(then) - found
        found |= fresh
        left += fresh
    return over


def test_whoever_waits_is_woken_or_sees_the_version():
    over = ends({"waiter", "maker"})
    assert over and all(state.head == 1 and state.waits == state.makes == "end" for state in over)


@pytest.mark.parametrize("fences", [set(), {"waiter"}, {"maker"}], ids=str)
def test_without_a_fence_on_either_side_a_wait_may_sleep_to_its_limit(fences):
    assert any(state.waits == "asleep" and state.head == 1 for state in ends(fences))
