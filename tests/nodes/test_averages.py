"""Machines that train apart, and average: one model in the end, whoever trains how, and whoever is lost."""

from __future__ import annotations

import copy
import json
import random
import time

import problems
import pytest
import torch
from machines import machines, one_after_another, refusals, slow, together, told_by, without_machine_0
from traits import NAMES, ONE_OF_EACH, SAME_BITS

import hogwild
from hogwild import reference
from hogwild.data.seeding import mix
from hogwild.errors import ArgumentError
from hogwild.nodes.averager import average
from hogwild.shared.exchange import Exchange
from hogwild.shared.layout import Block, Layout

pytestmark = pytest.mark.filterwarnings("ignore:staleness")
SETTINGS = {
    "updates": 48,
    "average_every": 10,
    "recheck": 0.1,
    "staleness": 3,
    "micro_batches": 2,
    "node_timeout": 60.0,
}
TELLS = """
def evaluate(model):
    model.train(False)
    return problems.accuracy(model)
extra = {"evaluate": evaluate, "evaluate_every": 20}
"""


def serially(nodes, updates, every, outer_lr=None, momentum=0.9):
    """The digest of machines that train one after the other, as the docs say: update u of machine n on batch uN + n."""
    source = reference._Batches(problems.data(), 16, False, True, 0)
    models = [problems.conv_bn() for _ in range(nodes)]
    steppers = [problems.MOMENTUM(list(model.named_parameters())) for model in models]
    agreed = copy.deepcopy(models[0])
    outer = None
    if outer_lr is not None:
        outer = torch.optim.SGD(agreed.parameters(), lr=outer_lr, momentum=momentum, nesterov=momentum > 0)
    for update in range(updates):
        for node, (model, stepper) in enumerate(zip(models, steppers, strict=True)):
            number = update * nodes + node
            stepper.zero_grad()
            problems.cross_entropy(
                model, source.batch(number, torch.Generator().manual_seed(mix(0, number)))
            ).backward()
            stepper.step()
        if (update + 1) % every == 0 or update + 1 == updates:
            mix_in(agreed, models, outer)
    assert len({hogwild.digest(model) for model in models}) == 1
    return hogwild.digest(models[0])


@torch.no_grad()
def mix_in(agreed, models, outer):
    """Average the models; integers are those of the first."""
    means = {}
    for name, value in agreed.state_dict().items():
        own = [model.state_dict()[name] for model in models]
        means[name] = sum(own[1:], own[0].clone()) / len(own) if value.is_floating_point() else own[0].clone()
    if outer is not None:
        for name, parameter in agreed.named_parameters():
            parameter.grad = parameter - means[name]
        outer.step()
        means |= dict(agreed.named_parameters())
    for model in [agreed, *models]:
        model.load_state_dict(means)


def digest_of(told):
    assert len({one.get("digest", str(one)) for one in told}) == 1, told
    return told[0]["digest"]


ONE_BY_ONE = {
    "model": "conv_bn",
    "optimizer": "MOMENTUM",
    "updates": 11,
    "average_every": 4,
    "workers": 1,
    "node_timeout": 60.0,
}
SERIAL = {**ONE_BY_ONE, "staleness": 0, "micro_batches": 1}
OUTER = {"outer_lr": 0.5, "outer_momentum": 0.0}


def test_the_bits_are_those_of_machines_that_train_one_after_the_other(tmp_path):
    runs = [{**SERIAL, "update": update} for update in NAMES]
    found = one_after_another(2, tmp_path, [*runs, {**SERIAL, "update": "ordered", **OUTER}])
    plain, outer = serially(2, 11, 4), serially(2, 11, 4, 0.5, 0.0)
    assert found == [*[[(plain, 11)] * 2] * len(NAMES), [(outer, 11)] * 2]


def test_three_machines_step_outside_with_momentum(tmp_path):
    found = one_after_another(3, tmp_path, [{**SERIAL, "update": "hogwild", "outer_lr": 0.7}])
    assert found == [[(serially(3, 11, 4, 0.7), 11)] * 3]


def test_machines_whose_workers_race_end_with_one_model_that_has_learned(tmp_path):
    told = together(2, tmp_path, TELLS, update="hogwild", workers=2, model="conv_bn", **SETTINGS)
    digest_of(told)
    assert [one["updates"] for one in told] == [48] * 2
    assert [(node, worker) for node, worker, _ in told[0]["workers"]] == [(w // 2, w) for w in range(4)]
    assert sum(computed for _, _, computed in told[0]["workers"]) == 48 * 2
    assert [one["evaluations"] for one in told] == [3, 0], "at 20, at 40 and in the end"
    assert told[0]["accuracy"] > 0.8
    assert told[0]["samples"] == pytest.approx(48 * 2 * 16, rel=0.1)


def test_whatever_races_inside_all_have_one_model(tmp_path):
    more = {"workers": 2, "model": "conv_bn", **SETTINGS, "average_every": 1}
    runs = [{"update": update, **more} for update in NAMES]
    for update, found in zip(NAMES, one_after_another(2, tmp_path, runs), strict=True):
        assert found == [(found[0][0], 48)] * 2, update


def test_ordered_inside_gives_the_same_bits_at_every_repeat(tmp_path):
    own = {"model": "conv_bn", "optimizer": "MOMENTUM", **SETTINGS, "updates": 25, "outer_lr": 0.7}
    kinds = {"own": [{"kind": "threads"}, {"kind": "processes"}]}
    for_each = ({"workers": 1}, {"workers": 2}, {"workers": 2, **kinds})
    found = one_after_another(2, tmp_path, [{**own, "update": name, **more} for name in SAME_BITS for more in for_each])
    for several in (found[:3], found[3:]):
        assert len({digest for told in several for digest, _ in told}) == 1, several


TABLE = """
def words():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Embedding(50, 4, sparse=True), torch.nn.Flatten(), torch.nn.Linear(12, 2))
problems.words = words
rows = torch.arange(600).reshape(200, 3) % 50
extra = {"data": (rows, rows[:, 0] % 2)}
"""


def test_a_table_with_sparse_gradients_is_averaged_whole_where_it_is_stepped_in_place(tmp_path):
    own = {**SETTINGS, "model": "words", "kind": "threads", "workers": 2}
    told = together(2, tmp_path, TABLE, update="hogwild", **own)
    digest_of(told)
    message = refusals(together(2, tmp_path, TABLE, update="snapshot", **own))
    assert message.startswith("0.weight has sparse gradients, which do not travel between machines")


# --- deaths

KILLED = """
from hogwild.testing import Fault, Hook, PlantedFault, planted
inside = planted(PlantedFault(Fault.KILL, Hook({hook!r}), {update}))
if os.environ["RANK"] == "1":
    inside.__enter__()
"""


@pytest.mark.parametrize(("hook", "update"), [("claimed", 10), ("publishing", 9), ("publishing", 24)])
def test_a_worker_that_dies_where_machines_average_changes_no_bit(hook, update, tmp_path):
    own = {"model": "conv_bn", "optimizer": "MOMENTUM", "update": "ordered", **SETTINGS, "updates": 25, "workers": 2}
    disturbed = together(2, tmp_path, KILLED.format(hook=hook, update=update), **own)
    assert len(disturbed[1]["failures"]) == 1
    assert digest_of(disturbed) == digest_of(together(2, tmp_path, **own))


@pytest.mark.parametrize("update", ["hogwild", "snapshot"])
def test_a_worker_that_dies_while_others_stand_still_holds_nobody_up(update, tmp_path):
    told = together(2, tmp_path, KILLED.format(hook="computing", update=19), update=update, workers=2, **SETTINGS)
    assert len(told[1]["failures"]) == 1
    assert [one["updates"] for one in told] == [48, 48]
    digest_of(told)


BEGINS = """
def progress(how):
    if how.updates and not begun:
        begun.append(print(json.dumps({"updates": how.updates}), flush=True))
begun = []
extra["progress"] = progress
"""


@pytest.mark.parametrize("update", ONE_OF_EACH)
@pytest.mark.parametrize("every", [1, 7])
def test_a_machine_that_is_lost_is_left_out_of_the_mean(update, every, tmp_path):
    own = {"model": "conv_bn", **SETTINGS, "updates": 200, "average_every": every, "workers": 1}
    gate = tmp_path / "gate"
    with machines(3, tmp_path, slow(gate, 200) + BEGINS, update=update, **own) as programs:
        for program in programs:
            assert "updates" in json.loads(program.output.readline()), "the run has begun"
        time.sleep(random.uniform(0, 0.3))
        programs[1].killed()
        gate.touch()
        told = [told_by(programs[0]), told_by(programs[2])]
    digest_of(told)
    assert [one["updates"] for one in told] == [200, 200]
    assert len(told[0]["failures"]) == 1
    assert "machine 1 was lost at update" in told[0]["failures"][0]
    assert {node for node, _, _ in told[0]["workers"]} == {0, 2}


def test_who_loses_machine_0_ends(tmp_path):
    source = slow(tmp_path / "gate", 48) + BEGINS
    with machines(2, tmp_path, source, update="hogwild", workers=2, **SETTINGS) as programs:
        told = without_machine_0(programs)
    assert told["error"] == "NodeError"
    assert "machine 0" in told["message"]


# --- what is decided for all

STOPS = """
def evaluate(model):
    return {"accuracy": 0.5}
def stop(progress):
    if os.environ["RANK"] != "0":
        raise AssertionError("only one machine asks")
    return progress.updates >= 20
extra = {"evaluate": evaluate, "stop": stop}
"""


@pytest.mark.parametrize("update", ONE_OF_EACH)
def test_the_machine_that_evaluates_ends_the_run_for_all(update, tmp_path):
    told = together(2, tmp_path, STOPS, update=update, workers=2, **SETTINGS, evaluate_every=10)
    digest_of(told)
    assert [one["updates"] for one in told] == [20, 20]
    assert [one["stopped"] for one in told] == ["stop", "stop"]


# --- what is recorded, and gone on with


@pytest.mark.parametrize("update", ONE_OF_EACH)
def test_a_run_goes_on_on_as_many_machines(update, tmp_path):
    out = tmp_path / "run"
    own = {"update": update, "model": "conv_bn", **SETTINGS, "workers": 2, "checkpoint_every": 20}
    interrupted = """
import time, warnings
warnings.simplefilter("ignore")
def evaluate(model):
    calls.append(model)
    if len(calls) == 2:
        raise KeyboardInterrupt
    return {}
def late(model, batch):
    if hogwild.worker_info().update >= 40:  # evaluated second: neither ends, but by the interrupt
        time.sleep(600)
    return problems.cross_entropy(model, batch)
calls = []
extra = {"loss": late, "evaluate_every": 20, **({"evaluate": evaluate} if os.environ["RANK"] == "0" else {})}
"""
    told = together(2, tmp_path, interrupted, own=[{"out": str(out)}, {"out": str(tmp_path / "none")}], **own)
    assert [one.get("error") for one in told] == ["KeyboardInterrupt"] * 2, told
    again = "import warnings\nwarnings.simplefilter('ignore')\n"
    own["resume"] = str(out)
    told = together(2, tmp_path, again, own=[{"out": str(out)}, {"out": str(tmp_path / "none")}], **own)
    digest_of(told)
    assert [one["updates"] for one in told] == [48, 48]
    run = hogwild.load_run(out)
    assert run.config.average_every == 10
    assert run.settings["nodes"] == 2
    assert json.loads((out / "run.json").read_text())["average_every"] == 10
    with pytest.raises(ArgumentError, match="of one of 2 machines that averaged"):
        hogwild.replay(
            out, model=problems.conv_bn(), data=problems.data(), loss=problems.cross_entropy, optimizer=problems.SGD
        )


ENDED = """
def progress(how):
    if how.updates == 48:
        raise KeyboardInterrupt
extra = {"progress": progress} if os.environ["RANK"] == "0" else {}
import warnings
warnings.simplefilter("ignore")
"""


@pytest.mark.parametrize("update", ONE_OF_EACH)
def test_a_run_that_was_interrupted_after_its_last_update_goes_on_to_nothing(update, tmp_path):
    own = {"update": update, **SETTINGS, "workers": 1}
    folders = [{"out": str(tmp_path / "run")}, {}]
    told = together(2, tmp_path, ENDED, own=folders, **own)
    assert "KeyboardInterrupt" in {one.get("error") for one in told}, told
    again = "import warnings\nwarnings.simplefilter('ignore')\n"
    told = together(2, tmp_path, again, own=folders, resume=str(tmp_path / "run"), **own)
    digest_of(told)
    assert [one["updates"] for one in told] == [48, 48]


def test_a_run_does_not_go_on_on_another_number_of_machines(tmp_path):
    own = {"update": "hogwild", **SETTINGS, "workers": 1, "checkpoint_every": 20}
    together(2, tmp_path, own=[{"out": str(tmp_path / f"run{end}")} for end in ("", " of 1")], **own)
    del own["checkpoint_every"]
    told = together(3, tmp_path, resume=str(tmp_path / "run"), **own)
    assert "the number of machines that average is 3, and the run in" in refusals(told)
    with pytest.raises(ArgumentError, match="the number of machines that average is 0"):
        problems.train(resume=tmp_path / "run", out=tmp_path / "other", **{**own, "kind": "threads"})


# --- refusals


REFUSED = [
    ({"average_every": None}, "'hogwild' trains on one machine, or on several that average their models"),
    ({"own": [{"average_every": 5}, {"average_every": 6}]}, "average_every is 6 on machine 1 and 5 on machine 0"),
    ({"evaluate_every": 15}, "evaluate_every 15 is no multiple of average_every 10, and between two averages"),
    ({"audit": True}, "audit given with average_every"),
    ({"limit_updates": None, "epochs": 1, "batch_size": 200}, "2 machines and 1 batches: some would train on none"),
]


def test_what_cannot_be_averaged_is_refused_everywhere(tmp_path):
    runs = [{**SETTINGS, "workers": 1, "update": "hogwild", **arguments} for arguments, _ in REFUSED]
    for run in runs:
        if "own" in run:
            del run["average_every"]
        if "epochs" in run:
            del run["updates"]
    for (_, message), found in zip(REFUSED, one_after_another(2, tmp_path, runs), strict=True):
        assert [kind for kind, _ in found] == ["ArgumentError"] * 2, found
        assert message in found[0][1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"average_every": 0}, "average_every 0 is below 1; 1 or more works"),
        ({"outer_lr": 0.7}, "outer_lr 0.7 given without average_every; 50 updates"),
        ({"average_every": 5, "outer_momentum": 0.5}, "outer_momentum 0.5 given, which is for outer_lr"),
        ({"average_every": 5, "outer_lr": 0.5, "outer_momentum": 1.0}, "outer_momentum 1.0 given, which .* below 1"),
        ({"average_every": 5, "outer_lr": 0.5}, "outer_lr 0.5 given, and one machine trains"),
    ],
)
def test_what_cannot_work_is_refused_on_one_machine(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        problems.train(**arguments)


def test_one_machine_is_its_own_mean():
    alone = problems.train(update="ordered", workers=1)
    assert problems.train(update="ordered", workers=1, average_every=3).digest == alone.digest


# --- the mean


def values_of(tensors):
    layout = Layout.of([(str(i), tensor) for i, tensor in enumerate(tensors)])
    exchange = Exchange(layout, 1, Layout.of([]), Block.private(layout.nbytes))
    exchange.take(tensors)
    return exchange


def test_the_mean_is_added_up_in_order_and_integers_stay():
    dtypes = torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.int64, torch.bool
    made = [[torch.tensor([k, k * k]).to(dtype) for dtype in dtypes] for k in (1, 2, 6)]
    first, *others = map(values_of, made)
    average(first, others)
    found = [torch.empty_like(tensor) for tensor in made[0]]
    first.give(found)
    mean = torch.tensor([3.0, 41 / 3])
    assert all(torch.equal(value, mean.to(value.dtype)) for value in found[:4])
    assert all(torch.equal(value, before) for value, before in zip(found[4:], made[0][4:], strict=True))
