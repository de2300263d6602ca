"""The model of `hogwild.rules.averaging`: the workers of a machine that stand still while machines average.

    claim → look ─ may start ─▶ compute → write → claim …
              └─ may not: lock → lay out, PROPOSED | take the mean, ADOPTED → unlock → look …

Updates write in place. What other machines do is one move of the averager: the mean is there. A worker may die before
any step; what it owned is then reissued, unless its update is written, and it is not replaced but where nobody is left.

`faults` plants what must be found:

    "unsettled"      values are laid out while updates before them are still computed
    "no lock"        two workers do it at once
    "at once"        the mean is taken before it is there
    "laid twice"     who takes the place of a dead worker lays the values out again
    "starts early"   an update starts though a version before it is to be averaged first
    "no orphans"     who stands still does not see what a dead worker left
    "ends early"     a run is over once all tickets are done
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from explorer import DEAD, ENDED, GONE, NOBODY, Protocol, Violation

FAULTS = ("unsettled", "no lock", "at once", "laid twice", "starts early", "no orphans", "ends early")


class Stander(NamedTuple):
    """A worker: what it does next, the ticket in its row, whether it has the lock, and for which version."""

    at: str = "claim"
    held: int = NOBODY
    locks: bool = False
    version: int = 0


class Standing(NamedTuple):
    """The words, the reissued tickets, and which updates are in the model and in the block."""

    kills: int
    next: int
    reissued: frozenset[int]
    model: frozenset[int]
    block: frozenset[int]
    proposed: int
    averaged: int
    adopted: int
    workers: tuple[Stander, ...]


class Averaged(Protocol):
    """The protocol, with any step of any worker, of the parent and of the averager as a move."""

    def __init__(self, workers: int, updates: int, every: int, kills: int, faults: tuple[str, ...] = ()) -> None:
        assert set(faults) <= set(FAULTS)
        nothing = frozenset[int]()
        first: Any = Standing(kills, 0, nothing, nothing, nothing, 0, 0, 0, (Stander(),) * workers)
        name = f"{workers} workers, {updates} updates, averaged every {every}, {kills} kills"
        super().__init__(name, (), first, lambda s: None, self._over, self._final)
        object.__setattr__(self, "updates", updates)
        object.__setattr__(self, "every", every)
        object.__setattr__(self, "faults", frozenset(faults))

    def _over(self, s: Any) -> bool:
        return all(worker.at in (ENDED, GONE) for worker in s.workers) and not self._unfinished(s)

    def _final(self, s: Any) -> None:
        if s.model != frozenset(range(self.updates)) or s.adopted != self.updates:
            raise Violation(f"it ends with updates {sorted(s.model)}, averaged at {s.adopted}")

    def _unfinished(self, s: Standing) -> bool:
        """`Supervisor._unfinished`"""
        left = bool(s.reissued) or s.next < self.updates
        return left or (s.adopted < self.updates and "ends early" not in self.faults)

    def after(self, state: Any, i: int) -> Any:
        """Nothing is said of one next step."""

    def line(self, name: str, i: int, state: Any) -> str:
        """What a trace shows."""
        words = f"proposed {state.proposed}, averaged {state.averaged}, adopted {state.adopted}"
        return f"  worker {i}  {name:14} {state.workers[i]} {words}, model {sorted(state.model)}"

    def moves(self, state: Any) -> Iterator[tuple[str, int, Any]]:
        """Every step that can be taken."""
        if state.proposed > state.averaged:
            yield "average", 0, state._replace(averaged=state.proposed)
        ended = all(worker.at in (ENDED, GONE) for worker in state.workers)
        for i, worker in enumerate(state.workers):
            if worker.at == DEAD:
                yield "died", i, self._settled(state, i)
            elif worker.at not in (ENDED, GONE):
                for name, after in self._steps(state, i, worker):
                    yield name, i, after
                if state.kills:
                    dead = worker._replace(at=DEAD, locks=False, version=int(worker.at == "finish"))
                    yield "KILLED", i, self._put(state._replace(kills=state.kills - 1), i, dead)
            elif ended and self._unfinished(state):
                yield "replace", i, self._put(state, i, Stander())

    def _put(self, s: Standing, i: int, worker: Stander) -> Standing:
        return s._replace(workers=(*s.workers[:i], worker, *s.workers[i + 1 :]))

    def _settled(self, s: Standing, i: int) -> Standing:
        worker = s.workers[i]
        if worker.held != NOBODY and not worker.version:  # not written
            s = s._replace(reissued=s.reissued | {worker.held})
        return self._put(s, i, Stander(at=GONE))

    def _steps(self, s: Standing, i: int, worker: Stander) -> Iterator[tuple[str, Standing]]:
        match worker.at:
            case "claim":
                yield "claim", self._claim(s, i)
            case "look":
                yield from self._look(s, i, worker)
            case "compute":
                yield "compute", self._put(s, i, worker._replace(at="write"))
            case "write":
                yield "write", self._write(s, i, worker)
            case "finish":
                yield "finish", self._put(s, i, Stander())
            case "lock":
                if "no lock" in self.faults or not any(other.locks for other in s.workers):
                    yield "lock", self._put(s, i, worker._replace(at="go on", locks=True))
            case "unlock":
                yield "unlock", self._put(s, i, worker._replace(at="look", locks=False, version=0))
            case _:
                yield from self._go_on(s, i, worker)

    def _claim(self, s: Standing, i: int) -> Standing:
        if s.reissued:
            ticket = min(s.reissued)
            return self._put(s._replace(reissued=s.reissued - {ticket}), i, Stander("look", ticket))
        if s.next < self.updates:
            return self._put(s._replace(next=s.next + 1), i, Stander("look", s.next))
        return self._put(s, i, Stander("look"))

    def _look(self, s: Standing, i: int, worker: Stander) -> Iterator[tuple[str, Standing]]:
        """`Worker._claim` and `Averaging.passed`; without a ticket, `Averaging.over`."""
        held = worker.held
        version = self.updates if held == NOBODY else held // self.every * self.every
        early = "starts early" in self.faults and held != NOBODY
        if s.adopted >= version or early or (held == NOBODY and "ends early" in self.faults):
            yield "pass", self._put(s, i, worker._replace(at=ENDED if held == NOBODY else "compute"))
            return
        orphans = s.reissued if held == NOBODY else {ticket for ticket in s.reissued if ticket < held}
        if orphans and "no orphans" not in self.faults:
            given = s if held == NOBODY else s._replace(reissued=s.reissued | {held})
            yield "hand back", self._put(given, i, Stander())
        if self._may_go_on(s, version):
            yield "see", self._put(s, i, worker._replace(at="lock", version=version))

    def _may_go_on(self, s: Standing, version: int) -> bool:
        if s.proposed >= version and "laid twice" not in self.faults:
            return s.averaged >= version or "at once" in self.faults
        held = {worker.held for worker in s.workers} | s.reissued
        settled = s.next >= version and not any(NOBODY < ticket < version for ticket in held)
        return (settled or "unsettled" in self.faults) and (s.averaged >= s.proposed or "laid twice" in self.faults)

    def _write(self, s: Standing, i: int, worker: Stander) -> Standing:
        if s.adopted < worker.held // self.every * self.every:
            raise Violation(f"update {worker.held} is written, and version {s.adopted} was averaged last")
        if any(other.at in ("laid out", "taken") for other in s.workers):
            raise Violation(f"update {worker.held} is written while the model is averaged")
        return self._put(s._replace(model=s.model | {worker.held}), i, worker._replace(at="finish"))

    def _go_on(self, s: Standing, i: int, worker: Stander) -> Iterator[tuple[str, Standing]]:
        """`Averaging._go_on`, in pieces."""
        version, mean_is_there = worker.version, s.averaged >= worker.version or "at once" in self.faults
        there = s.proposed >= version and "laid twice" not in self.faults
        if worker.at == "laid out":
            yield "propose", self._put(s._replace(proposed=version), i, worker._replace(at="unlock"))
        elif worker.at == "taken":
            yield "adopt", self._put(s._replace(adopted=version), i, worker._replace(at="unlock"))
        elif s.adopted >= version or (there and not mean_is_there):
            yield "nothing to do", self._put(s, i, worker._replace(at="unlock"))
        elif not there and not mean_is_there:
            yield "lay out", self._put(self._laid_out(s, version), i, worker._replace(at="laid out"))
        else:
            yield "take", self._put(self._taken(s, version), i, worker._replace(at="taken"))

    def _laid_out(self, s: Standing, version: int) -> Standing:
        if s.averaged < s.proposed:
            raise Violation("values are laid out while the averager has the block")
        if not s.model >= frozenset(range(version)):
            raise Violation(f"version {version} is laid out with updates {sorted(s.model)}")
        return s._replace(block=s.model)

    def _taken(self, s: Standing, version: int) -> Standing:
        if s.averaged < version:
            raise Violation(f"the mean of version {version} is taken, and it is not there")
        if s.block != s.model:
            raise Violation(f"updates {sorted(s.model - s.block)} are lost with the mean")
        return s
