"""A worker that hangs in user code is found, its stacks are reported, and the others go on."""

from __future__ import annotations

import _thread
import os
import signal
import threading
import time
from types import SimpleNamespace

import problems
import psutil
import pytest
import torch
from traits import NAMES, SAME_BITS

import hogwild
from hogwild.config import RunConfig
from hogwild.rules import Hogwild
from hogwild.shared import words
from hogwild.shared.arena import Arena, Space
from hogwild.shared.tickets import Control
from hogwild.shared.words import FOR_A_LOCK, LOOKING, Field
from hogwild.testing import Fault, Hook, PlantedFault, planted
from hogwild.workers import supervisor, threads

TIMEOUT = 2.0  # seconds, in which a worker that does not hang comes to run, whatever else does


def hang_once(gate):
    """A loss that hangs at batch 9 the first time somebody computes it in a worker."""

    def loss(model, batch):
        info = hogwild.worker_info()
        if info.batch == 9 and gate[0] == 0:
            gate[0] = 1
            hanging()
        return problems.cross_entropy(model, batch)

    def hanging():
        threading.Event().wait()

    return loss


@pytest.mark.parametrize("update", NAMES)
def test_a_process_that_hangs_is_replaced(update):
    gate = torch.zeros(1, dtype=torch.int64).share_memory_()
    run = problems.train(update=update, kind="processes", loss=hang_once(gate), worker_timeout=TIMEOUT)
    assert run.updates == 40
    assert sorted(run.journal["update"]) == list(range(40))
    (failure,) = run.failures
    assert "hung for 2 s at update" in failure and "(batch 9)" in failure
    assert "in hanging" in failure, "the stack says where"


def slowly(model, batch):
    """So slow that all workers have begun before the fault comes."""
    time.sleep(0.01)
    return problems.cross_entropy(model, batch)


MOMENTS = [
    *((update, hook) for update in NAMES for hook in (Hook.OWNING, Hook.WRITING)),
    *((update, Hook.CLAIMING) for update in ("hogwild", "ordered")),
    *((update, Hook.PUBLISHED) for update in ("snapshot", "sync")),
    ("sync", Hook.PUBLISHING),  # whoever waited for the lock begins its batch only when the holder is gone
]


@pytest.mark.parametrize(("update", "hook"), MOMENTS)
def test_a_process_that_hangs_at(update, hook):
    """Also between updates, and with a lock held: those that wait for it are not taken for the one that hangs."""
    fault = PlantedFault(Fault.HANG, hook, 60)
    settings = {"staleness": 2, "micro_batches": 3, "updates": 80, "worker_timeout": TIMEOUT, "max_restarts": 9}
    with planted(fault):
        run = problems.train(update=update, kind="processes", workers=3, loss=slowly, **settings)
    assert fault.fired
    done = sorted({*run.journal["update"].tolist(), *run.in_doubt})
    assert run.updates + len(run.in_doubt) == 80 and done == list(range(80))
    hung = [failure for failure in run.failures if "in __call__" in failure and "hung for 2 s" in failure]
    assert len(hung) == len(run.failures) <= 2, "two may come to the first hook at once"


def test_a_process_that_hangs_with_the_lock_while_another_is_killed():
    """Who settles that death does not wait for the lock, but finds the one that hangs with it."""
    comes, hangs = torch.zeros(2, dtype=torch.int64).share_memory_()

    def plant(hook, seat):
        if seat.index == 0 and hook is Hook.CLAIMING:
            wait_for(comes)
        if seat.index == 0 and hook is Hook.OWNING and not hangs:
            hangs.fill_(1)
            time.sleep(3600)
        if seat.index == 1 and hook is Hook.COMPUTING and not comes:
            comes.fill_(1)
            wait_for(hangs)
            os.kill(os.getpid(), signal.SIGKILL)

    def wait_for(gate):
        while not gate:
            time.sleep(0.01)

    settings = {"update": "ordered", "staleness": 1, "updates": 40, "recheck": 0}
    with planted(plant):
        run = problems.train(kind="processes", workers=2, worker_timeout=TIMEOUT, **settings)
    killed, hung = sorted(run.failures, key=lambda failure: "hung" in failure)
    assert "died of SIGKILL" in killed and "hung for 2 s" in hung
    assert sorted(run.journal["update"]) == list(range(40))
    assert run.digest == problems.train(**settings).digest


class WithoutOrder:
    """What is planted does so in a process for which stores are not ordered."""

    def __init__(self, plant):
        self._plant = plant

    def __call__(self, hook, seat):
        words._ORDERED_STORES = False
        self._plant(hook, seat)


def with_a_lock(lock, monkeypatch):
    """Words are seen under the ticket lock, as where stores may be reordered; it is a mutex, or a byte of a file."""
    monkeypatch.setattr(words, "_ORDERED_STORES", False)
    if lock == "file":
        monkeypatch.setattr("hogwild.shared.mutex.Mutex.works", lambda: False)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("update", "lock"), [("ordered", "mutex"), ("ordered", "file"), ("snapshot", "file"), ("racing", "file")]
)
def test_who_looks_does_not_wait_for_a_lock_that_a_process_hangs_with(update, lock, monkeypatch):
    """Where words are seen under that lock, the parent goes on, and finds who hangs."""
    with_a_lock(lock, monkeypatch)
    looked = []
    fault = PlantedFault(Fault.HANG, Hook.OWNING, 30)
    settings = {"staleness": 2, "micro_batches": 3, "updates": 60, "worker_timeout": TIMEOUT, "max_restarts": 9}
    settings |= {"evaluate": problems.accuracy, "evaluate_every": 20, "progress": looked.append}
    with planted(WithoutOrder(fault)):
        run = problems.train(update=update, kind="processes", workers=2, loss=slowly, **settings)
    assert fault.fired and looked
    (failure,) = run.failures
    assert "hung for 2 s" in failure
    assert sorted({*run.journal["update"].tolist(), *run.in_doubt}) == list(range(60))
    assert [row["update"] for row in run.evaluations] == [20, 40, 60]
    if update in SAME_BITS:
        del settings["progress"]
        assert run.digest == problems.train(update=update, **settings).digest


def test_what_cannot_be_told_now_is_told_at_the_next_look(monkeypatch):
    """A version that was evaluated while somebody had the lock; it is not evaluated again."""
    monkeypatch.setattr(words, "_ORDERED_STORES", False)
    tries, evaluated = Control.tries_to_publish, []

    def late(self, word, value):
        evaluated.append(value)
        return len(evaluated) % 3 == 0 and tries(self, word, value)

    monkeypatch.setattr(Control, "tries_to_publish", late)
    calls = []
    settings = {"update": "ordered", "updates": 12, "evaluate_every": 4, "stop": lambda _: calls.append(1)}
    run = problems.train(evaluate=problems.accuracy, **settings)
    assert evaluated == [4, 4, 4, 8, 8, 8, 12, 12, 12] and len(calls) == 3
    assert [row["update"] for row in run.evaluations] == [4, 8, 12]


def settled_late(monkeypatch, tries):
    """The lock that a death is settled with is held at so many tries."""
    settle, tried = Control.owner_died, []

    def owner_died(self, worker, how):
        tried.append(worker)
        return settle(self, worker, how) if len(tried) > tries else None

    monkeypatch.setattr(Control, "owner_died", owner_died)


@pytest.mark.parametrize("tries", [1, 2, 3, 4])
def test_the_last_worker_whose_death_is_settled_late_is_replaced_once(tries, monkeypatch):
    settled_late(monkeypatch, tries)
    fault, settings = PlantedFault(Fault.KILL, Hook.COMPUTING, 9), {"update": "ordered", "updates": 40}
    with planted(fault):
        run = problems.train(kind="processes", workers=1, max_restarts=1, **settings)
    (failure,) = run.failures
    assert "died of SIGKILL" in failure and "at update 9" in failure
    assert sorted(run.journal["update"]) == list(range(40))
    assert run.digest == problems.train(**settings).digest


def test_a_death_that_ends_the_run_is_told_before_it_is_settled(monkeypatch):
    settled_late(monkeypatch, tries=10**6)
    with planted(PlantedFault(Fault.KILL, Hook.COMPUTING, 9)), pytest.raises(hogwild.WorkerError, match="SIGKILL"):
        problems.train(update="ordered", kind="processes", workers=1, on_worker_failure="raise", updates=40)


def stopping_the_other(done, begun):
    """A loss whose update 9 takes half a second, in which the other worker comes to wait, and is stopped, once."""
    program = os.getpid()

    def loss(model, batch):
        info = hogwild.worker_info()
        if os.getpid() != program:
            begun[info.index] = 1
        if info.update == 9 and done[0] == 0:
            done[0] = 1
            while begun.sum() < 2:
                time.sleep(0.01)
            time.sleep(0.5)
            for process in psutil.Process().parent().children():
                if process.pid != os.getpid():
                    process.send_signal(signal.SIGSTOP)
        return problems.cross_entropy(model, batch)

    return loss


def test_a_process_that_is_stopped_while_it_waits_is_replaced():
    """Others then wait for it as it waited for them; it is the one that does not look again."""
    done, begun = (torch.zeros(size, dtype=torch.int64).share_memory_() for size in (1, 2))
    loss, settings = stopping_the_other(done, begun), {"update": "ordered", "staleness": 1, "updates": 40}
    run = problems.train(kind="processes", workers=2, loss=loss, worker_timeout=2, **settings)
    (failure,) = run.failures
    assert "hung for 2 s at update" in failure
    assert sorted(run.journal["update"]) == list(range(40))
    assert run.digest == problems.train(**settings).digest


def test_a_slow_worker_does_not_hang():
    def loss(model, batch):
        import time

        time.sleep(0.12)
        return problems.cross_entropy(model, batch)

    run = problems.train(update="ordered", kind="processes", loss=loss, worker_timeout=TIMEOUT)
    assert run.failures == ()


def test_waiting_for_a_slow_worker_is_not_hanging():
    def loss(model, batch):
        import time

        if hogwild.worker_info().update == 9:
            time.sleep(1.0)
        return problems.cross_entropy(model, batch)

    run = problems.train(update="ordered", kind="processes", loss=loss, updates=14, worker_timeout=3.0)
    assert run.failures == ()


def watched(monkeypatch):
    """(the row of a worker that has ticket 7, what lets so many seconds pass and tells who was ended)."""
    now, ended, space = [0.0], [], Space()
    offset = Control.reserve(space, 1, 1)
    control = Control(Arena(space.nbytes), offset, 1, 1)
    control.prepare(0, 9)
    row = control.row(0)
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: now[0]))
    team = SimpleNamespace(running=lambda: {0}, start=lambda _: None, stacks=lambda _: "")
    config = RunConfig(updates=9, worker_timeout=0.5)
    watch = supervisor.Supervisor(team, SimpleNamespace(control=control), Hogwild(), config, lambda: None, shows=False)

    def look_after(seconds):
        now[0] += seconds
        watch._end_what_hangs(0.5)
        return ended

    team.end = lambda worker: ended.append(worker) or True
    watch._start(0)
    row[Field.TICKET] = 7
    return row, look_after


def test_who_makes_versions_of_what_others_compute_does_not_hang(monkeypatch):
    row, look_after = watched(monkeypatch)
    for version in range(50):
        row[Field.ENDED] = version + 1
        assert look_after(0.1) == []
    for _ in range(5):
        look_after(0.1)
    assert look_after(0.1) == [0]


def test_who_looks_for_what_it_waits_for_does_not_hang(monkeypatch):
    row, look_after = watched(monkeypatch)
    row[Field.WAITING] = LOOKING
    for _ in range(50):
        row[Field.LOOKS] += 1
        assert look_after(0.1) == []
    for _ in range(5):
        look_after(0.1)
    assert look_after(0.1) == [0]


def test_time_in_which_nobody_looked_counts_little(monkeypatch):
    """As after Ctrl-Z, in a frozen container, or beside a long evaluation: the workers may have stood still, too."""
    row, look_after = watched(monkeypatch)
    assert look_after(0.1) == [], "it has just moved"
    assert look_after(1000.0) == [], "nobody looked"
    row[Field.WAITING] = FOR_A_LOCK
    assert look_after(1000.0) == look_after(0.1) == [], "it waits for who has the lock"
    row[Field.WAITING] = 0
    assert look_after(0.1) == look_after(1000.0) == look_after(0.1) == look_after(0.1) == look_after(0.1) == []
    assert look_after(0.1) == [0], "it was seen there for 0.125 + 4 × 0.1 s"


def test_a_thread_that_hangs_fails_the_run_with_all_stacks():
    released = threading.Event()

    def loss(model, batch):
        if problems.in_worker_thread() and hogwild.worker_info().update == 9:
            released.wait(60)
        return problems.cross_entropy(model, batch)

    try:
        with pytest.raises(hogwild.WorkerError, match="hung for 2 s at update 9") as caught:
            problems.train(update="hogwild", loss=loss, worker_timeout=TIMEOUT)
    finally:
        released.set()
    assert "in loss" in str(caught.value)
    assert "in supervise" in str(caught.value), "the stacks of the other threads too"


def test_a_thread_that_calls_torch_for_ever_ends_with_the_run(monkeypatch):
    """In a program that ends meanwhile it would come back from torch into an interpreter that is gone."""
    monkeypatch.setattr(threads, "_PATIENCE", 0.1)
    monkeypatch.setattr(threads, "_LEAVING", 30.0)
    hung, released = [], threading.Event()

    def loss(model, batch):
        if problems.in_worker_thread() and hogwild.worker_info().update == 9:
            hung.append(threading.current_thread())
            while not released.is_set():
                torch.ones(50, 50) @ torch.ones(50, 50)
                time.sleep(0.002)
        return problems.cross_entropy(model, batch)

    try:
        with pytest.raises(hogwild.WorkerError, match="hung for 2 s at update 9"):
            problems.train(update="hogwild", loss=loss, worker_timeout=TIMEOUT)
        (thread,) = hung
        assert not thread.is_alive()
    finally:
        released.set()


@pytest.mark.parametrize("update", ["ordered", "locked"])
def test_threads_that_wait_for_one_that_hangs_with_a_lock_end_with_the_run(update, tmp_path, ctrl_c):
    """The parent goes on without that lock, too: it saves what there is."""
    released, threads_of_run, stuck = threading.Event(), {}, []

    def plant(hook, seat):
        threads_of_run[seat.index] = threading.current_thread()
        if hook is Hook.OWNING and not stuck:  # whoever comes first: under a rule that races, another may never come
            stuck.append(seat.index)
            _thread.interrupt_main()
            released.wait(60)

    settings = {"update": update, "staleness": 2, "updates": 40}
    try:
        with planted(plant), pytest.raises(KeyboardInterrupt):
            problems.train(out=tmp_path / "run", workers=3, **settings)
        assert [index for index, thread in sorted(threads_of_run.items()) if thread.is_alive()] == stuck
        assert len(stuck) == 1
    finally:
        released.set()
    run = problems.train(resume=tmp_path / "run", **settings)
    assert sorted(run.journal["update"]) == list(range(40))
    if update == "ordered":
        assert run.digest == problems.train(**settings).digest
