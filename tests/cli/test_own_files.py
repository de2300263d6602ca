"""`hogwild run train.py`: a person's own file, its flags, its record, and `hogwild new`, which writes one."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
from own_files import RINGS, rings

import hogwild
from hogwild.cli import COMMANDS, main
from hogwild.config import RunConfig
from hogwild.determinism.fresh import Fresh
from hogwild.determinism.subject import OwnTraining
from hogwild.experiment import find, settings_of
from hogwild.experiment.parameters import OF_COMMANDS
from hogwild.workers.process import spawn

SHORT = ["--update", "ordered", "--limit-updates", "12", "--quiet"]


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "files").mkdir()
    rings(tmp_path / "files")
    monkeypatch.chdir(tmp_path)


def told(capsys) -> dict:
    return json.loads(capsys.readouterr().out)


def test_lists_name_the_file_and_a_hash_by_its_first_digits(tmp_path, monkeypatch, capsys):
    """Files where they are called otherwise, else what is in them, and neither where all are equal."""
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "files" / "disks.py").write_text(f"{RINGS}\n# another\n")
    for out, file in (("a", "rings.py"), ("b", "rings.py"), ("c", "disks.py")):
        assert main(["run", f"files/{file}", *SHORT, "--out", out]) == 0
    (tmp_path / "files" / "rings.py").write_text(f"{RINGS}\n# changed\n")
    assert main(["run", "files/rings.py", *SHORT, "--out", "d"]) == 0

    def said(*arguments):
        capsys.readouterr()
        assert main([*arguments]) == 0
        return capsys.readouterr().out

    hashes = {out: RunConfig.load(tmp_path / out / "config.toml").own.sha256 for out in "abcd"}
    assert "file" not in said("runs", "a", "b").splitlines()[2].split()
    mixed = said("runs", "a", "b", "c")
    assert "file" in mixed.splitlines()[2].split() and " rings.py " in mixed and "content" not in mixed
    changed = said("runs", "a", "d")
    assert "file content" in changed.splitlines()[2] and f"{hashes['d'][:8]}…" in changed
    compared, shown = said("compare", "a", "d"), said("show", "a")
    assert "settings differ in file content, environment equal" in compared and f"{hashes['a'][:8]}…" in compared
    assert f"file rings.py, file content {hashes['a'][:8]}…" in shown
    everything = mixed + changed + compared + shown
    assert "own." not in everything and hashes["a"] not in everything


def test_it_trains_and_its_folder_runs_again_is_replayed_checked_and_resumed_from_anywhere(
    tmp_path, monkeypatch, capsys
):
    assert main(["run", "files/rings.py", *SHORT, "--hidden", "6", "--deep", "--out", "first", "--json"]) == 0
    first = told(capsys)
    saved = RunConfig.load(tmp_path / "first" / "config.toml")
    assert (first["name"], first["updates"], first["accuracy"] > 0.4) == ("rings", 12, True)
    assert saved.own.file == str(tmp_path / "files" / "rings.py")
    assert saved.own.parameters == {"hidden": 6, "noise": 0.1, "deep": True} and saved.limit_updates == 12
    run = hogwild.load_run("first")
    assert {name: list(value.shape) for name, value in run.state.items()}["2.weight"] == [6, 6]

    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    folder = str(tmp_path / "first")
    assert main(["run", folder, "--workers", "1", "--kind", "threads", "--quiet", "--out", "again", "--json"]) == 0
    assert told(capsys)["digest"] == first["digest"]
    assert main(["run", folder, "--hidden", "7", "--quiet", "--out", "other", "--json"]) == 0
    assert told(capsys)["digest"] != first["digest"]
    assert RunConfig.load(Path("other/config.toml")).own.parameters == {"hidden": 7, "noise": 0.1, "deep": True}
    assert main(["replay", folder, "--quiet", "--json"]) == 0
    assert told(capsys)["equal"] is True
    assert main(["check", folder, "--runs", "2", "--quiet", "--json", "--hidden", "6"]) == 0
    assert told(capsys)["passed"] is True


@pytest.mark.filterwarnings("default:.* has changed since the run was begun")
def test_a_resumed_run_goes_on_to_the_same_bits_and_tells_of_a_changed_file(tmp_path, capsys):
    whole = ["run", "files/rings.py", "--update", "ordered", "--quiet", "--json", "--updates", "20"]
    assert main([*whole, "--out", "whole"]) == 0
    digest = told(capsys)["digest"]
    part = ["--limit-updates", "10", "--checkpoint-every", "5", "--out", "part"]
    assert main([*whole, *part]) == 0
    on = ["run", "--resume", "part", "--set", "limit_updates=none", "--quiet", "--json", "--out"]
    capsys.readouterr()
    assert main([*on, "on"]) == 0
    assert told(capsys)["digest"] == digest

    assert main([*on, "refused", "--hidden", "9"]) == 2
    assert "hidden is 9, and the run in part was made with 8; a resumed run needs the same" in capsys.readouterr().err

    path = tmp_path / "files" / "rings.py"
    path.write_text(path.read_text() + "# changed\n")
    assert main([*on, "changed"]) == 0
    out, err = capsys.readouterr()
    assert "rings.py has changed since the run was begun" in err and json.loads(out)["digest"] == digest
    run = hogwild.load_run("changed")
    assert run.config.own == hogwild.load_run("part").config.own, "the record names the file that it began with"
    assert run.origin.resumed[0]["sha256"] != run.config.own.sha256
    assert main(["replay", "changed", "--quiet"]) == 0
    assert "rings.py has changed since the run was begun" in capsys.readouterr().err


def test_workers_that_are_spawned_get_what_the_file_defines(capsys, monkeypatch):
    """A lambda, a dataclass and a class of the file; the fork server of the tests above gets the same."""
    assert main(["run", "files/rings.py", *SHORT, "--json", "--out", "forked"]) == 0
    digest = told(capsys)["digest"]
    context = spawn.multiprocessing.get_context("spawn")
    monkeypatch.setattr(spawn, "start_context", lambda: context)
    monkeypatch.setattr("hogwild.workers.processes.start_context", lambda: context)
    assert main(["run", "files/rings.py", *SHORT, "--workers", "1", "--json", "--out", "spawned"]) == 0
    assert told(capsys)["digest"] == digest


def test_it_is_repeated_in_a_fresh_process():
    training, _ = find("files/rings.py")
    config = settings_of(training, {"update": "ordered", "updates": 10, "hidden": 3})
    subject = OwnTraining.of_experiment(training, config)
    assert Fresh(subject).repeat().digest == subject.repeat().digest


def test_what_a_file_prints_is_not_on_standard_output(tmp_path, capsys):
    path = tmp_path / "files" / "rings.py"
    path.write_text(path.read_text().replace("    more = [", "    print('built')\n    more = [") + "print('run')\n")
    assert main(["run", "files/rings.py", *SHORT, "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["updates"] == 12 and "run\n" in err and "built\n" in err


def test_help_shows_the_flags_of_the_file(capsys):
    assert main(["run", "files/rings.py", "--help"]) == 0
    out = capsys.readouterr().out
    assert "rings.py options" in out and "Units of the hidden layer. (default: 8)" in out
    assert "--noise X" in out and "--deep  " in out and "--lr RATE" in out


WRONG = {
    "run files/rings.py --hidden six": ["--hidden", "'six' is not a whole number"],
    "run files/rings.py --hiden 6": ["'--hiden' is not a flag of hogwild run", "did you mean --hidden?"],
    "run files/rings.py --set hiden=6": ["--set", "'hiden' is no setting", "did you mean hidden?"],
    "run files/rings.py --set hidden=6 --hidden 6": ["--set hidden=6", "given already"],
    "run files/rings.py --set deep=maybe": ["--set deep", "'maybe' is neither true nor false"],
    "run files/rings.py --data folder": ["--data", "build (rings.py:27)", "no parameter named data"],
    "run files/other.py": ["files/other.py: No such file", "hogwild new other.py"],
    "run files/helper.py": ["helper.py defines no experiment", "hogwild.Problem"],
    "run nowhere.rings:build": ["no module 'nowhere.rings'"],
    "run digits --set lr": ["'lr' is not of the form KEY=VALUE"],
    "run digits --set lrr=1": ["'lrr' is no setting; did you mean lr?"],
    "run digits --update orderd": ["did you mean 'ordered'? the rules are racing"],
    "run digits --kind process": ["did you mean 'processes'? 'auto', 'threads', 'processes' are"],
    "run digits --set limit_updates=0": ["limit_updates 0", "1 or more"],
    "check digits --set checkpoint_every=3": ["'checkpoint_every' is no setting"],
    "new": ["no file named", "hogwild new train.py"],
    "new train.txt": ["train.txt", "train.py is one"],
    "new files/rings.py": ["files/rings.py is there already", "another name"],
    "new nowhere/train.py": ["nowhere/train.py cannot be written", "No such file"],
}


@pytest.mark.parametrize("arguments", WRONG)
def test_one_line_and_nothing_left(arguments, tmp_path, capsys):
    before = sorted(tmp_path.iterdir())
    assert main(arguments.split()) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("hogwild: ") and err.count("\n") == 1
    assert [word for word in WRONG[arguments] if word not in err] == [], err
    assert sorted(tmp_path.iterdir()) == before


def test_own_parameters_have_names_that_no_command_uses():
    settings = {one.name for one in dataclasses.fields(RunConfig)}
    for name in ("run", "check", "probe"):
        fields = {one.name for one in dataclasses.fields(COMMANDS[name])} - {"own", "training"}
        flags = fields - settings - set(getattr(COMMANDS[name], "without_experiment", ()))
        assert flags <= set(OF_COMMANDS), name


def test_a_probe_takes_the_flags_of_the_file_and_leaves_it_the_name_of_its_own(capsys):
    text = Path("files/rings.py").read_text()
    Path("files/sized.py").write_text(text.replace("hidden", "size"))
    values = {}
    for command in ("rings.py --hidden 3", "sized.py --size 3", "sized.py --size 5"):
        short = ["--update", "ordered", "--kind", "threads", "--updates", "20", "--json", "--quiet"]
        assert main(["probe", *f"files/{command}".split(), *short]) == 0
        values[command] = json.loads(capsys.readouterr().out)["probes"][0]["values"]
    assert values["rings.py --hidden 3"] == values["sized.py --size 3"] < values["sized.py --size 5"]
    assert main(["probe", "files/rings.py", "--size", "3"]) == 2
    assert "--size 3 given beside files/rings.py" in capsys.readouterr().err


# --- settings of a new run


def test_any_setting_of_a_new_run_may_be_set(capsys):
    by_flags = ["run", "files/rings.py", *SHORT, "--json"]
    assert main([*by_flags, "--lr", "0.3", "--hidden", "4", "--out", "flags"]) == 0
    digest = told(capsys)["digest"]
    given = ["lr=0.3", "hidden=4", "clip-grad-norm=none", "max_restarts=0"]
    assert main([*by_flags, "--out", "set", *(word for one in given for word in ("--set", one))]) == 0
    assert told(capsys)["digest"] == digest
    assert RunConfig.load(Path("set/config.toml")).max_restarts == 0


# --- a file to start from


def test_a_new_file_runs_and_is_clean(tmp_path, capsys):
    assert main(["new", "mine"]) == 0
    assert capsys.readouterr().out == "wrote mine.py; hogwild run mine.py trains what it defines\n"
    assert main(["run", "mine.py", "--hidden", "16", "--quiet", "--json"]) == 0
    assert told(capsys)["accuracy"] > 0.8
    for command in (["check"], ["format", "--check", "--line-length", "120"]):
        rules = ["--select", "E,F,W,I,B,UP,D1,N,ARG,RUF"] if command == ["check"] else []
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--isolated", *rules, "mine.py"], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout


def test_a_file_that_changes_the_current_folder_is_found_again_and_saved_where_it_went(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert main(["new", "train.py"]) == 0
    path = tmp_path / "train.py"
    moving = f"import os\nos.chdir({str(elsewhere)!r})\nimport hogwild\n"
    path.write_text(path.read_text().replace("import hogwild\n", moving, 1))
    assert main(["run", "train.py", "--updates", "20", "--kind", "threads", "--out", "out"]) == 0
    assert "run.json" in {one.name for one in (elsewhere / "out").iterdir()}


def test_names_with_spaces_are_quoted_and_a_folder_is_no_file(tmp_path, capsys):
    assert main(["new", "my train.py"]) == 0
    assert "; hogwild run 'my train.py' trains" in capsys.readouterr().out
    assert main(["new", "files"]) == 2
    assert "files is a folder; files/train.py would be a file in it" in capsys.readouterr().err
    assert not (tmp_path / "files.py").exists()


OPTIONAL = """
from pathlib import Path
from typing import Literal
import hogwild, torch

def build(
    width: int | None = 5, sizes: list[int] | None = None, letter: Literal["a", "b"] | None = "a",
    place: Path | None = Path("x"), deep: bool | None = True,
) -> hogwild.Problem:
    model = torch.nn.Linear(4, 4)
    given = [width, sizes, letter, place, deep]
    return hogwild.Problem(
        model, torch.randn(64, 4), lambda model, batch: model(batch).square().mean(),
        evaluate=lambda model: {"given": float(sum(one is not None for one in given))},
    )

hogwild.define_experiment(build, epochs=1, workers=1, kind="threads")
"""


def test_none_is_a_value_of_a_flag_whose_default_is_another(tmp_path, capsys):
    (tmp_path / "optional.py").write_text(OPTIONAL)
    names = ("width", "letter", "place", "deep")
    assert main(["run", "optional.py", "--quiet", "--json"]) == 0
    assert told(capsys)["metrics"]["given"] == len(names)
    without = [part for name in names for part in (f"--{name}", "none")]
    assert main(["run", "optional.py", *without, "--quiet", "--json", "--out", "first"]) == 0
    assert told(capsys)["metrics"]["given"] == 0
    assert main(["run", "first", "--sizes", "1", "2", "--quiet", "--json", "--out", "second"]) == 0
    assert told(capsys)["metrics"]["given"] == 1
    assert main(["run", "second", "--sizes", "none", "--quiet", "--json"]) == 0
    assert told(capsys)["metrics"]["given"] == 0


def test_a_text_that_is_none_is_refused_before_anything_is_built(tmp_path, capsys):
    (tmp_path / "optional.py").write_text(OPTIONAL)
    assert main(["run", "optional.py", "--place", "caf\udce9"]) == 2
    assert "--place: 'caf\\udce9' has halves of letters, which no file can hold" in capsys.readouterr().err


def test_names_of_metrics_and_parameters_are_no_markup(tmp_path, monkeypatch, capfd):
    odd = tmp_path / "files" / "odd.py"
    odd.write_text(RINGS.replace('"accuracy"', '"r[/k]"').replace("deep: bool = False", 'deep: str = "[red]"'))
    monkeypatch.setenv("COLUMNS", "200")
    command = ["files/odd.py", "--kind", "threads", "--set", "limit_updates=40", "--evaluate-every", "10"]
    monkeypatch.setenv("FORCE_COLOR", "1")  # so that it is displayed as in a terminal, while it trains too
    assert main(["run", *command, "--out", "runs/a"]) == 0
    shown = capfd.readouterr()
    assert "r[/k]" in shown.out and "r[/k]" in shown.err
    monkeypatch.delenv("FORCE_COLOR")
    assert main(["sweep", *command, "--deep", "[red]", "[b]", "--out", "runs/s", "--quiet"]) == 0
    shown = capfd.readouterr().out
    assert "r[/k]" in shown and "[red]" in shown and "[b]" in shown
    for other in (["show", "runs/a"], ["runs"], ["runs", "--select", "r[/k]"]):
        assert main(other) == 0
        assert "r[/k]" in capfd.readouterr().out
