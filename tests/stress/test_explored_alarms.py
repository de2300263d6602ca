"""Every interleaving of two who wait for a version and who makes it, on a processor that holds stores back.

    who waits    word := a number of its own · fence · look at the head · sleep while the word is that number
    who makes    head := 1 · fence · look at the word · word := 0, wake who sleeps

A store goes into a buffer of its own processor first, out of which it comes at any later moment, and at the latest at a
fence or a call of the kernel. What must never be: the version is there, its maker has gone on, and somebody sleeps.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

pytestmark = pytest.mark.stress

WAITS = ("arm", "fence", "look", "sleep", "asleep", "end")
MAKES = ("publish", "fence", "check", "wake", "end")
FIRST, SECOND, MAKER = range(3)
OWN = (1, 2)  # the numbers of those who wait


class State(NamedTuple):
    head: int = 0
    word: int = 0
    at: tuple[str, str, str] = (WAITS[0], WAITS[0], MAKES[0])
    held: tuple[tuple[tuple[str, int], ...], ...] = ((), (), ())


def put(values, who, value):
    return (*values[:who], value, *values[who + 1 :])


def goes(state, who, step):
    return state._replace(at=put(state.at, who, step))


def stores(state, who, name, value):
    return state._replace(held=put(state.held, who, (*state.held[who], (name, value))))


def stored(state, who):
    """All stores that were held back are made."""
    for name, value in state.held[who]:
        state = state._replace(**{name: value})
    return state._replace(held=put(state.held, who, ()))


def seen(state, who, name):
    """A processor sees its own stores at once."""
    return next((value for one, value in reversed(state.held[who]) if one == name), getattr(state, name))


def waiter(state, who, fenced, number):
    at = state.at[who]
    if at in ("asleep", "end"):
        return None
    then = goes(state, who, WAITS[WAITS.index(at) + 1])
    if at == "arm":
        return stores(then, who, "word", number)
    if at == "fence":
        return stored(then, who) if fenced else then
    if at == "look":
        return goes(state, who, "end") if seen(state, who, "head") else then
    ready = stored(then, who)  # a call of the kernel, which looks at the word and puts to sleep in one
    return ready if ready.word == number else goes(ready, who, "arm")  # and looks again


def maker(state, fenced):
    at = state.at[MAKER]
    if at == "end":
        return None
    then = goes(state, MAKER, MAKES[MAKES.index(at) + 1])
    if at == "publish":
        return stores(then, MAKER, "head", 1)
    if at == "fence":
        return stored(then, MAKER) if fenced else then
    if at == "check":
        return then if seen(state, MAKER, "word") else goes(state, MAKER, "end")
    woken = stored(then, MAKER)._replace(word=0)
    for who in (FIRST, SECOND):
        woken = goes(woken, who, "end") if woken.at[who] == "asleep" else woken
    return woken


def moves(state, fences, numbers):
    yield from (waiter(state, who, "waiter" in fences, numbers[who]) for who in (FIRST, SECOND))
    yield maker(state, "maker" in fences)
    for who, held in enumerate(state.held):
        if held:  # the oldest comes out by itself
            (name, value), *rest = held
            yield state._replace(**{name: value, "held": put(state.held, who, tuple(rest))})


def ends(fences, numbers=OWN):
    """Every state in which nothing can happen any more."""
    found, left, over = {State()}, [State()], []
    while left:
        state = left.pop()
        then = [one for one in moves(state, fences, numbers) if one is not None]
        over += [] if then else [state]
        fresh = set(then) - found
        found |= fresh
        left += fresh
    return over


def test_whoever_waits_is_woken_or_sees_the_version():
    over = ends({"waiter", "maker"})
    assert over and all(state.head == 1 and state.at == ("end", "end", "end") for state in over)


@pytest.mark.parametrize("fences", [set(), {"waiter"}, {"maker"}], ids=str)
def test_without_a_fence_on_either_side_a_wait_may_sleep_to_its_limit(fences):
    assert any("asleep" in state.at and state.head == 1 for state in ends(fences))


def test_with_one_number_for_all_a_second_who_waits_lets_the_first_sleep():
    assert any("asleep" in state.at for state in ends({"waiter", "maker"}, numbers=(1, 1)))
