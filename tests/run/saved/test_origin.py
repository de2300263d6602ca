"""origin.json: what a run trained and where, compared when it is resumed, and told when a replay differs."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from functools import partial

import numpy as np
import problems
import pytest
import torch
from torch import nn

import hogwild
from hogwild.cli.wanted import refuse_what_python_made
from hogwild.run.saved.environment import environment_differences

SETTINGS = {"update": "ordered", "updates": 40}


def halved(update: int) -> float:
    return 0.5 if update >= 20 else 1.0


def grouped(named):
    weights = [(name, p) for name, p in named if p.ndim > 1]
    biases = [(name, p) for name, p in named if p.ndim < 2]
    return torch.optim.AdamW([{"params": weights, "weight_decay": 0.01}, {"params": biases, "lr": 0.002}], lr=0.001)


def train(folder=None, **arguments):
    return problems.train(**{**SETTINGS, "out": folder, **arguments})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run with checkpoints, whose record is that of one that was interrupted."""
    out = tmp_path_factory.mktemp("run")
    train(out, checkpoint_every=20, optimizer=grouped, lr_schedule=halved, config={"note": "first", "depth": 2})
    record = json.loads((out / "run.json").read_text())
    (out / "run.json").write_text(json.dumps({**record, "stopped": "interrupted"}))
    return out


# --- recorded


def test_what_was_trained_is_recorded(folder):
    settings = hogwild.load_run(folder).settings
    assert settings["optimizer"]["class"] == "torch.optim.adamw.AdamW"
    first, second = settings["optimizer"]["groups"]
    assert (first["lr"], first["weight_decay"], first["params"]) == (0.001, 0.01, ["0.weight", "2.weight"])
    assert (second["lr"], second["params"]) == (0.002, ["0.bias", "2.bias"])
    factors = settings["lr_schedule"]["factors"]
    assert factors["0"] == 1.0 and factors["39"] == factors["20"] == 0.5
    assert settings["lr_schedule"]["name"] == f"{__name__}.halved"
    model = settings["model"]
    assert model["parameters"]["0.weight"] == "float32 [16, 8]"
    assert model["modules"][""] == "torch.nn.modules.container.Sequential"
    assert model["modules"]["1"] == "torch.nn.modules.activation.ReLU"
    assert settings["loss"] == "problems.cross_entropy"
    assert settings["data"]["samples"] == 200 and len(settings["data"]["first_batch"]) == 64
    assert settings["config"] == {"note": "first", "depth": 2}


def test_where_it_was_made_is_recorded(folder):
    found = hogwild.load_run(folder).environment
    assert (found["torch"], found["numpy"]) == (torch.__version__, np.__version__)
    assert found["cpu"] and found["python"].startswith("3.")
    assert found["instruction_sets"]["torch"] == torch.backends.cpu.get_cpu_capability()
    assert found["flags"]["float32_matmul_precision"] == "highest" and found["flags"]["mkldnn.enabled"] is True
    assert isinstance(found["command"], list) and found["command"]
    assert found["git"] is None or len(found["git"].rstrip("+")) == 40
    json.dumps(found)


def test_a_launch_is_recorded_too(tmp_path):
    hogwild.launch(work, problems.mlp(), optimizer=problems.SGD, updates=3, out=tmp_path, kind="threads")
    settings = hogwild.load_run(tmp_path).settings
    assert settings["work"] == f"{__name__}.work" and settings["data"] is None and settings["loss"] is None
    assert json.loads((tmp_path / "origin.json").read_text())["maker"] == "launch"


def work(worker):
    while (update := worker.claim()) is not None:
        replica = worker.read(update)
        loss = replica(torch.ones(2, 8)).square().mean()
        worker.commit(update, torch.autograd.grad(loss, list(replica.parameters())))


def launched(out):
    return hogwild.launch(
        work, problems.mlp(), optimizer=problems.SGD, updates=3, out=out, kind="threads", update="ordered"
    )


def kernel_trained(out):
    import kernels_made

    return hogwild.train_kernel(kernels_made.Tables(), kernels_made.kernel(), updates=3, out=out, update="ordered")


@pytest.mark.parametrize(
    ("make", "call", "replayed"),
    [
        (
            launched,
            r"call hogwild\.launch\(work, model, optimizer=\.\.\.{}\)",
            "launch it again, .* by hogwild compare",
        ),
        (kernel_trained, r"call hogwild\.train_kernel\(model, kernel{}\)", r"hogwild\.replay\(.*, data=<the kernel>\)"),
    ],
)
def test_who_asks_a_command_for_a_run_of_a_program_is_told_what_to_call(make, call, replayed, tmp_path):
    if make is kernel_trained:
        pytest.importorskip("numba")
    make(tmp_path)
    with pytest.raises(hogwild.ArgumentError, match=call.format("")):
        refuse_what_python_made(str(tmp_path))
    with pytest.raises(hogwild.ArgumentError, match=call.format(", resume=.*, out=.*")):
        refuse_what_python_made(str(tmp_path), tmp_path)
    with pytest.raises(hogwild.ArgumentError, match=replayed):
        hogwild.replay(tmp_path)


@pytest.mark.parametrize("config", [{"a": object()}, [1], {"a": {1, 2}}])
def test_a_config_that_cannot_be_recorded_is_one_line(config, tmp_path):
    with pytest.raises(hogwild.ArgumentError, match="config") as caught:
        train(tmp_path / "run", config=config)
    assert "\n" not in str(caught.value)


def test_load_run_gives_it_all_back(tmp_path):
    run = train(tmp_path, evaluate=problems.accuracy, evaluate_every=20, audit=True, config={"a": 1})
    found = hogwild.load_run(tmp_path)
    assert found.config == run.config and found.digest == run.digest and found.metrics == run.metrics
    assert found.journal.tobytes() == run.journal.tobytes() and found.seals == run.seals
    assert found.staleness == run.staleness and found.workers == run.workers and found.audit == run.audit
    assert (found.samples, found.seconds, found.updates) == (run.samples, run.seconds, run.updates)
    assert found.settings == run.settings and found.environment == run.environment
    assert found.summary() == run.summary() and str(found) == str(run)
    model = problems.mlp()
    model.load_state_dict(found.model_state)
    assert hogwild.digest(model) == run.digest


def test_what_is_no_run_is_one_line(tmp_path, folder):
    with pytest.raises(hogwild.RunDirectoryError, match=r"holds no run\.json"):
        hogwild.load_run(tmp_path)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"run": 1}', "[" * 100_000])
def test_a_malformed_origin_is_one_line(content, tmp_path):
    train(tmp_path)
    (tmp_path / "origin.json").write_text(content)
    with pytest.raises(hogwild.RunDirectoryError, match=r"origin\.json") as caught:
        hogwild.load_run(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("part", ["optimizer", "model", "lr_schedule", "data"])
@pytest.mark.parametrize("value", [None, 3, [1], {"groups": 4, "parameters": 5, "factors": 6, "samples": {}}])
def test_a_hostile_origin_is_one_line_when_resuming(part, value, tmp_path, folder):
    shutil.copytree(folder, tmp_path / "run")
    path = tmp_path / "run" / "origin.json"
    origin = json.loads(path.read_text())
    origin["training"][part] = value
    path.write_text(json.dumps(origin))
    with suppress(hogwild.RunDirectoryError, hogwild.ArgumentError):  # and nothing else
        train(**SAME, resume=tmp_path / "run")


# --- compared when a run is resumed

SAME = {"optimizer": grouped, "lr_schedule": halved}


def wide():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 17), nn.ReLU(), nn.Linear(17, 3))


def bent():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))


def moved_data():
    x, y = problems.data()
    return x + 1, y


DIFFERENT = {
    "another optimizer": ({"optimizer": problems.ADAM}, r"optimizer is 'torch\.optim\.adam\.Adam'.*AdamW"),
    "another lr": ({"optimizer": lambda named: set_in(grouped(named), 1, lr=0.5)}, r"lr of .* group 1 is 0\.5.*0\.002"),
    "another decay": (
        {"optimizer": lambda named: set_in(grouped(named), 0, weight_decay=0.1)},
        r"weight_decay of .* group 0 is 0\.1.*0\.01",
    ),
    "one group": ({"optimizer": partial(torch.optim.AdamW, lr=0.001)}, r"number of the optimizer's groups is 1.* 2"),
    "another schedule": ({"lr_schedule": lambda update: 0.9}, r"lr_schedule at update 0 is 0\.9.* 1\.0"),
    "no schedule": ({"lr_schedule": None}, r"lr_schedule at update 20 is 1\.0.* 0\.5"),
    "another width": ({"model": wide()}, r"another model: its parameter '0\.weight' was float32 \[16, 8\] and is"),
    "another function": ({"model": bent()}, r"another model: its module '1' was .*ReLU and is .*Tanh"),
    "other data": ({"data": moved_data()}, "data, its first batch, is"),
    "more data": ({"data": problems.data(300)}, "data, its samples, is 300"),
    "another clip": ({"clip_grad_norm": 1.0}, "clip_grad_norm is 1.0"),
}


def set_in(optimizer, group, **options):
    optimizer.param_groups[group].update(options)
    return optimizer


@pytest.mark.parametrize("out", ["nowhere", "there"])
@pytest.mark.parametrize("name", DIFFERENT)
def test_what_decides_bits_is_refused_when_it_differs(name, out, folder):
    change, message = DIFFERENT[name]
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises((hogwild.ArgumentError, hogwild.RunDirectoryError), match=message) as caught:
        train(folder if out == "there" else None, **{**SAME, **change}, resume=folder)
    assert "\n" not in str(caught.value)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_what_decides_no_bits_may_differ(folder):
    run = train(**SAME, resume=folder, workers=1, kind="processes", name="other", config={"note": "second"})
    assert run.updates == 40


def test_each_resumption_is_recorded(tmp_path):
    def evaluate(model):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, evaluate=evaluate, evaluate_every=20)
    train(tmp_path, resume=tmp_path, workers=1)
    (part,) = hogwild.load_run(tmp_path).origin.resumed
    assert 20 <= part["version"] <= 40 and part["workers"] == 1 and part["environment"]["torch"] == torch.__version__


@pytest.mark.parametrize("out", ["nowhere", "there"])
def test_other_settings_of_torch_are_refused(out, folder, monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(hogwild.ArgumentError, match=r"torch's mkldnn\.enabled is False, and .* with True") as caught:
        train(folder if out == "there" else None, **SAME, resume=folder)
    assert "\n" not in str(caught.value)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_where_something_else_computes_is_told(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("MKL_CBWR", "AVX2")
    with pytest.warns(UserWarning, match=r"variables\.MKL_CBWR was unset and is AVX2\); it may end with other bits"):
        train(tmp_path / "other", **SAME, resume=folder)


# --- told when a replay differs


def test_a_replay_that_differs_names_another_environment_first(tmp_path, capsys):
    train(tmp_path)
    path = tmp_path / "origin.json"
    origin = json.loads(path.read_text())
    origin["environment"]["torch"] = "1.0.0"
    origin["environment"]["instruction_sets"]["torch"] = "AVX9"
    path.write_text(json.dumps(origin))
    problem = {"data": moved_data(), "loss": problems.cross_entropy, "optimizer": problems.SGD}
    found = hogwild.replay(tmp_path, model=problems.mlp(), **problem)
    assert not found.equal
    assert found.environment[0] == f"torch was 1.0.0 and is {torch.__version__}"
    assert any("instruction_sets.torch was AVX9" in text for text in found.environment)
    same = hogwild.replay(tmp_path, model=problems.mlp(), **{**problem, "data": problems.data()})
    assert same.equal


def test_variables_that_only_one_environment_has_are_told():
    one, other = {"torch": "2", "variables": {"MKL_CBWR": "AVX2"}}, {"torch": "2", "variables": {}}
    assert environment_differences(one, other) == ("variables.MKL_CBWR was AVX2 and is unset",)
    assert environment_differences(one, one) == ()
    assert environment_differences({}, other) == ()
