"""--group and [[groups]]: options of the optimizer by the names of parameters."""

from __future__ import annotations

import json
import tomllib
from dataclasses import asdict
from typing import Any

import pytest
import sklearn.datasets  # noqa: F401 - it sets environment variables when it is first imported
import torch
from torch import nn

import hogwild
from hogwild.cli import main
from hogwild.config import RunConfig
from hogwild.experiment.optimizers import optimizer_named
from hogwild.groups import Group, groups_in

pytestmark = pytest.mark.filterwarnings("ignore:staleness")
SHORT = ("run", "digits", "--update", "ordered", "--kind", "threads", "--updates", "12", "--optimizer", "momentum")
GROUPS = ("--group", "*.bias", "weight_decay=0", "lr=0.02", "--group", "*", "weight_decay=0.1", "nesterov=true")


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, dict[str, Any], str]:
    status = main([*argv, "--json", "--quiet"])
    captured = capsys.readouterr()
    return status, json.loads(captured.out) if captured.out else {}, captured.err


def test_it_is_the_optimizer_that_one_would_make_by_hand(capsys, tmp_path):
    status, found, _ = run(capsys, *SHORT, *GROUPS, "--out", str(tmp_path))
    assert status == 0
    saved = hogwild.load_run(tmp_path)
    assert saved.config.groups == (
        Group("*.bias", {"weight_decay": 0, "lr": 0.02}),
        Group("*", {"weight_decay": 0.1, "nesterov": True}),
    )
    groups = saved.settings["optimizer"]["groups"]
    assert [group["weight_decay"] for group in groups] == [0, 0.1]
    assert [group["lr"] for group in groups] == [0.02, 0.01]
    assert all(name.endswith("bias") for name in groups[0]["params"]) and groups[0]["params"]

    from hogwild.experiment import load

    def by_hand(named: Any) -> torch.optim.Optimizer:
        biases = [p for name, p in named if name.endswith(".bias")]
        others = [p for name, p in named if not name.endswith(".bias")]
        own = {"params": biases, "lr": 0.02}, {"params": others, "weight_decay": 0.1, "nesterov": True}
        return torch.optim.SGD(own, lr=0.01, momentum=0.9)

    problem = load("digits").build(0, None)
    settings = {"update": "ordered", "updates": 12, "batch_size": saved.config.batch_size, "kind": "threads"}
    again = hogwild.train(problem.model, problem.data, problem.loss, optimizer=by_hand, **settings)
    assert again.digest == found["digest"]


def test_it_is_recorded_replayed_resumed_and_run_again(capsys, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    _, found, _ = run(capsys, *SHORT, *GROUPS, "--out", str(first), "--checkpoint-every", "5")
    told = tomllib.loads((first / "config.toml").read_text())["groups"]
    assert told[0] == {"match": "*.bias", "weight_decay": 0, "lr": 0.02}
    status, replayed, _ = run(capsys, "replay", str(first))
    assert status == 0 and replayed["equal"] is True
    _, again, _ = run(capsys, "run", str(first / "config.toml"), "--out", str(second))
    assert again["digest"] == found["digest"]
    (first / "run.json").unlink()
    _, resumed, _ = run(capsys, "run", "--resume", str(first))
    assert resumed["digest"] == found["digest"]
    (first / "run.json").unlink()
    status, _, complaint = run(capsys, "run", "--resume", str(first), "--group", "*.bias", "lr=0.5")
    assert status == 2 and "groups is" in complaint
    _, plain, _ = run(capsys, *SHORT, "--out", str(tmp_path / "plain"))
    assert plain["digest"] != found["digest"]
    assert main(["runs", str(second), str(tmp_path / "plain"), "--json"]) == 0
    assert "*.bias weight_decay=0 lr=0.02; * weight_decay=0.1 nesterov=True" in capsys.readouterr().out


REFUSED = [
    (("*.bias",), "'*.bias' is given no option of an optimizer; weight_decay=0 is an example"),
    (("*.bias", "decay=1"), "'decay' is no option of SGD; lr, momentum, dampening, weight_decay, nesterov"),
    (("*.bia", "lr=1"), "'*.bia lr=1' matches no parameter; left for it are "),
    (
        ("*", "lr=1", "--group", "*.bias", "lr=2"),
        "'*.bias lr=2' matches no parameter: 1.bias, 3.bias are taken by '*' before it",
    ),
    (("*.bias", "lr=fast"), "'fast' is no value; 0.01, true, [0.9, 0.99] are"),
    (("*.bias", "lr"), "'lr' is not one OPTION=VALUE"),
    (("*.bias", "lr=1", "lr=2"), "'lr=2' is not one OPTION=VALUE"),
]


@pytest.mark.parametrize(("group", "message"), REFUSED, ids=[" ".join(group) for group, _ in REFUSED])
def test_what_cannot_be_is_told_in_one_line(capsys, tmp_path, group, message):
    status, _, complaint = run(capsys, *SHORT, "--group", *group, "--out", str(tmp_path / "out"))
    assert status == 2
    assert message in complaint and complaint.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_check_has_it_too(capsys, tmp_path):
    argv = ["check", "digits", *SHORT[2:], "--group", "*.bias", "lr=0.3", "--runs", "2", "--out", str(tmp_path)]
    status, found, _ = run(capsys, *argv)
    assert status == 0, found


@pytest.mark.parametrize(
    "groups", [[{"lr": 1}], [7], 7, [{"match": 3, "lr": 1}], [{"match": "*"}], [{"match": "*", "params": []}]]
)
def test_a_malformed_file_is_refused(groups):
    with pytest.raises(hogwild.ArgumentError, match="groups: "):
        RunConfig.from_mapping({"updates": 1, "groups": groups})


def test_the_first_pattern_that_matches_holds_and_lists_are_tuples():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    groups = [Group("0.*", {"betas": [0.5, 0.6]}), Group("*.bias", {"lr": 0.5})]
    optimizer = optimizer_named("adam", 0.1, groups)(list(model.named_parameters()))
    sizes = [(len(group["params"]), group["lr"], group["betas"]) for group in optimizer.param_groups]
    assert sizes == [(1, 0.1, (0.9, 0.999)), (2, 0.1, (0.5, 0.6)), (1, 0.5, (0.9, 0.999))]


def test_groups_are_themselves_after_json_and_after_toml():
    """A sweep's plan is JSON, made of the fields of a configuration; a config.toml has pattern and options together."""
    groups = (Group("*.bias", {"weight_decay": 0}), Group("*", {"lr": 0.1}))
    assert groups_in(json.loads(json.dumps([asdict(group) for group in groups]))) == groups
    assert groups_in([group.to_mapping() for group in groups]) == groups


@pytest.mark.parametrize(
    ("optimizer", "options", "told"),
    [
        ("sgd", {"lr": -1}, "Invalid learning rate: -1"),
        ("sgd", {"lr": float("nan")}, "lr is not a number"),
        ("adamw", {"weight_decay": -1}, "Invalid weight_decay value: -1"),
        ("sgd", {"nesterov": True}, "Nesterov momentum requires a momentum"),
        ("adam", {"betas": [0.9, 1.5]}, "Invalid beta parameter at index 1"),
    ],
)
def test_what_the_optimizer_refuses_is_refused_of_a_group_too(optimizer, options, told):
    model = nn.Linear(2, 2)
    make = optimizer_named(optimizer, 0.1, [Group("bias", options)])
    with pytest.raises(hogwild.ArgumentError, match=rf"group 'bias .*{told}"):
        make(list(model.named_parameters()))


def test_a_sweep_has_them_in_all_its_runs_and_goes_on_with_them(capsys, tmp_path):
    out = str(tmp_path / "sweep")
    wanted = ("sweep", *SHORT[1:], "--seed", "0", "1", *GROUPS)
    status, found, _ = run(capsys, *wanted, "--out", out)
    assert status == 0 and found["done"] == 2
    assert found["fixed"]["groups"][0] == {"match": "*.bias", "weight_decay": 0, "lr": 0.02}
    for row in found["rows"]:
        assert [str(group) for group in hogwild.load_run(row["folder"]).config.groups] == [
            "*.bias weight_decay=0 lr=0.02",
            "* weight_decay=0.1 nesterov=True",
        ]
    for again in ((*wanted, "--out", out), ("sweep", "--resume", out)):
        status, once_more, _ = run(capsys, *again)
        assert status == 0 and once_more["rows"] == found["rows"]
    assert main([*wanted[:-1], "nesterov=false", "--out", out]) == 2
    assert "groups is " in capsys.readouterr().err
    assert main(["sweep", "--resume", out, "--group", "*", "lr=1"]) == 2
    assert "--group given beside --resume" in capsys.readouterr().err
    assert main(["sweep", "--resume", out, "--quiet"]) == 0
    assert "groups *.bias weight_decay=0 lr=0.02,* " in " ".join(capsys.readouterr().out.split())
