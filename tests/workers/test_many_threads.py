"""What threads share, with and without the GIL: nothing is torn, lost or done twice, and 64 of them train."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import problems
import pytest
import torch
from side_by_side import at_once
from torch import Tensor, nn
from warm_pythons import warm_python

import hogwild
from hogwild.shared.arena import Arena
from hogwild.shared.tickets import Control
from hogwild.shared.words import Word

MANY = 64
MIB = 1 << 20
GENTLE = partial(torch.optim.SGD, lr=0.001)  # for gradients that are 63 updates old
pytestmark = pytest.mark.filterwarnings("ignore:.*learn worse, or to diverge:UserWarning")


def together(*bodies: Callable[[], Any]) -> list[Any]:
    """What they return, each in a thread of its own; they begin at once, and what one raises is raised."""
    gate = threading.Barrier(len(bodies))

    def begun(body: Callable[[], Any]) -> Any:
        gate.wait()
        return body()

    results = at_once(*[partial(begun, body) for body in bodies])
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def controls(count: int, tickets: int) -> list[Control]:
    """One view each of the words of a run of so many tickets, with one lock for all."""
    arena, lock = Arena(Control.size(count) + 8 * count), threading.Lock()
    made = [Control(arena, 0, count, count) for _ in range(count)]
    for control in made:
        control.ticket_lock = lock
    made[0].prepare(0, tickets)
    return made


# --- the words


def test_no_word_is_seen_half_written():
    """All bits of the word change at once, again and again: a store in two parts would be seen between them."""
    writer, reader = controls(2, 1)
    seen: set[int] = set()

    def write() -> None:
        for _ in range(100_000):
            writer[Word.HEAD] = -1
            writer[Word.HEAD] = 0
        writer[Word.STOP] = 1

    def read() -> None:
        while not reader[Word.STOP]:
            seen.update([reader[Word.HEAD] for _ in range(1000)])

    together(write, read)
    assert seen <= {0, -1}


@pytest.mark.parametrize("ordered", [True, False])
def test_who_sees_a_published_word_sees_what_was_written_before(monkeypatch, ordered):
    monkeypatch.setattr("hogwild.shared.words._ORDERED_STORES", ordered)
    writer, reader = controls(2, 1)
    values, updates = np.zeros(64, np.int64), 5_000

    def write() -> None:
        for number in range(1, updates + 1):
            values[:] = number
            writer.publish(Word.HEAD, number)

    def read() -> list[int]:
        early = []
        while (number := reader.observe(Word.HEAD)) < updates:
            if values.min() < number:
                early.append(number)
        return early

    _, early = together(write, read)
    assert early == []


def test_each_ticket_is_dealt_once():
    workers, tickets = 8, 4_000
    made = controls(workers, tickets)

    def claim(index: int) -> list[int]:
        control, kept, given_up = made[index], [], set()
        while (ticket := control.claim(index)) is not None:
            if ticket % 7 == 0 and ticket not in given_up:
                given_up.add(ticket)
                control.hand_back(index)
            else:
                kept.append(ticket)
                control.finish(index)
        return kept

    dealt = together(*[lambda i=i: claim(i) for i in range(workers)])
    assert sorted(ticket for own in dealt for ticket in own) == list(range(tickets))


# --- a run


class Meeting:
    """A loss whose first call in each worker waits for all workers: each of them computes something."""

    def __init__(self, workers: int) -> None:
        self._barrier = threading.Barrier(workers, timeout=60)
        self._here = threading.local()

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        if problems.in_worker_thread():
            hogwild.worker_info().log(seen=1.0)
            if not hasattr(self._here, "met"):
                self._here.met = True
                self._barrier.wait()
        return problems.cross_entropy(model, batch)

    def __deepcopy__(self, memo: Any) -> Meeting:
        return self


@pytest.mark.parametrize(
    ("update", "settings"), [("hogwild", {}), ("locked", {}), ("ordered", {"staleness": MANY - 1})]
)
def test_64_threads_train_and_nothing_is_lost(update, settings):
    updates = 4 * MANY
    arguments = {"update": update, "updates": updates, "optimizer": GENTLE}
    run = problems.train(loss=Meeting(MANY), workers=MANY, recheck=0.0, **arguments, **settings)
    assert [usage.worker for usage in run.workers if usage.computed > 0] == list(range(MANY))
    assert sum(usage.computed for usage in run.workers) == run.updates == updates
    assert sorted(run.journal["update"]) == [row["update"] for row in run.logged] == list(range(updates))
    if update == "ordered":
        alone = problems.train(workers=1, recheck=0.0, **arguments, **settings)
        assert run.digest == alone.digest


MEMORY = """
import sys
sys.path.insert(0, {tests!r})
import psutil
import problems
from workers.test_many_threads import Meeting

def resident(workers):
    held = []
    def look(progress):
        held.append(psutil.Process().memory_info().rss)
    problems.train(loss=Meeting(workers), workers=workers, updates=2 * workers, progress=look)
    return max(held)

resident(2)
print(resident(2), resident({many}))
"""


def test_a_worker_thread_costs_less_than_5_mib(tmp_path):
    tests = Path(problems.__file__).parent
    script = MEMORY.format(tests=str(tests), many=MANY)
    done = warm_python(["-c", script], tmp_path, timeout=200)
    assert done.returncode == 0, done.stderr
    few, many = map(int, done.stdout.split())
    assert (many - few) / (MANY - 2) < 5 * MIB
