"""Runs that are interrupted or stopped at awkward moments: nothing more is written, and nothing is passed."""

from __future__ import annotations

import copy
import json
import math
import os
import pickle
import shutil
import signal
import threading
import time
from collections import deque
from functools import partial
from multiprocessing import connection, forkserver

import problems
import pytest
import torch
from crews import at_rest, controls_of_runs, looking
from programs import living
from side_by_side import within
from traits import IN_PLACE, KINDS, OWN_GRADIENTS, SAME_BITS, VERSIONED
from warm_servers import warm_servers

import hogwild
from hogwild.shared.words import Hook
from hogwild.testing import Fault, PlantedFault, planted
from hogwild.workers import processes, supervisor, threads
from hogwild.workers.failures import WorkerHistory
from hogwild.workers.held_signals import HeldSignals
from hogwild.workers.process.spawn import start_context
from hogwild.workers.processes import ProcessTeam
from hogwild.workers.team import Died, Logged, taken


@pytest.mark.parametrize("update", OWN_GRADIENTS)
def test_a_thread_that_was_given_up_writes_no_more(update, monkeypatch):
    """It comes out of its loss when the run has been interrupted and the caller has gone on."""
    monkeypatch.setattr(supervisor, "_GRACE", 0.1)
    monkeypatch.setattr(threads, "_PATIENCE", 0.1)
    stuck, released, written = threading.Event(), threading.Event(), []
    harmful = {Hook.PUBLISHING, *([] if update in SAME_BITS else [Hook.WRITING])}  # a gradient that waits is no model

    def loss(model, batch):
        if problems.in_worker_thread() and hogwild.worker_info().update == 9:
            stuck.set()
            assert released.wait(60)
        return problems.cross_entropy(model, batch)

    def progress(_):
        if stuck.is_set():
            raise KeyboardInterrupt

    def seen(hook, seat):
        if released.is_set() and hook in harmful:
            written.append(hook)

    model = problems.mlp()
    with planted(seen), pytest.raises(KeyboardInterrupt):
        problems.train(model, update=update, loss=loss, progress=progress, updates=20_000)
    digest, workers = hogwild.digest(model), [one for one in threading.enumerate() if one.name.startswith("hogwild-")]
    assert workers, "the one in its loss at least"
    released.set()
    for one in workers:
        one.join(60)
        assert not one.is_alive()
    assert written == []
    assert hogwild.digest(model) == digest


def stop_at_20(progress):
    return progress.updates >= 20


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["interrupted", "copied"])
def test_a_version_that_nobody_has_judged_is_not_passed(how, kind, tmp_path, monkeypatch):
    """Ctrl-C while version 20 is judged, or a copy of the directory made then, as a kill -9 would leave it."""
    settings = {"update": "ordered", "kind": kind, "updates": 60, "evaluate_every": 10, "stop": stop_at_20}
    whole, controls = problems.train(**settings, evaluate=problems.accuracy), controls_of_runs(monkeypatch)
    assert whole.updates == 20

    def evaluate(model):
        evaluate.calls += 1
        if evaluate.calls == 2 and how == "interrupted":
            raise KeyboardInterrupt
        if evaluate.calls == 2:
            at_rest(controls[-1])
            shutil.copytree(tmp_path / "run", tmp_path / "copy")
        return {}

    evaluate.calls = 0
    saved = {"out": tmp_path / "run", "checkpoint_every": 5, "evaluate": evaluate}
    if how == "interrupted":
        with pytest.raises(KeyboardInterrupt):
            problems.train(**settings, **saved)
    else:
        problems.train(**settings, **saved)
    left = tmp_path / ("run" if how == "interrupted" else "copy")
    resumed = problems.train(**settings, evaluate=problems.accuracy, resume=left)
    assert resumed.updates == 20
    assert resumed.digest == whole.digest


@pytest.mark.parametrize("update", VERSIONED)
def test_a_run_that_was_stopped_stays_stopped(update, tmp_path):
    """Killed after the verdict and before the end, it leaves a checkpoint of the version that the verdict was on."""
    settings = {
        "update": update,
        "updates": 60,
        "evaluate": problems.accuracy,
        "evaluate_every": 10,
        "stop": stop_at_20,
    }
    whole = problems.train(**settings, out=tmp_path, checkpoint_every=10)
    resumed = problems.train(**settings, resume=tmp_path)
    assert whole.updates == resumed.updates == 20
    assert resumed.digest == whole.digest
    assert resumed.stopped == "stop"


def test_an_interrupt_in_the_last_evaluation_loses_nothing(tmp_path):
    def evaluate(model):
        model.eval()
        raise KeyboardInterrupt

    model = problems.mlp()
    with pytest.raises(KeyboardInterrupt):
        problems.train(model, update="ordered", evaluate=evaluate, evaluate_every=1000, out=tmp_path)
    assert model.training
    record = json.loads((tmp_path / "run.json").read_text())
    assert (record["updates"], record["stopped"]) == (40, "interrupted")
    resumed = problems.train(update="ordered", resume=tmp_path)
    assert (resumed.updates, resumed.digest) == (40, hogwild.digest(model))


def test_an_interruption_says_where_the_run_is_saved_and_what_goes_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KeyboardInterrupt) as interrupted:
        problems.train(update="ordered", evaluate=problems.interrupting(2), evaluate_every=8, out="cut")
    (note,) = interrupted.value.__notes__
    updates = json.loads((tmp_path / "cut/run.json").read_text())["updates"]
    call = "hogwild.train(..., resume='cut', out='cut')"
    assert note == f"the run was saved at update {updates}: {call} goes on"
    assert problems.train(update="ordered", resume="cut", out="cut").updates == 40
    with pytest.raises(KeyboardInterrupt) as interrupted:
        problems.train(update="ordered", evaluate=problems.interrupting(2), evaluate_every=8)
    assert not hasattr(interrupted.value, "__notes__")


@pytest.mark.parametrize("kind", KINDS)
def test_what_comes_after_the_stop_does_not_fail_the_run(kind, monkeypatch):
    """Update 20 is computed beside the judging of version 20, diverges, and is never come to."""

    def loss(model, batch):
        value = problems.cross_entropy(model, batch)
        return value * math.nan if hogwild.worker_info().update >= 20 else value

    def evaluate(model):
        at_rest(controls[-1])
        return {}

    controls = controls_of_runs(monkeypatch)
    settings = {"update": "ordered", "evaluate": evaluate, "evaluate_every": 10, "stop": stop_at_20, "loss": loss}
    one, two = (problems.train(**settings, kind=kind, workers=workers) for workers in (1, 2))
    assert one.updates == two.updates == 20
    assert one.digest == two.digest


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_update_that_is_not_finite_is_the_one_raised(kind):
    """Though its successor, computed beside it, is found first."""

    def loss(model, batch):
        value = problems.cross_entropy(model, batch)
        return value * math.nan if hogwild.worker_info().update >= 20 else value

    def late(hook, seat):
        if hook is Hook.COMPUTING and seat.ticket == 20:
            looking(seat, 22)

    with planted(late), pytest.raises(hogwild.NonFiniteError, match="update 20 ") as caught:
        problems.train(update="ordered", staleness=1, recheck=0, kind=kind, workers=2, loss=loss)
    assert caught.value.update == 20


@pytest.mark.parametrize("kind", KINDS)
def test_a_stop_under_sync_leaves_no_ticket_half_done(kind):
    for _ in range(3):
        run = problems.train(
            update="sync", kind=kind, audit=True, stop=stop_at_20, evaluate_every=5, evaluate=problems.accuracy
        )
        assert run.updates == 20
        assert run.failures == ()
        assert run.audit is not None and run.audit.whole


def test_a_stop_that_draws_random_numbers():
    """Threads share torch's generator, and what the judge draws is no worker's."""

    def stop(progress):
        torch.rand(3)
        return False

    settings = {"evaluate_every": 2, "updates": 60}
    run = problems.train(update="ordered", stop=stop, **settings)
    assert run.digest == problems.train(update="ordered", updates=60).digest


@pytest.mark.parametrize("update", IN_PLACE)
def test_the_last_evaluation_is_of_the_model_that_is_returned(update):
    """Update 39 is committed, and shown as version 40, before update 38 is."""
    shown = threading.Event()

    def loss(model, batch):
        if problems.in_worker_thread() and hogwild.worker_info().update == 38:
            assert shown.wait(60)
        return problems.cross_entropy(model, batch)

    def evaluate(model):
        shown.set()
        return norm(model)

    model = problems.mlp()
    run = problems.train(model, update=update, loss=loss, evaluate=evaluate, evaluate_every=40)
    assert run.evaluations[-1]["norm"] == norm(model)["norm"]
    assert [row["update"] for row in run.evaluations] == [40]


def test_what_was_evaluated_is_what_was_published():
    """A worker dies between showing a version and publishing it; another makes that version of another update."""
    fault = PlantedFault(Fault.KILL, Hook.PUBLISHING, 10)
    with planted(fault):
        run = problems.train(update="snapshot", kind="processes", updates=30, evaluate=norm, evaluate_every=1)
    assert fault.fired
    assert [row["update"] for row in run.evaluations] == list(range(1, 31))
    versions = [problems.mlp()]
    for row in run.journal:
        replica, following = versions[row["version_read"]], copy.deepcopy(versions[-1])
        x, y = problems.data()
        rows = hogwild.Schedule(len(x), 16).indices(int(row["update"]))
        gradients = torch.autograd.grad(problems.cross_entropy(replica, (x[rows], y[rows])), list(replica.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(following.parameters(), gradients, strict=True):
                parameter -= 0.1 * gradient
        versions.append(following)
    assert [row["norm"] for row in run.evaluations] == pytest.approx([norm(one)["norm"] for one in versions[1:]], 1e-5)


def norm(model):
    with torch.no_grad():
        return {"norm": sum(float(one.double().square().sum()) for one in model.parameters())}


@pytest.mark.skipif(start_context().get_start_method() != "forkserver", reason="workers are spawned here")
@pytest.mark.parametrize("update", ["ordered", "snapshot", "locked"])
def test_the_death_of_the_fork_server_is_not_that_of_the_workers(update, tmp_path, monkeypatch):
    """Python says of all of them that they have ended; two owners of one ticket would be the end of every promise."""

    def comes(hook, seat):
        """Each waits for the other before it asks for its first ticket."""
        path = tmp_path / f"{seat.index} {os.getpid()}"
        if hook is Hook.CLAIMING and not path.exists():
            crews = 2 if server_killed else 1
            path.touch()
            first_crew[seat.index] = os.getpid() if crews == 1 else first_crew[seat.index]
            within(60, lambda: len([*tmp_path.iterdir()]) >= 2 * crews, "not all workers come")

    def loss(model, batch):
        if server_killed and os.getpid() in first_crew:
            time.sleep(3600)  # it lives on unless it is killed
        return problems.cross_entropy(model, batch)

    def started(process, index):
        """Start a worker once who had the same number has ended, which who was killed does in a moment."""
        for path in tmp_path.glob(f"{index} *"):
            within(30, partial(ends, int(path.name.split()[1])), "two have one number")
            ended.append(index)
        return start(process, index)

    def evaluate(model):
        if not server_killed:
            server_killed.fill_(1)
            os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)
        return {}

    def ends(number):
        return not living(number)

    start = processes._started
    monkeypatch.setattr(processes, "_started", started)
    server_killed, first_crew = (torch.zeros(size, dtype=torch.int64).share_memory_() for size in (1, 2))
    ended = []
    settings = {"update": update, "updates": 1000, "evaluate_every": 125}
    with warm_servers(), planted(comes):
        run = problems.train(kind="processes", evaluate=evaluate, loss=loss, max_restarts=9, **settings)
    assert len([*tmp_path.iterdir()]) == 4 and sorted(ended) == [0, 1]
    assert len(run.failures) == 2
    assert sorted([*run.journal["update"].tolist(), *run.in_doubt]) == list(range(1000))
    if update == "ordered":
        assert run.digest == problems.train(**settings).digest


@pytest.mark.parametrize("noted", [False, True], ids=["before it was noted", "after"])
def test_an_interruption_while_something_logged_is_taken_in_loses_nothing(noted):
    rows = [Logged(0, update, update, {"loss": 1.0}) for update in range(3)]
    told, history = deque([*rows, Died(0, 1)]), WorkerHistory()
    events = taken(told)
    first = next(events)
    if noted:
        history.note(first)
    events.close()  # as the loop that was interrupted lets go of it
    left = [event for event in taken(told) if not isinstance(event, Logged) or history.note(event)]
    assert history.logged == rows and left == [Died(0, 1)] and not told


def test_a_message_is_read_whole_though_a_signal_comes(ctrl_c):
    """Half a message left in the pipe would be read as the next one."""
    ours, theirs = connection.Pipe()
    team = ProcessTeam.__new__(ProcessTeam)
    team._told = deque()

    class Slow:
        poll = ours.poll

        @staticmethod
        def recv_bytes():
            head = ours.recv_bytes()
            signal.raise_signal(signal.SIGINT)
            return head

    for update in range(2):
        theirs.send_bytes(pickle.dumps(Logged(0, update, update, {})))
    with pytest.raises(KeyboardInterrupt), HeldSignals():
        team._receive(Slow)
    assert [event.update for event in team._told] == [0, 1]
    ours.close()
    theirs.close()
