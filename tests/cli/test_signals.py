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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file
from side_by_side import within
from warm_pythons import NO_READER, warm_started

import hogwild
from hogwild.cli import COMMANDS

HOGWILD = [sys.executable, "-m", "hogwild"]
SMALL = """
import time
import hogwild
import torch
def build(pause: float = 0.0) -> hogwild.Problem:
    def loss(model, batch):
        time.sleep(pause)
        return model(batch).square().mean()
    return hogwild.Problem(torch.nn.Linear(2, 2), torch.randn(100, 2), loss)
hogwild.define_experiment(build, epochs=1, batch_size=10, optimizer="sgd", lr=0.01)
"""
ENDLESS = "run small.py --update ordered --updates 100000 --pause 0.002 --out out --checkpoint-every 20"
LONG = f"{ENDLESS} --quiet"


@pytest.fixture(autouse=True)
def small(tmp_path: Path) -> Path:
    """The file of a training of whatever length."""
    (tmp_path / "small.py").write_text(SMALL)
    return tmp_path


@contextmanager
def _warm(command: str, folder: Path, *streams: str | None, **options: Any) -> Iterator[BaseProcess]:
    with warm_started(["-m", "hogwild", *command.split()], folder, *streams, **options) as process:
        yield process


def _ended(process: BaseProcess) -> int | None:
    process.join(120)
    assert process.exitcode is not None, "it does not end"
    return process.exitcode


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
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("number", "status", "whole_group"), [(signal.SIGINT, 130, True), (signal.SIGTERM, 143, False)]
)
def test_a_signal_saves_what_was_trained(
    number: signal.Signals, status: int, whole_group: bool, tmp_path: Path
) -> None:
    with _warm(LONG, tmp_path) as process:
        _wait_for(tmp_path / "out" / "checkpoint.safetensors")
        os.killpg(process.pid, number) if whole_group else os.kill(process.pid, number)
        assert _ended(process) == status
    out, err = (tmp_path / "output").read_text(), (tmp_path / "errors").read_text()
    assert out == "" and "Traceback" not in err
    assert "saved in out" in err and "--resume out" in err
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["stopped"] == "interrupted" and 0 < record["updates"] < 100_000
    assert hogwild.digest(load_file(tmp_path / "out" / "model.safetensors")) == record["digest"]
    assert (tmp_path / "out" / "checkpoint.safetensors").is_file()


@pytest.mark.parametrize("kind", ["processes", "threads"])
def test_a_terminal_that_is_closed_saves_what_was_trained(kind: str, tmp_path: Path) -> None:
    """Its end is told to all of its programs, and nothing can be written there any more."""
    terminal, theirs = pty.openpty()
    with _warm(f"{ENDLESS} --kind {kind}", tmp_path, terminal=os.ttyname(theirs)) as process:
        deadline = time.monotonic() + 120
        while not (tmp_path / "out" / "checkpoint.safetensors").exists():
            assert process.is_alive() and time.monotonic() < deadline
            if select.select([terminal], [], [], 0.01)[0]:
                os.read(terminal, 1 << 16)
        os.close(theirs)
        os.close(terminal)
        assert _ended(process) == 129
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["stopped"] == "interrupted" and 0 < record["updates"] < 100_000


def test_nohup_is_heeded(tmp_path: Path) -> None:
    """That lets a program ignore SIGHUP: it goes on, and writes another checkpoint."""
    with _warm(LONG, tmp_path, ignored=[signal.SIGHUP]) as process:
        _wait_for(tmp_path / "out" / "checkpoint.safetensors")
        os.kill(process.pid, signal.SIGHUP)
        (tmp_path / "out" / "checkpoint.safetensors").unlink()
        _wait_for(tmp_path / "out" / "checkpoint.safetensors")
        os.kill(process.pid, signal.SIGTERM)
        assert _ended(process) == 143


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
    with _warm("run slow.py --kind threads", tmp_path) as process:
        _wait_for(tmp_path / "there")
        os.kill(process.pid, signal.SIGTERM)
        assert _ended(process) == 143
    errors = (tmp_path / "errors").read_text()
    assert (tmp_path / "output").read_text() == "" and "sys.exit" not in errors and "Traceback" not in errors


def _has_torch(process: subprocess.Popen[str]) -> bool:
    """Whether it has begun to load torch's libraries; a program that has not come to its first line cannot heed what
    is sent to it."""
    return "/libtorch" in Path(f"/proc/{process.pid}/maps").read_text()


def _has_a_server(process: subprocess.Popen[str]) -> bool:
    """Whether it has a child, which has its command line, beside the one that looks after shared memory."""
    return bool(_servers(process))


def _has_a_worker(process: subprocess.Popen[str]) -> bool:
    """Whether that child has forked another, so it serves."""
    with suppress(psutil.NoSuchProcess):
        return any(server.children() for server in _servers(process))
    return False


def _servers(process: subprocess.Popen[str]) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        children = psutil.Process(process.pid).children()
        return [one for one in children if "resource_tracker" not in " ".join(one.cmdline())]
    return []


MOMENTS = {
    "torch is imported": _has_torch,
    "the fork server starts": _has_a_server,
    "the fork server has forked a worker": _has_a_worker,
}


@pytest.mark.skipif(sys.platform != "linux", reason="there is no fork server")
@pytest.mark.parametrize("moment", MOMENTS)
def test_ctrl_c_while_torch_is_imported_and_the_fork_server_starts_prints_no_traceback(
    moment: str, tmp_path: Path
) -> None:
    """A terminal sends it to all processes, and the server has nothing to tell."""
    with _started([*LONG.split(), "--kind", "processes"], tmp_path) as process:
        within(120, lambda: MOMENTS[moment](process) or process.poll() is not None, f"there is no moment when {moment}")
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    assert process.returncode in (130, -signal.SIGINT) and "Traceback" not in errors


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
    assert [path.name for path in tmp_path.iterdir()] == ["small.py"]


@pytest.mark.parametrize("command", sorted(set(COMMANDS) - {"new"}))  # which needs no torch
def test_every_command_imports_torch_before_what_imports_it(command: str) -> None:
    run = ast.parse(textwrap.dedent(inspect.getsource(COMMANDS[command].run)))
    calls = [node.lineno for node in ast.walk(run) if isinstance(node, ast.Call) and _name(node) in IMPORT_IT]
    assert min(calls) < min(node.lineno for node in ast.walk(run) if isinstance(node, ast.ImportFrom))


IMPORT_IT = ("import_torch", "start_server_early")


def _name(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else ""


def test_a_check_that_is_interrupted_says_that_nothing_is_saved(tmp_path: Path) -> None:
    check = "check small.py --kind threads --updates 100000 --pause 0.002 --quiet --out out"
    with _warm(check, tmp_path) as process:
        _wait_for(tmp_path / "out")
        os.killpg(process.pid, signal.SIGINT)
        assert _ended(process) in (130, -signal.SIGINT)  # a shell calls both 130
    assert (tmp_path / "errors").read_text().splitlines()[-1] == "hogwild: interrupted; nothing is saved"


def test_ctrl_c_is_sent_to_one_that_heeds_it_wherever_the_tests_are_run(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        test_a_signal_saves_what_was_trained(signal.SIGINT, 130, True, tmp_path)
        tells = [sys.executable, "-c", "import signal; print(signal.getsignal(signal.SIGINT).__name__)"]
        done = subprocess.run(tells, capture_output=True, text=True, timeout=60, preexec_fn=_heed_signals)
    finally:
        signal.signal(signal.SIGINT, before)
    assert done.stdout == "default_int_handler\n", done.stderr


def test_json_is_the_only_thing_on_standard_output(tmp_path: Path) -> None:
    with _warm("run small.py --kind threads --updates 50 --json", tmp_path) as process:
        assert _ended(process) == 0
    assert json.loads((tmp_path / "output").read_text())["updates"] == 50
    assert "\x1b" not in (tmp_path / "errors").read_text()


def test_a_reader_that_leaves_is_not_an_error(tmp_path: Path) -> None:
    with _warm("list", tmp_path, NO_READER) as process:
        _ended(process)
    assert (tmp_path / "errors").read_text() == ""


SHORT = "run small.py --updates 10 --kind threads --quiet"
FULL = "hogwild: standard output cannot be written: No space left on device\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no such device")
@pytest.mark.parametrize(("command", "unbuffered"), [("list", "1"), (f"{SHORT} --json", "")])
def test_a_full_disk_under_standard_output_is_one_line(command: str, unbuffered: str, tmp_path: Path) -> None:
    with _warm(command, tmp_path, "/dev/full", environment={"PYTHONUNBUFFERED": unbuffered}) as process:
        assert _ended(process) == 3
    assert (tmp_path / "errors").read_text() == FULL


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no such device")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_is_one_line_where_the_interpreter_has_just_started(unbuffered: str, tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123
        environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        done = _run("--version", tmp_path, stdout=full, stderr=subprocess.PIPE, env=environment)
    assert (done.returncode, done.stderr) == (3, FULL)


def test_a_closed_standard_output_is_nobody_who_listens(tmp_path: Path) -> None:
    with _warm(SHORT, tmp_path, None) as process:
        assert _ended(process) == 0
    assert "Traceback" not in (tmp_path / "errors").read_text()


@pytest.mark.parametrize(("command", "closed"), [("run digits --lr x", 2), ("run --resume", 1)])
def test_a_closed_stream_is_nobody_who_listens(command: str, closed: int, tmp_path: Path) -> None:
    done = _run(command, tmp_path, preexec_fn=lambda: os.close(closed), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.returncode == 2 and "Traceback" not in done.stderr


def test_a_terminal_of_few_letters_loses_none_of_a_run(tmp_path: Path) -> None:
    with _warm(SHORT, tmp_path, environment={"PYTHONIOENCODING": "ascii"}) as process:
        assert _ended(process) == 0
    assert (tmp_path / "output").read_text().startswith("small ? hogwild ? 2 threads ? 10 updates")


def _run(command: str, folder: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*HOGWILD, *command.split()], cwd=folder, text=True, timeout=120, check=False, **options)


def test_a_terminal_shows_progress_and_gets_its_cursor_back(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    environment: Mapping[str, str] = {"TERM": "xterm-256color", "COLUMNS": "100"}
    command = "run small.py --updates 400 --pause 0.002 --json"
    shown = b""
    with _warm(command, tmp_path, "output", os.ttyname(theirs), environment=environment) as process:
        while not shown:  # it has opened it
            assert process.is_alive()
            if select.select([ours], [], [], 0.1)[0]:
                shown += os.read(ours, 1 << 16)
        os.close(theirs)
        with suppress(OSError):  # the other side is closed
            while chunk := os.read(ours, 1 << 16):
                shown += chunk
        os.close(ours)
        assert _ended(process) == 0
    assert json.loads((tmp_path / "output").read_text())["updates"] == 400
    assert b"starting the workers" in shown and b"of 400 updates" in shown and b"worker 1" in shown
    assert shown.rfind(b"\x1b[?25h") > shown.rfind(b"\x1b[?25l"), "the cursor stays hidden"


def test_torch_is_given_back_its_threads() -> None:
    from hogwild.cli import main

    before, handler = torch.get_num_threads(), signal.getsignal(signal.SIGTERM)
    assert main(["list", "--json"]) == 0
    assert torch.get_num_threads() == before
    assert signal.getsignal(signal.SIGTERM) is handler
