"""A worker killed at any named moment, under every rule: nothing promised is lost, and nothing hangs."""

from __future__ import annotations

import os
import signal

import problems
import pytest
import torch
from traits import NAMES, ONE_OF_EACH, SAME_BITS, VERSIONED, hooks_of

import hogwild
from hogwild.testing import Fault, Hook, PlantedFault, RandomDelays, both, planted

UPDATES = 24


def train(update, workers=3, **arguments):
    return problems.train(
        problems.conv_bn(),
        update=update,
        workers=workers,
        kind="processes",
        staleness=3,
        micro_batches=4,
        updates=UPDATES,
        optimizer=problems.SGD,
        **arguments,
    )


@pytest.fixture(scope="module")
def undisturbed():
    return {update: train(update, workers=1).digest for update in SAME_BITS}


def check(run, update, undisturbed):
    """What each rule promises after a kill."""
    if update in undisturbed:
        assert run.digest == undisturbed[update]
    done = sorted(run.journal["update"].tolist())
    if update in VERSIONED:
        assert run.in_doubt == ()
        assert done == list(range(UPDATES)), "every update exactly once"
        assert run.updates == UPDATES
    else:
        assert len(run.in_doubt) <= len(run.failures)
        assert sorted({*done, *run.in_doubt}) == list(range(UPDATES)), "at most one update in doubt per kill"


POLICIES = "replace", "continue"
KILLS = [
    (update, hook, POLICIES[(number + [*Hook].index(hook)) % 2])
    for number, update in enumerate(NAMES)
    for hook in hooks_of(update)
]


@pytest.mark.parametrize(("update", "hook", "policy"), KILLS)
def test_a_kill_at(update, hook, policy, undisturbed):
    """What is settled hangs on the rule and the hook; the policy, by turns, is only asked once that is done. Each
    policy meets each rule, and each hook of those in place and of those that make versions."""
    at = UPDATES // 2 * (4 if update == "sync" else 1)
    fault = PlantedFault(Fault.KILL, hook, at)
    with planted(both(fault, RandomDelays(seed=1))):
        run = train(update, on_worker_failure=policy)
    assert fault.fired, "the fault was planted where nobody passed"
    assert 1 <= len(run.failures) <= 2, "two workers may come to the first hook at once"
    assert all("SIGKILL" in failure for failure in run.failures)
    check(run, update, undisturbed)


OTHER_ENDS = [*zip(NAMES, [Fault.TERMINATE, Fault.SEGFAULT, Fault.EXIT] * 2, strict=True)]


@pytest.mark.parametrize(("update", "fault"), OTHER_ENDS)
def test_other_ends(update, fault, undisturbed):
    """What ended a process is only told. Each end befalls a rule in place and one that makes versions."""
    plant = PlantedFault(fault, Hook.COMPUTING, 10)
    with planted(plant):
        run = train(update)
    assert plant.fired and len(run.failures) == 1
    name = {Fault.TERMINATE: "SIGTERM", Fault.SEGFAULT: "SIGSEGV", Fault.EXIT: "exit code 0"}[fault]
    assert name in run.failures[0]
    check(run, update, undisturbed)


@pytest.mark.parametrize("update", NAMES)
def test_the_only_worker_is_replaced(update, undisturbed):
    plant = PlantedFault(Fault.KILL, Hook.COMMITTING, 10)
    with planted(plant):
        run = train(update, workers=1, on_worker_failure="continue")
    assert plant.fired
    check(run, update, undisturbed)


@pytest.mark.parametrize("update", NAMES)
def test_raise_ends_the_run(update):
    with planted(PlantedFault(Fault.KILL, Hook.COMPUTING, 10)), pytest.raises(hogwild.WorkerError, match="SIGKILL"):
        train(update, on_worker_failure="raise")


def test_replacements_run_out():
    with planted(AlwaysKill()), pytest.raises(hogwild.WorkerError, match="max_restarts is 2"):
        train("ordered", max_restarts=2)


class AlwaysKill:
    """Kills whoever computes update 10."""

    def __call__(self, hook, seat):
        if hook is Hook.COMPUTING and seat.ticket == 10:
            os.kill(os.getpid(), signal.SIGKILL)


def logging_and_dying(died, how):
    """A loss that logs, and then ends its worker at batch 9, once."""

    def loss(model, batch):
        info = hogwild.worker_info()
        if info is not None:
            info.log(there=info.batch)
            if info.batch == 9 and died[0] == 0:
                died[0] = 1
                how()
        return problems.cross_entropy(model, batch)

    return loss


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def raise_():
    raise ValueError("once")


AGAIN = [
    *((update, "processes", kill) for update in NAMES),
    *((update, "processes", raise_) for update in ONE_OF_EACH),
    *((update, "threads", raise_) for update in NAMES),
]


@pytest.mark.parametrize(("update", "kind", "how"), AGAIN)
def test_what_was_logged_of_a_batch_that_is_computed_again_is_there_once(update, kind, how, tmp_path):
    """A process that raises tells what one that is killed told, and is settled as a thread that raises is."""
    died = torch.zeros(1, dtype=torch.int64).share_memory_()
    loss = logging_and_dying(died, how)
    run = problems.train(update=update, kind=kind, loss=loss, on_worker_failure="replace", out=tmp_path / "run")
    assert len(run.failures) == 1 and run.in_doubt == ()
    batches = [row["batch"] for row in run.logged]
    assert [row["there"] for row in run.logged] == batches and len(set(batches)) == len(batches)
    assert len(batches) == 40 * run.config.micro_batches if update == "sync" else len(batches) == 40
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == len(batches)
