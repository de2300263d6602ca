"""What lies in a folder: runs that are whole, not ended or broken, and what is no run. Nothing of it crashes."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from saved import save_run, seem_killed

from hogwild.errors import ArgumentError
from hogwild.run.saved.directory import SAVED
from hogwild.run.saved.found import BROKEN, DONE, KILLED, find_runs, read_found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    save_run(
        folder,
        lr=0.2,
        seed=3,
        config={"model": {"width": 7, "sizes": [4, 8]}, "note": "a\x1b[31mb"},
        checkpoint_every=5,
    )
    return folder


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(whole, tmp_path / "runs" / "one"))


def test_what_a_run_says_of_itself(run: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in [run, *run.iterdir()]}
    found = read_found(run)
    record = json.loads((run / "run.json").read_text())
    assert (found.status, found.updates, found.digest, found.whole) == (DONE, 20, record["digest"], True)
    assert found.metrics == {"accuracy": 0.203, "test_loss": 0.8} and found.loss == record["loss"]
    assert {name: found.settings[name] for name in ("name", "update", "seed", "lr", "optimizer")} == {
        "name": "line",
        "update": "ordered",
        "seed": 3,
        "lr": 0.2,
        "optimizer": "SGD",
    }
    assert found.settings["model.width"] == 7 and found.settings["model.sizes"] == [4, 8]
    assert "\x1b" not in found.settings["note"]
    assert {path: path.stat().st_mtime_ns for path in [run, *run.iterdir()]} == before, "listing writes nothing"


def test_runs_are_found_at_any_depth_in_a_natural_order(run: Path) -> None:
    for name in ("sweep/run-10", "sweep/run-2", "sweep/deeper/a/b"):
        shutil.copytree(run, run.parent / name)
    found = find_runs([run.parent])
    assert [str(one.path.relative_to(run.parent)) for one in found.runs] == [
        "one",
        "sweep/deeper/a/b",
        "sweep/run-2",
        "sweep/run-10",
    ]
    assert not found.others
    assert [one.path for one in find_runs([run, run.parent]).runs].count(run) == 1, "each is listed once"


def test_links_that_go_round_end(run: Path) -> None:
    (run.parent / "loop").symlink_to(run.parent, target_is_directory=True)
    assert [one.path.name for one in find_runs([run.parent]).runs] == ["one"]


def test_what_is_no_run_is_said(run: Path) -> None:
    (run.parent / "notes/deep").mkdir(parents=True)
    (run.parent / "notes/deep/a.txt").touch()
    (run.parent / "app").mkdir()
    (run.parent / "app/config.toml").write_text("[server]\nport = 1\n")
    (run.parent / "check-x").mkdir()
    (run.parent / "check-x/check.json").write_text("{}")
    (run.parent / ".hidden").mkdir()
    found = find_runs([run.parent])
    assert [(other.path.name, other.what) for other in found.others] == [
        ("app", "no run"),
        ("check-x", "check"),
        ("notes", "no run"),
    ]
    assert found.others[0].why == "it holds config.toml"


def test_the_parameters_of_a_persons_own_file_are_settings(run: Path) -> None:
    """As config.toml has them; one with the name of a setting keeps its long one."""
    with (run / "config.toml").open("a") as file:
        file.write('[own]\nfile = "/train.py"\n[own.parameters]\nwidth = 32\nlr = 9.0\n')
    found = read_found(run)
    wanted = {"width": 32, "own.parameters.lr": 9.0, "lr": 0.2, "own.file": "/train.py"}
    assert {name: found.settings[name] for name in wanted} == wanted


def test_a_folder_of_logs_is_not_worth_a_line(run: Path) -> None:
    (run.parent / "logs").mkdir()
    (run.parent / "logs/one.log").touch()
    assert find_runs([run.parent]).others == ()


def test_a_killed_run_shows_its_metrics_so_far(run: Path) -> None:
    seem_killed(run)
    (run / "metrics.jsonl").write_text('{"update": 5, "seconds": 0.1, "accuracy": 0.25}\n{"update": 10, "acc')
    found = read_found(run)
    assert (found.status, found.metrics, found.digest, found.whole) == (KILLED, {"accuracy": 0.25}, None, False)
    assert found.go_on == f"hogwild.train(..., resume={str(run)!r}, out={str(run)!r})" and found.settings["lr"] == 0.2


def test_a_run_whose_saver_was_killed_in_the_last_moment_is_whole(run: Path) -> None:
    """Its files are whole in a folder inside, and the next writer moves them; a reader leaves them there."""
    saved = run / SAVED
    saved.mkdir()
    for name in ("run.json", "config.toml", "model.safetensors"):
        (run / name).rename(saved / name)
    assert read_found(run).status == DONE and [one.status for one in find_runs([run.parent]).runs] == [DONE]
    assert saved.is_dir()


BREAK = {
    "run.json is cut off": lambda run: (run / "run.json").write_text('{"format": 2, "dig'),
    "run.json is a list": lambda run: (run / "run.json").write_text("[]"),
    "run.json is of another program": lambda run: (run / "run.json").write_text('{"hello": 1}'),
    "config.toml is missing": lambda run: (run / "config.toml").unlink(),
    "config.toml is no TOML": lambda run: (run / "config.toml").write_text("= ="),
    "config.toml is binary": lambda run: (run / "config.toml").write_bytes(b"\xff\xfe\x00"),
    "origin.json is a folder": lambda run: ((run / "origin.json").unlink(), (run / "origin.json").mkdir()),
    "the journal is missing": lambda run: (run / "journal.npy").unlink(),
    "the format is of the future": lambda run: (run / "run.json").write_text(
        json.dumps({**json.loads((run / "run.json").read_text()), "format": 99})
    ),
    "run.json is a pipe": lambda run: ((run / "run.json").unlink(), os.mkfifo(run / "run.json")),
}


@pytest.mark.parametrize("what", BREAK)
def test_a_broken_run_is_listed_with_the_reason(what: str, run: Path) -> None:
    BREAK[what](run)
    (found,) = find_runs([run.parent]).runs
    assert found.status == BROKEN and found.path == run
    assert found.why and "\n" not in found.why and len(found.why) < 401


def test_strange_numbers_are_none(run: Path) -> None:
    record = json.loads((run / "run.json").read_text())
    record |= {"loss": "much", "seconds": None, "metrics": {"accuracy": True, "f1": float("nan"), "ok": 1}}
    (run / "run.json").write_text(json.dumps(record))
    found = read_found(run)
    assert (found.loss, found.seconds) == (None, None)
    assert found.metrics == {"accuracy": None, "f1": None, "ok": 1}


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ArgumentError, match="is a file, not a folder"):
        find_runs([tmp_path / "file"])
    with pytest.raises(ArgumentError, match="does not exist"):
        find_runs([tmp_path / "nothing"])
