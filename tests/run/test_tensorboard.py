"""Event files: what TensorBoard itself reads back is what metrics.jsonl says."""

from __future__ import annotations

import json
from importlib.util import find_spec

import problems
import pytest
from warm_pythons import warm_python

import hogwild
from hogwild.cli import main
from hogwild.run import tensorboard
from hogwild.run.tensorboard import TensorBoard

SETTINGS = {"update": "ordered", "updates": 60, "evaluate": problems.accuracy, "evaluate_every": 10}

pytest.importorskip("sklearn")  # sets environment variables when it is imported
installed = pytest.mark.skipif(find_spec("tensorboard") is None, reason="the extra `tensorboard` is not installed")


def scalars(folder):
    """tag → (update, value) of every event, as TensorBoard shows them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    found.Reload()
    return {tag: [(event.step, event.value) for event in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def log_seen(model, batch):
    hogwild.worker_info().log(seen=hogwild.worker_info().batch)
    return problems.cross_entropy(model, batch)


def check(folder):
    found, saved = scalars(folder), rows(folder)
    evaluated = [(row["update"], pytest.approx(row["accuracy"])) for row in saved if "accuracy" in row]
    assert found["evaluation/accuracy"] == evaluated
    logged = [(row["update"] + 1, row["seen"]) for row in saved if "seen" in row]
    assert sorted(found["worker/seen"]) == logged and logged
    return found


@installed
@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_the_event_files_say_what_metrics_jsonl_says(kind, tmp_path):
    run = problems.train(**{**SETTINGS, "kind": kind, "loss": log_seen}, out=tmp_path, callbacks=[TensorBoard()])
    found = check(tmp_path)
    assert {"train/loss", "train/samples_per_second", "train/staleness"} <= set(found)
    update, loss = found["train/loss"][-1]
    assert update == 60 and loss == pytest.approx(run.losses[-50:].mean())
    assert found["train/staleness"][-1] == (60, 1.0)


@installed
def test_a_resumed_run_goes_on_with_the_same_curves(tmp_path):
    def evaluate(model):
        evaluate.calls += 1
        if evaluate.calls == 5:
            raise KeyError("as if killed")
        return problems.accuracy(model)

    evaluate.calls = 0
    settings = {**SETTINGS, "loss": log_seen, "out": tmp_path, "callbacks": [TensorBoard()]}
    with pytest.raises(KeyError):
        problems.train(**{**settings, "evaluate": evaluate}, checkpoint_every=35)
    assert scalars(tmp_path)["evaluation/accuracy"][-1][0] == 40, "which is computed again"
    problems.train(**settings, resume=tmp_path)
    check(tmp_path)


@installed
def test_a_run_that_replaces_another_has_its_own_events_alone(tmp_path):
    for updates in (60, 20):
        settings = {**SETTINGS, "updates": updates, "loss": log_seen}
        problems.train(**settings, out=tmp_path, overwrite=True, callbacks=[TensorBoard()])
    check(tmp_path)
    problems.train(**SETTINGS, out=tmp_path, overwrite=True)
    assert not list(tmp_path.glob("events.out.*"))


@installed
def test_a_folder_of_its_own_and_none(tmp_path):
    problems.train(**SETTINGS, callbacks=[TensorBoard(tmp_path / "events")])
    assert scalars(tmp_path / "events")["evaluation/accuracy"]
    with pytest.raises(hogwild.ArgumentError, match="TensorBoard has no folder"):
        problems.train(**SETTINGS, callbacks=[TensorBoard()])


@installed
def test_the_command_line_writes_them(tmp_path, capsys, fonts):
    out = tmp_path / "run"
    command = ["run", "digits", "--tensorboard", "--limit-updates", "30", "--evaluate-every", "10", "--out", str(out)]
    assert main([*command, "--json", "--quiet"]) == 0
    found = json.loads(capsys.readouterr().out)
    events = scalars(out)
    assert events["evaluation/accuracy"][-1] == (30, pytest.approx(found["accuracy"]))


@installed
def test_a_resumed_run_goes_on_writing_until_it_is_told_otherwise(tmp_path, capsys, fonts):
    out = str(tmp_path / "run")
    assert main(["run", "digits", "--tensorboard", "--updates", "30", "--checkpoint-every", "10", "--out", out]) == 0
    written = []
    for more in ([], ["--no-tensorboard"]):
        (tmp_path / "run/run.json").unlink()  # as if it had been killed
        assert main(["run", "--resume", out, *more, "--quiet", "--json"]) == 0
        written.append(len(list((tmp_path / "run").glob("events.out.*"))))
    assert written == [2, 2], "a file of its own for the first that went on, none for the second"
    assert not hogwild.load_run(out).config.tensorboard
    capsys.readouterr()


def test_it_is_not_turned_on_and_off(tmp_path, capsys):
    command = ["run", "digits", "--tensorboard", "--no-tensorboard", "--out", str(tmp_path / "run")]
    assert main(command) == 2
    assert "--tensorboard and --no-tensorboard given; one of them works" in capsys.readouterr().err


@installed
def test_a_sweep_writes_them_for_each_of_its_runs(tmp_path, capsys):
    out = tmp_path / "sweep"
    command = ["sweep", "digits", "--tensorboard", "--limit-updates", "10", "--seed", "0", "1", "--out", str(out)]
    assert main([*command, "--json", "--quiet"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    for row in rows:
        assert scalars(row["folder"])["evaluation/accuracy"][-1][1] == pytest.approx(row["metrics"]["accuracy"])
    assert len(rows) == 2


def test_a_sweep_without_it_installed_makes_no_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tensorboard, "find_spec", lambda name: None)
    assert main(["sweep", "digits", "--tensorboard", "--seed", "0", "1", "--out", str(tmp_path / "sweep")]) == 2
    assert "pip install 'hogwild[tensorboard]'" in capsys.readouterr().err
    assert not (tmp_path / "sweep").exists()


def test_where_it_is_not_installed_it_says_what_to_do(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tensorboard, "find_spec", lambda name: None)
    out = tmp_path / "run"
    assert main(["run", "digits", "--tensorboard", "--out", str(out), "--quiet"]) == 2
    assert "pip install 'hogwild[tensorboard]'" in capsys.readouterr().err
    assert not out.exists(), "nothing was begun"


def test_a_study_has_no_events(tmp_path, capsys):
    assert main(["run", "reductions", "--tensorboard", "--out", str(tmp_path / "run"), "--quiet"]) == 2
    assert "--tensorboard is for trainings" in capsys.readouterr().err


def test_it_is_imported_where_it_is_asked_for_alone(tmp_path):
    code = "import sys, hogwild.cli.running; print('tensorboard' in sys.modules)"
    done = warm_python(["-c", code], tmp_path)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr
