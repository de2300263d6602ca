"""What is done about stale gradients is recorded: runs go on with it, and are replayed by it."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import problems
import pytest
import torch
from optimizers import OPTIMIZERS
from stale import BOTH, UPDATES, by_reference, train
from torch import nn

import hogwild
from hogwild.errors import ArgumentError

pytestmark = pytest.mark.filterwarnings("ignore:staleness")


@BOTH
def test_a_run_that_is_resumed_has_the_bits_of_one_that_was_not(optimizer, tmp_path):
    arguments = {"optimizer": OPTIMIZERS[optimizer], "evaluate_every": 7}
    interrupts = problems.interrupting(2)
    with pytest.raises(KeyboardInterrupt):
        train(workers=2, out=tmp_path, evaluate=interrupts, stop=lambda progress: False, **arguments)
    assert 0 < json.loads((tmp_path / "run.json").read_text())["updates"] < UPDATES
    with pytest.raises(hogwild.ArgumentError, match="compensation"):
        train(out=tmp_path, resume=tmp_path, **arguments | {"compensation": "none"})
    run = train(workers=4, out=tmp_path, resume=tmp_path, **arguments)
    assert run.digest == by_reference(optimizer=arguments["optimizer"])
    assert hogwild.load_run(tmp_path).compensation == run.compensation != ()


def test_a_run_that_is_resumed_steps_by_the_curvature_where_it_began(tmp_path):
    arguments = {"optimizer": partial(torch.optim.SGD, lr=2.0), "model": problems.mlp}
    interrupts = problems.interrupting(2)
    with pytest.raises(KeyboardInterrupt):
        train(out=tmp_path, evaluate=interrupts, evaluate_every=7, stop=lambda progress: False, **arguments)

    def trained() -> nn.Module:
        model = problems.mlp()
        with torch.no_grad():
            model[0].weight.mul_(3)
        return model

    run = train(workers=4, out=tmp_path, resume=tmp_path, **arguments | {"model": trained})
    assert run.digest == by_reference(**arguments)
    assert hogwild.load_run(tmp_path).curvature == run.curvature is not None


def test_another_learning_rate_is_scaled_as_the_first_was(tmp_path):
    arguments = {"optimizer": problems.MOMENTUM, "model": problems.mlp}
    interrupts = problems.interrupting(1)
    with pytest.raises(KeyboardInterrupt):
        train(out=tmp_path, evaluate=interrupts, evaluate_every=9, stop=lambda progress: False, **arguments)
    at = json.loads((tmp_path / "run.json").read_text())["updates"]
    rate = problems.MOMENTUM.keywords["lr"]
    run = train(out=tmp_path, resume=tmp_path, change={"lr": rate / 2}, evaluate_every=9, **arguments)
    assert run.digest == by_reference(**arguments, lr_schedule=lambda update: 0.5 if update >= at else 1.0)


def with_other_formulas(folder: Path) -> None:
    """As if the run in that folder had been begun by a version that does something else about staleness."""
    origin = json.loads((folder / "origin.json").read_text())
    assert origin["compensation"] == json.loads((folder / "run.json").read_text())["compensation"] != []
    (folder / "origin.json").write_text(json.dumps(origin | {"compensation": ["momentum 0.9 → 0.99"]}))


def test_a_run_of_other_formulas_is_not_gone_on_with(tmp_path):
    arguments = {"optimizer": problems.MOMENTUM, "model": problems.mlp, "evaluate_every": 9}
    with pytest.raises(KeyboardInterrupt):
        train(out=tmp_path, evaluate=problems.interrupting(1), **arguments)
    with_other_formulas(tmp_path)
    with pytest.raises(ArgumentError, match=r"otherwise \(momentum 0.9 → 0.99; now: momentum 0.9 → 0.97"):
        train(out=tmp_path, resume=tmp_path, **arguments)


def test_what_a_record_tells_of_that_is_the_same_before_and_after_keeps_nobody_from_going_on(tmp_path):
    arguments = {"optimizer": problems.MOMENTUM, "model": problems.mlp, "evaluate_every": 9}
    with pytest.raises(KeyboardInterrupt):
        train(out=tmp_path, evaluate=problems.interrupting(1), **arguments)
    for name in ("origin.json", "run.json"):
        record = json.loads((tmp_path / name).read_text())
        record["compensation"].append("weight_decay 0.1 → 0.1")
        (tmp_path / name).write_text(json.dumps(record))
    run = train(out=tmp_path, resume=tmp_path, **arguments)
    assert run.updates == UPDATES and hogwild.load_run(tmp_path).compensation == run.compensation


def test_a_run_says_in_its_line_what_was_changed(tmp_path):
    run = train(optimizer=problems.MOMENTUM, model=problems.mlp)
    told = f"{run.digest[:16]}… · changed for stale gradients: momentum 0.9 → 0.97"
    assert told in str(run) and "\n" not in str(run)
    assert "changed" not in str(problems.train(updates=3, update="ordered", staleness=0, workers=1))


def test_where_workers_race_as_many_go_on(tmp_path):
    arguments = {"optimizer": problems.MOMENTUM, "model": problems.mlp, "update": "hogwild", "compensation": "workers"}
    arguments |= {"evaluate_every": 9, "out": tmp_path, "kind": "threads"}
    with pytest.raises(KeyboardInterrupt):
        train(workers=3, evaluate=problems.interrupting(1), **arguments)
    with pytest.raises(ArgumentError, match="compensation 'workers' as many workers"):
        train(workers=2, resume=tmp_path, **arguments)
    assert train(workers=3, resume=tmp_path, **arguments).updates == UPDATES


def test_a_replay_says_that_the_formulas_are_others(tmp_path):
    train(optimizer=problems.MOMENTUM, model=problems.mlp, out=tmp_path)
    with_other_formulas(tmp_path)
    given = {"data": problems.data(), "loss": problems.cross_entropy, "optimizer": problems.MOMENTUM}
    found = hogwild.replay(tmp_path, model=problems.mlp(), **given)
    assert found.equal, "the record of the formulas alone was changed"
    assert found.environment == (
        f"what makes up for stale gradients: momentum 0.9 → 0.99, and here {'; '.join(_changes(tmp_path))}",
    )


def _changes(folder: Path) -> tuple[str, ...]:
    return hogwild.load_run(folder).compensation


@BOTH
def test_a_run_is_replayed_to_the_bit(optimizer, tmp_path):
    arguments = {"optimizer": OPTIMIZERS[optimizer]}
    run = train(workers=3, out=tmp_path, **arguments)
    again = hogwild.replay(
        tmp_path, model=problems.conv_bn(), data=problems.data(), loss=problems.cross_entropy, **arguments
    )
    assert again.equal and again.digest == run.digest and again.compared == UPDATES + 1
