"""`hogwild replay`: exit statuses, and what a person reads."""

from __future__ import annotations

import json

import pytest
from safetensors.torch import load_file, save_file

import hogwild
from hogwild.cli import main
from hogwild.run.saved.directory import file_digest


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "digits"
    assert main(["run", "digits", "--update", "ordered", "--epochs", "1", "--out", str(out), "--quiet"]) == 0
    return out


def test_equal_is_0(run_dir, capsys):
    assert main(["replay", str(run_dir), "--json", "--quiet"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["equal"] is True
    assert result["digest"] == result["recorded"]
    assert main(["replay", str(run_dir), "--quiet"]) == 0
    assert "verdict: the run has the bits that its record says" in capsys.readouterr().out


def test_different_is_1_and_names_where(run_dir, tmp_path, capsys):
    for path in run_dir.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    state = load_file(tmp_path / "model.safetensors")
    name = sorted(state)[0]
    state[name].view(-1)[0] += 1
    save_file(state, tmp_path / "model.safetensors")
    record = json.loads((tmp_path / "run.json").read_text())
    record["digest"] = hogwild.digest(state)
    record["sha256"]["model.safetensors"] = file_digest(tmp_path / "model.safetensors")
    (tmp_path / "run.json").write_text(json.dumps(record))
    assert main(["replay", str(tmp_path), "--quiet"]) == 1
    text = capsys.readouterr().out
    assert name in text
    assert "verdict: the run is not what its record says" in text


def test_a_changed_byte_is_2_in_one_line(run_dir, tmp_path, capsys):
    for path in run_dir.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    with (tmp_path / "journal.npy").open("r+b") as file:
        file.seek(300)
        byte = file.read(1)
        file.seek(300)
        file.write(bytes([byte[0] ^ 1]))
    assert main(["replay", str(tmp_path), "--quiet"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1 and "journal.npy is not the file that was saved" in captured.err


def test_no_run_is_2(tmp_path, capsys):
    assert main(["replay", str(tmp_path / "nowhere")]) == 2
    assert "holds no run.json" in capsys.readouterr().err
