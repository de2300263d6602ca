"""The command as a process: signals, exit status, and what stands on which stream."""

from __future__ import annotations

import ast
import inspect
import json
import os
import pty
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file

import hogwild
from hogwild.cli import COMMANDS

HOGWILD = [sys.executable, "-m", "hogwild"]
LONG = [
    "run",
    "digits",
    "--update",
    "ordered",
    "--epochs",
    "1000",
    "--quiet",
    "--out",
    "out",
    "--checkpoint-every",
    "50",
]


def _heed_signals() -> None:
    """A shell starts what it runs in the background with SIGINT ignored, nohup with SIGHUP, and that is inherited."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@contextmanager
def _started(arguments: list[str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*HOGWILD, *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
        preexec_fn=_heed_signals,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _wait_for(path: Path, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("number", "status", "whole_group"), [(signal.SIGINT, 130, True), (signal.SIGTERM, 143, False)]
)
def test_a_signal_saves_what_was_trained(
    number: signal.Signals, status: int, whole_group: bool, tmp_path: Path
) -> None:
    with _started(LONG, tmp_path) as process:
        _wait_for(tmp_path / "out" / "checkpoint.safetensors")
        os.killpg(process.pid, number) if whole_group else process.send_signal(number)
        out, err = process.communicate(timeout=120)
    assert process.returncode == status, err
    assert out == "" and "Traceback" not in err
    assert "saved in out" in err and "--resume out" in err
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["stopped"] == "interrupted" and 0 < record["updates"] < 94_000
    assert hogwild.digest(load_file(tmp_path / "out" / "model.safetensors")) == record["digest"]
    assert (tmp_path / "out" / "checkpoint.safetensors").is_file()


@pytest.mark.parametrize("kind", ["processes", "threads"])
def test_a_terminal_that_is_closed_saves_what_was_trained(kind: str, tmp_path: Path) -> None:
    """Its end is told to all of its programs, and nothing can be written there any more."""
    with _in_a_terminal([a for a in LONG if a != "--quiet"] + ["--kind", kind], tmp_path) as (process, terminal):
        deadline = time.monotonic() + 120
        while not (tmp_path / "out" / "checkpoint.safetensors").exists():
            assert time.monotonic() < deadline
            if select.select([terminal], [], [], 0.05)[0]:
                os.read(terminal, 1 << 16)
        os.close(terminal)
        assert process.wait(60) == 129
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["stopped"] == "interrupted" and 0 < record["updates"] < 94_000


@contextmanager
def _in_a_terminal(arguments: list[str], folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A program of a terminal of its own, and that terminal's other end."""
    ours, theirs = pty.openpty()
    command = ["setsid", "--ctty", *HOGWILD, *arguments]
    process = subprocess.Popen(
        command, cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs, preexec_fn=_heed_signals
    )
    os.close(theirs)
    try:
        yield process, ours
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def test_nohup_is_heeded(tmp_path: Path) -> None:
    with subprocess.Popen(
        ["nohup", *HOGWILD, *LONG], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        _wait_for(tmp_path / "out" / "checkpoint.safetensors")
        process.send_signal(signal.SIGHUP)
        time.sleep(0.5)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)
        assert process.returncode == 143


SLOW = """
import pathlib, time
import hogwild
def build() -> hogwild.Problem:
    pathlib.Path("there").touch()
    time.sleep(60)
hogwild.define_experiment(build, epochs=1, optimizer="sgd", lr=0.1)
"""


@pytest.mark.parametrize("text", [SLOW, SLOW + "build()\n"], ids=["its builder", "itself"])
def test_sigterm_is_no_fault_of_the_file_that_runs_meanwhile(text: str, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(text)
    with _started(["run", "slow.py", "--kind", "threads"], tmp_path) as process:
        _wait_for(tmp_path / "there")
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (143, "") and "sys.exit" not in err and "Traceback" not in err


@pytest.mark.skipif(sys.platform != "linux", reason="there is no fork server")
@pytest.mark.parametrize("moment", ["torch is imported", "the fork server starts", "the fork server has started"])
def test_ctrl_c_while_torch_is_imported_and_the_fork_server_starts_prints_no_traceback(
    moment: str, tmp_path: Path
) -> None:
    """A terminal sends it to all processes, and the server has nothing to tell."""
    has_come = _has_torch if moment == "torch is imported" else _has_a_server
    with _started(["run", "digits", "--kind", "processes", "--quiet", "--epochs", "1000"], tmp_path) as process:
        deadline = time.monotonic() + 60
        while not has_come(process):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.002)
        time.sleep(0.6 if moment == "the fork server has started" else 0)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT) and "Traceback" not in errors


def _has_torch(process: subprocess.Popen[str]) -> bool:
    """Whether it has begun to load torch's libraries; a program that has not come to its first line cannot heed what
    is sent to it."""
    return "/libtorch" in Path(f"/proc/{process.pid}/maps").read_text()


def _has_a_server(process: subprocess.Popen[str]) -> bool:
    """Whether it has a child, which has its command line, beside the one that looks after shared memory."""
    with suppress(psutil.NoSuchProcess):
        return any("resource_tracker" not in " ".join(one.cmdline()) for one in psutil.Process(process.pid).children())
    return False


INTERRUPTED_IMPORT = """
import sys
class Finder:
    def find_spec(self, name, *others):
        if name == "hogwild.cli":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Finder())
from hogwild.__main__ import command
sys.exit(command())
"""


def test_ctrl_c_while_the_command_line_is_imported_prints_no_traceback() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED_IMPORT], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (130, "")


INTERRUPTED_TORCH = """
import os, sys
class Finder:
    sent = False
    def find_spec(self, name, *others):
        if name == "numpy.linalg" and not self.sent:
            self.sent = True
            os.kill(os.getpid(), {number})
sys.meta_path.insert(0, Finder())
from hogwild.cli import main
sys.exit(main({arguments}))
"""


@pytest.mark.parametrize(
    ("number", "status", "arguments"),
    [
        (signal.SIGINT, 130, ["list"]),
        (signal.SIGTERM, 143, ["run", "digits"]),
        (signal.SIGINT, 130, ["check", "train.py"]),
    ],
)
def test_what_interrupts_the_import_of_torch_is_not_lost(
    number: int, status: int, arguments: list[str], tmp_path: Path
) -> None:
    """torch goes on without numpy, whatever is raised while it imports that."""
    script = INTERRUPTED_TORCH.format(number=int(number), arguments=arguments)
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path, preexec_fn=_heed_signals)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", "")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("command", sorted(set(COMMANDS) - {"new"}))  # which needs no torch
def test_every_command_imports_torch_before_what_imports_it(command: str) -> None:
    run = ast.parse(textwrap.dedent(inspect.getsource(COMMANDS[command].run)))
    calls = [node.lineno for node in ast.walk(run) if isinstance(node, ast.Call) and _name(node) in IMPORT_IT]
    assert min(calls) < min(node.lineno for node in ast.walk(run) if isinstance(node, ast.ImportFrom))


IMPORT_IT = ("import_torch", "start_server_early")


def _name(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else ""


def test_a_check_that_is_interrupted_says_that_nothing_is_saved(tmp_path: Path) -> None:
    check = ["check", "digits", "--kind", "threads", "--epochs", "1000", "--quiet", "--out", "out"]
    with _started(check, tmp_path) as process:
        _wait_for(tmp_path / "out")
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT)  # a shell calls both 130
    assert errors.splitlines()[-1] == "hogwild: interrupted; nothing is saved"


def test_ctrl_c_is_sent_to_one_that_heeds_it_wherever_the_tests_are_run(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        test_a_signal_saves_what_was_trained(signal.SIGINT, 130, True, tmp_path)
    finally:
        signal.signal(signal.SIGINT, before)


def test_json_is_the_only_thing_on_standard_output(tmp_path: Path) -> None:
    done = subprocess.run(
        [*HOGWILD, "run", "digits", "--kind", "threads", "--updates", "50", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["updates"] == 50
    assert "\x1b" not in done.stderr


def test_a_reader_that_leaves_is_not_an_error(tmp_path: Path) -> None:
    command = f"{sys.executable} -m hogwild list | head -c 1"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stderr == ""


SHORT = "run digits --updates 10 --kind threads --quiet"
FULL = "hogwild: standard output cannot be written: No space left on device\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no such device")
@pytest.mark.parametrize(("command", "unbuffered"), [("list", "1"), ("--version", ""), (f"{SHORT} --json", "")])
def test_a_full_disk_under_standard_output_is_one_line(command: str, unbuffered: str, tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123
        environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        done = _run(command, tmp_path, stdout=full, stderr=subprocess.PIPE, env=environment)
    assert (done.returncode, done.stderr) == (3, FULL)


@pytest.mark.parametrize(
    ("command", "closed", "status"),
    [(SHORT, 1, 0), ("run digits --lr x", 2, 2), ("run --resume", 1, 2)],
)
def test_a_closed_stream_is_nobody_who_listens(command: str, closed: int, status: int, tmp_path: Path) -> None:
    done = _run(command, tmp_path, preexec_fn=lambda: os.close(closed), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.returncode == status and "Traceback" not in done.stderr


def test_a_terminal_of_few_letters_loses_none_of_a_run(tmp_path: Path) -> None:
    done = _run(SHORT, tmp_path, capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0 and done.stdout.startswith("digits ? hogwild ? 2 threads ? 10 updates")


def _run(command: str, folder: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*HOGWILD, *command.split()], cwd=folder, text=True, timeout=120, check=False, **options)


def test_a_terminal_shows_progress_and_gets_its_cursor_back(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    arguments = ["run", "digits", "--updates", "400", "--json"]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    process = subprocess.Popen(
        [*HOGWILD, *arguments], cwd=tmp_path, stdout=subprocess.PIPE, stderr=theirs, env=environment
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
        if not chunk:
            break
        shown += chunk
    os.close(ours)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert json.loads(out)["updates"] == 400
    assert b"starting the workers" in shown and b"of 400 updates" in shown and b"worker 1" in shown
    assert shown.rfind(b"\x1b[?25h") > shown.rfind(b"\x1b[?25l"), "the cursor stays hidden"


def test_torch_is_given_back_its_threads() -> None:
    from hogwild.cli import main

    before, handler = torch.get_num_threads(), signal.getsignal(signal.SIGTERM)
    assert main(["list", "--json"]) == 0
    assert torch.get_num_threads() == before
    assert signal.getsignal(signal.SIGTERM) is handler
