"""The same command on every machine: what is typed beside it on one alone, such as a folder, is that machine's."""

from __future__ import annotations

import json
from importlib.util import find_spec

from warm_pythons import warm_python, warm_pythons

from hogwild.nodes.loopback import LOOPBACK, free_port

TRAIN = '''
from pathlib import Path
import hogwild, torch
from torch import nn


def build(data: Path, weight: float = 1.0):
    """A line.

    Args:
        data: where its slope stands.
        weight: of the loss.
    """
    x = torch.randn(200, 4)
    model = nn.Linear(4, 1)
    loss = lambda model, batch: weight * (model(batch[0]) - batch[1]).square().mean()
    return hogwild.Problem(model, (x, x.sum(1, keepdim=True) * float((data / "slope").read_text())), loss)


hogwild.define_experiment(build, updates=40, lr=0.05, batch_size=10)
'''
COMMAND = ["-m", "hogwild", "run", "train.py", "--update", "ordered", "--staleness", "3", "--json"]
SHOWN = ["--tensorboard"] if find_spec("tensorboard") is not None else []
SAVED = ["--checkpoint-every", "10", "--quiet", *SHOWN]


def put(folder, slope, train=TRAIN):
    """Give a machine a folder of its own, with data of its own."""
    (folder / "data").mkdir(parents=True)
    (folder / "train.py").write_text(train, encoding="utf-8")
    (folder / "data" / "slope").write_text(slope, encoding="utf-8")
    return folder


def command_of(folder, *more):
    return [*COMMAND, *SAVED, "--data", str(folder / "data"), *more]


def together(folders, more=((), ())):
    """(exit status, what was printed, what was told) of each machine; `more` is typed beside on each."""
    join = ["--workers", "1", "--nodes", str(len(folders)), "--join", f"{LOOPBACK}:{free_port()}"]
    commands = [command_of(folder, *join, *typed) for folder, typed in zip(folders, more, strict=True)]
    done = warm_pythons(commands, folders, [None] * len(folders), timeout=100)
    return [(one.returncode, one.stdout, one.stderr) for one in done]


def test_one_machine_prints_and_saves_and_the_other_needs_no_folder(tmp_path):
    found = together([put(tmp_path / str(node), "2.0") for node in range(2)])
    assert [status for status, _, _ in found] == [0, 0], found
    printed = [out for _, out, _ in found if out]
    (run,) = [json.loads(out) for out in printed]
    assert run["nodes"] == 2 and run["updates"] == 40
    assert len([folder for folder in tmp_path.iterdir() if (folder / "runs").exists()]) == 1
    alone = put(tmp_path / "alone", "2.0")
    done = warm_python(command_of(alone, "--workers", "2"), alone)
    assert json.loads(done.stdout)["digest"] == run["digest"]


def test_a_run_of_machines_that_averaged_is_made_again_on_one_with_a_warning(tmp_path):
    found = together(
        [put(tmp_path / str(node), "2.0") for node in range(2)],
        [("--average-every", "10", "--out", str(tmp_path / "run"))] * 2,
    )
    assert [status for status, _, _ in found] == [0, 0], found
    again = ["-m", "hogwild", "run", "--quiet", "--json", "--out", str(tmp_path / "again")]
    for named in ("run", "run/config.toml"):
        done = warm_python([*again, "--overwrite", named], tmp_path)
        assert done.returncode == 0, done.stderr
        told = "averaged over 2 machines, and one trains here, to another model (--nodes 2 averages over as many)"
        assert f"hogwild: warning: the run in run {told}\n" in done.stderr
    both = [json.loads((tmp_path / name / "run.json").read_text(encoding="utf-8")) for name in ("run", "again")]
    assert both[0]["digest"] != both[1]["digest"]
    done = warm_python([*again, "--overwrite", "again"], tmp_path)
    assert (done.returncode, done.stderr) == (0, ""), "that of one machine is one of one machine"


def test_other_data_are_refused_wherever_they_lie(tmp_path):
    found = together([put(tmp_path / slope, slope) for slope in ("2.0", "3.0")])
    assert all(status == 2 and not out for status, out, _ in found), found
    assert all("batch 0 is" in told and "data is" not in told for _, _, told in found), found


def test_a_parameter_of_ones_own_must_be_the_same_on_all_machines(tmp_path):
    found = together([put(tmp_path / str(node), "2.0") for node in range(2)], [(), ("--weight", "1.5")])
    assert [status for status, _, _ in found] == [2, 2], found
    either = ("1.5 on machine 1 and 1.0 on machine 0", "1.0 on machine 1 and 1.5 on machine 0")  # who comes first is 0
    assert all(any(f"parameter weight is {one}" in told for one in either) for _, _, told in found), found


def test_the_file_must_be_the_same_on_all_machines(tmp_path):
    other = TRAIN.replace("weight *", "1.5 * weight *")
    found = together([put(tmp_path / str(node), "2.0", train) for node, train in enumerate((TRAIN, other))])
    assert [status for status, _, _ in found] == [2, 2], found
    assert all("the content of train.py is " in told for _, _, told in found), found
