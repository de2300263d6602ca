"""`hogwild sweep`: a grid of runs, each in a process of its own; one that fails, Ctrl-C, and going on."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest
from programs import left_running_in, running_in
from warm_pythons import warm_started

import hogwild
from hogwild.cli import main
from hogwild.cli.parsing import parse
from hogwild.cli.sweep import SweepCommand
from hogwild.experiment import find
from hogwild.experiment.parameters import OF_COMMANDS
from hogwild.run.saved.directory import occupied
from hogwild.sweep.plan import keep_plan, make_plan

SLOW = """
import time
import hogwild
import torch


def build(width: int = 2, bad: bool = False, pause: float = 0.0) -> hogwild.Problem:
    def loss(model, batch):
        time.sleep(pause)
        if bad:
            raise ValueError("a bad batch")
        return (model(batch) - batch).square().mean()

    print("built")
    data = torch.randn(100, width)
    evaluate = lambda model: {"error": (model(data) - data).square().mean().item()}
    return hogwild.Problem(torch.nn.Linear(width, width), data, loss, evaluate)


hogwild.define_experiment(build, update="ordered", updates=20, batch_size=10, lr=0.1, workers=1)
"""


DIES = """
import os
import sys
import hogwild

def build(how: str = "") -> hogwild.Problem:
    if how != "silent":
        print("first" + 1000 * ".", "no licence", "was found", sep="\\n", file=sys.stderr, flush=True)
    os.kill(os.getpid(), 9) if how == "kill" else os._exit(1)

hogwild.define_experiment(build, updates=20, batch_size=10)
"""


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    Path("slow.py").write_text(SLOW)


def test_a_failed_run_is_listed_and_the_others_are_done_and_not_repeated(tmp_path, monkeypatch, capsys):
    command = ["sweep", "slow.py", "--width", "2", "3", "--bad", "false", "true", "--out", "out"]
    command += ["--set", "limit_updates=12", "--sample", "3", "--sample-seed", "2", "--jobs", "2", "--json"]
    assert main(command) == 3
    out, err = capsys.readouterr()
    found = json.loads(out)
    rows = {Path(row["folder"]).name: row for row in found["rows"]}
    assert (found["done"], found["failed"], found["fixed"]) == (2, 1, {"limit_updates": 12})
    assert list(rows) == ["width2-badfalse", "width3-badfalse", "width3-badtrue"]
    bad = rows["width3-badtrue"]
    assert bad["status"] == "failed" and bad["digest"] is None
    assert bad["error"] == "loss raised at the first step: ValueError: a bad batch"
    assert "ValueError: a bad batch" in Path("out/logs/width3-badtrue.log").read_text()
    assert "of 3" in err and "width 3, bad true: failed" in err

    good = rows["width3-badfalse"]
    assert good["settings"] == {"width": 3, "bad": False} and good["metrics"].keys() == {"error", "loss"}
    assert main(["run", "slow.py", "--width", "3", "--limit-updates", "12", "--quiet", "--json", "--out", "alone"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert (good["digest"], good["metrics"]["loss"], good["updates"]) == (alone["digest"], alone["loss"], 12)
    run = hogwild.load_run("out/width3-badfalse")
    assert run.config.own.parameters == {"width": 3, "bad": False, "pause": 0.0} and run.origin.maker == "experiment"

    record = Path("out/width3-badfalse/run.json").stat().st_mtime_ns
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert main(["sweep", "--resume", "../out"]) == 3
    out, err = capsys.readouterr()
    assert "failed  width3-badtrue" in out and "a bad batch" in out and "logs are in ../out/logs" in out
    assert "2 of 3 are done already" in err and "3 runs, 2 done, 1 failed" in out
    assert "all with limit_updates 12" in out and good["digest"][:8] in out
    assert "hogwild sweep --resume ../out tries the failed ones again" in " ".join(out.split())
    assert (tmp_path / "out/width3-badfalse/run.json").stat().st_mtime_ns == record
    assert not left_running_in(Path("../out"))


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130)])
def test_ctrl_c_saves_what_is_under_way_and_leaves_no_process(number, status, tmp_path, capsys):
    arguments = ["sweep", "slow.py", "--pause", "0.01", "--updates", "100000", "--seed", "0..1", "--jobs", "2"]
    command = ["-m", "hogwild", *arguments, "--out", str(tmp_path / "out")]
    with warm_started(command, tmp_path, "printed", "errors") as process:
        deadline = time.monotonic() + 120
        while len(list(tmp_path.glob("out/*/metrics.jsonl"))) < 2 or len(running_in(tmp_path / "out")) < 2:
            assert process.is_alive() and time.monotonic() < deadline
            time.sleep(0.05)
        os.killpg(process.pid, number)
        process.join(120)
    out, err = (tmp_path / "printed").read_text(), (tmp_path / "errors").read_text()
    assert process.exitcode == status, err
    assert out == "" and "Traceback" not in err
    assert "stopping; 2 under way will be saved" in err and f"hogwild sweep --resume {tmp_path}/out goes on" in err
    assert not left_running_in(tmp_path / "out")
    for seed in (0, 1):
        run = hogwild.load_run(tmp_path / "out" / f"seed{seed}")
        assert run.stopped == "interrupted" and run.config.seed == seed


@pytest.mark.skipif(sys.platform != "linux", reason="there is no fork server")
def test_a_fork_server_that_is_killed_fails_the_runs_that_it_forked_and_no_others(tmp_path, capsys):
    arguments = ["sweep", "slow.py", "--pause", "0.05", "0.051", "0", "--updates", "300", "--jobs", "2"]
    command = ["-m", "hogwild", *arguments, "--out", str(tmp_path / "out"), "--json"]
    with warm_started(command, tmp_path, "printed", "errors") as process:
        deadline = time.monotonic() + 120
        while len(list(tmp_path.glob("out/*/metrics.jsonl"))) < 2 or len(running := running_in(tmp_path / "out")) < 2:
            assert process.is_alive() and time.monotonic() < deadline
            time.sleep(0.05)
        (server,) = {one.ppid() for one in running} - {one.pid for one in running}
        assert psutil.Process(server).ppid() == process.pid
        os.kill(server, signal.SIGKILL)
        process.join(120)
    out, err = (tmp_path / "printed").read_text(), (tmp_path / "errors").read_text()
    assert process.exitcode == 3 and "Traceback" not in err, err
    rows = json.loads(out)["rows"]
    assert [row["status"] for row in rows] == ["failed", "failed", "done"]
    assert rows[0]["error"] == rows[1]["error"] == "the fork server of the sweep was killed"
    assert not left_running_in(tmp_path / "out")
    assert [hogwild.load_run(row["folder"]).stopped for row in rows] == ["interrupted", "interrupted", None]
    assert main(["sweep", "--resume", str(tmp_path / "out"), "--json"]) == 0
    assert [row["updates"] for row in json.loads(capsys.readouterr().out)["rows"]] == [300, 300, 300]


def test_too_few_open_files_for_so_many_runs_at_once_are_told_in_one_line(capsys):
    assert main(["sweep", "slow.py", "--updates", "2", "--quiet", "--out", "first"]) == 0  # the fork server is there
    capsys.readouterr()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    command = ["sweep", "slow.py", "--updates", "2", "--quiet", "--seed"]
    resource.setrlimit(resource.RLIMIT_NOFILE, (psutil.Process().num_fds() + 26, hard))
    try:
        assert main([*command, "0..9", "--jobs", "99", "--out", "over"]) == 2
        told = capsys.readouterr().err
        assert main([*command, "0..3", "--jobs", "3", "--out", "within"]) == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert told.count("\n") == 1 and "hogwild: --jobs 10 needs some 52 open files, over the 2" in told
    assert told.endswith("ulimit -n raises it, a lower --jobs needs less\n")


def test_of_a_run_that_could_not_tell_what_it_failed_by_the_last_words_are_told(capsys):
    Path("dies.py").write_text(DIES)
    command = ["sweep", "dies.py", "--how", "exit", "kill", "silent", "--out", "out", "--json"]
    errors = []
    for again in range(2):
        assert main(command if not again else ["sweep", "--resume", "out", "--json"]) == 3
        errors.append([row["error"] for row in json.loads(capsys.readouterr().out)["rows"]])
    ended, killed, silent = errors[0]
    assert ended.startswith("it ended with status 1; the last that it printed: ...")
    assert killed.startswith("it was killed by SIGKILL; the last that it printed: ...")
    assert ended.endswith(". no licence was found") and killed.endswith(". no licence was found")
    assert silent == "it ended with status 1"
    assert errors[1] == errors[0]


def test_a_range_and_none_and_lists_are_values():
    given = "digits --seed 0..2 7 --clip-grad-norm none 1 --audit true false --lr 0.1"
    values = parse({"sweep": SweepCommand}, ["sweep", *given.split()])._values()
    assert values == {"seed": (0, 1, 2, 7), "clip_grad_norm": (None, 1.0), "audit": (True, False), "lr": (0.1,)}


WRONG = {
    "sweep": ["no experiment named", "hogwild sweep digits"],
    "sweep digits --lr": ["--lr given without a value"],
    "sweep digits --lr fast": ["--lr: 'fast' is not a number"],
    "sweep digits --lr 0.1..0.5": ["'0.1..0.5' is not a number", "a range is of whole numbers, as in 0..4"],
    "sweep digits --seed 4..0": ["'4..0' has no values"],
    "sweep digits --seed 0..99999999": ["'0..99999999' has too many values"],
    "sweep digits --seed 0..2 --set seed=1": ["--set seed=1", "given already"],
    "sweep digits --seed 0..2 --sample 4": ["sample 4 of a grid of 3 runs", "1 to 3 works"],
    "sweep digits --sample-seed 4": ["--sample-seed 4 given without --sample"],
    "sweep digits --jobs 0": ["jobs 0 is below 1"],
    "sweep digits --lr 0.1 0.2 --update Ordered": [
        "update 'Ordered' is not a rule; did you mean 'ordered'? the rules are racing, hogwild"
    ],
    "sweep digits --update ordered foo --updates 3": ["update 'foo' is not a rule"],
    "sweep digits --lrr 1": ["'--lrr' is not a flag of hogwild sweep", "--lr"],
    "sweep reductions --seed 0..1": ["reductions is a study", "only trainings"],
    "sweep digits --resume out": ["digits given beside --resume"],
    "sweep --resume out --lr 0.1": ["--lr given beside --resume"],
    "sweep --resume out": ["out is not the folder of a sweep", "sweep.json"],
    "sweep slow.py --width 2 x": ["--width: 'x' is not a whole number"],
    "sweep slow.py --widht 2": ["'--widht' is not a flag", "did you mean --width?"],
    "sweep slow.py --lr 0.1 -1": ["lr -1: lr -1.0 is not above 0"],
}


@pytest.mark.parametrize("arguments", WRONG)
def test_one_line_and_nothing_left(arguments, tmp_path, capsys):
    assert main(arguments.split()) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("hogwild: ") and err.count("\n") == 1, err
    assert [word for word in WRONG[arguments] if word not in err] == [], err
    assert [path.name for path in tmp_path.iterdir()] == ["slow.py"]


def test_a_folder_that_another_sweep_writes_is_refused(tmp_path, capsys):
    training, _ = find("slow.py")
    (tmp_path / "out").mkdir()
    keep_plan(tmp_path / "out", make_plan(training, "slow.py", {"seed": (0, 1)}))
    with occupied(tmp_path / "out"):
        assert main(["sweep", "--resume", "out", "--quiet"]) == 2
    assert "another run is being written in out just now" in capsys.readouterr().err


def test_where_nothing_is_swept_it_says_that_it_is_one_run(capsys):
    assert main(["sweep", "slow.py", "--seed", "3", "--out", "one"]) == 0
    assert "hogwild: one run, for no flag has several values; --seed 0..4 or" in capsys.readouterr().err
    assert main(["sweep", "slow.py", "--seed", "3", "4", "--out", "two"]) == 0
    assert "one run" not in capsys.readouterr().err


def test_own_parameters_have_names_that_the_sweep_does_not_use():
    assert set(SweepCommand.__dataclass_fields__) - {"own", "training"} <= {*OF_COMMANDS, "several", "trains", "more"}
