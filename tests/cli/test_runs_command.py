"""`hogwild runs`, `hogwild show` and `hogwild compare`, called in this process."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.cells import cell_len
from saved import save_run, seem_killed

from hogwild.cli import main
from hogwild.report.words import figure
from hogwild.run.saved.found import FoundRun, differing_settings


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four runs, two settings by two seeds; one that was killed, one that failed, one that is broken, and a note."""
    folder = tmp_path_factory.mktemp("four")
    for lr in (0.1, 0.2):
        for seed in (0, 1):
            save_run(folder / "runs" / f"lr{lr}-{seed}", lr=lr, seed=seed)
    killed = shutil.copytree(folder / "runs/lr0.1-0", folder / "runs/killed")
    seem_killed(killed)
    failed = shutil.copytree(folder / "runs/lr0.1-0", folder / "runs/wrong")
    (failed / "run.json").unlink()
    (failed / "failure.json").write_text('{"kind": "ValueError", "why": "a bad batch; use kind=\'threads\'"}')
    broken = shutil.copytree(folder / "runs/lr0.1-0", folder / "runs/broken")
    (broken / "run.json").write_text("{")
    (folder / "runs/notes").mkdir()
    (folder / "runs/notes/todo.txt").touch()
    return folder


@pytest.fixture(autouse=True)
def inside(four: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(four)
    monkeypatch.setenv("COLUMNS", "120")


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert main([*arguments]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main([*arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    return err


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "runs", "--sort", "accuracy")
    head, _, headings, _, *rows = out.splitlines()
    assert head.startswith("7 runs in runs · in all: line, ")
    assert headings.split()[:5] == ["run", "status", "lr", "seed", "accuracy"]
    assert [row.split()[0] for row in rows[:4]] == ["lr0.2-1", "lr0.2-0", "lr0.1-1", "killed"]
    assert (
        "broken  broken: " in out
        and "killed  killed: there is no checkpoint" in out
        and "failed  wrong: ValueError: a bad batch; use --kind threads" in out
        and "no run  notes: it holds todo.txt" in out
    )


def test_the_best_version_is_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = save_run(tmp_path / "kept", keep_best="accuracy", evaluate_every=5)
    save_run(tmp_path / "plain")
    monkeypatch.chdir(tmp_path)
    assert run.best is not None
    row = next(line for line in printed(capsys, "runs", ".").splitlines() if line.strip().startswith("kept"))
    assert " 0.1000 at 5 " in row and "best accuracy" in printed(capsys, "runs", ".", "--sort", "best_accuracy")
    best = {Path(one["path"]).name: one["best"] for one in json.loads(printed(capsys, "runs", ".", "--json"))["runs"]}
    kept = {"metric": "accuracy", "update": 5, "value": 0.1, "digest": run.best.digest}
    assert best == {"kept": kept, "plain": None}
    rows = {row["run"]: row for row in csv.DictReader(io.StringIO(printed(capsys, "runs", ".", "--csv")))}
    assert rows["kept"]["best.update"] == "5" and rows["plain"]["best.update"] == ""


def test_each_run_shows_a_metric_of_its_own_where_experiments_are_mixed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = {f"other_{number}": 0.5 for number in range(4)}
    save_run(tmp_path / "a", evaluate=lambda model: {"accuracy": 0.9, **many}, name="one")
    save_run(tmp_path / "b", evaluate=lambda model: {"hits_at_10": 0.3}, name="two", seed=1, lr=0.2)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "60")
    out = printed(capsys, "runs", ".")
    headings = next(line for line in out.splitlines() if line.startswith(" run "))
    assert "accuracy" in headings and "hits at 10" in headings, out
    assert "no room for " in out and "other 1" in out.partition("no room for ")[2]


@pytest.mark.parametrize("width", [40, 80])
def test_the_list_fits_its_terminal(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    out = printed(capsys, "runs", "--sort", "accuracy")
    assert all(len(line) <= width for line in out.splitlines())
    assert "no room for " in out
    rows = [line for line in out.splitlines() if line.strip().startswith("lr0.")]
    assert len(rows) == 4 and all("…" not in row for row in rows)


def test_the_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    found: dict[str, Any] = json.loads(printed(capsys, "runs", "--json"))
    assert found["differing"] == ["lr", "seed"] and found["select"] is None
    status = {Path(run["path"]).name: run["status"] for run in found["runs"]}
    assert (
        status.pop("broken") == "broken"
        and status.pop("killed") == "killed"
        and status.pop("wrong") == "failed"
        and set(status.values()) == {"done"}
    )
    one = next(run for run in found["runs"] if run["path"] == "runs/lr0.2-1")
    assert one["metrics"]["accuracy"] == 0.201 and one["settings"]["lr"] == 0.2 and len(one["digest"]) == 64
    assert [other["path"] for other in found["others"]] == ["runs/notes"]


def test_the_list_as_csv(capsys: pytest.CaptureFixture[str]) -> None:
    rows = list(csv.DictReader(io.StringIO(printed(capsys, "runs", "runs/lr0.1-0", "runs/lr0.2-1", "--csv"))))
    assert [(row["run"], row["lr"], row["metrics.accuracy"]) for row in rows] == [
        ("runs/lr0.1-0", "0.1", "0.1"),
        ("runs/lr0.2-1", "0.2", "0.201"),
    ]
    assert rows[0]["update"] == "ordered" and rows[0]["status"] == "done"


def test_the_best_settings(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "runs", "--select", "accuracy")
    assert "accuracy of 4 runs, over 2 seeds · 3 not counted, for they have not ended" in out
    assert out.index(" 0.2 ") < out.index(" 0.1 ")
    assert "best: highest mean accuracy: lr 0.2. Its interval overlaps with none of the others." in out
    assert "Student's t" in out
    found = json.loads(printed(capsys, "runs", "--select", "test_loss", "--json"))["select"]
    assert found["best_is_lowest"] and [one["settings"]["lr"] for one in found["choices"]] == [0.2, 0.1]
    assert found["choices"][0]["number"] == 2
    text = printed(capsys, "runs", "--select", "accuracy", "--lowest", "--csv")
    assert [row["lr"] for row in csv.DictReader(io.StringIO(text))] == ["0.1", "0.2"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nowhere"], "'nowhere' does not exist"),
        (["--sort", "speed"], "'speed' is in no run; accuracy, test_loss, loss"),
        (["--select", "speed"], "'speed' is measured in no run that has ended"),
        (["--sort", "lr", "--select", "accuracy"], "--select sorts by itself"),
        (["--lowest"], "--lowest given without --sort"),
        (["--sort", "lr", "--lowest", "--highest"], "one of them says"),
        (["--json", "--csv"], "choose one"),
    ],
)
def test_what_cannot_be_listed_is_refused(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert told in refused(capsys, "runs", *arguments)


def test_without_a_folder_of_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "there is no folder 'runs' here" in refused(capsys, "runs")
    (tmp_path / "runs").mkdir()
    assert "0 runs in runs" in printed(capsys, "runs")


def test_two_runs_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "compare", "runs/lr0.1-0", "runs/lr0.2-0")
    assert "line · ordered, staleness 1 · 2 threads" in out.splitlines()[0]
    assert "environment: equal" in out and "first difference  from update 0 on" in out
    assert out.rstrip().endswith("verdict: the runs differ from update 0 on; settings differ in lr, environment equal.")
    assert len(out.splitlines()) <= 40, "one screen"
    same = json.loads(printed(capsys, "compare", "runs/lr0.1-0", "runs/lr0.1-0", "--json"))
    assert same["identical"] and same["first_difference"] is None


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "0 runs named; hogwild compare takes two"),
        (["runs/notes/todo.txt"] * 2, "is a file, and runs are folders; hogwild.distance(a, b) compares states in"),
        (["runs/lr0.1-0"], "1 run named"),
        (["runs/lr0.1-0", "runs/killed"], "holds no run.json: its run was interrupted, or trains still"),
        (["runs/lr0.1-0", "runs/broken"], "is not the record of a run"),
        (["runs/lr0.1-0", "runs/nothing"], "holds no run.json: there is no such folder"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told in refused(capsys, "compare", *arguments)


def test_control_characters_of_names_do_not_reach_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "30")  # some columns have no room, and are named below
    names = "acc\x1b[2J", "another\x1b[2J"
    for name in ("a", "b\x1b[31m"):
        save_run(tmp_path / name, evaluate=lambda model: dict.fromkeys(names, 0.5), name="x\x1b[2J")
    a, b = str(tmp_path / "a"), str(tmp_path / "b\x1b[31m")
    for command in (["runs", str(tmp_path)], ["compare", a, b], ["show", b]):
        assert "\x1b" not in printed(capsys, *command)
    assert "\x1b" not in refused(capsys, "runs", str(tmp_path), "--sort", "none")


def test_numbers_that_no_float_holds_are_sorted_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, size in (("large", 10**400), ("small", 3), ("larger", 10**401)):
        save_run(tmp_path / name, config={"size": size})
    shown = printed(capsys, "runs", str(tmp_path), "--sort", "size")
    assert shown.index("larger") < shown.index("large ") < shown.index("small")


def test_in_a_narrow_terminal_paths_are_shortened_before_columns_are_left_out(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for lr in (0.1, 0.2):
        save_run(tmp_path / "a-sweep-with-a-name-that-is-rather-long" / f"lr{lr}", lr=lr, config={"width": 7 + lr})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    out = printed(capsys, "runs", ".")
    headings = next(line for line in out.splitlines() if line.startswith(" run "))
    assert " …/lr0.1 " in out and "a-sweep" not in out and "width" in headings
    monkeypatch.setenv("COLUMNS", "140")
    assert "rather-long/lr0.1" in printed(capsys, "runs", ".")
    shutil.copytree(tmp_path / "a-sweep-with-a-name-that-is-rather-long", tmp_path / "again")
    monkeypatch.setenv("COLUMNS", "80")
    assert "again/lr0.1" in printed(capsys, "runs", "."), "their ends are equal"


@pytest.mark.parametrize("width", [40, 80])
def test_long_names_are_shortened_in_the_middle_before_a_metric_is_left_out(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for number in range(2):
        name = f"a-run-with-a-漢字-name-{'that-is-longer-than-a-terminal-' * 3}-{number}"
        save_run(tmp_path / name, evaluate=lambda model: {"accuracy": 0.5}, seed=number)
    monkeypatch.setenv("COLUMNS", str(width))
    out = printed(capsys, "runs", str(tmp_path))
    rows = [line for line in out.splitlines() if line.startswith(" a-run")]
    assert [row.split()[0][-2:] for row in rows] == ["-0", "-1"] and all("…" in row for row in rows), out
    assert all("0.5000" in row for row in rows), out
    assert max(map(cell_len, out[out.index(" run ") :].splitlines())) <= width


def test_one_run_is_shown_with_its_settings_and_where_it_was_made(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "show", "runs/lr0.2-1")
    assert out.startswith("line · ") and "saved in runs/lr0.2-1" in " ".join(out.split())
    assert "lr 0.2" in out and "seed 1" in out and "all others as by default" in out
    assert f"torch {torch.__version__}" in out
    found = json.loads(printed(capsys, "show", "runs/lr0.2-1", "--json"))
    record = json.loads(Path("runs/lr0.2-1/run.json").read_text())
    assert found["result"]["digest"] == record["digest"] and found["settings"]["lr"] == 0.2
    assert found["environment"]["torch"] == str(torch.__version__)


def test_a_run_without_an_end_is_shown_as_far_as_it_came(capsys: pytest.CaptureFixture[str]) -> None:
    failed = printed(capsys, "show", "runs/wrong")
    assert failed.startswith("runs/wrong · failed") and "ValueError: a bad batch; use --kind threads" in failed
    killed = printed(capsys, "show", "runs/killed")
    found = json.loads(printed(capsys, "show", "runs/killed", "--json"))
    assert killed.startswith("runs/killed · killed") and "lr 0.1" in killed
    assert found["result"] is None and f"accuracy {figure(found['metrics']['accuracy'])} " in " ".join(killed.split())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "no run named; name the folder of one (hogwild runs lists them)"),
        (["nowhere"], "'nowhere' does not exist"),
        (["runs"], "'runs' is not the folder of a run, and holds 7 runs; hogwild runs runs lists them"),
        (["runs/notes"], "'runs/notes' is not the folder of a run, and holds none"),
        (["runs/broken"], "is not the record of a run"),
        (["changed"], "changed/journal.npy is not the file that was saved"),
    ],
)
def test_what_cannot_be_shown_is_refused(
    arguments: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = shutil.copytree("runs/lr0.1-0", tmp_path / "changed")
    (changed / "journal.npy").write_bytes(b"another")
    arguments = [str(changed) if one == "changed" else one for one in arguments]
    assert told in refused(capsys, "show", *arguments)


@pytest.mark.parametrize("command", ["run", "check", "sweep"])
def test_what_a_python_program_made_is_trained_by_no_command(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its name may be that of an experiment, which is another training."""
    save_run(tmp_path / "mine", name="digits")
    told = f"the run in {tmp_path / 'mine'} was made by hogwild.train from a Python program, which alone knows"
    assert told in refused(capsys, command, str(tmp_path / "mine"), *(["--seed", "0"] if command == "sweep" else []))


def test_a_setting_that_is_nan_in_both_runs_is_no_difference(tmp_path: Path) -> None:
    runs = [
        FoundRun(tmp_path / name, "done", settings={"fill": float("nan"), "lr": lr})
        for name, lr in (("a", 1), ("b", 2))
    ]
    assert differing_settings(runs) == ["lr"]


@pytest.mark.parametrize("kind", [[], "fibres", None])
def test_a_record_of_an_unknown_kind_is_told(kind: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = shutil.copytree("runs/lr0.1-0", tmp_path / "run")
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**record, "kind": kind}))
    assert "is not the record of a run: kind is malformed" in refused(capsys, "show", str(run))
