"""`hogwild run --resume RUN --set KEY=VALUE`: what is changed is recorded, shown, replayed, and refused in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import sklearn.datasets  # noqa: F401 - it sets environment variables when it is first imported

import hogwild
from hogwild.cli import main


def test_digests_are_noted_at_the_distance_that_the_run_began_with(tmp_path, capsys):
    begun = ["run", "digits", "--update", "ordered", "--quiet", "--updates", "30", "--digest-every", "10"]
    assert main([*begun, "--checkpoint-every", "10", "--out", str(tmp_path / "run")]) == 0
    on = ["run", "--resume", str(tmp_path / "run"), "--set", "updates=40", "--out", str(tmp_path / "other"), "--quiet"]
    capsys.readouterr()
    assert main([*on, "--set", "digest_every=20"]) == 2
    assert "digest_every 20 given, and the run in" in (error := capsys.readouterr().err) and error.count("\n") == 1
    assert main(on) == 0
    assert [*hogwild.load_run(tmp_path / "other").seals] == [10, 20, 30, 40]


def test_the_command_records_shows_and_replays_it(tmp_path, capsys):
    whole, folder = ["run", "digits", "--update", "ordered", "--quiet"], str(tmp_path / "run")
    assert main([*whole, "--updates", "60", "--checkpoint-every", "20", "--out", folder]) == 0
    other = str(tmp_path / "other")
    capsys.readouterr()
    assert main(["run", "--resume", folder, "--set", "lr=0.3", "--set", "updates=80", "--out", other, "--quiet"]) == 0
    text = capsys.readouterr().out
    assert "lr 0.3 from update 60" in text and "updates 80 from update 60" in text
    assert all(len(line) <= 80 for line in text.splitlines())
    assert main(["replay", other, "--quiet"]) == 0
    capsys.readouterr()
    again = ["run", f"{other}/config.toml", "--out", str(tmp_path / "again"), "--json", "--quiet"]
    assert main(again) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["digest"] == hogwild.load_run(other).digest, "config.toml says all of it"
    assert [change["name"] for change in found["changes"]] == ["lr", "updates"]


@pytest.fixture(scope="module")
def ended(tmp_path_factory) -> Path:
    """A run of forty updates, with a checkpoint."""
    folder = tmp_path_factory.mktemp("runs") / "ended"
    main(
        [
            "run",
            "digits",
            "--update",
            "ordered",
            "--quiet",
            "--updates",
            "40",
            "--checkpoint-every",
            "20",
            "--out",
            str(folder),
        ]
    )
    return folder


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["--set", "lr"], "not of the form KEY=VALUE"),
        (["--set", "lr=fast"], "'fast' is not a number"),
        (["--set", "speed=3"], "'speed' is no setting"),
        (["--set", "seed=3"], "seed cannot be changed"),
    ],
)
def test_a_wrong_change_is_one_line(given, why, ended, tmp_path, capsys):
    assert main(["run", "--resume", str(ended), "--out", str(tmp_path / "other"), *given]) == 2
    error = capsys.readouterr().err
    assert why in error and error.count("\n") == 1
    assert not (tmp_path / "other").exists()


def test_a_setting_that_decides_no_bits_may_be_set_so_too(ended, tmp_path, capsys):
    out = tmp_path / "other"
    assert (
        main(
            ["run", "--resume", str(ended), "--set", "workers=1", "--set", "kind=threads", "--out", str(out), "--quiet"]
        )
        == 0
    )
    config = hogwild.load_run(out).config
    assert (config.workers, config.kind, config.changes) == (1, "threads", ())
