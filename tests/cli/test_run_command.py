"""`hogwild run`, called in this process: what it prints, and what is in its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import sklearn.datasets  # noqa: F401 - it sets environment variables when it is first imported
import torch
from offered import DEFAULTS, Offer, linear
from torch import nn

from hogwild.cli import main
from hogwild.config import RunConfig
from hogwild.data.seeding import seed_update
from hogwild.experiment import Findings, Problem, Study, StudySettings, Training

SHORT = ["--kind", "threads", "--updates", "20", "--quiet"]
KEYS = {
    "name",
    "best",
    "optimizer",
    "lr",
    "update",
    "kind",
    "workers",
    "staleness",
    "updates",
    "seconds",
    "samples_per_second",
    "loss",
    "accuracy",
    "digest",
    "seed",
    "out",
}
FILES = {"config.toml", "origin.json", "run.json", "metrics.jsonl", "journal.npy", "model.safetensors", "run.png"}


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    found: dict[str, Any] = json.loads(out)
    return found


def test_json_has_the_promised_keys(capsys: pytest.CaptureFixture[str]) -> None:
    found = _json(capsys, "run", "digits", *SHORT)
    assert found.keys() >= KEYS
    assert set(found["staleness"]) == {"set", "mean", "p99", "max"}
    assert (found["name"], found["update"], found["kind"], found["workers"]) == ("digits", "hogwild", "threads", 2)
    assert found["updates"] == 20 and found["seed"] == 0 and len(found["digest"]) == 64
    assert 0 < found["accuracy"] < 1


def test_the_run_directory(capsys: pytest.CaptureFixture[str], tmp_path: Path, figures: None) -> None:
    found = _json(capsys, "run", "digits", *SHORT, "--seed", "3", "--optimizer", "adam")
    out = tmp_path / found["out"]
    assert out.parent == tmp_path / "runs" and out.name.startswith("digits-")
    assert {path.name for path in out.iterdir()} == FILES
    assert (out / "run.png").read_bytes().startswith(b"\x89PNG")
    config = RunConfig.load(out / "config.toml")
    assert (config.seed, config.optimizer, config.lr, config.updates, config.epochs) == (3, "adam", 0.001, 20, None)


def test_two_runs_of_one_second_get_two_directories(capsys: pytest.CaptureFixture[str]) -> None:
    outs = {_json(capsys, "run", "digits", *SHORT)["out"] for _ in range(3)}
    assert len(outs) == 3


def test_a_config_file_runs_again_to_the_same_bits(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--update", "ordered", "--optimizer", "momentum", "--lr", "0.02", "--batch-size", "50", "--seed", "5"]
    first = _json(capsys, "run", "digits", *SHORT, *flags)
    again = _json(capsys, "run", f"{first['out']}/config.toml", "--quiet")
    in_folder = _json(capsys, "run", first["out"], "--quiet", "--workers", "1")
    assert first["digest"] == again["digest"] == in_folder["digest"]
    assert len({first["out"], again["out"], in_folder["out"]}) == 3
    other = _json(capsys, "run", first["out"], "--quiet", "--seed", "6")
    assert other["digest"] != first["digest"] and other["seed"] == 6


def test_ordered_has_the_same_bits_for_other_workers(capsys: pytest.CaptureFixture[str]) -> None:
    ordered = ["run", "digits", "--quiet", "--updates", "60", "--update", "ordered"]
    one = _json(capsys, *ordered, "--kind", "threads", "--workers", "1")
    two = _json(capsys, *ordered, "--kind", "processes", "--workers", "2")
    assert one["digest"] == two["digest"]


@pytest.mark.parametrize(("interruption", "status"), [(KeyboardInterrupt(), 130), (SystemExit(143), 143)])
def test_an_interrupted_run_goes_on_to_the_same_bits(
    interruption: BaseException, status: int, offer: Offer, capsys: pytest.CaptureFixture[str]
) -> None:
    armed = [interruption]

    def evaluate(model: nn.Module) -> dict[str, float]:
        if armed:
            raise armed.pop()
        return {"accuracy": 0.5}

    def build(seed: int, data: Path | None) -> Problem:
        return Problem(*(getattr(linear(seed, data), name) for name in ("model", "data", "loss")), evaluate)

    offer(Training("toy", "?", build, {**DEFAULTS, "updates": None, "epochs": 20, "update": "ordered"}))
    assert main(["run", "toy", "--out", "cut", "--quiet", "--json"]) == status
    out, err = capsys.readouterr()
    assert out == "" and "saved in cut" in err and "hogwild run --resume cut goes on" in err
    assert json.loads(Path("cut/run.json").read_text())["stopped"] == "interrupted"
    resumed = _json(capsys, "run", "--resume", "cut", "--workers", "1", "--quiet")
    whole = _json(capsys, "run", "toy", "--quiet")
    assert resumed["digest"] == whole["digest"] and resumed["updates"] == whole["updates"] == 40
    assert resumed["out"] == "cut" and resumed["stopped"] is None


def test_a_folder_of_data_is_remembered(
    offer: Offer, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def build(seed: int, data: Path | None) -> Problem:
        asked.append(data)
        return linear(seed, data)

    offer(Training("needs", "?", build, DEFAULTS))
    (tmp_path / "elsewhere").mkdir()
    assert main(["run", "needs", "--data", "here", "--quiet", "--out", "out"]) == 0
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert main(["run", "../out", "--quiet"]) == 0
    assert asked == [tmp_path / "here"] * 2


def test_a_study_gets_its_folder_of_data(offer: Offer) -> None:
    asked = []

    def measure(settings: StudySettings) -> Findings:
        asked.append(settings.data)
        return Findings((), "Nothing.")

    offer(Study("asks", "?", measure))
    assert main(["run", "asks", "--data", "here"]) == 0
    assert asked == [Path("here").absolute()]


def test_the_seed_decides_the_model_and_the_batches(capsys: pytest.CaptureFixture[str]) -> None:
    serial = ["run", "digits", *SHORT, "--workers", "1"]
    digests = [_json(capsys, *serial, "--seed", seed)["digest"] for seed in ("0", "0", "1")]
    assert digests[0] == digests[1] != digests[2]


def test_the_table_for_people(capsys: pytest.CaptureFixture[str], figures: None) -> None:
    assert main(["run", "digits", *SHORT, "--out", "here"]) == 0
    out, err = capsys.readouterr()
    digest = json.loads(Path("here/run.json").read_text())["digest"]
    for word in (
        "digits · hogwild · 2 threads · 20 updates",
        "accuracy",
        "samples/s",
        f"{digest[:16]}…",
        "--update ordered",
        "here",
    ):
        assert word in out
    assert "\x1b" not in out and err == ""
    assert {path.name for path in Path("here").iterdir()} == FILES


def test_progress_goes_to_standard_error_without_control_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "digits", "--kind", "threads", "--updates", "20", "--json"]) == 0
    out, err = capsys.readouterr()
    json.loads(out)
    assert "\x1b" not in err


def test_a_run_does_not_depend_on_what_was_drawn_before(capsys: pytest.CaptureFixture[str]) -> None:
    serial = ["run", "digits", *SHORT, "--workers", "1"]
    first = _json(capsys, *serial)["digest"]
    before = torch.get_rng_state()
    seed_update(3, 4)
    assert _json(capsys, *serial)["digest"] == first
    torch.set_rng_state(before)


def test_a_run_tells_its_best_version_at_its_end(capsys, tmp_path):
    command = ["run", "digits", "--limit-updates", "30", "--evaluate-every", "10", "--keep-best", "accuracy", "--quiet"]
    assert main([*command, "--out", str(tmp_path / "run")]) == 0
    record = json.loads((tmp_path / "run" / "run.json").read_text())["best"]
    out = capsys.readouterr().out
    line = next(line for line in out.splitlines() if "best accuracy" in line)
    assert f"{record['value']:.4f} at update {record['update']}" in line


def test_optimizer_and_learning_rate_are_told_and_so_is_whose_it_is(
    offer: Offer, capsys: pytest.CaptureFixture[str]
) -> None:
    """That of an experiment is for its own optimizer."""
    offer(Training("line", "?", linear, {**DEFAULTS, "lr": 0.25}))
    told = {}
    for name, *more in (["own"], ["adam", "--optimizer", "adam"], ["both", "--optimizer", "adam", "--lr", "0.25"]):
        assert main(["run", "line", *more, "--limit-updates", "5", "--kind", "threads", "--out", name]) == 0
        out, err = capsys.readouterr()
        row = next(line for line in out.splitlines() if line.strip().startswith("optimizer"))
        record = json.loads(Path(name, "run.json").read_text())
        told[name] = (" ".join(row.split()[1:]), record["optimizer"], record["lr"])
        note = "adam, lr 0.001 (its default; 0.25, that of line, is for sgd; --lr names another)"
        assert (note in err) == (name == "adam")
    assert told == {
        "own": ("sgd, lr 0.25", "sgd", 0.25),
        "adam": ("adam, lr 0.001 (its default; 0.25, that of line, is for sgd)", "adam", 0.001),
        "both": ("adam, lr 0.25", "adam", 0.25),
    }


def test_the_table_fits_80_columns_and_the_whole_digest_is_in_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    command = ["run", "digits", "--update", "ordered", "--compensation", "auto", "--ema", "0.9", *SHORT, "--out", "a"]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "compensated by" in out
    (line,) = [line for line in out.splitlines() if line.strip().startswith("digest")]
    after = out.splitlines()[out.splitlines().index(line) + 1]
    assert len(line.split()[1]) == 17 and after.strip().startswith("the same on every run")
    assert len(json.loads(Path("a/run.json").read_text())["digest"]) == 64
