"""A resumed run goes on with another setting on purpose: recorded from which update on, and replayed to the bit."""

from __future__ import annotations

import json
import tomllib
from functools import partial
from pathlib import Path

import numpy as np
import problems
import pytest
import torch
from torch import nn
from traits import NAMES, VERSIONED

import hogwild

AT, UPDATES = 20, 100


def train(folder=None, **arguments):
    return problems.train(
        **{"update": "ordered", "updates": UPDATES, "staleness": 0, "workers": 1, **arguments}, out=folder
    )


def cut(folder, at=AT, **arguments):
    """A run interrupted after so many updates, with a checkpoint."""
    with pytest.raises(KeyboardInterrupt):
        train(folder, evaluate=problems.interrupting(2), evaluate_every=at // 2, **arguments)


def done(folder: Path) -> int:
    return json.loads((folder / "run.json").read_text())["updates"]


def by_hand(at: int, updates: int, *, lr: tuple[float, float], clip: tuple[float | None, float | None] = (None, None)):
    """The same training by a loop in plain torch, with other settings from update `at` on."""
    model, (x, y) = problems.mlp(), problems.data()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr[0])
    for update in range(updates):
        optimizer.param_groups[0]["lr"] = lr[update >= at]
        rows = hogwild.Schedule(len(x), 16).indices(update)
        optimizer.zero_grad()
        problems.cross_entropy(model, (x[rows], y[rows])).backward()
        if clip[update >= at] is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip[update >= at])
        optimizer.step()
    return hogwild.digest(model)


def test_another_learning_rate_from_the_checkpoint_on(tmp_path):
    cut(tmp_path)
    at = done(tmp_path)
    run = train(tmp_path, resume=tmp_path, change={"lr": 0.3})
    assert run.digest == by_hand(at, UPDATES, lr=(0.1, 0.3))
    assert run.config.changes == (hogwild.config.Change(at, "lr", 0.3),)
    saved = tomllib.loads((tmp_path / "config.toml").read_text())
    assert saved["changes"] == [{"update": at, "name": "lr", "value": 0.3}]
    assert json.loads((tmp_path / "run.json").read_text())["changes"] == saved["changes"]
    assert hogwild.load_run(tmp_path).origin.resumed[-1]["change"] == {"lr": 0.3}


def test_clipping_that_begins_and_ends(tmp_path):
    cut(tmp_path)
    first = done(tmp_path)
    cut_again(tmp_path, change={"clip_grad_norm": 0.05})
    second = done(tmp_path)
    run = train(tmp_path, resume=tmp_path, change={"clip_grad_norm": None, "lr": 0.2})
    assert first < second < UPDATES
    assert [str(change) for change in run.config.changes] == [
        f"clip_grad_norm 0.05 from update {first}",
        f"clip_grad_norm none from update {second}",
        f"lr 0.2 from update {second}",
    ]
    problem = {"model": problems.mlp(), "data": problems.data(), "loss": problems.cross_entropy}
    assert hogwild.replay(tmp_path, **problem, optimizer=problems.SGD).equal
    assert run.digest != by_hand(second, UPDATES, lr=(0.1, 0.2)), "clipping did something"


def cut_again(folder, **arguments):
    cut(folder, resume=folder, **arguments)


def test_more_updates_than_were_asked_for(tmp_path):
    cut(tmp_path)
    run = train(tmp_path, resume=tmp_path, change={"updates": 130})
    assert run.digest == train(updates=130).digest
    assert run.config.updates == run.updates == 130
    with pytest.warns(UserWarning, match="has ended after 130 updates"):
        again = train(tmp_path, updates=130, resume=tmp_path)
    assert again.digest == run.digest


def test_what_may_be_changed_says_how(tmp_path):
    cut(tmp_path)
    with pytest.raises(
        hogwild.ArgumentError, match=r"updates is 130, .* with 100; .* and change={'updates': 130} beside it \(--set"
    ):
        train(tmp_path, resume=tmp_path, updates=130)
    with pytest.raises(hogwild.ArgumentError, match="seed is 1, and the run in .* needs the same$"):
        train(tmp_path, resume=tmp_path, seed=1)
    with pytest.raises(hogwild.ArgumentError, match="^updates makes 10 of 100 batches"):
        train(tmp_path, resume=tmp_path, change={"lr": 0.3, "updates": 10})


def test_a_shorter_run_is_told_what_ends_it(tmp_path):
    cut(tmp_path)
    for shorter in ({"updates": 90}, {"change": {"updates": 10}}):
        with pytest.raises(hogwild.ArgumentError, match="a run cannot be made shorter; Ctrl-C or stop= ends it where"):
            train(tmp_path, resume=tmp_path, **shorter)


@pytest.mark.parametrize(
    "other", [{"updates": 90}, {"updates": None, "epochs": 9}, {"limit_updates": 50}, {"staleness": 3}], ids=str
)
def test_what_cannot_become_of_a_run_is_not_advised(other, tmp_path):
    cut(tmp_path)
    with pytest.raises(hogwild.ArgumentError, match=", and the run in .* a resumed run needs the same$"):
        train(tmp_path, resume=tmp_path, **other)


def test_a_run_without_a_checkpoint_cannot_become_another(tmp_path):
    train(tmp_path)
    why = r"left no checkpoint to go on from with another updates \(checkpoint_every keeps one\); begin it again$"
    with pytest.raises(hogwild.ArgumentError, match=f"updates is 130, and the run in .* was made with 100; it {why}"):
        train(tmp_path, resume=tmp_path, updates=130)
    with pytest.raises(hogwild.RunDirectoryError, match="left no checkpoint to go on from with updates"):
        train(tmp_path, resume=tmp_path, change={"updates": 130})


def test_numbers_of_numpy_change_a_setting_as_they_are_one(tmp_path):
    cut(tmp_path)
    run = train(tmp_path, resume=tmp_path, change={"lr": np.float64(0.3), "updates": np.int64(UPDATES + 10)})
    assert [(type(change.value), change.value) for change in run.config.changes] == [(float, 0.3), (int, UPDATES + 10)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["lr"], "^change ['lr'] is a list; change={'lr': 0.03} works$"),
        ("lr", "^change 'lr' is a str; "),
        ({"lr": float("inf")}, "^lr inf is not finite"),
    ],
)
def test_what_is_no_change_is_refused(change, message, tmp_path):
    cut(tmp_path)
    before = (tmp_path / "config.toml").read_text()
    with pytest.raises(hogwild.ArgumentError, match=message.replace("[", r"\[")):
        train(tmp_path, resume=tmp_path, change=change)
    assert (tmp_path / "config.toml").read_text() == before


@pytest.mark.parametrize("update", ["ordered", "sync", "hogwild"])
def test_a_longer_run_that_is_killed_before_its_next_checkpoint_stays_longer(update, tmp_path):
    settings = {"update": update, "workers": 1}
    cut(tmp_path, **settings)
    killed_later = tmp_path / "checkpoint.safetensors"
    before = killed_later.read_bytes()
    cut_again(tmp_path, change={"updates": 130}, **settings)
    killed_later.write_bytes(before)  # as a kill leaves it: the longer run had not yet saved one of its own
    (tmp_path / "run.json").unlink()
    run = train(tmp_path, resume=tmp_path, **{**settings, "updates": 130})
    assert (run.updates, run.stopped) == (130, None)
    assert run.digest == train(**{**settings, "updates": 130}).digest


def test_a_run_that_stop_had_ended_is_no_longer_after_it_was_lengthened(tmp_path):
    stops = {"stop": lambda progress: progress.updates >= 40, "evaluate": problems.accuracy, "evaluate_every": 20}
    stopped = train(tmp_path / "a", checkpoint_every=10, **stops)
    assert (stopped.updates, stopped.stopped) == (40, "stop")
    run = train(tmp_path / "b", resume=tmp_path / "a", change={"updates": 130}, checkpoint_every=10, **stops)
    assert (run.updates, run.stopped) == (40, "stop")


def test_epochs_in_place_of_updates(tmp_path):
    cut(tmp_path)
    run = train(tmp_path, resume=tmp_path, change={"epochs": 10})
    assert (run.config.epochs, run.config.updates, run.updates) == (10, None, 130)
    assert run.digest == train(updates=130).digest


@pytest.mark.parametrize("kind", ["threads", "processes"])
@pytest.mark.parametrize("update", NAMES)
def test_a_changed_and_longer_run_resumed_twice_under_every_rule(update, kind, tmp_path):
    settings = {"update": update, "kind": kind, "workers": 2, "staleness": 1, "optimizer": problems.MOMENTUM}
    cut(tmp_path, **settings)
    cut_again(tmp_path, change={"lr": 0.01, "updates": 120}, **settings)
    run = train(tmp_path, resume=tmp_path, **{**settings, "updates": 120, "workers": 1}, change={"clip_grad_norm": 0.5})
    assert run.updates + len(run.in_doubt) == 120
    if update in VERSIONED:
        problem = {"model": problems.mlp(), "data": problems.data(), "loss": problems.cross_entropy}
        assert hogwild.replay(tmp_path, **problem, optimizer=problems.MOMENTUM).equal


def test_the_change_holds_for_whoever_resumes_later_without_a_word(tmp_path):
    cut(tmp_path)
    at = done(tmp_path)
    cut_again(tmp_path, change={"lr": 0.3})
    assert train(tmp_path, resume=tmp_path).digest == by_hand(at, UPDATES, lr=(0.1, 0.3))


def test_a_schedule_is_a_factor_on_the_rate_that_holds(tmp_path):
    cut(tmp_path, lr_schedule=halved)
    at = done(tmp_path)
    run = train(tmp_path, resume=tmp_path, change={"lr": 0.3}, lr_schedule=halved)
    assert run.digest == by_hand(at, UPDATES, lr=(0.05, 0.15))


def halved(update):
    return 0.5


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"seed": 1}, "seed cannot be changed.*batches.*lr.*can"),
        ({"batch_size": 8}, "batch_size cannot be changed.*batches"),
        ({"update": "sync"}, "update cannot be changed.*one rule"),
        ({"optimizer": "adam"}, "optimizer cannot be changed.*state"),
        ({"workers": 4}, "workers cannot be changed.*given by itself"),
        ({"rate": 4}, "rate cannot be changed.*no setting"),
        ({"lr": -1.0}, "lr -1.0 is not above 0"),
        ({"lr": None}, "lr none"),
        ({"lr": "0.1"}, "lr '0.1' is a str"),
        ({"updates": 10}, "cannot be made shorter"),
        ({"clip_grad_norm": 0.0}, "clip_grad_norm 0.0 is not above 0"),
    ],
)
def test_what_cannot_be_changed_is_refused_with_the_reason(change, why, tmp_path):
    cut(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(hogwild.ArgumentError, match=why) as caught:
        train(tmp_path, resume=tmp_path, change=change)
    assert "\n" not in str(caught.value)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_one_rate_for_groups_of_several_is_refused(tmp_path):
    cut(tmp_path, optimizer=two_rates)
    with pytest.raises(hogwild.ArgumentError, match=r"groups of SGD have the rates 0\.1, 0\.2.*lr_schedule"):
        train(tmp_path, resume=tmp_path, optimizer=two_rates, change={"lr": 0.3})


def two_rates(named):
    own = [parameter for _, parameter in named]
    return torch.optim.SGD([{"params": own[:2], "lr": 0.1}, {"params": own[2:], "lr": 0.2}])


def test_a_new_run_and_one_that_has_ended_are_told_what_to_do(tmp_path):
    with pytest.raises(hogwild.ArgumentError, match="without resume"):
        train(change={"lr": 0.3})
    train(tmp_path / "a", checkpoint_every=10)
    with pytest.raises(hogwild.ArgumentError, match="has ended.*another folder"):
        train(tmp_path / "a", resume=tmp_path / "a", change={"updates": 120})
    longer = train(tmp_path / "b", resume=tmp_path / "a", change={"updates": 120})
    assert longer.digest == train(updates=120).digest


def test_launch_takes_a_change_too(tmp_path):
    def run(**arguments):
        return hogwild.launch(
            work,
            problems.mlp(),
            optimizer=partial(torch.optim.SGD, lr=0.1),
            updates=20,
            kind="threads",
            workers=1,
            out=tmp_path,
            **arguments,
        )

    def stops(model):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(evaluate=stops, evaluate_every=5)
    assert run(resume=tmp_path, change={"lr": 0.2}).config.changes[0].name == "lr"


def work(worker):
    while (ticket := worker.claim()) is not None:
        replica = worker.read(ticket)
        loss = problems.cross_entropy(replica, [part[:16] for part in problems.data()])
        worker.commit(ticket, torch.autograd.grad(loss, list(replica.parameters())))
