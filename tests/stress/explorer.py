"""An exhaustive explorer of small protocols: every interleaving of their steps and every moment of death.

A protocol is data: named steps in the order in which one worker takes them. A step is a function of an immutable
state and the worker that takes it, and is taken whole or not at all, as one store or one locked look is. What the
parent does about a dead worker are steps of that worker's record, so parent and workers interleave like all else.

What nobody else can see, and who dies there leaves nothing of, is no step of its own: what a worker concludes from what
it has seen is part of that look, and taking a lock that others wait for is part of the first step in it, for whatever
they do between the two they can do before both (Lipton 1975). A lock that others only try is seen by them.

    state ──each worker whose next step is enabled──▶ state …        breadth first, so a trace is a shortest one
          ──each living worker, while kills are left──▶ the same with that worker dead

States that differ only in which worker is which are one state. Found are: a step that sees what it must not see
(`Violation`), a state that breaks an invariant, a state in which nothing can happen and the run is not over, and a
state from which the end cannot be reached any more.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, NamedTuple

NOBODY = -1
DEAD, ENDED, GONE = "dead", "ended", "gone"  # killed, not yet dealt with; no more tickets; dealt with, not replaced
PARENT = ("died", "look")  # how the names of the parent's steps begin; nothing kills the parent


class Worker(NamedTuple):
    """A worker: the step it takes next, its row of the control words, and what it remembers itself.

    What nobody asks for any more is forgotten, so that states that can do the same are one state.
    """

    at: str
    row: int = NOBODY  # Field.TICKET
    holder: int = 0  # 1: Word.HOLDER names it
    pin: int = 0  # Field.PIN
    again: int = NOBODY  # Field.AGAIN, less one: the ticket that it computes a second time
    present: int = 1  # Field.PRESENT
    own: tuple[int, ...] = ()  # the tickets of which GradientSlot.WORKER names it
    ticket: int = NOBODY
    version: int = NOBODY  # the version that its gradient is computed on
    slot: int = NOBODY  # the slot that it reads or writes
    base: int = NOBODY  # the version that it makes the next one of
    back: str = ""  # the step to go on with once a version is made
    piece: int = 0  # of a version, that it writes
    second: int = NOBODY  # the ticket that it is about to compute a second time, or does


def killed(worker: Worker) -> Worker:
    """Its row stays; what it remembered itself is gone."""
    return Worker(DEAD, *worker[1 : Worker._fields.index("ticket")])


class State(NamedTuple):
    """The shared words, what the slots hold, and the workers in an order that says nothing."""

    kills: int  # that may still befall somebody
    total: int  # Word.TOTAL
    next: int  # Word.NEXT
    head: int  # Word.HEAD
    head_slot: int
    reissued: tuple[int, ...]
    slots: tuple[Any, ...]
    optimizer: tuple[Any, ...]  # the version of each copy of the optimizer's state
    journal: tuple[tuple[int, int] | None, ...]  # (update, version read)
    workers: tuple[Worker, ...]
    gradients: tuple[tuple[int, Any], ...] = ()  # stamp and content
    checked: tuple[int, ...] = ()  # of each gradient slot, GradientSlot.CHECKED
    counts: tuple[int, ...] = ()  # of each shard, the version that it is at
    shared: int = 0  # Word.SHARED
    shown: int = NOBODY  # the version in the slot for evaluation
    observed: int = 0  # Word.OBSERVED
    evaluated: int = 0  # Word.EVALUATED


class Violation(Exception):  # noqa: N818 - it names what was found
    """A step met what must never be."""


Outcome = State | tuple[State, str] | None
"""The state after a step, with the step to go on with where that is not the next in the list; None: not enabled."""


@dataclass(frozen=True)
class Step:
    """One atomic step: `mirrors` names the functions it stands for, `seen` what the real code is seen to do there."""

    name: str
    mirrors: str
    act: Callable[[State, int], Outcome]
    seen: str = ""


@dataclass(frozen=True)
class Protocol:
    """The steps of a worker and what must hold.

    `invariant` raises `Violation` in a state that must not be; `over` is true where the run is complete, and `final`
    raises where it is over and wrong.
    """

    name: str
    steps: tuple[Step, ...]
    first: State
    invariant: Callable[[State], None]
    over: Callable[[State], bool]
    final: Callable[[State], None]

    @cached_property
    def table(self) -> dict[str, tuple[Step, str]]:
        """name → the step, and the name of the next."""
        names = [step.name for step in self.steps]
        return {step.name: (step, then) for step, then in zip(self.steps, [*names[1:], ""], strict=True)}

    def after(self, state: State, i: int) -> State | None:
        """The state once worker i has taken its step; None where it is not enabled."""
        step, then = self.table[state.workers[i].at]
        outcome = step.act(state, i)
        if outcome is None:
            return None
        state, then = outcome if type(outcome) is tuple else (outcome, then)
        return put(state, i, at=then)

    def moves(self, state: State) -> Iterator[tuple[str, int, State | None]]:
        """(step, worker, state after it) for every step and every death; None where a step is not enabled."""
        for i, worker in enumerate(state.workers):
            yield worker.at, i, self.after(state, i)
        for i, worker in enumerate(state.workers if state.kills else ()):
            if worker.at not in (DEAD, ENDED, GONE) and not worker.at.startswith(PARENT):
                yield "KILLED", i, replaced(state._replace(kills=state.kills - 1), i, killed(worker))

    def successors(self, state: State) -> Iterator[tuple[State, int, bool]]:
        """(canonical state, how many moves lead there, whether they are deaths) for the moves from a canonical state.

        Workers that are alike are neighbours in it, and what one of them does the others do too, up to which is which:
        so the first of them moves for all. A protocol without steps says itself what its moves are.
        """
        if not self.steps:
            told = ((name, after) for name, _, after in self.moves(state) if after is not None)
            yield from ((canonical(after), 1, name == "KILLED") for name, after in told)
            return
        workers, table, before = state.workers, self.table, None
        several = len({*workers}) < len(workers)
        for i, worker in enumerate(workers):
            if worker == before:
                continue
            before = worker
            step, then = table[worker.at]
            outcome = step.act(state, i)
            if outcome is None:
                continue
            after, then = outcome if type(outcome) is tuple else (outcome, then)
            moved = _new(Worker, (then, *after.workers[i][1:]))
            yield _moved(after, i, moved), workers.count(worker) if several else 1, False
        before, fewer = None, state._replace(kills=state.kills - 1) if state.kills else state
        for i, worker in enumerate(workers if state.kills else ()):
            if worker == before or worker.at in (DEAD, ENDED, GONE) or worker.at.startswith(PARENT):
                continue
            before = worker
            yield _moved(fewer, i, killed(worker)), workers.count(worker) if several else 1, True

    def line(self, name: str, i: int, state: State) -> str:
        """What a trace shows of a step that worker i has taken, and of the state after it."""
        worker = state.workers[i]
        by = "parent for" if name.startswith(PARENT) else "worker"
        mirrors = "" if name == "KILLED" else f"[{self.table[name][0].mirrors}]"
        held = "" if worker.ticket == NOBODY else f"ticket {worker.ticket}, "
        counts = f"next {state.next}, head {state.head}, reissued {list(state.reissued)}"
        return f"  {f'{by} {i}':12}  {name:18} {mirrors:30} {held}{counts}, slots {list(state.slots)}"


_PLACES = {name: place for place, name in enumerate(Worker._fields)}
_new = tuple.__new__  # at every step: half the time of `_make` and of `_replace`


def put(state: State, i: int, **changes: Any) -> State:
    """The state with worker i changed."""
    worker = [*state.workers[i]]
    for name, value in changes.items():
        worker[_PLACES[name]] = value
    return replaced(state, i, _new(Worker, worker))


def replaced(state: State, i: int, worker: Worker) -> State:
    """The state with another worker i."""
    workers = [*state.workers]
    workers[i] = worker
    return with_workers(state, tuple(workers))


def canonical(state: State) -> State:
    """The one of all states that differ only in which worker is which."""
    workers = tuple(sorted(state.workers))
    return state if workers == state.workers else with_workers(state, workers)


def _moved(state: State, i: int, worker: Worker) -> State:
    """The canonical state with another worker i."""
    workers = [*state.workers]
    workers[i] = worker
    workers.sort()
    return with_workers(state, tuple(workers))


def with_workers(state: State, workers: tuple[Worker, ...]) -> State:
    """The state with other workers."""
    fields = [*state]
    fields[_place_of_the_workers(type(state))] = workers
    return _new(type(state), fields)


@cache
def _place_of_the_workers(kind: type[State]) -> int:
    return kind._fields.index("workers")


@dataclass
class Explored:
    """What was found: states and steps seen, and the first wrong that was met, with a shortest way there."""

    protocol: str
    states: int = 0
    steps: int = 0
    ends: int = 0
    wrong: str | None = None
    trace: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        counts = f"{self.protocol}: {self.states:,} states, {self.steps:,} steps, {self.ends:,} ends"
        return counts if self.wrong is None else "\n".join([f"{counts}; {self.wrong}", *self.trace])


@contextmanager
def uncollected() -> Iterator[None]:
    """Inside, no cycles are looked for: among millions of tuples, of which none has one, that takes a fifth of the
    time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@uncollected()
def explore(protocol: Protocol, *, limit: int = 10_000_000) -> Explored:
    """Visit every state that can be reached, until one is wrong.

    Raises:
        RuntimeError: there are more than `limit` states.
    """
    found = Explored(protocol.name)
    here = canonical(protocol.first)
    states, number = [here], {here: 0}
    before: list[list[int]] = [[]]  # of each state, those that a move leads from, the first that was met first
    alive: list[list[int]] = [[]]  # and of those the ones where that is no death
    ends: list[int] = []
    waiting = deque([0])
    me = 0
    try:
        while waiting:
            me = waiting.popleft()
            here = states[me]
            protocol.invariant(here)
            moved = False
            for after, moves, death in protocol.successors(here):
                moved = moved or not death
                found.steps += moves
                place = number.setdefault(after, len(states))
                if place == len(states):
                    states.append(after)
                    before.append([])
                    alive.append([])
                    waiting.append(place)
                before[place].append(me)
                if not death:
                    alive[place].append(me)
            if protocol.over(here):
                ends.append(me)
                protocol.final(here)
            elif not moved:
                raise Violation("nothing can happen any more, and the run is not over")
            if len(states) > limit:
                raise RuntimeError(f"{protocol.name}: more than {limit:,} states")
        me = _cannot_end(alive, ends)
        if me is not None:
            raise Violation("the end cannot be reached from here")
    except Violation as wrong:
        found.wrong = str(wrong)
        found.trace = _trace(protocol, states, before, me)
    found.states, found.ends = len(states), len(ends)
    return found


def _cannot_end(before: list[list[int]], ends: list[int]) -> int | None:
    """The first state from which no way leads to an end, where nobody dies any more."""
    reached = bytearray(len(before))
    waiting = list(ends)
    while waiting:
        state = waiting.pop()
        if not reached[state]:
            reached[state] = 1
            waiting += before[state]
    return next((i for i in range(len(before)) if not reached[i]), None)


def _trace(protocol: Protocol, states: list[State], before: list[list[int]], last: int) -> list[str]:
    """The way to a state, with workers that keep their numbers; then the steps from there that are violations."""
    way = []
    while last != 0:
        way.append(states[last])
        last = before[last][0]
    state, lines = protocol.first, []
    for wanted in reversed(way):
        moves = protocol.moves(state)
        name, i, state = next(move for move in moves if move[2] is not None and canonical(move[2]) == wanted)
        lines.append(protocol.line(name, i, state))
    for i, worker in enumerate(state.workers):
        try:
            protocol.after(state, i)
        except Violation as wrong:
            lines.append(f"  worker {i}      {worker.at:18} {wrong}")
    return lines
