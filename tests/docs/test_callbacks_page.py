"""The examples for W&B and MLflow, run as they stand on the page: the modules are stand-ins with the public calls'
signatures, which note what they are called with. Nothing leaves this machine."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import problems
import pytest

import hogwild

PAGE = Path(__file__).parents[2] / "docs" / "callbacks.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
SETTINGS = {"update": "ordered", "updates": 40, "evaluate": problems.accuracy, "evaluate_every": 10}


def example(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> dict[str, type[hogwild.Callback]]:
    """What the block that imports that module defines."""
    monkeypatch.setitem(__import__("sys").modules, module.__name__, module)
    (block,) = (block for block in BLOCKS if f"import {module.__name__}\n" in block)
    namespace = {"__name__": "snippet"}
    exec(compile(block, str(PAGE), "exec"), namespace)
    return namespace


class WandbRun:
    """`wandb.Run`, as far as it is used: https://docs.wandb.ai/ref/python/."""

    def __init__(self, given):
        self.given, self.history, self.summary, self.axes, self.ended = given, [], {}, [], []

    def log(self, data, step=None, commit=None):
        assert step is None and not self.ended
        self.history.append(data)

    def define_metric(
        self, name, step_metric=None, step_sync=None, hidden=None, summary=None, goal=None, overwrite=None
    ):
        self.axes.append((name, step_metric))

    def finish(self, exit_code=None, quiet=None):
        self.ended.append(exit_code)


@pytest.fixture
def wandb():
    module, module.runs = ModuleType("wandb"), []

    def init(
        entity=None, project=None, dir=None, id=None, name=None, notes=None, tags=None, config=None,  # noqa: A002
        config_exclude_keys=None, config_include_keys=None, allow_val_change=None, group=None, job_type=None, mode=None,
        force=None, reinit=None, resume=None, resume_from=None, fork_from=None, save_code=None, tensorboard=None,
        sync_tensorboard=None, monitor_gym=None, settings=None,
    ):  # fmt: skip
        assert resume in (None, True, False, "allow", "never", "must", "auto")
        module.runs.append(WandbRun({"project": project, "id": id, "config": config}))
        return module.runs[-1]

    module.init = init
    return module


def test_weights_and_biases(wandb, monkeypatch, tmp_path):
    made = example(wandb, monkeypatch)["WeightsAndBiases"]("mine")
    run = problems.train(**SETTINGS, out=tmp_path, keep_best="accuracy", callbacks=[made])
    (told,) = wandb.runs
    assert told.given["project"] == "mine" and told.given["id"] == run.origin.run
    assert told.given["config"] == {"name": "run", "update": "ordered", "seed": 0}
    assert told.axes == [("*", "update")]
    evaluated = [data for data in told.history if "accuracy" in data]
    assert evaluated == [{"accuracy": row["accuracy"], "update": row["update"]} for row in run.evaluations]
    assert [data["update"] for data in told.history if "loss" in data][-1] == 40
    assert told.summary == {"best_accuracy": run.best.value} and told.ended == [0]


def test_a_run_that_fails_is_ended_there_too(wandb, monkeypatch):
    def evaluate(model):
        raise ValueError("mine")

    made = example(wandb, monkeypatch)["WeightsAndBiases"]("mine")
    with pytest.raises(ValueError, match="mine"):
        problems.train(**{**SETTINGS, "evaluate": evaluate}, callbacks=[made])
    assert wandb.runs[0].ended == [1] and wandb.runs[0].given["id"] is None


@pytest.fixture
def mlflow():
    """`mlflow.tracking.fluent`, as far as it is used."""
    module, module.calls = ModuleType("mlflow"), []

    def start_run(
        run_id=None, experiment_id=None, run_name=None, nested=False, parent_run_id=None, tags=None, description=None,
        log_system_metrics=None,
    ):  # fmt: skip
        module.calls.append(("start", run_name))

    def log_params(params, synchronous=None, run_id=None):
        module.calls.append(("params", params))

    def log_metrics(metrics, step=None, synchronous=None, run_id=None, timestamp=None):
        assert all(isinstance(value, float) for value in metrics.values()) and isinstance(step, int)
        module.calls.append(("metrics", step, metrics))

    def log_artifact(local_path, artifact_path=None, run_id=None):
        assert Path(local_path).is_file()
        module.calls.append(("artifact", Path(local_path).name))

    def end_run(status="FINISHED"):
        module.calls.append(("end", status))

    for function in (start_run, log_params, log_metrics, log_artifact, end_run):
        setattr(module, function.__name__, function)
    return module


def log_half(model, batch):
    hogwild.worker_info().log(half=hogwild.worker_info().batch / 2)
    return problems.cross_entropy(model, batch)


def test_mlflow(mlflow, monkeypatch, tmp_path):
    made = example(mlflow, monkeypatch)["MLflow"]()
    run = problems.train(**SETTINGS, loss=log_half, out=tmp_path, callbacks=[made])
    calls = mlflow.calls
    assert calls[:2] == [("start", "run"), ("params", {"update": "ordered", "workers": 2, "seed": 0})]
    assert calls[-2:] == [("artifact", "config.toml"), ("end", "FINISHED")]
    told = [call[1:] for call in calls if call[0] == "metrics"]
    evaluated = [(row["update"], {"accuracy": row["accuracy"]}) for row in run.evaluations]
    assert [one for one in told if "accuracy" in one[1]] == evaluated
    logged = [(row["update"], {"half": row["half"]}) for row in run.logged]
    assert sorted((one for one in told if "half" in one[1]), key=lambda one: one[0]) == logged


@pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt, "KILLED"), (ValueError, "FAILED")])
def test_mlflow_is_told_how_a_run_ended(error, status, mlflow, monkeypatch, tmp_path):
    def evaluate(model):
        raise error

    made = example(mlflow, monkeypatch)["MLflow"]()
    with pytest.raises(error):
        problems.train(**{**SETTINGS, "evaluate": evaluate}, out=tmp_path, callbacks=[made])
    assert mlflow.calls[-1] == ("end", status)
