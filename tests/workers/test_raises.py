"""Exceptions in a worker: what is told of them, and what each policy makes of them, in threads and processes."""

from __future__ import annotations

import logging
import threading
import time

import problems
import pytest
import torch
from traits import KINDS, NAMES, ONE_OF_EACH, SAME_BITS, VERSIONED, hooks_of

import hogwild
from hogwild.shared.words import Word
from hogwild.testing import Fault, Hook, PlantedError, PlantedFault, RandomDelays, both, planted

UPDATES = 24
MICRO_BATCHES = 4
every_way = [(update, kind) for update in NAMES for kind in KINDS]
POLICIES = "replace", "continue"
by_turns = pytest.mark.parametrize(
    ("update", "kind", "policy"),
    [
        (update, kind, POLICIES[(number + of_kind) % 2])
        for number, update in enumerate(NAMES)
        for of_kind, kind in enumerate(KINDS)
    ],
)


def train(update, kind, **arguments):
    settings = {"workers": 2, "staleness": 3, "micro_batches": MICRO_BATCHES, "updates": UPDATES} | arguments
    return problems.train(problems.conv_bn(), update=update, kind=kind, **settings)


def raising(batch, times=1):
    """A loss that raises at that batch so many times, and then no more; and how often it did, shared by all workers."""
    raised = torch.zeros(1, dtype=torch.int64).share_memory_()

    def loss(model, samples):
        info = hogwild.worker_info()
        value = problems.cross_entropy(model, samples)
        if info.batch == batch and raised[0] < times:
            raised[0] += 1
            raise KeyError(f"batch {batch} is bad")
        return value

    return loss, raised


@pytest.fixture(scope="module")
def undisturbed():
    return {update: train(update, "threads", workers=1).digest for update in SAME_BITS}


def check(run, update, undisturbed):
    """Nothing is lost that the rule promises."""
    done = sorted(run.journal["update"].tolist())
    if update in undisturbed:
        assert run.digest == undisturbed[update]
    if update in VERSIONED:
        assert run.in_doubt == ()
        assert done == list(range(UPDATES)), "every update exactly once"
    else:
        assert len(run.in_doubt) <= len(run.failures)
        assert sorted({*done, *run.in_doubt}) == list(range(UPDATES)), "at most one update in doubt per failure"


@by_turns
def test_a_worker_whose_loss_raises_once(update, kind, policy, undisturbed):
    """The supervisor asks for the policy once all is settled that hangs on rule and kind: each meets each of those."""
    loss, raised = raising(7)
    run = train(update, kind, loss=loss, on_worker_failure=policy)
    assert raised[0] == 1
    (failure,) = run.failures
    number = 7 // MICRO_BATCHES if update == "sync" else 7
    assert f"raised KeyError at update {number} (batch 7): 'batch 7 is bad'" in failure.splitlines()[0]
    assert "Traceback" in failure and "in loss" in failure
    assert run.in_doubt == ()
    check(run, update, undisturbed)


RAISES = [
    (update, kind, hook)
    for number, update in enumerate(NAMES)
    for hook in hooks_of(update)
    for kind in (KINDS if update in ONE_OF_EACH or (number + [*Hook].index(hook)) % 2 else ["threads"])
]


@pytest.mark.parametrize(("update", "kind", "hook"), RAISES)
def test_an_exception_at(hook, update, kind, undisturbed):
    """It goes through the same lines in threads and processes, which are killed at all of these besides. So processes
    have all of one rule in place and of one that makes versions, and every other one of the rest."""
    fault = PlantedFault(Fault.RAISE, hook, UPDATES // 2 * (MICRO_BATCHES if update == "sync" else 1))
    with planted(both(fault, RandomDelays(seed=1))):
        run = train(update, kind)
    assert fault.fired, "the fault was planted where nobody passed"
    assert 1 <= len(run.failures) <= 2, "two workers may come to the first hook at once"
    assert all(f"planted at {hook}" in failure for failure in run.failures)
    if hook is Hook.WRITING and update not in VERSIONED:
        assert run.in_doubt == (UPDATES // 2,)
    check(run, update, undisturbed)


@by_turns
def test_nobody_is_replaced_once_all_is_done(update, kind, policy):
    settings = {"update": update, "workers": 2, "updates": 6, "max_restarts": 0, "on_worker_failure": policy}
    run = hogwild.launch(raises_at_the_end, problems.mlp(), optimizer=problems.SGD, kind=kind, **settings)
    assert run.updates == 6
    assert ["too late to matter" in failure for failure in run.failures] == [True, True]


def raises_at_the_end(worker):
    while (ticket := worker.claim()) is not None:
        worker.commit(ticket, [torch.ones_like(p) for p in worker.read(ticket).parameters()], 0.0)
    raise RuntimeError("too late to matter")


@pytest.mark.parametrize("policy", ["replace", "continue"])
def test_a_run_that_was_stopped_needs_no_worker_for_a_ticket_that_makes_no_version(policy):
    """Under `snapshot` the versions up to the last may be of later tickets than the one of a worker that is late."""
    late, stopped, other = threading.Event(), threading.Event(), []

    def loss(model, batch):
        if problems.in_worker_thread() and hogwild.worker_info().index == 0:
            late.set()
            assert stopped.wait(60)
            other[0].join(60)
            assert not other[0].is_alive()
            raise KeyError("late")
        if problems.in_worker_thread():
            other.append(threading.current_thread())
            assert late.wait(60)  # it has a ticket then
        return problems.cross_entropy(model, batch)

    def stop(progress):
        if progress.updates == 6:
            stopped.set()
        return stopped.is_set()

    settings = {"evaluate_every": 1, "stop": stop, "on_worker_failure": policy, "max_restarts": 0}
    run = problems.train(update="snapshot", workers=2, updates=UPDATES, loss=loss, **settings)
    assert (run.updates, run.stopped, len(run.failures)) == (6, "stop", 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("update", VERSIONED)
def test_an_update_that_is_left_out_counts_once_though_its_version_is_made_again(update, kind):
    def loss(model, batch):
        value = problems.cross_entropy(model, batch)
        return value * float("nan") if hogwild.worker_info().update == 3 else value

    fault = PlantedFault(Fault.RAISE, Hook.PUBLISHING, 3)

    def pause(hook, seat):
        if seat.control[Word.HEAD] == 3 if update in SAME_BITS else seat.ticket == 3:
            fault(hook, seat)

    with planted(pause):
        run = train(update, kind, loss=loss, on_nonfinite="skip")
    assert len(run.failures) == 1 and fault.fired
    assert sum(usage.skipped for usage in run.workers) == (MICRO_BATCHES if update == "sync" else 1)


@pytest.mark.parametrize(("update", "kind"), every_way)
def test_raise_ends_the_run_at_the_first_exception(update, kind):
    loss, raised = raising(7, times=99)
    with pytest.raises(hogwild.WorkerError) as caught:
        train(update, kind, loss=loss, on_worker_failure="raise")
    assert raised[0] == 1
    assert caught.value.batch == 7
    assert caught.value.update == (1 if update == "sync" else 7)
    assert caught.value.worker in (0, 1)
    assert str(caught.value).startswith(f"worker {caught.value.worker} raised KeyError at update ")
    assert str(caught.value).endswith("KeyError: 'batch 7 is bad'")
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("policy", ["replace", "continue"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_always_raises_ends_the_run(kind, policy):
    loss, raised = raising(7, times=99)
    with pytest.raises(hogwild.WorkerError) as caught:
        train("ordered", kind, loss=loss, on_worker_failure=policy, max_restarts=2)
    first, _, replaced, *_ = str(caught.value).splitlines()
    told = 3 if policy == "replace" else 4  # under "continue" the last worker left is replaced too
    assert raised[0] in (told, told + 1), "another may be at it while the run ends"
    assert first.endswith(" raised KeyError at update 7 (batch 7): 'batch 7 is bad'")
    assert replaced == f"workers replaced: 2, and max_restarts is 2; it was the same all {told} times, at batch 7"
    assert str(caught.value).count("'batch 7 is bad'") == 2, "in the first line, and in the last"
    assert str(caught.value).endswith("KeyError: 'batch 7 is bad'")


@pytest.mark.parametrize(("kind", "full"), [*((kind, False) for kind in KINDS), ("threads", True)])
def test_what_a_worker_raised_is_shown_from_the_callers_code_on(kind, full, monkeypatch):
    if full:
        monkeypatch.setenv("HOGWILD_TRACEBACK", "full")
    loss, _ = raising(7)
    with pytest.raises(hogwild.WorkerError) as caught:
        train("ordered", kind, loss=loss, on_worker_failure="raise")
    first, *_ = [line for line in str(caught.value).splitlines() if line.startswith('  File "')]
    assert ("in loss" in first) != full


@pytest.mark.parametrize("kind", KINDS)
def test_a_last_batch_of_one_sample_is_told_once(kind, caplog):
    def told(samples):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))
        data = tuple(part[:samples] for part in problems.data())
        with pytest.raises(hogwild.WorkerError, match="raised .* at update ") as caught:
            problems.train(model, data=data, updates=9, kind=kind, max_restarts=2, loss=loss, update="ordered")
        return caught.value

    def loss(model, batch):
        if len(batch[0]) == 3:
            raise ValueError("three are too few")
        return problems.cross_entropy(model, batch)

    error = told(33)
    told_in = [line for line in str(error).splitlines() if "ValueError" in line and "Expected more than 1" in line]
    assert told_in[0] == str(error).splitlines()[0] and len(told_in) == 2, "in the first line, and in the last"
    assert "max_restarts is 2; it was the same all 3 times, at batch 2\n" in str(error)
    (note,) = error.__notes__
    assert note.startswith("batch 2, the last of its epoch, has one sample; ") and "another batch_size than 16" in note
    assert not hasattr(told(35), "__notes__")


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_failure_is_told_first(kind):
    failed = torch.zeros(1, dtype=torch.int64).share_memory_()

    def loss(model, samples):
        info = hogwild.worker_info()
        if info.workers == 2 and info.batch == 9 and not failed[0]:
            failed[0] = 1
            raise ZeroDivisionError("first")
        if info.batch == 19:
            raise KeyError("second")
        return problems.cross_entropy(model, samples)

    with pytest.raises(hogwild.WorkerError, match="ZeroDivisionError at update 9") as caught:
        train("ordered", kind, loss=loss, max_restarts=1)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert "raised KeyError at update 19 (batch 19): 'second'" in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_what_this_package_finds_wrong_is_not_tried_again(kind):
    looked = torch.zeros(1, dtype=torch.int64).share_memory_()

    def loss(model, samples):
        value = problems.cross_entropy(model, samples)
        if hogwild.worker_info().batch != 9:
            return value
        looked.add_(1)
        return value * float("nan")

    with pytest.raises(hogwild.NonFiniteError, match=r"at update 2 \(batch 9\), worker \d") as caught:
        train("sync", kind, loss=loss)
    assert looked[0] == 1
    assert (caught.value.update, caught.value.batch) == (2, 9)


@pytest.mark.parametrize("kind", KINDS)
def test_recovery_is_logged(kind, caplog):
    loss, _ = raising(7)
    with caplog.at_level(logging.WARNING, "hogwild"):
        train("ordered", kind, loss=loss)
    (message,) = caplog.messages
    assert "raised KeyError at update 7 (batch 7): 'batch 7 is bad'; worker " in message
    assert message.endswith(" is replaced (1 of at most 3)")


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_a_failed_worker_is_kept(kind):
    """Its frames would hold its replica and its last batch for as long as the error is kept."""
    with planted(PlantedFault(Fault.RAISE, Hook.COMMITTING, 7)), pytest.raises(hogwild.WorkerError) as caught:
        train("hogwild", kind, on_worker_failure="raise")
    assert isinstance(caught.value.__cause__, PlantedError)
    assert caught.value.__cause__.__traceback__ is None
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("hogwild")] == []


@pytest.mark.parametrize("ends", ["well", "badly"])
def test_a_process_that_a_thread_of_the_user_keeps_is_ended(ends, monkeypatch):
    monkeypatch.setattr("hogwild.workers.processes._LEAVING_PATIENCE", 0.5)

    def loss(model, samples):
        info = hogwild.worker_info()
        if info.update == 7:
            threading.Thread(target=time.sleep, args=(3600,)).start()
        if info.update == 9 and ends == "badly":
            raise KeyError
        return problems.cross_entropy(model, samples)

    if ends == "well":
        assert train("hogwild", "processes", loss=loss).updates == UPDATES
    else:
        with pytest.raises(hogwild.WorkerError, match="KeyError at update 9"):
            train("hogwild", "processes", loss=loss, max_restarts=1)
