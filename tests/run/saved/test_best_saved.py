"""best.safetensors: written whole or not at all, and refused where it is not what the record says."""

from __future__ import annotations

import json
import os

import problems
import pytest
from hills import FILE, SETTINGS

import hogwild
from hogwild.run.saved import best


def test_what_is_saved_says_so(tmp_path):
    run = problems.train(update="ordered", out=tmp_path, **SETTINGS)
    record = json.loads((tmp_path / "run.json").read_text())
    assert record["best"] == {
        "metric": "height",
        "update": run.best.update,
        "value": run.best.value,
        "digest": run.best.digest,
    }
    assert f"best height {run.best.value:.4g} at update {run.best.update}" in str(run)
    assert 'keep_best = "height"' in (tmp_path / "config.toml").read_text()


def test_a_changed_byte_is_found_and_a_file_of_another_run_is_refused(tmp_path):
    for name in "ab":
        problems.train(update="ordered", out=tmp_path / name, **SETTINGS)
    path = tmp_path / "a" / FILE
    whole = bytearray(path.read_bytes())
    whole[-1] ^= 1
    path.write_bytes(whole)
    with pytest.raises(hogwild.RunDirectoryError, match=r"best\.safetensors is not the file that was saved"):
        hogwild.load_run(tmp_path / "a")
    path.write_bytes((tmp_path / "b" / FILE).read_bytes())
    with pytest.raises(hogwild.RunDirectoryError, match=r"best\.safetensors is of another run"):
        hogwild.load_run(tmp_path / "a")
    path.write_bytes(b"{}")
    with pytest.raises(hogwild.RunDirectoryError, match=r"best\.safetensors is damaged"):
        hogwild.load_run(tmp_path / "a")
    path.unlink()
    with pytest.raises(hogwild.RunDirectoryError, match=r"holds no best\.safetensors"):
        hogwild.load_run(tmp_path / "a")


def test_a_run_in_memory_is_saved_with_its_best_and_replaced_without(tmp_path):
    run = problems.train(update="ordered", **SETTINGS)
    run.save(tmp_path)
    assert hogwild.load_run(tmp_path).best == run.best
    problems.train(update="ordered", updates=20).save(tmp_path, overwrite=True)
    assert not (tmp_path / FILE).exists() and hogwild.load_run(tmp_path).best is None


def test_a_replay_keeps_nothing_and_a_check_is_not_asked_to(tmp_path):
    problems.train(update="ordered", out=tmp_path, **SETTINGS)
    assert hogwild.replay(
        tmp_path,
        model=problems.mlp(),
        data=problems.data(),
        loss=problems.cross_entropy,
        optimizer=problems.SGD,
    ).equal
    with pytest.raises(hogwild.ArgumentError, match="'keep_best'; it repeats a training and saves nothing"):
        hogwild.check(
            problems.mlp(), problems.data(), problems.cross_entropy, optimizer=problems.SGD, updates=20,
            keep_best="accuracy", evaluate=problems.accuracy,
        )  # fmt: skip


def test_all_files_have_one_mode(tmp_path):
    before = os.umask(0o027)
    try:
        problems.train(update="ordered", out=tmp_path, checkpoint_every=20, **SETTINGS)
    finally:
        os.umask(before)
    assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}[FILE] == 0o640


def test_no_file_that_cannot_be_written_goes_unsaid(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(best, "save_file", full)
    with pytest.raises(hogwild.RunDirectoryError, match="no best.safetensors.*No space left"):
        problems.train(update="ordered", out=tmp_path, **SETTINGS)
