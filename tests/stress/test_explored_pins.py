"""Every interleaving of a worker that pins the newest version of tables and one that makes the next ones.

    who reads    look at the head · say which slot · say which version · fence · is that still the head? · read · say so
    who makes    lock · choose a slot that is neither pinned nor the head, and wait while a log is needed · write both ·
                 publish · unlock

Stores are held back as in `test_explored_alarms`. What must never be: a slot is written while somebody reads it, or the
log of a version later than the one that is read.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

pytestmark = pytest.mark.stress

SLOTS, LOGS, LAST, ROUNDS = 3, 2, 4, 2
READS = ("look", "slot", "version", "fence", "again", "read", "done")
MAKES = ("lock", "choose", "write", "publish", "unlock")
Stores = tuple[tuple[str, object], ...]


class State(NamedTuple):
    head: tuple[int, int] = (0, 0)  # the newest version, and its slot
    pin: int = 0
    reading: int = 0  # the version that is read, plus one
    reader: str = READS[0]
    seen: tuple[int, int] = (0, 0)  # the head that the reader has looked at
    rounds: int = ROUNDS
    maker: str = MAKES[0]
    made: tuple[int, int] = (0, 0)  # what is written now, or was last
    held: tuple[Stores, Stores] = ((), ())


READER, MAKER = range(2)


def stores(state: State, who: int, name: str, value: object) -> State:
    held = [*state.held]
    held[who] = (*held[who], (name, value))
    return state._replace(held=tuple(held))


def drained(state: State, who: int, most: int = LAST) -> State:
    """The oldest stores that were held back are made."""
    held = [*state.held]
    for name, value in held[who][:most]:
        state = state._replace(**{name: value})
    held[who] = held[who][most:]
    return state._replace(held=tuple(held))


def reader(state: State, faults: set[str]) -> State | None:
    at = state.reader
    if at == "done":
        left = state.rounds - 1
        return stores(state, READER, "reading", 0)._replace(reader="look" if left else "end", rounds=left)
    if at == "end":
        return None
    then = state._replace(reader=READS[READS.index(at) + 1])
    if at == "look":
        return then._replace(seen=state.head)
    if at == "slot":
        return stores(then, READER, "pin", state.seen[1])
    if at == "version":
        return stores(then, READER, "reading", state.seen[0] + 1)
    if at == "fence":
        return then if "no fence" in faults else drained(then, READER)
    if at == "again":
        return then if state.head == state.seen or "one look" in faults else state._replace(reader="look")
    return then


def maker(state: State, faults: set[str]) -> State | None:
    at, version = state.maker, state.head[0] + 1
    then = state._replace(maker=MAKES[(MAKES.index(at) + 1) % len(MAKES)])
    if at in ("lock", "unlock"):  # locked instructions
        return drained(then, MAKER) if at == "unlock" or version <= LAST else None
    if at == "choose":
        if state.reading and state.reading <= version - LOGS and "waits for nobody" not in faults:
            return state._replace(maker="unlock")
        return then._replace(made=(version, min({*range(SLOTS)} - {state.pin, state.head[1]})))
    return stores(then, MAKER, "head", state.made) if at == "publish" else then


def is_wrong(state: State) -> bool:
    version, slot = state.seen
    writes = state.maker in ("write", "publish") and state.made[1] == slot
    return state.reader == "read" and (writes or state.made[0] - LOGS > version)


def explored(faults: set[str]) -> tuple[bool, bool]:
    """(whether something went wrong, whether the last version is made wherever nothing can happen any more); once
    something has, no more is looked at."""
    found, left, wrong, over = {State()}, [State()], False, set()
    while left and not wrong:
        state = left.pop()
        then = [one for one in (reader(state, faults), maker(state, faults)) if one is not None]
        then += [drained(state, who, 1) for who in (READER, MAKER) if state.held[who]]
        wrong = wrong or is_wrong(state)
        over |= set() if then else {state.head[0] == LAST and not state.reading}
        fresh = set(then) - found
        found |= fresh
        left += fresh
    return wrong, over == {True}


def test_what_is_read_is_written_by_nobody():
    assert explored(set()) == (False, True)


@pytest.mark.parametrize("fault", ["no fence", "one look", "waits for nobody"])
def test_each_step_is_needed(fault):
    wrong, _ = explored({fault})
    assert wrong
