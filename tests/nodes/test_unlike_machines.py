"""Machines that do not train the same are refused, or found out in the end; one that raises is heard by the others."""

from __future__ import annotations

import io
import json
import math
import os
import re
import signal

import problems
import pytest
from machines import WAITS_LONG, machines, refusals, together, told_by
from rich.console import Console
from side_by_side import within

import hogwild
from hogwild.report.tables import run_report

SETTINGS = {"update": "ordered", "staleness": 3, "workers": 1, "updates": 60, "recheck": 0.0}

OTHER_AT_ONE_UPDATE = """
extra = {"lr_schedule": lambda update: 0.5 if update == 41 and os.environ["RANK"] == "1" else 1.0}
"""


def test_machines_that_end_with_other_bits_say_so(tmp_path):
    """A schedule is compared at a few updates only."""
    told = together(2, tmp_path, OTHER_AT_ONE_UPDATE, **SETTINGS)
    assert [one.get("error") for one in told].count("NotReproducible") >= 1, told
    assert all(one.get("error") in ("NotReproducible", "NodeError") for one in told), told
    assert any("machine 1 ended with other bits" in one["message"] for one in told)


def test_machines_that_end_alike_say_how_many_they_were(tmp_path):
    told = together(2, tmp_path, **SETTINGS)
    assert {one["digest"] for one in told} == {problems.train(**SETTINGS).digest}
    assert [one["nodes"] for one in told] == [2, 2]


INTERRUPTED = """
class Interrupting(hogwild.Callback):
    def on_evaluation(self, progress):
        if progress.updates >= 30 and os.environ["RANK"] == "0":
            raise KeyboardInterrupt
extra = {"callbacks": [Interrupting()], "evaluate": lambda model: {"one": 1.0}, "evaluate_every": 10}
"""


def test_a_change_on_one_machine_alone_is_refused(tmp_path):
    folder = tmp_path / "run"
    told = together(2, tmp_path, INTERRUPTED, **SETTINGS, out=str(folder), keep_best="one")
    assert [one["error"] for one in told] == ["KeyboardInterrupt"] * 2
    again = {**SETTINGS, "out": str(folder), "resume": str(folder), "evaluate_every": 10, "keep_best": "one"}
    other = [{}, {"change": {"lr": 0.02}}]
    evaluating = 'extra = {"evaluate": lambda model: {"one": 1.0}}\n'
    message = refusals(together(2, tmp_path, evaluating, own=other, **again))
    assert "what was changed is 'lr 0.02 from update " in message and "' on machine 1 and '' on machine 0" in message


def test_the_record_of_an_interrupted_run_tells_of_all_machines(tmp_path):
    folder = tmp_path / "run"
    together(2, tmp_path, INTERRUPTED, **SETTINGS, out=str(folder))
    record = json.loads((folder / "run.json").read_text())
    assert record["nodes"] == 2
    assert [(usage["node"], usage["worker"]) for usage in record["usage"]] == [(0, 0), (1, 1)]
    assert record["usage"][1]["computed"] > 0 and record["updates"] >= 30
    run = hogwild.load_run(folder)
    assert math.isnan(run.workers[1].waited_seconds), "the other one was not asked"
    console = Console(file=io.StringIO(), width=100)
    console.print(run_report(run))
    told = console.file.getvalue()
    assert "ordered, staleness 3 · 2 processes on 2 machines" in told
    assert [line.split()[:2] for line in told.splitlines() if line.rstrip().endswith("–")] == [["1", "1"]]


OTHER_LABELS = """
x, y = problems.data()
if os.environ["RANK"] == "1":
    y[100:] = (y[100:] + 1) % 3
extra = {"data": (x, y), "shuffle": False}
"""


def test_data_that_are_others_after_the_first_batch_are_refused(tmp_path):
    """All machines would apply the same wrong gradients, and end with the same bits."""
    message = refusals(together(2, tmp_path, OTHER_LABELS, **SETTINGS))
    assert "the machines do not train the same: batch 7 is '" in message


NO_SEED = """
torch.manual_seed(40 + int(os.environ["RANK"]))
made = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
problems.mlp = lambda: made
extra = {"data": (torch.randn(200, 8), torch.randint(0, 3, (200,)))}
"""


def test_machines_that_nobody_seeded_are_told_to_seed(tmp_path):
    message = refusals(together(2, tmp_path, NO_SEED, **SETTINGS))
    one, other = (rf"'[0-9a-f]{{8}}…' on machine {node}" for node in (1, 0))
    named = "; ".join(f"{name} is {one} and {other}" for name in ("batch 0", "the initial model"))
    seed = r"seed what is random \(torch\.manual_seed\(0\)\) before data and model are made, the same on all machines"
    told = rf"the machines do not train the same: {named}; all need the same data and model: {seed}"
    assert re.fullmatch(told, message), message


OTHER_LOSS = """
def loss(model, batch):
    other = os.environ["RANK"] == "1" and hogwild.worker_info().update >= 20
    return problems.cross_entropy(model, batch) * (0.5 if other else 1.0)
extra = {"loss": loss}
"""


def test_a_loss_that_becomes_another_is_found_in_a_short_run_too(tmp_path):
    """Of 60 gradients the share 0.005 would seldom compute one a second time."""
    told = together(2, tmp_path, OTHER_LOSS, **{**SETTINGS, "recheck": 0.005})
    assert all(one.get("error") in ("NotReproducible", "NodeError") for one in told), told
    assert any(", on another machine, where the loss or the data may not be the same" in one["message"] for one in told)


RAISES_AT_FIRST = """
class Raising(hogwild.Callback):
    def on_begin(self, info):
        if os.environ["RANK"] == "{node}":
            raise hogwild.ArgumentError("no such board")
extra = {{"callbacks": [Raising()]}}
"""


@pytest.mark.parametrize("node", [0, 1])
def test_a_machine_whose_callback_raises_before_it_trains_is_heard_at_once(node, tmp_path):
    before = WAITS_LONG + RAISES_AT_FIRST.format(node=node)
    told = together(2, tmp_path, before, node_timeout=1e6, **SETTINGS)
    assert told[node] == {"error": "ArgumentError", "message": "no such board"}
    assert told[1 - node]["error"] == "NodeError"
    assert f"machine {node} has left before it trained: no such board" in told[1 - node]["message"]


RAISES_LATER = """
class Raising(hogwild.Callback):
    def on_progress(self, progress):
        if progress.updates >= 10 and os.environ["RANK"] == "{node}":
            raise hogwild.ArgumentError("the board is full")
extra = {{"callbacks": [Raising()]}}
def loss(model, batch):
    import time
    stays = hogwild.worker_info().update >= 30 and os.environ["RANK"] == "{node}"  # until it raises
    time.sleep(60 if stays else 0.02)
    return problems.cross_entropy(model, batch)
extra["loss"] = loss
"""


def test_why_a_machine_was_lost_is_told(tmp_path):
    told = together(2, tmp_path, RAISES_LATER.format(node=1), **SETTINGS)
    assert told[1]["message"] == "the board is full"
    (failure,) = told[0]["failures"]
    assert failure.startswith("machine 1 was lost at update ") and failure.endswith(": the board is full")


def test_a_machine_that_was_lost_stays_in_the_record_of_a_run_that_is_resumed(tmp_path):
    folder = tmp_path / "run"
    both = RAISES_LATER.format(node=1) + "extra['callbacks'].append(problems.interrupting_at(40))\n"
    evaluating = "extra['evaluate'] = lambda model: {'one': 1.0}\n"
    told = together(2, tmp_path, both + evaluating, **SETTINGS, out=str(folder), evaluate_every=10)
    assert told[0]["error"] == "KeyboardInterrupt", told
    run = problems.train(**SETTINGS, out=folder, resume=folder, evaluate_every=10)
    (failure,) = run.failures
    assert failure.endswith(": the board is full")


def test_what_ends_machine_0_ends_the_run_with_its_words(tmp_path):
    told = together(2, tmp_path, RAISES_LATER.format(node=0), **SETTINGS)
    assert told[0]["message"] == "the board is full"
    assert told[1] == {"error": "NodeError", "message": "machine 0 has ended the run: the board is full"}


MISSES = """
evaluate = lambda model: {"accuracy": {}["targets"]}
if os.environ["RANK"] == "0":
    extra = {"evaluate": evaluate}
try_train = problems.train
def train(*arguments, **named):
    try:
        return try_train(*arguments, **named)
    except KeyError as error:
        raise hogwild.ArgumentError("told") from error
problems.train = train
"""


def test_what_ends_machine_0_is_told_with_its_type_where_it_is_not_ours(tmp_path):
    told = together(2, tmp_path, MISSES, **SETTINGS, evaluate_every=10)
    assert told[1] == {"error": "NodeError", "message": "machine 0 has ended the run: KeyError: 'targets'"}


WIDE = """
torch.set_default_dtype(torch.float64)
def loss(model, batch):
    x, y = batch
    return problems.cross_entropy(model, (x.double(), y))
extra = {"loss": loss}
"""


def test_another_default_type_trains_too(tmp_path):
    told = together(2, tmp_path, WIDE, **SETTINGS)
    assert len({one["digest"] for one in told}) == 1


def test_ctrl_c_is_heard_while_a_machine_waits_for_the_first(tmp_path):
    own = [{"environment": {"WORLD_SIZE": "2", "RANK": "1"}}]
    errors, tells = tmp_path / "errors 0", "from hogwild.nodes import meeting\nmeeting._TELLING = 0.0\n"
    with machines(1, tmp_path, tells, own=own, **SETTINGS) as programs:
        within(60, lambda: errors.exists() and "waiting for machine 0 at" in errors.read_text())
        os.kill(programs[0].process.pid, signal.SIGINT)
        assert told_by(programs[0])["error"] == "KeyboardInterrupt"
