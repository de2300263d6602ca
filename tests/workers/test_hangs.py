"""A worker that hangs in user code is found, its stacks are reported, and the others go on."""

from __future__ import annotations

import _thread
import os
import signal
import threading
import time

import problems
import pytest
import torch
from crews import STOPPED, Hanging, looking, other_process, said_to_hang
from side_by_side import within
from traits import KINDS, NAMES, SAME_BITS

import hogwild
from hogwild.shared import words
from hogwild.shared.tickets import Control
from hogwild.shared.words import FOR_A_LOCK, Field
from hogwild.testing import Fault, Hook, PlantedFault, planted
from hogwild.workers import supervisor, threads

TIMEOUT = 2.0  # seconds of the clock of `said_to_hang`


@pytest.fixture
def hanging(monkeypatch):
    return said_to_hang(monkeypatch)


def hang_once(hanging, gate):
    """A loss that hangs at batch 9 the first time somebody computes it in a worker."""

    def loss(model, batch):
        info = hogwild.worker_info()
        if info.batch == 9 and gate[0] == 0:
            gate[0] = hanging[info.index] = 1
            forever()
        return problems.cross_entropy(model, batch)

    def forever():
        threading.Event().wait()

    return loss


@pytest.mark.parametrize("update", NAMES)
def test_a_process_that_hangs_is_replaced(update, hanging):
    gate = torch.zeros(1, dtype=torch.int64).share_memory_()
    run = problems.train(update=update, kind="processes", loss=hang_once(hanging, gate), worker_timeout=TIMEOUT)
    assert run.updates == 40
    assert sorted(run.journal["update"]) == list(range(40))
    (failure,) = run.failures
    assert "hung for 2 s at update" in failure and "(batch 9)" in failure
    assert "in forever" in failure, "the stack says where"


MOMENTS = [
    *((update, hook) for update in NAMES for hook in (Hook.OWNING, Hook.WRITING)),
    *((update, Hook.CLAIMING) for update in ("hogwild", "ordered")),
    *((update, Hook.PUBLISHED) for update in ("snapshot", "sync")),
    ("sync", Hook.PUBLISHING),  # whoever waited for the lock begins its batch only when the holder is gone
]


@pytest.mark.parametrize(("update", "hook"), MOMENTS)
def test_a_process_that_hangs_at(update, hook, hanging):
    """Also between updates, and with a lock held: those that wait for it are not taken for the one that hangs."""
    fault = PlantedFault(Fault.HANG, hook, 60)
    settings = {"staleness": 2, "micro_batches": 3, "updates": 80, "worker_timeout": TIMEOUT, "max_restarts": 9}
    with planted(Hanging(fault, hanging)):
        run = problems.train(update=update, kind="processes", workers=3, **settings)
    assert fault.fired
    done = sorted({*run.journal["update"].tolist(), *run.in_doubt})
    assert run.updates + len(run.in_doubt) == 80 and done == list(range(80))
    hung = [failure for failure in run.failures if "in __call__" in failure and "hung for 2 s" in failure]
    assert len(hung) == len(run.failures) <= 2, "two may come to the first hook at once"


def test_a_process_that_hangs_with_the_lock_while_another_is_killed(hanging):
    """Who settles that death does not wait for the lock, but finds the one that hangs with it."""
    comes, hangs = torch.zeros(2, dtype=torch.int64).share_memory_()

    def plant(hook, seat):
        if seat.index == 0 and hook is Hook.CLAIMING:
            wait_for(comes)
        if seat.index == 0 and hook is Hook.OWNING and not hangs:
            hangs.fill_(1)
            hanging[0] = 1
            time.sleep(3600)
        if seat.index == 1 and hook is Hook.COMPUTING and not comes:
            comes.fill_(1)
            wait_for(hangs)
            os.kill(os.getpid(), signal.SIGKILL)

    def wait_for(gate):
        within(60, lambda: gate)

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


@pytest.mark.parametrize(
    ("update", "lock"), [("ordered", "mutex"), ("ordered", "file"), ("snapshot", "file"), ("racing", "file")]
)
def test_who_looks_does_not_wait_for_a_lock_that_a_process_hangs_with(update, lock, hanging, monkeypatch):
    """Where words are seen under that lock, the parent goes on, and finds who hangs."""
    with_a_lock(lock, monkeypatch)
    looked = []
    fault = PlantedFault(Fault.HANG, Hook.OWNING, 30)
    settings = {"staleness": 2, "micro_batches": 3, "updates": 60, "worker_timeout": TIMEOUT, "max_restarts": 9}
    settings |= {"evaluate": problems.accuracy, "evaluate_every": 20, "progress": looked.append}
    with planted(WithoutOrder(Hanging(fault, hanging))):
        run = problems.train(update=update, kind="processes", workers=2, **settings)
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
    tries, tried = Control.tries_to_publish, []

    def late(self, word, value):
        """Not at the first two tries, nor while a worker has the lock."""
        tried.append(value)
        return tried.count(value) > 2 and tries(self, word, value)

    monkeypatch.setattr(Control, "tries_to_publish", late)
    calls = []
    settings = {"update": "ordered", "updates": 12, "evaluate_every": 4, "stop": lambda _: calls.append(1)}
    run = problems.train(evaluate=problems.accuracy, **settings)
    assert sorted(tried) == tried and set(tried) == {4, 8, 12} and len(calls) == 3
    assert all(tried.count(version) > 2 for version in (4, 8, 12))
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


def test_a_process_that_is_stopped_while_it_waits_is_replaced(hanging):
    """Others then wait for it as it waited for them; it is the one that does not look again."""
    gate = torch.zeros(1, dtype=torch.int64).share_memory_()

    def stop_the_other(hook, seat):
        if hook is Hook.COMPUTING and seat.ticket == 9 and not gate:
            looking(seat, 11)
            gate.fill_(1)
            other_process().send_signal(signal.SIGSTOP)
            hanging[1 - seat.index] = STOPPED

    settings = {"update": "ordered", "staleness": 1, "updates": 40, "recheck": 0}
    with planted(stop_the_other):
        run = problems.train(kind="processes", workers=2, worker_timeout=TIMEOUT, **settings)
    (failure,) = run.failures
    assert "hung for 2 s at update 11" in failure
    assert sorted(run.journal["update"]) == list(range(40))
    assert run.digest == problems.train(**settings).digest


@pytest.mark.parametrize("kind", KINDS)
def test_who_waits_for_a_slow_worker_is_seen_to_look(kind):
    """Again and again, as long as that takes."""
    seen = torch.zeros(1, dtype=torch.int64).share_memory_()

    def slow(hook, seat):
        if hook is Hook.COMPUTING and seat.ticket == 9:
            row = looking(seat, 11)
            looks = row[Field.LOOKS]
            within(60, lambda: row[Field.LOOKS] > looks + 5, "it does not look again")
            seen.fill_(1)

    with planted(slow):
        run = problems.train(update="ordered", staleness=1, recheck=0, kind=kind, workers=2)
    assert seen and run.failures == ()


def test_a_thread_that_hangs_fails_the_run_with_all_stacks(hanging):
    released = threading.Event()

    def loss(model, batch):
        if problems.in_worker_thread() and hogwild.worker_info().update == 9:
            hanging[hogwild.worker_info().index] = 1
            released.wait(60)
        return problems.cross_entropy(model, batch)

    try:
        with pytest.raises(hogwild.WorkerError, match="hung for 2 s at update 9") as caught:
            problems.train(update="hogwild", loss=loss, worker_timeout=TIMEOUT)
    finally:
        released.set()
    assert "in loss" in str(caught.value)
    assert "in supervise" in str(caught.value), "the stacks of the other threads too"


def test_a_thread_that_calls_torch_for_ever_ends_with_the_run(hanging, monkeypatch):
    """In a program that ends meanwhile it would come back from torch into an interpreter that is gone."""
    monkeypatch.setattr(threads, "_PATIENCE", 0.1)
    monkeypatch.setattr(threads, "_LEAVING", 30.0)
    hung, released = [], threading.Event()

    def loss(model, batch):
        if problems.in_worker_thread() and hogwild.worker_info().update == 9:
            hung.append(threading.current_thread())
            hanging[hogwild.worker_info().index] = 1
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
def test_threads_that_wait_for_one_that_hangs_with_a_lock_end_with_the_run(update, tmp_path, ctrl_c, monkeypatch):
    """The parent goes on without that lock, too: it saves what there is."""
    monkeypatch.setattr(threads, "_PATIENCE", 0.1)
    monkeypatch.setattr(supervisor, "_GRACE", 0.1)
    released, threads_of_run, stuck = threading.Event(), {}, []

    def plant(hook, seat):
        threads_of_run[seat.index] = threading.current_thread()
        if hook is Hook.OWNING and not stuck:  # whoever comes first: under a rule that races, another may never come
            stuck.append(seat.index)
            others = [seat.control.row(index) for index in range(3) if index != seat.index]
            within(60, lambda: all(row[Field.WAITING] == FOR_A_LOCK for row in others), "they do not come to the lock")
            _thread.interrupt_main()
            released.wait(60)

    settings = {"update": update, "staleness": 2, "updates": 40, "recheck": 0}
    try:
        with planted(plant), pytest.raises(KeyboardInterrupt):
            problems.train(out=tmp_path / "run", workers=3, **settings)
        assert len(stuck) == 1
        others = [thread for index, thread in threads_of_run.items() if index not in stuck]
        within(30, lambda: not any(thread.is_alive() for thread in others), "they wait for the lock")
        assert threads_of_run[stuck[0]].is_alive()
    finally:
        released.set()
    run = problems.train(resume=tmp_path / "run", **settings)
    assert sorted(run.journal["update"]) == list(range(40))
    if update == "ordered":
        assert run.digest == problems.train(**settings).digest
