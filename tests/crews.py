"""The workers of a run as their rows in shared memory show them: who waits, who hangs, and when nobody goes on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from multiprocessing import connection

import psutil
import torch
from side_by_side import within

from hogwild.shared.tickets import Control
from hogwild.shared.words import LOOKING, NOBODY, Field
from hogwild.testing import Hook, PlantedFault
from hogwild.workers.processes import ProcessTeam
from hogwild.workers.seat import WorkerSeat
from hogwild.workers.supervisor import Supervisor
from hogwild.workers.team import Team
from hogwild.workers.threads import ThreadTeam

STOPPED = 2


def looking(seat: WorkerSeat, ticket: int) -> memoryview:
    """The row of the other worker of two, once it has that ticket, and looks for what that waits for."""
    row = seat.control.row(1 - seat.index)
    within(60, lambda: row[Field.TICKET] == ticket and row[Field.WAITING] == LOOKING, "the other does not wait")
    return row


def other_process() -> psutil.Process:
    """That of the other worker of two, seen from one."""
    (other,) = (one for one in psutil.Process().parent().children() if one.pid != os.getpid())
    return other


def controls_of_runs(monkeypatch) -> list[Control]:
    """The words of the runs that this program begins from here on, which what it is called back by may look at."""
    controls: list[Control] = []
    _at_supervision(monkeypatch, lambda supervisor: controls.append(supervisor._control))
    return controls


def teams_of_runs(monkeypatch) -> list[Team]:
    """The workers of these runs."""
    teams: list[Team] = []
    _at_supervision(monkeypatch, lambda supervisor: teams.append(supervisor._team))
    return teams


def _at_supervision(monkeypatch, call: Callable[[Supervisor], None]) -> None:
    supervise = Supervisor.supervise

    def supervised(self: Supervisor) -> None:
        call(self)
        supervise(self)

    monkeypatch.setattr(Supervisor, "supervise", supervised)


def has_lost_one(team: Team) -> bool:
    """Whether a worker has ended, as who looks next will hear."""
    if isinstance(team, ThreadTeam):
        return any(not thread.is_alive() for thread in team._threads.values())
    return bool(connection.wait([process.sentinel for process in team._processes.values()], 0))


def at_rest(control: Control) -> None:
    """Wait until every worker has ended, or looks again and again for what only this program can bring about."""
    before: list[tuple[int, ...]] = []

    def rests() -> bool:
        rows = [control.row(worker) for worker in range(control.workers)]
        now = [(row[Field.TICKET], row[Field.COMPUTED], row[Field.COMMITS], row[Field.LOOKS]) for row in rows]
        waits = [row[Field.WAITING] == LOOKING for row in rows]
        ended = [row[Field.STARTED] > 0 and row[Field.TICKET] == NOBODY and not row[Field.PRESENT] for row in rows]
        if not all(one or other for one, other in zip(waits, ended, strict=True)):
            before.clear()
            return False
        if not before or [one[:3] for one in before] != [one[:3] for one in now]:
            before[:] = now
        return all(end or one[3] > old[3] + 1 for end, one, old in zip(ended, now, before, strict=True))

    within(60, rests, "some worker goes on, or stands still")


def said_to_hang(monkeypatch) -> torch.Tensor:
    """Shared words, of which a worker sets its own before it hangs. For who looks for those that hang time passes only
    while there are such, and from one look to the next only once all others have moved on: none of these is ever taken
    to hang, however long the system lets it stand still. Its stacks are waited for as well, but for those of a process
    that a signal has stopped, which cannot write them: its word is `STOPPED`. There may be eight workers."""
    hanging = torch.zeros(8, dtype=torch.int64).share_memory_()
    look_for, start = Supervisor._end_what_hangs, Supervisor._start
    ask = ProcessTeam.stacks

    def moved(watch, worker):
        point = watch._point(worker)
        return point is None or point != watch._seen[worker][0] or worker in watch.history.finished

    def end_what_hangs(watch, timeout):
        passes = hanging.any() and all(hanging[one] or moved(watch, one) for one in watch._team.running())
        watch._looked = time.monotonic() - (timeout if passes else 0)
        look_for(watch, timeout)

    def starts(watch, worker):
        hanging[worker] = 0
        start(watch, worker)

    def stacks(team, worker):
        if hanging[worker] != STOPPED:
            os.kill(team._processes[worker].pid, signal.SIGUSR1)
            assert team._stacks[worker].poll(30), "it tells no stacks"
        return ask(team, worker)

    monkeypatch.setattr(ProcessTeam, "stacks", stacks)
    monkeypatch.setattr(Supervisor, "_end_what_hangs", end_what_hangs)
    monkeypatch.setattr(Supervisor, "_start", starts)
    return hanging


class Hanging:
    """A fault that is planted, and of whose victim the words say that it hangs."""

    def __init__(self, fault: PlantedFault, hanging: torch.Tensor) -> None:
        self.fault, self.hanging = fault, hanging

    def __call__(self, hook: Hook, seat: WorkerSeat) -> None:
        if hook is self.fault.hook and not self.fault.fired and self.fault._meets(seat):
            self.hanging[seat.index] = 1
            self.fault(hook, seat)
            self.hanging[seat.index] = 0  # another one came first
