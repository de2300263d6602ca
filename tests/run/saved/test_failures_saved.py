"""A run that fails leaves what was trained so far, to be gone on with once the fault is mended."""

from __future__ import annotations

from typing import Any

import pytest
from safetensors import safe_open
from saved import loss, save_run
from test_runs_that_did_not_end import failing

import hogwild
from hogwild.run.saved.directory import CHECKPOINT
from hogwild.run.saved.found import DONE, FAILED, read_found


def bad_batch(model: Any, batch: Any) -> Any:
    """The loss, which fails at one batch."""
    if hogwild.worker_info().batch == 13:
        raise ValueError("a bad batch")
    return loss(model, batch)


class Failing(hogwild.Callback):
    """A callback that fails at one update."""

    def on_evaluation(self, progress: hogwild.Progress) -> None:
        if progress.updates == 10:
            raise OSError("no such server")


FAULTS: dict[str, tuple[dict[str, Any], type[Exception]]] = {
    "evaluate": ({"evaluate": failing(2, KeyError("no such label"))}, KeyError),
    "the loss": ({"own_loss": bad_batch, "on_worker_failure": "raise"}, hogwild.WorkerError),
    "a loss that is retried": ({"own_loss": bad_batch}, hogwild.WorkerError),
    "a callback": ({"callbacks": [Failing()]}, OSError),
}


@pytest.mark.parametrize("kind", ["threads", "processes"])
@pytest.mark.parametrize(("fault", "error"), FAULTS.values(), ids=FAULTS.keys())
def test_a_run_that_failed_goes_on_to_the_bits_of_one_that_did_not(fault, error, kind, tmp_path):
    settings: dict[str, Any] = {"kind": kind, "evaluate_every": 5, "staleness": 1}
    whole = save_run(tmp_path / "whole", **settings)
    out = tmp_path / "failed"
    if "evaluate" in fault:
        fault = {"evaluate": failing(2, KeyError("no such label"))}
    with pytest.raises(error) as raised:
        save_run(out, **settings, **fault)
    found = read_found(out)
    assert found.status == FAILED and found.go_on == f"hogwild.train(..., resume={str(out)!r}, out={str(out)!r})"
    assert raised.value.__notes__[-1] == f"the run was saved: {found.go_on} goes on"
    run = save_run(out, resume=out, **settings)
    assert read_found(out).status == DONE
    assert run.digest == whole.digest
    assert run.journal["update"].tolist() == whole.journal["update"].tolist()


def test_a_run_that_races_goes_on_after_a_failure(tmp_path):
    settings: dict[str, Any] = {"update": "hogwild", "evaluate_every": 5}
    with pytest.raises(KeyError):
        save_run(tmp_path, evaluate=failing(2, KeyError("no such label")), **settings)
    run = save_run(tmp_path, resume=tmp_path, **settings)
    assert sorted(run.journal["update"]) == list(range(20))


def test_one_that_failed_before_its_first_update_leaves_nothing_to_go_on_with(tmp_path):
    def never(model: Any, batch: Any) -> Any:
        hogwild.worker_info().log(tried=1)
        raise ValueError("a bad loss")

    with pytest.raises(hogwild.HogwildError):
        save_run(tmp_path, own_loss=never)
    assert not (tmp_path / CHECKPOINT).exists()


@pytest.mark.parametrize("kept", [False, True])
def test_where_it_cannot_be_saved_the_error_says_so_and_stays_itself(kept, tmp_path, monkeypatch):
    def full(*given: Any) -> None:
        raise OSError("No space left on device")

    settings: dict[str, Any] = {"keep_best": "accuracy"} if kept else {}
    monkeypatch.setattr("hogwild.run.saved.checkpoint.save_file", full)
    with pytest.raises(KeyError) as raised:
        save_run(tmp_path, evaluate=failing(2, KeyError("no such label")), evaluate_every=5, **settings)
    *_, told = raised.value.__notes__
    assert "could not be saved" in told and "No space left" in told


@pytest.mark.parametrize("update", ["ordered", "hogwild"])
def test_nothing_is_saved_of_what_numbers_that_are_not_finite_may_have_ruined(update, tmp_path):
    def broken(model: Any, batch: Any) -> Any:
        return loss(model, batch) * (float("nan") if hogwild.worker_info().batch == 13 else 1)

    with pytest.raises(hogwild.NonFiniteError):
        save_run(tmp_path, own_loss=broken, update=update)
    assert read_found(tmp_path).status == FAILED and not (tmp_path / CHECKPOINT).exists()


def test_a_run_that_has_checkpoints_as_it_goes_keeps_them(tmp_path):
    settings: dict[str, Any] = {"evaluate_every": 5, "checkpoint_every": 4, "workers": 1}
    with pytest.raises(KeyError) as raised:
        save_run(tmp_path, evaluate=failing(2, KeyError("no such label")), **settings)
    with safe_open(tmp_path / CHECKPOINT, "pt") as file:
        assert int(file.metadata()["version"]) % 4 == 0
    assert raised.value.__notes__[-1].startswith("the run was saved: hogwild.train(..., resume=")
    assert save_run(tmp_path, resume=tmp_path, **settings).updates == 20
