"""One folder, one run: every file carries its run's identity, and nothing of another run is taken for this one's."""

from __future__ import annotations

import json
import math
import shutil
import tomllib
from pathlib import Path

import problems
import pytest
from safetensors import safe_open
from safetensors.torch import load_file

import hogwild
from hogwild.config import RunConfig

SETTINGS = {"update": "ordered", "updates": 60}
CHECKPOINT = "checkpoint.safetensors"


def train(folder=None, **arguments):
    return problems.train(**SETTINGS, **{"out": folder, **arguments})


def cut(folder, at=20, **arguments):
    """A run interrupted after so many updates, with a checkpoint."""

    def evaluate(model):
        evaluate.calls += 1
        if evaluate.calls == 2:
            raise KeyboardInterrupt
        return {"first": 1.0}

    evaluate.calls = 0
    with pytest.raises(KeyboardInterrupt):
        train(folder, **{"evaluate": evaluate, "evaluate_every": at // 2} | arguments)


def metadata(path: Path) -> dict[str, str]:
    with safe_open(path, "pt") as file:
        return file.metadata() or {}


def identities(folder: Path) -> list[str]:
    return [
        json.loads((folder / "run.json").read_text())["run"],
        json.loads((folder / "origin.json").read_text())["run"],
        tomllib.loads((folder / "config.toml").read_text())["run"],
        metadata(folder / "model.safetensors")["run"],
        *([metadata(folder / CHECKPOINT)["run"]] if (folder / CHECKPOINT).exists() else []),
    ]


def test_all_files_of_a_run_carry_one_identity_that_a_resumed_run_keeps(tmp_path):
    cut(tmp_path / "a")
    first = identities(tmp_path / "a")
    assert len(first) == 5 and len(set(first)) == 1
    train(tmp_path / "a", resume=tmp_path / "a")
    assert identities(tmp_path / "a") == first
    train(tmp_path / "b")
    assert len(set(identities(tmp_path / "b"))) == 1
    assert identities(tmp_path / "b")[0] != first[0]


@pytest.mark.parametrize("name", [CHECKPOINT, "run.json", "config.toml", "origin.json"])
def test_a_file_of_another_run_is_refused_by_name_when_resuming(name, tmp_path):
    """Of a run with the same settings, so that nothing but the identity tells them apart."""
    for folder in ("a", "b"):
        cut(tmp_path / folder)
    shutil.copy(tmp_path / "b" / name, tmp_path / "a" / name)
    with pytest.raises(hogwild.RunDirectoryError, match="another run") as caught:
        train(resume=tmp_path / "a")
    assert str(tmp_path / "a" / name) in str(caught.value) or CHECKPOINT in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        (
            "clip_grad_norm = 1.0",
            "clip_grad_norm = 0.1",
            r"begun with 1.0; put .*--set clip_grad_norm=0.1",
        ),
        ("ema = 0.9", "ema = 0.8", r"ema 0.8, and the run was begun with 0.9; put that back$"),
        ('keep_best = "first"', "", r"keep_best None, and the run was begun with 'first'; put that back$"),
        ("evaluate_every = 10", "evaluate_every = 4", "evaluate_every 4, and the run was begun with 10; put that back"),
    ],
)
def test_a_config_that_was_edited_since_is_not_gone_on_with(before, after, why, tmp_path):
    """The rest was made with the other value and the record told it of all: a replay found other bits."""
    settings = {"clip_grad_norm": 1.0, "ema": 0.9, "keep_best": "first", "evaluate_every": 10}
    cut(tmp_path / "a", **settings)
    config = tmp_path / "a" / "config.toml"
    text = config.read_text()
    config.write_text(text.replace(f"{before}\n", f"{after}\n"))
    name = before.partition(" ")[0]
    now = {**settings, name: getattr(RunConfig.load(config), name)}
    given = {"evaluate": lambda model: {"first": 1.0}, "resume": tmp_path / "a"}
    with pytest.raises(hogwild.ArgumentError, match=why):
        train(**given, **now)
    config.write_text(text)
    assert train(**given, **settings).updates == 60


def test_a_resumed_run_may_be_evaluated_at_other_versions(tmp_path):
    """Also where config.toml was edited; but not where it may end at one of them."""
    cut(tmp_path)
    config = tmp_path / "config.toml"
    config.write_text(config.read_text().replace("evaluate_every = 10\n", "evaluate_every = 8\n"))
    given = {"resume": tmp_path, "folder": tmp_path, "evaluate_every": 8}
    with pytest.raises(hogwild.ArgumentError, match="evaluate_every 8, and the run was begun with 10; put that back$"):
        train(**given, stop=lambda progress: False)
    given["evaluate"] = lambda model: {"first": 1.0}
    with pytest.raises(KeyboardInterrupt):
        train(**given, callbacks=[problems.interrupting_at(40)])
    run = train(**given, stop=lambda progress: False)
    first, *later, last = [int(row["update"]) for row in run.evaluations]
    assert (first, last) == (10, 60) and later[-1] == 56 and not any(update % 8 for update in later)
    assert run.digest == train().digest


def test_an_infinite_setting_is_that_of_the_file(tmp_path):
    cut(tmp_path / "a", clip_grad_norm=math.inf)
    assert train(resume=tmp_path / "a", clip_grad_norm=math.inf).updates == 60


def test_the_checkpoint_of_another_seed_is_not_gone_on_from(tmp_path):
    cut(tmp_path / "a", seed=0)
    cut(tmp_path / "b", seed=1)
    shutil.copy(tmp_path / "a" / CHECKPOINT, tmp_path / "b" / CHECKPOINT)
    with pytest.raises(hogwild.RunDirectoryError, match=rf"{CHECKPOINT} is of another run"):
        train(seed=1, resume=tmp_path / "b")


@pytest.mark.parametrize("name", ["config.toml", "origin.json", "model.safetensors", "run.json"])
def test_a_file_of_another_run_is_refused_when_replaying(name, tmp_path):
    for folder in ("a", "b"):
        train(tmp_path / folder)
    shutil.copy(tmp_path / "b" / name, tmp_path / "a" / name)
    problem = {"model": problems.mlp(), "data": problems.data(), "loss": problems.cross_entropy}
    with pytest.raises(hogwild.RunDirectoryError, match="another run|is not the file that was saved"):
        hogwild.replay(tmp_path / "a", **problem, optimizer=problems.SGD)


# --- a new run leaves nothing of an old one


def test_a_folder_that_holds_a_run_is_refused_and_untouched(tmp_path):
    train(tmp_path, checkpoint_every=20)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(hogwild.ArgumentError, match=r"not empty.*overwrite=True.*another folder") as caught:
        train(tmp_path, seed=1)
    assert "\n" not in str(caught.value)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_file_of_the_users_own_is_not_overwritten(tmp_path, monkeypatch):
    (tmp_path / "config.toml").write_text("mine = true\n")
    with pytest.raises(hogwild.ArgumentError, match=r"not empty.*config\.toml"):
        train(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(hogwild.ArgumentError, match="not empty"):
        train(".")
    with pytest.raises(hogwild.ArgumentError, match="not empty"):
        hogwild.launch(lambda worker: None, problems.mlp(), optimizer=problems.SGD, updates=1, out=".", kind="threads")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("config.toml", "mine = true\n")]


def test_an_empty_folder_is_taken(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train(".")
    assert (tmp_path / "run.json").exists()


def test_overwriting_leaves_nothing_of_the_run_before(tmp_path):
    train(tmp_path, checkpoint_every=20, evaluate=problems.accuracy, evaluate_every=20)
    (tmp_path / "notes.txt").write_text("mine")
    old = identities(tmp_path)[0]

    class Failing(hogwild.Callback):
        def on_begin(self, info):
            raise KeyError("before its first update")

    with pytest.raises(KeyError):
        train(tmp_path, seed=1, overwrite=True, callbacks=[Failing()])
    assert {path.name for path in tmp_path.iterdir()} == {"config.toml", "origin.json", "notes.txt", "failure.json"}
    with pytest.raises(hogwild.RunDirectoryError, match=f"holds no {CHECKPOINT}"):
        train(seed=1, resume=tmp_path)
    run = train(tmp_path, seed=1, overwrite=True)
    assert len(set(identities(tmp_path))) == 1 and identities(tmp_path)[0] != old
    assert hogwild.digest(load_file(tmp_path / "model.safetensors")) == run.digest


def test_a_resumed_run_goes_into_its_own_folder_or_a_new_one(tmp_path):
    cut(tmp_path / "a")
    train(tmp_path / "b")
    with pytest.raises(hogwild.ArgumentError, match="not empty"):
        train(tmp_path / "b", resume=tmp_path / "a")
    train(tmp_path / "c", resume=tmp_path / "a")
    assert identities(tmp_path / "c")[0] == identities(tmp_path / "a")[0]


def test_a_result_is_saved_over_no_other_run(tmp_path):
    train(tmp_path)
    other = train(seed=1)
    with pytest.raises(hogwild.ArgumentError, match="not empty"):
        other.save(tmp_path)
    other.save(tmp_path, overwrite=True)
    assert json.loads((tmp_path / "run.json").read_text())["digest"] == other.digest


# --- records of older versions


def as_before(folder: Path) -> None:
    """Make of a run directory what version 0.2.0 wrote: format 1, without identities."""
    from safetensors.torch import save_file

    (folder / "origin.json").unlink()
    config = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text("".join(x for x in config.splitlines(True) if not x.startswith("run = ")))
    save_file(load_file(folder / "model.safetensors"), folder / "model.safetensors")
    if (folder / CHECKPOINT).exists():
        found = metadata(folder / CHECKPOINT)
        kept = {key: found[key] for key in ("version", "tickets", "form")}
        save_file(load_file(folder / CHECKPOINT), folder / CHECKPOINT, kept)
    record = json.loads((folder / "run.json").read_text())
    for key in ("run", "samples", "samples_before", "seconds_before"):
        record.pop(key)
    from hogwild.run.saved.directory import file_digest

    record["sha256"] = {name: file_digest(folder / name) for name in record["sha256"]}
    (folder / "run.json").write_text(json.dumps({**record, "format": 1}))


def test_a_record_of_an_older_version_is_replayed_loaded_and_gone_on_with(tmp_path):
    plain = {"compensation": "none"}
    whole = train(tmp_path / "whole", **plain)
    as_before(tmp_path / "whole")
    problem = {"data": problems.data(), "loss": problems.cross_entropy, "optimizer": problems.SGD}
    assert hogwild.replay(tmp_path / "whole", model=problems.mlp(), **problem).equal
    assert hogwild.load_run(tmp_path / "whole").digest == whole.digest
    cut(tmp_path / "cut", **plain)
    as_before(tmp_path / "cut")
    run = train(tmp_path / "cut", resume=tmp_path / "cut", **plain)
    assert run.digest == whole.digest
    assert json.loads((tmp_path / "cut" / "run.json").read_text())["run"] == "", "it stays without an identity"
    assert hogwild.replay(tmp_path / "cut", model=problems.mlp(), **problem).equal
