"""Several machines train one model: the same bits as on one, whoever computes what."""

from __future__ import annotations

from pathlib import Path

import problems
import pytest
from machines import WAITS_LONG, one_after_another, refusals, together
from traits import SAME_BITS

import hogwild
from hogwild.rules.rechecks import Chosen

pytestmark = pytest.mark.filterwarnings("ignore:staleness")
SETTINGS = {"staleness": 5, "micro_batches": 6, "updates": 60, "recheck": 0.1}


def alone(model="mlp", optimizer="SGD", **arguments):
    made = getattr(problems, model)()
    return problems.train(made, optimizer=getattr(problems, optimizer), **{**SETTINGS, **arguments})


def chosen_of(tickets):
    chosen = Chosen(0, SETTINGS["recheck"])
    return sum(chosen.first_from(number) == number for number in range(tickets))


@pytest.mark.parametrize("update", SAME_BITS)
@pytest.mark.parametrize(("nodes", "workers"), [(2, 1), (3, 2)])
def test_the_bits_are_those_of_one_machine(update, nodes, workers, tmp_path):
    of = {"model": "conv_bn", "optimizer": "ADAM" if nodes == 2 else "MOMENTUM"}
    found = together(nodes, tmp_path, update=update, workers=workers, **of, **SETTINGS)
    wanted = alone(update=update, workers=1, **of)
    assert [told.get("digest", told) for told in found] == [wanted.digest] * nodes
    first = found[0]
    assert first["nodes"] == nodes
    assert [(node, worker) for node, worker, _ in first["workers"]] == [
        (node, node * workers + worker) for node in range(nodes) for worker in range(workers)
    ]
    tickets = SETTINGS["updates"] * (SETTINGS["micro_batches"] if update == "sync" else 1)
    assert sum(computed for _, _, computed in first["workers"]) == tickets, "each gradient was computed once"
    assert all(told["journal"] == first["journal"] for told in found), "every machine writes the same journal"
    assert first["rechecked"] == chosen_of(tickets), "by one machine each"


NOW_AND_THEN = """
def loss(model, batch):
    return problems.cross_entropy(model, batch) * (float("inf") if hogwild.worker_info().batch % 7 == 5 else 1)
extra["loss"] = loss
"""


@pytest.mark.parametrize("update", SAME_BITS)
def test_what_is_left_out_is_counted_by_one_machine(update, tmp_path):
    left_out = {"update": update, "on_nonfinite": "skip", **SETTINGS}
    found = together(2, tmp_path, NOW_AND_THEN, workers=1, **left_out)
    wanted = alone(workers=1, loss=not_finite_now_and_then, **left_out)
    skipped = sum(usage.skipped for usage in wanted.workers)
    assert found[0]["skipped"] == skipped > 0
    assert [told["digest"] for told in found] == [wanted.digest] * 2


def not_finite_now_and_then(model, batch):
    return problems.cross_entropy(model, batch) * (float("inf") if hogwild.worker_info().batch % 7 == 5 else 1)


CASES = [("mlp", "MOMENTUM"), ("conv_bn", "ADAM"), ("mlp", "ADAM"), ("conv_bn", "MOMENTUM")]


@pytest.mark.parametrize("nodes", [1, 2, 3, 4])
def test_one_digest_for_any_number_of_machines_and_of_workers(nodes, tmp_path):
    """A Latin square: each rule at each number of machines with both models, and each rule at each number of workers
    with every model and optimizer. What machines send each other is bytes, and buffers, whatever computed them."""
    of = {"staleness": 7, "micro_batches": 8, "updates": 24, "recheck": 0.1}
    runs = [{"update": update, "workers": workers, **of} for update in SAME_BITS for workers in (1, 2)]
    for place, run in enumerate(runs, start=nodes):
        run["model"], run["optimizer"] = CASES[place % len(CASES)]
    for run, told in zip(runs, one_after_another(nodes, tmp_path, runs), strict=True):
        wanted = alone(**{**run, "workers": 1}).digest
        assert told == [(wanted, of["updates"])] * nodes, run


def test_workers_may_be_threads_on_one_machine_and_processes_on_another(tmp_path):
    own = [{"kind": "threads", "workers": 2}, {"kind": "processes", "workers": 1}]
    found = together(2, tmp_path, own=own, update="ordered", model="conv_bn", optimizer="MOMENTUM", **SETTINGS)
    wanted = alone(update="ordered", model="conv_bn", optimizer="MOMENTUM", workers=1)
    assert [told.get("digest", told) for told in found] == [wanted.digest] * 2
    assert [node for node, _, _ in found[0]["workers"]] == [0, 0, 1]


WHO_MAKES_A_VERSION = """
import subprocess, sys
from hogwild.testing import Hook, planted
PROBE = '''
import fcntl, mmap, sys
from hogwild.shared.mutex import BYTES, Mutex
with open(sys.argv[1], "r+b") as file:
    if sys.argv[2] == "Mutex":
        place = int(sys.argv[3])
        print(Mutex(memoryview(mmap.mmap(file.fileno(), 0))[place : place + BYTES]).acquire(blocking=False))
    else:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 1)
'''
excluded = []
def look(hook, seat):
    if hook is Hook.PUBLISHING and not excluded:
        path = f"/proc/{os.getpid()}/fd/{seat.state.arena.descriptor}"
        place = seat.state.plan.offsets.locks + 64  # of the commit lock, which is the second
        command = [sys.executable, "-c", PROBE, path, type(seat.state.locks.commit).__name__, str(place)]
        found = subprocess.run(command, capture_output=True, text=True)
        excluded.append("BlockingIOError" in found.stderr or found.stdout == "False\\n")
inside = planted(look)
inside.__enter__()
more = {"excluded": excluded}
"""


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks at another program's memory as Linux shows it")
def test_a_version_that_a_thread_makes_is_not_copied_meanwhile_by_the_courier(tmp_path):
    """Which is a process, and copies versions for a machine that comes back."""
    found = together(2, tmp_path, WHO_MAKES_A_VERSION, update="ordered", kind="threads", workers=1, **SETTINGS)
    assert [told.get("excluded", told) for told in found] == [[True]] * 2


OTHERWISE_ON_MACHINE_1 = """
def loss(model, batch):
    found = problems.cross_entropy(model, batch)
    return 1.001 * found if os.environ["RANK"] == "1" else found
extra = {"loss": loss}
"""


@pytest.mark.parametrize("rule", [{"update": "ordered", "compensation": "none"}, {"update": "sync"}], ids=str)
def test_what_one_machine_finds_at_fault_ends_the_run_of_all(rule, tmp_path):
    """Of three: machine 2 computes again what machine 1 owes, and that what machine 0 does."""
    found = together(3, tmp_path, OTHERWISE_ON_MACHINE_1, workers=1, **{**SETTINGS, "recheck": 0.5}, **rule)
    finders = [node for node, told in enumerate(found) if told["error"] == "NotReproducible"]
    assert set(finders) <= {1, 2} and finders
    for node in finders:
        assert f"when worker {node} computes it again after worker {node - 1}" in found[node]["message"]
    for told in found:
        if told["error"] != "NotReproducible":
            assert told["error"] == "NodeError", told
            assert any(f"machine {node} has ended the run: " in told["message"] for node in finders), told


STOPS = """
import time
torch.manual_seed(1)
asked = []
def evaluate(model):
    return {"accuracy": 0.5}
def stop(progress):
    asked.append(progress.updates)
    if os.environ["RANK"] != "0":
        raise AssertionError("only one machine asks")
    return progress.updates >= 20
def loss(model, batch):
    time.sleep(float(os.environ["RANK"]) / 50)
    return problems.cross_entropy(model, batch)
extra = {"evaluate": evaluate, "stop": stop, "loss": loss}
"""


def test_the_machine_that_evaluates_ends_the_run_for_all(tmp_path):
    assert Chosen(0, SETTINGS["recheck"]).first_from(9) == 11, "machine 0 may wait for 11, and 1 for what 0 decides"
    found = together(2, tmp_path, STOPS, update="ordered", workers=1, evaluate_every=10, **SETTINGS)
    stopped = alone(
        update="ordered",
        workers=1,
        evaluate=lambda model: {"accuracy": 0.5},
        evaluate_every=10,
        stop=lambda progress: progress.updates >= 20,
    )
    assert [told.get("digest", told) for told in found] == [stopped.digest] * 2
    assert [told["updates"] for told in found] == [20, 20]
    assert [told["stopped"] for told in found] == ["stop", "stop"]
    assert [told["evaluations"] for told in found] == [2, 0]


@pytest.mark.parametrize("second", ["second", None], ids=["with a folder", "without"])
def test_only_the_first_machine_keeps_a_record(second, tmp_path):
    own = [{"out": str(tmp_path / "first")}, {"out": second and str(tmp_path / second)}]
    found = together(2, tmp_path, own=own, update="ordered", workers=1, checkpoint_every=30, **SETTINGS)
    assert not (tmp_path / "second").exists()
    run = hogwild.load_run(tmp_path / "first")
    assert run.digest == found[1]["digest"] == alone(update="ordered", workers=1).digest
    assert {usage.worker: usage.node for usage in run.workers} == {0: 0, 1: 1}
    assert set(run.journal["worker"]) == {0, 1}


def test_a_run_over_several_machines_goes_on_on_one_and_on_more(tmp_path):
    settings = {"update": "ordered", "staleness": 5, "optimizer": problems.MOMENTUM, "recheck": 0.0}
    whole = problems.train(**settings, updates=60, workers=1)
    with pytest.raises(KeyboardInterrupt):
        problems.train(
            **settings,
            updates=60,
            workers=2,
            out=tmp_path / "run",
            evaluate=problems.interrupting(2),
            evaluate_every=20,
        )
    on_two = {"resume": str(tmp_path / "run"), "optimizer": "MOMENTUM", "recheck": 0.0}
    found = together(2, tmp_path, update="ordered", staleness=5, updates=60, workers=1, **on_two)
    assert [told.get("digest", told) for told in found] == [whole.digest] * 2


RISES = """
extra = {"evaluate": lambda model: {"accuracy": 1.0}}
"""


def test_what_a_resumed_run_was_evaluated_to_before_is_told_by_the_machine_that_evaluates_alone(tmp_path):
    settings = {"update": "ordered", "staleness": 5, "evaluate_every": 20, "keep_best": "accuracy", "recheck": 0.0}
    evaluate = problems.interrupting(3, lambda model: {"accuracy": 0.5})  # the first is on trial
    with pytest.raises(KeyboardInterrupt):
        problems.train(**settings, updates=60, out=tmp_path / "run", evaluate=evaluate)
    found = together(2, tmp_path, RISES, **settings, updates=60, workers=1, resume=str(tmp_path / "run"))
    assert [(told["evaluations"], told["accuracy"], told["best"]) for told in found] == [(3, 1.0, 40), (0, None, None)]


# --- refusals


@pytest.mark.parametrize(
    ("arguments", "own", "message"),
    [
        ({"update": "hogwild"}, (), "(average_every=50); 'ordered' and 'sync' train on several together"),
        (
            {"update": "ordered", "workers": 4},
            (),
            "2 machines together: 8 workers are over the 6 that staleness 5 keeps busy; set staleness=7 (it changes "
            "the result), or workers=3 on each",
        ),
        ({"update": "sync", "micro_batches": 1}, (), "set micro_batches=2 (it changes the result), or fewer machines"),
        (
            {"update": "ordered"},
            [{"seed": 1}, {"seed": 2, "batch_size": 8}],
            "the machines do not train the same: batch_size is 8 on machine 1 and 16 on machine 0; seed is 2 on",
        ),
        ({"update": "ordered"}, [{"model": "mlp"}, {"model": "conv_bn"}], "model.parameters.0.weight is"),
        (
            {"update": "ordered"},
            [{"environment": {"HOGWILD_TOKEN": "a"}}, {"environment": {"HOGWILD_TOKEN": "b"}}],
            "has another token than machine",
        ),
    ],
)
def test_what_cannot_train_together_is_refused_everywhere(arguments, own, message, tmp_path):
    assert message in refusals(together(2, tmp_path, own=own, **{**SETTINGS, "workers": 1, **arguments}))


@pytest.mark.parametrize("node", [0, 1])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"lr_schedule": 5}, "lr_schedule is an int"),
        ({"resume": "nowhere"}, "nowhere"),
    ],
    ids=["before it is prepared", "while it is opened"],
)
def test_what_one_machine_cannot_do_is_heard_by_the_others(wrong, message, node, tmp_path):
    own = [wrong if one == node else {} for one in range(2)]
    told = together(2, tmp_path, WAITS_LONG, own=own, update="ordered", workers=1, staleness=5, updates=8)
    assert message in told[node]["message"]
    assert told[1 - node]["error"] == "NodeError"
    assert f"machine {node} of 2 has left: " in told[1 - node]["message"] and message in told[1 - node]["message"]


def test_machines_with_the_same_token_train(tmp_path):
    own = [{"environment": {"HOGWILD_TOKEN": "a secret"}}] * 2
    found = together(2, tmp_path, own=own, update="ordered", workers=1, staleness=5, updates=8)
    assert found[0]["digest"] == found[1]["digest"]
