"""`hogwild check` from the outside: exit statuses, one JSON object, somebody else's command, figures."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import replace

import psutil
import pytest
import sklearn.datasets  # noqa: F401 - it sets environment variables when it is first imported
import torch
from side_by_side import within
from warm_pythons import warm_started

from hogwild.cli import main
from hogwild.determinism.subject import OwnTraining
from hogwild.testing import Hook, planted
from hogwild.workers.seat import WorkerSeat

SHORT = ["--updates", "60", "--runs", "2", "--quiet"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_ordered_passes(capsys):
    assert main(["check", "digits", "--update", "ordered", "--kind", "threads", *SHORT]) == 0
    told = capsys.readouterr().out
    assert "yes: one digest in 2 runs" in told
    assert "verdict: all runs have the same bits." in " ".join(told.split())


WAITS = "a worker waits for the other, and does not race"


class Overtaken:
    """The first update of each run is applied after exactly so many later ones; else one thread may do all of them
    before another starts, in every run."""

    def __init__(self, *by: int) -> None:
        self.by = list(by)
        self.first: WorkerSeat | None = None  # whose gradient waits
        self.until = -1

    def __call__(self, hook: Hook, seat: WorkerSeat) -> None:
        if hook is Hook.CLAIMED and seat.ticket == 0 and self.by:
            self.first, self.until = seat, self.by.pop(0)
        elif hook is Hook.COMMITTING and seat is self.first:
            within(30, lambda: seat.tickets_handed_out > self.until, WAITS)
        elif hook is Hook.COMMITTING and self.first is not None and seat.ticket == self.until:
            within(30, lambda: self.first is None, WAITS)
        elif hook is Hook.CLAIMING and seat is self.first:  # it is applied
            self.first = None


def test_racing_fails_and_says_why(capsys, tmp_path):
    arguments = ["check", "digits", "--update", "racing", "--out", str(tmp_path / "out"), "--json"]
    with planted(Overtaken(20, 40)):
        assert main([*arguments, "--kind", "threads", "--updates", "200", "--runs", "2", "--quiet"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["identical"] is False
    assert "--update ordered" in found["verdict"]
    assert found["controls"]["serial"]["identical"] is True
    assert found["name"] == "digits"
    assert json.loads((tmp_path / "out" / "check.json").read_text()) == found


def test_the_drift_of_the_runs_is_drawn(tmp_path, figures):
    arguments = ["check", "digits", "--update", "snapshot", "--kind", "threads", "--out", str(tmp_path), "--plot"]
    main([*arguments, *SHORT])
    assert (tmp_path / "check.png").read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in tmp_path.iterdir()} == {"check.json", "check.png"}


TRAINS = """
import json, random, struct, sys
random.seed({seed})
weight = struct.pack("<6f", *(random.gauss(0, 1) for _ in range(6)))
head = json.dumps({{"weight": {{"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}}}).encode()
with open(sys.argv[2], "wb") as file:
    file.write(struct.pack("<Q", len(head)) + head + weight)
"""


def script(tmp_path, seed: str) -> str:
    """The command of a program that needs no torch, and writes a safetensors file."""
    path = tmp_path / "their_train.py"
    path.write_text(TRAINS.format(seed=seed))
    return f"{sys.executable} {path} --out {{out}}"


def test_a_command_that_is_deterministic_passes(tmp_path, capsys):
    torch.save({"weight": torch.arange(6.0).view(2, 3)}, tmp_path / "made.pt")
    for command in (script(tmp_path, "0"), f"cp {tmp_path}/made.pt {{out}}"):
        assert main(["check", "--command", command, "--runs", "3"]) == 0
        assert "one digest in 3 runs" in capsys.readouterr().out


def test_a_command_that_is_not_fails(tmp_path, capsys):
    command = script(tmp_path, "None")
    assert main(["check", "--command", command, "--runs", "2", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert len(set(found["digests"])) == 2
    assert found["divergence"]["worst"] == "weight"
    assert "Usual sources: threads or processes of its own that race" in found["verdict"]
    assert "A command is only repeated; in Python hogwild.check(function, explain=True) varies" in found["verdict"]
    assert main(["check", "--command", command, "--runs", "2", "--tolerance", "max_abs=100"]) == 0


def test_a_command_that_always_writes_to_one_place_is_compared_all_the_same(tmp_path):
    command = script(tmp_path, "None").replace("{out}", "one.pt")
    linked = f"{command} && ln -sf {tmp_path}/one.pt {{out}}"
    assert main(["check", "--command", linked, "--runs", "2", "--tolerance", "1e-9"]) == 1


def test_what_a_command_started_ends_with_the_check(tmp_path):
    sleeps = f"import os, time; open('{tmp_path}/pid', 'w').write(str(os.getpid())); time.sleep(600)"
    (tmp_path / "sleeps.py").write_text(sleeps)
    command = f"{sys.executable} {tmp_path}/sleeps.py; true {{out}}"
    pid = tmp_path / "pid"
    with warm_started(["-m", "hogwild", "check", "--command", command, "--runs", "2"], tmp_path) as check:
        within(30, lambda: pid.exists() and pid.read_text() != "")
        os.kill(check.pid, signal.SIGTERM)
        check.join(60)
        assert check.exitcode == 143
    within(30, lambda: not psutil.pid_exists(int(pid.read_text())), "what the command started outlives the check")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("exit 3 # {out}", "ended with status 3, and said nothing\n"),
        ("echo no such data; exit 3 # {out}", "ended with status 3\nno such data\n"),
        ("true {out}", "wrote no file"),
        ("kill -9 $$ # {out}", "ended with status"),
        ("echo nonsense > {out}", "repeat 1 of the command wrote no state to {out}: neither a safetensors file"),
    ],
)
def test_a_command_that_fails_is_no_evidence(command, words, capsys):
    status = main(["check", "--command", command, "--runs", "2"])
    assert status in (2, 3)  # 2 where a file is damaged, as everywhere
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "no experiment named"),
        (["reductions"], "study"),
        (["nothing"], "'nothing'"),
        (["digits", "--runs", "1"], "runs 1"),
        (["digits", "--tolerance", "small"], "'small'"),
        (["digits", "--tolerance", "cosine=1"], "'cosine'"),
        (["digits", "--update", "none"], "'none'"),
        (["--command", "python train.py"], "{out}"),
        (["digits", "--command", "x {out}"], "--command"),
        (["--command", "x {out}", "--lr", "1"], "--lr"),
        (["--command", "x {out}", "--fresh-process"], "--fresh-process"),
        (["--command", "x {out}", "--plot"], "--plot"),
        (["digits", "--runs", "five"], "whole number"),
        (["digits", "--other-workers", "0"], "other_workers 0"),
    ],
)
def test_wrong_arguments_are_one_line_and_leave_nothing(arguments, words, capsys, tmp_path):
    assert main(["check", *arguments]) == 2
    told = capsys.readouterr()
    assert words in told.err
    assert told.err.count("\n") == 1
    assert not told.out
    assert list(tmp_path.iterdir()) == []


def test_a_learning_rate_that_is_not_the_experiments_is_told(capsys, tmp_path):
    short = ["--kind", "threads", "--updates", "4", "--runs", "2", "--out", str(tmp_path / "check")]
    main(["check", "digits", "--optimizer", "adam", *short])
    assert "hogwild: adam, lr 0.001 (its default; 0.5, that of digits, is for sgd" in capsys.readouterr().err


def test_a_check_that_is_interrupted_as_its_folder_is_made_says_that_nothing_is_saved(capsys, monkeypatch):
    def interrupted(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr("hogwild.cli.checking.new_directory", interrupted)
    assert main(["check", "digits", "--kind", "threads", "--updates", "4"]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "hogwild: interrupted; nothing is saved"


@pytest.mark.parametrize(
    ("update", "made", "told"),
    [
        ("ordered", 1, "interrupted; nothing is saved"),
        ("ordered", 3, "interrupted; the 3 runs that were made have the same bits; nothing is saved"),
        ("ordered", 4, "interrupted; the 4 runs that were made have the same bits; nothing is saved"),
        ("changing", 2, "interrupted; the 2 runs that were made have 2 digests; nothing is saved"),
    ],
)
def test_a_check_that_is_interrupted_says_what_it_saw(update, made, told, capsys, monkeypatch):
    repeat, calls = OwnTraining.repeat, []

    def interrupted(self, variation):
        calls.append(variation)
        if len(calls) > made:
            raise KeyboardInterrupt
        found = repeat(self, variation)
        return replace(found, digest=f"{len(calls)}") if update == "changing" else found

    monkeypatch.setattr(OwnTraining, "repeat", interrupted)
    status = main(
        ["check", "digits", "--update", "ordered", "--kind", "threads", "--updates", "10", "--runs", "4", "--quiet"]
    )
    assert status == 130
    assert capsys.readouterr().err == f"hogwild: {told}\n"
