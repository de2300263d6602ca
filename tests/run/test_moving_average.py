"""ema: the moving average of the weights, under every rule: what it is, that its bits are those of the versions, and
that it survives kills and checkpoints."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import Any

import problems
import pytest
import tables
import torch
from optimizers import OPTIMIZERS, everything, everything_loss
from safetensors.torch import load_file
from sharing import Lays, SharesAll
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from traits import IN_PLACE, KINDS, NAMES, ONE_OF_EACH, SAME_BITS, VERSIONED, hooks_of

import hogwild
from hogwild.optim import plan
from hogwild.run.progress import Trace
from hogwild.run.training import train_config
from hogwild.shared.shards import cut_shards
from hogwild.testing import Fault, Hook, PlantedFault, RandomDelays, both, planted

pytestmark = pytest.mark.filterwarnings("ignore:staleness", "ignore:a step of .* divides")
UPDATES, DECAY = 24, 0.9


LAYING: dict[str, Any] = {"ordered": Lays(3), "sync": SharesAll(4)}


def train(make: Any = problems.conv_bn, **arguments: Any) -> hogwild.Run:
    settings = {"updates": UPDATES, "ema": DECAY, "optimizer": problems.ADAM, "staleness": 3, "micro_batches": 4}
    return problems.train(make(), **(settings | arguments))


def by_hand(optimizer: Any, make: Any = problems.conv_bn) -> tuple[str, str]:
    """Torch's own loop with torch's own average; the digests of both."""
    (x, y), model, order = problems.data(), make(), hogwild.Schedule(200, 16)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
    average.update_parameters(model)  # the first is a copy
    stepper = optimizer(list(model.named_parameters()))
    for number in range(UPDATES):
        rows = order.indices(number)
        stepper.zero_grad()
        problems.cross_entropy(model, (x[rows], y[rows])).backward()
        stepper.step()
        average.update_parameters(model)
    return hogwild.digest(model), hogwild.digest(average.module)


@pytest.fixture
def small_shards(monkeypatch):
    """Even these small models are stepped in shards."""
    monkeypatch.setattr(plan, "cut_shards", partial(cut_shards, size=16))


# --- what it is


AVERAGED = ["sgd", "momentum", "adam", "adamw", "adafactor", "adagrad"]


@pytest.mark.parametrize(
    ("update", "optimizer"),
    [
        *((update, optimizer) for update in ONE_OF_EACH for optimizer in AVERAGED),
        *((update, optimizer) for update in NAMES if update not in ONE_OF_EACH for optimizer in ("momentum", "adam")),
    ],
)
def test_it_is_torchs_average(update, optimizer):
    """Every optimizer in place and by versions, which step by the same code whatever the rule; every rule with two."""
    settings = {"update": update, "staleness": 0, "micro_batches": 1, "workers": 1}
    run = train(optimizer=OPTIMIZERS[optimizer], **settings)
    assert (run.digest, run.ema_digest) == by_hand(OPTIMIZERS[optimizer])
    plain = train(optimizer=OPTIMIZERS[optimizer], **settings, ema=None)
    assert plain.digest == run.digest, "training does not hang on it"
    assert plain.ema_state is None and plain.ema_digest is None


def with_versions(make: Any, **arguments: Any) -> tuple[hogwild.Run, dict[int, Any]]:
    """A run, and the state dict of each of its versions."""
    versions: dict[int, Any] = {0: make().state_dict()}
    trace = Trace(frozenset(range(1, UPDATES + 1)), lambda version, state: versions.update({version: copied(state)}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hogwild.api, "train_config", partial(train_config, trace=trace))
        return train(make, **arguments), versions


def averaged(versions: dict[int, Any]) -> dict[str, torch.Tensor]:
    """e[v + 1] = d e[v] + (1 − d) w[v + 1], of the parameters; buffers are those of the last."""
    average = copied(versions[0])
    buffers = ("running_mean", "running_var", "num_batches_tracked")
    for version in range(1, UPDATES + 1):
        for name, value in versions[version].items():
            average[name] = value if name.endswith(buffers) else torch.lerp(average[name], value, 1 - DECAY)
    return average


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("update", ["ordered", "sync"])
def test_any_dtype(update, dtype):
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        x, y = batch
        return nn.functional.cross_entropy(model(x.to(dtype)).float(), y)

    run, versions = with_versions(lambda: problems.mlp().to(dtype), update=update, loss=loss)
    assert run.ema_digest == hogwild.digest(averaged(versions))


@pytest.mark.parametrize("update", VERSIONED)
def test_it_is_a_function_of_the_versions(update):
    run, versions = with_versions(problems.conv_bn, update=update, workers=3)
    assert run.ema_digest == hogwild.digest(averaged(versions))


def copied(state: Any) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in state.items()}


@pytest.mark.parametrize("update", NAMES)
def test_tied_frozen_and_missing(update):
    """Two groups, two dtypes, a branch that some batches say nothing of, and ranges that are stepped in part."""
    run = train(everything, loss=everything_loss, update=update, workers=1, staleness=0, micro_batches=1)
    assert set(run.ema_state) == set(run.state)
    frozen = [name for name, parameter in everything().named_parameters() if not parameter.requires_grad]
    for name, value in run.ema_state.items():
        assert bool(value.isfinite().all())
        assert not frozen or name not in frozen or torch.equal(value, run.state[name])


@pytest.mark.parametrize("update", NAMES)
def test_an_update_that_is_left_out_leaves_it(update):
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        late = hogwild.worker_info().update >= 10
        return problems.cross_entropy(model, batch) * (float("nan") if late else 1.0)

    settings = {"update": update, "workers": 1, "staleness": 0, "micro_batches": 1, "optimizer": problems.SGD}
    run = train(problems.mlp, loss=loss, on_nonfinite="skip", **settings)
    assert run.ema_digest == train(problems.mlp, updates=10, **settings).ema_digest


@pytest.mark.parametrize("make", [problems.mlp, problems.conv_bn])
@pytest.mark.parametrize("optimizer", [problems.SGD, problems.MOMENTUM, problems.ADAM])
def test_under_compensation_it_is_that_of_the_weights_and_not_of_what_is_predicted(optimizer, make, small_shards):
    settings = {"optimizer": optimizer, "staleness": 2, "compensation": "auto"}
    run, versions = with_versions(make, update="ordered", workers=3, **settings)
    assert run.ema_digest == hogwild.digest(averaged(versions))
    laid = train(make, update=Lays(2, "auto"), workers=3, **settings)
    assert (laid.digest, laid.ema_digest) == (run.digest, run.ema_digest)


# --- whoever computes it


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("update", SAME_BITS)
def test_any_number_of_workers(update, kind):
    digests = set()
    for workers in (1, 2, 4):
        with planted(RandomDelays(seed=workers)):
            digests.add(train(update=update, workers=workers, kind=kind, recheck=0.2).ema_digest)
    assert len(digests) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("update", SAME_BITS)
def test_made_in_shards(update, kind, small_shards):
    settings = {"update": LAYING[update], "workers": 3, "kind": kind, "optimizer": problems.MOMENTUM}
    with planted(RandomDelays(seed=1)):
        sharded = train(problems.mlp, **settings)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "cut_shards", cut_shards)
        whole = train(problems.mlp, **settings)
    assert (sharded.digest, sharded.ema_digest) == (whole.digest, whole.ema_digest)


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("update", IN_PLACE)
def test_rules_in_place_keep_one_too(update, workers):
    run = train(update=update, workers=workers, kind="processes", optimizer=problems.SGD, updates=60)
    far = {name: float((value - run.state[name]).norm()) for name, value in run.ema_state.items() if value.dim() > 1}
    start = problems.conv_bn().state_dict()
    for name, distance in far.items():
        assert 0 < distance < float((run.state[name] - start[name]).norm()), "between the first weights and the last"


@pytest.fixture(scope="module")
def undisturbed():
    return {update: train(update=update, workers=1, kind="processes").ema_digest for update in SAME_BITS}


@pytest.mark.parametrize(("update", "hook"), [(update, hook) for update in SAME_BITS for hook in hooks_of(update)])
def test_a_kill_at(update, hook, undisturbed):
    fault = PlantedFault(Fault.KILL, hook, UPDATES // 2 * (4 if update == "sync" else 1))
    with planted(both(fault, RandomDelays(seed=1))):
        run = train(update=update, workers=3, kind="processes")
    assert fault.fired and run.failures
    assert run.ema_digest == undisturbed[update]


@pytest.mark.parametrize("update", SAME_BITS)
def test_a_kill_in_the_middle_of_a_shard(update, small_shards):
    settings = {"update": LAYING[update], "workers": 3, "kind": "processes", "optimizer": problems.MOMENTUM}
    whole = train(problems.mlp, **settings)
    fault = PlantedFault(Fault.KILL, Hook.STEPPING, 12)
    with planted(fault):
        run = train(problems.mlp, **settings)
    assert fault.fired and run.failures
    assert (run.digest, run.ema_digest) == (whole.digest, whole.ema_digest)


# --- what is kept of it


@pytest.mark.parametrize("update", VERSIONED)
def test_it_is_saved_resumed_and_replayed(update, tmp_path):
    def evaluate(model):
        evaluate.calls += 1
        if evaluate.calls == 5:  # of the third evaluation, the model's own
            raise KeyboardInterrupt
        return {}

    evaluate.calls, settings = 0, {"update": update, "workers": 2, "staleness": 1, "optimizer": problems.SGD}
    whole = train(**settings)
    with pytest.raises(KeyboardInterrupt):
        train(out=tmp_path, evaluate=evaluate, evaluate_every=5, **settings)
    assert load_file(tmp_path / "ema.safetensors").keys() == whole.ema_state.keys()
    with pytest.raises(hogwild.ArgumentError, match=r"ema is 0\.5, and .* was made with 0\.9"):
        train(resume=tmp_path, **(settings | {"ema": 0.5}))
    run = train(out=tmp_path, resume=tmp_path, **settings)
    if update in SAME_BITS:
        assert run.ema_digest == whole.ema_digest
    assert json.loads((tmp_path / "run.json").read_text())["ema_digest"] == run.ema_digest
    saved = hogwild.load_run(tmp_path)
    assert saved.ema_digest == run.ema_digest == hogwild.digest(tmp_path / "ema.safetensors")
    parts = {"model": problems.conv_bn(), "data": problems.data(), "loss": problems.cross_entropy}
    assert hogwild.replay(tmp_path, **parts, optimizer=problems.SGD).equal


def test_a_changed_average_is_found(tmp_path):
    run = train(update="ordered", out=tmp_path)
    path = tmp_path / "ema.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(hogwild.RunDirectoryError, match=r"ema\.safetensors is not the file that was saved"):
        hogwild.load_run(tmp_path)
    state = {name: value.clone() for name, value in run.ema_state.items()}
    state["5.bias"][0] += 1
    replace(run, ema_state=state).write(tmp_path)
    parts = {"model": problems.conv_bn(), "data": problems.data(), "loss": problems.cross_entropy}
    found = hogwild.replay(tmp_path, **parts, optimizer=problems.ADAM)
    assert not found.equal and found.first_difference.parameters == ("the average of 5.bias",)


def test_a_run_without_one_leaves_no_file(tmp_path):
    train(update="ordered", out=tmp_path)
    assert (tmp_path / "ema.safetensors").exists()
    train(update="ordered", out=tmp_path, overwrite=True, ema=None)
    assert not (tmp_path / "ema.safetensors").exists()
    assert hogwild.load_run(tmp_path).ema_state is None


# --- evaluation


@pytest.mark.parametrize("update", NAMES)
def test_both_are_evaluated(update):
    seen: list[dict[str, torch.Tensor]] = []

    def evaluate(model):
        assert not model.training and not torch.is_grad_enabled()
        seen.append(copied(model.state_dict()))
        return {"norm": float(model[1].weight.norm())}

    model = problems.conv_bn()
    settings = {"updates": UPDATES, "ema": DECAY, "update": update, "workers": 1, "staleness": 0, "micro_batches": 1}
    run = problems.train(model, evaluate=evaluate, evaluate_every=8, **settings)
    assert [row["update"] for row in run.evaluations] == [8, 16, 24]
    assert len(seen) == 6
    assert hogwild.digest(seen[-2]) == run.digest == hogwild.digest(model), "the model is put back"
    assert hogwild.digest(seen[-1]) == run.ema_digest
    assert run.metrics["norm"] == pytest.approx(float(run.state["1.weight"].norm()))
    assert run.metrics["ema_norm"] == pytest.approx(float(run.ema_state["1.weight"].norm()))
    again = problems.train(problems.conv_bn(), **(settings | {"updates": 8}))
    assert hogwild.digest(seen[1]) == again.ema_digest, "that of the version, not of one before or after"


# --- what cannot be


def test_sparse_tables_are_refused_by_name():
    model = tables.Bag(50, bag=True)
    data = (torch.zeros(64, 3, dtype=torch.int64), torch.zeros(64, dtype=torch.int64))
    with pytest.raises(hogwild.ArgumentError, match=r"ema 0\.9 averages every row .* table\.weight has sparse grad"):
        hogwild.train(model, data, problems.cross_entropy, optimizer=problems.SGD, updates=2, ema=0.9)


@pytest.mark.parametrize(("ema", "message"), [(1.0, "ema 1.0 is not below 1"), (0.0, "ema 0.0 is not above 0")])
def test_a_decay_is_between_0_and_1(ema, message):
    with pytest.raises(hogwild.ArgumentError, match=message):
        train(ema=ema)


class Renamed(nn.Sequential):
    """Its state dict has other names than its parameters, as a model that loads old files."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(8, 3))
        self.register_state_dict_post_hook(_as_before)


def _as_before(module, state, prefix, metadata):
    for name in [*state]:
        state[f"old.{name}"] = state.pop(name)


def test_what_a_hook_renames_is_averaged_and_sealed():
    run = problems.train(Renamed(), update="ordered", ema=0.9)
    assert run.state.keys() == run.ema_state.keys() == {"old.0.weight", "old.0.bias"}
    assert not torch.equal(run.state["old.0.weight"], run.ema_state["old.0.weight"])
    assert len({seal.digest for seal in run.seals.values()}) == len(run.seals) > 1
