"""What a record says is so: strict JSON, losses of the epoch that they are said to be of, and sealed files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import problems
import pytest
import torch
from traits import NAMES

import hogwild
from hogwild.rules import Ordered
from hogwild.run.divergence import divergence, usable, usual_loss
from hogwild.run.saved.metrics import read_metrics

INF, NAN = float("inf"), float("nan")


def strict(path: Path) -> Any:
    def refused(word: str) -> None:
        raise AssertionError(f"{path.name} has {word}, which is no JSON")

    return json.loads(path.read_text(), parse_constant=refused)


def with_an_infinite_option(named):
    optimizer = torch.optim.SGD([parameter for _, parameter in named], lr=0.1)
    optimizer.param_groups[0]["ceiling"] = torch.tensor(INF)
    optimizer.param_groups[0]["floors"] = [-INF, NAN]
    return optimizer


def test_infinite_settings_are_recorded_as_words_and_known_again(tmp_path):
    settings = {
        "update": "ordered",
        "optimizer": with_an_infinite_option,
        "config": {"a": INF, "b": [NAN, {"c": -INF}]},
    }
    with pytest.raises(KeyboardInterrupt):
        problems.train(out=tmp_path, evaluate=problems.interrupting(2), evaluate_every=10, **settings)
    assert strict(tmp_path / "origin.json")["training"]["config"] == {"a": "inf", "b": ["nan", {"c": "-inf"}]}
    (group,) = strict(tmp_path / "origin.json")["training"]["optimizer"]["groups"]
    assert (group["ceiling"], group["floors"]) == ("inf", ["-inf", "nan"])
    run = problems.train(out=tmp_path, resume=tmp_path, evaluate_every=10, **settings)
    assert strict(tmp_path / "run.json")["digest"] == run.digest
    assert strict(tmp_path / "origin.json")["resumed"] and hogwild.load_run(tmp_path).settings == run.settings


def test_a_summary_is_json_whatever_was_measured(tmp_path):
    def evaluate(model):
        return {"accuracy": NAN, "other": INF}

    run = problems.train(out=tmp_path, evaluate=evaluate, evaluate_every=10)
    record = strict(tmp_path / "run.json")
    assert record["metrics"] == {"accuracy": None, "other": None} and record["accuracy"] is None
    json.dumps(run.summary(), allow_nan=False)


# --- a batch that was left out


@pytest.mark.parametrize("update", NAMES)
def test_a_skipped_batch_makes_no_run_diverge_and_takes_no_loss_away(update):
    told = []
    run = problems.train(
        update=update,
        loss=bad_once,
        updates=400,
        workers=1,
        on_nonfinite="skip",
        progress=lambda progress: told.append(progress.loss),
    )
    assert sum(usage.skipped for usage in run.workers) == 1
    assert run.diverged is None and 0 < run.loss < 1
    assert np.isfinite(told[-1])


def bad_once(model, batch):
    loss = problems.cross_entropy(model, batch)
    return loss * NAN if hogwild.worker_info().batch == 395 else loss


def test_a_loss_that_is_not_finite_any_more_is_still_seen():
    healthy = np.linspace(2.0, 1.0, 500)
    for lost in (slice(495, 500), slice(470, 500)):
        losses = healthy.copy()
        losses[lost] = NAN
        assert "nan over the 50 before update 500" in str(divergence(losses))
    now_and_then = healthy.copy()
    now_and_then[::4] = INF
    assert divergence(now_and_then) is None
    assert usual_loss(now_and_then) == pytest.approx(np.delete(healthy, np.s_[::4]).mean())
    assert len(usable(np.array([1.0, NAN, NAN]))) == 3 and np.isnan(usual_loss(np.zeros(0)))


# --- the loss of the last epoch


def test_the_loss_of_a_run_that_was_stopped_is_that_of_its_last_epoch(tmp_path):
    run = problems.train(
        update="ordered",
        epochs=10,
        evaluate=problems.accuracy,
        evaluate_every=13,
        out=tmp_path,
        stop=lambda progress: progress.updates >= 26,
    )  # 13 updates of 16 samples are an epoch
    assert (run.updates, run.stopped, run.updates_per_epoch) == (26, "stop", 13)
    assert run.loss == pytest.approx(run.losses[13:].mean())
    assert hogwild.load_run(tmp_path).loss == run.loss == strict(tmp_path / "run.json")["loss"]


# --- metrics


MEASURED = {"psnr": INF, "log_likelihood": -INF, "lost": NAN}


def log_measured(model, batch):
    hogwild.worker_info().log(**MEASURED)
    return problems.cross_entropy(model, batch)


def as_text(rows):
    """So that nan equals nan."""
    return [{name: str(value) for name, value in row.items()} for row in rows]


def test_infinite_numbers_are_themselves_when_they_are_read_and_when_a_run_goes_on(tmp_path):
    settings = {"update": "ordered", "out": tmp_path, "loss": log_measured, "evaluate_every": 10}
    measure = problems.interrupting(2, lambda model: MEASURED)
    with pytest.raises(KeyboardInterrupt):
        problems.train(**settings, evaluate=measure)
    run = problems.train(**settings, evaluate=lambda model: MEASURED, resume=tmp_path)
    again = hogwild.load_run(tmp_path)
    assert as_text([run.metrics, again.metrics]) == as_text([MEASURED, MEASURED])
    for one in (run, again):
        for row in (*one.evaluations, *one.logged):
            assert as_text([row])[0].items() >= as_text([MEASURED])[0].items()
    assert as_text(again.evaluations) == as_text(run.evaluations) and as_text(again.logged) == as_text(run.logged)
    for line in (tmp_path / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line, parse_constant=pytest.fail)
        assert (row["psnr"], row["log_likelihood"], row["lost"]) == ("inf", "-inf", None)


def test_a_file_of_metrics_of_before_has_null_for_an_infinite_number(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"update": 5, "seconds": 0.5, "psnr": null, "accuracy": 0.5}\n')
    ((row,), logged) = read_metrics(path)
    assert str(row["psnr"]) == "nan" and (row["update"], row["accuracy"]) == (5, 0.5) and not logged


@pytest.mark.parametrize("value", ['"nan"', '"1.0"', '"Infinity"', "true", "[]"])
def test_other_words_than_those_of_infinite_numbers_are_no_metrics(value, tmp_path):
    path = tmp_path / "metrics.jsonl"
    for name in ("update", "accuracy"):
        path.write_text(json.dumps({"update": 5, "seconds": 0.5, "accuracy": 0.5} | {name: json.loads(value)}) + "\n")
        with pytest.raises(hogwild.RunDirectoryError, match="does not hold the metrics of a run"):
            read_metrics(path)
    path.write_text('{"update": "inf", "seconds": 0.5, "accuracy": 0.5}\n')
    with pytest.raises(hogwild.RunDirectoryError, match="does not hold the metrics of a run"):
        read_metrics(path)


def test_metrics_that_were_changed_after_the_end_are_refused(tmp_path):
    problems.train(out=tmp_path, evaluate=problems.accuracy, evaluate_every=10)
    path = tmp_path / "metrics.jsonl"
    path.write_text(path.read_text().replace('"accuracy": ', '"accuracy": 1'))  # of a race, and may be 1.0 everywhere
    with pytest.raises(hogwild.RunDirectoryError, match=r"metrics\.jsonl is not the file that was saved"):
        hogwild.load_run(tmp_path)


def test_an_interrupted_run_that_goes_on_and_is_killed_can_still_be_read(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        problems.train(
            update="ordered", out=tmp_path, evaluate=problems.interrupting(2, problems.accuracy), evaluate_every=10
        )
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"update": 20, "seconds": 1.0, "accuracy": 0.5}\n')
    assert hogwild.load_run(tmp_path).stopped == "interrupted"


def test_a_record_of_before_metrics_were_sealed_is_read(tmp_path):
    problems.train(out=tmp_path, evaluate=problems.accuracy, evaluate_every=10)
    record = strict(tmp_path / "run.json")
    del record["sha256"]["metrics.jsonl"], record["updates_per_epoch"]
    (tmp_path / "run.json").write_text(json.dumps(record))
    assert hogwild.load_run(tmp_path).metrics


class Half(Ordered):
    """A rule of one's own with the name of the one that it is made of."""

    def prepare(self, ticket, gradient):
        gathered = super().prepare(ticket, gradient)
        if gathered is not None:
            gathered.scale(0.5)
        return gathered


@pytest.mark.parametrize(("first", "then"), [(Half(), "ordered"), ("ordered", Half())])
def test_a_run_goes_on_under_the_rule_that_it_was_made_with(first, then, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        problems.train(
            update=first, updates=40, evaluate=problems.accuracy, evaluate_every=10, out=tmp_path,
            callbacks=[problems.interrupting_at(10)],
        )  # fmt: skip
    with pytest.raises(hogwild.ArgumentError, match=r"the class of the rule is .*; a resumed run needs the same"):
        problems.train(update=then, updates=40, evaluate=problems.accuracy, evaluate_every=10, resume=tmp_path)
    again = problems.train(update=first, updates=40, evaluate=problems.accuracy, evaluate_every=10, resume=tmp_path)
    assert again.digest == problems.train(update=first, updates=40).digest


def test_a_run_under_a_rule_of_ones_own_is_not_replayed_by_the_one_of_its_name(tmp_path):
    problems.train(update=Half(), updates=10, out=tmp_path)
    with pytest.raises(
        hogwild.ArgumentError, match=r"a rule of its program's own, 'ordered' \(test_true_records\.Half\)"
    ):
        hogwild.replay(
            tmp_path, model=problems.mlp(), data=problems.data(), loss=problems.cross_entropy, optimizer=problems.SGD
        )
