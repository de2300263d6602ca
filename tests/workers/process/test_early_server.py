"""The fork server as a fork of the program: what it keeps of it, and what not."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from programs import UNIMPORTED, started

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is no fork server")

OWN = """
import hogwild, torch
def build() -> hogwild.Problem:
    return hogwild.Problem(torch.nn.Linear(2, 2), torch.ones(4, 2), lambda model, batch: model(batch).sum())
"""
COMMAND = """
import os, signal, sys
from multiprocessing import forkserver
from pathlib import Path
from hogwild.cli import main

status = main({arguments!r}.split())
number = forkserver._forkserver._forkserver_pid
of_both = [Path(f"/proc/{{one}}/cmdline").read_bytes() for one in (number, "self") if one]
server = "none" if number is None else "forked" if of_both[0] == of_both[1] else "started"
if server == "started":
    os.kill(number, signal.SIGKILL)  # or it would import torch for nobody
print(server)
sys.exit(status)
"""
COMMANDS = {
    "run two_apis --kind processes": "forked",
    "run two_apis --kind threads": "none",
    "run train.py --kind processes --lr fast": "forked",
    "run train.py --lr fast --kind=threads": "none",
    "probe two_apis": "forked",
    "probe two_apis --kind threads": "none",
}


def test_the_command_line_imports_torch_once(tmp_path: Path) -> None:
    script = COMMAND.format(arguments="run two_apis --kind processes")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "forked\n")


@pytest.mark.parametrize("arguments", COMMANDS)
def test_the_server_of_a_command_is_a_fork_of_it_where_it_has_one(arguments: str, tmp_path: Path) -> None:
    assert _server_of(arguments, tmp_path, UNIMPORTED) == COMMANDS[arguments]


BEFORE_TORCH = """
import sys, threading
from hogwild.cli import main
from hogwild.workers.process import early

class Imports(BaseException):
    pass

def import_torch():
    raise Imports

early.import_torch = import_torch
for arguments in sys.argv[1:]:
    try:
        main(arguments.split())
    except Imports:
        print("torch" in sys.modules, threading.active_count())
"""


def test_a_command_has_done_nothing_before_it_imports_torch(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(OWN)
    command = [sys.executable, "-c", BEFORE_TORCH, *COMMANDS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert (done.stdout.splitlines(), done.stderr) == (["False 1"] * len(COMMANDS), "")


UNCOLLECTED = """
import gc, sys
looked = []
gc.callbacks.append(lambda phase, info: looked.append(info["generation"]))
from hogwild.workers.process.early import fork_server, import_torch

for does in (import_torch, lambda: fork_server("processes")):
    looked.clear()
    frozen = gc.get_freeze_count()
    does()
    print(*looked, gc.isenabled(), "torch" in sys.modules)
    made = [gc.get_freeze_count() > max(frozen, 100_000)]
    print(*made, any(one is made for one in gc.get_objects()))
"""


def test_no_cycles_are_looked_for_in_what_a_command_imports() -> None:
    """Neither while it is imported nor later, at the end of the program above all: that took a quarter of the time of a
    short command. They are in what it makes afterwards."""
    command = [sys.executable, "-c", UNCOLLECTED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines() == ["True True", "True True"] * 2


THREAD = "import threading, time\nthreading.Thread(target=time.sleep, args=[1e6], daemon=True).start()"


@pytest.mark.parametrize("before", ["import torch", UNIMPORTED + THREAD], ids=["torch", "a thread"])
def test_a_program_that_has_done_something_is_not_forked(before: str, tmp_path: Path) -> None:
    assert _server_of("run two_apis --kind processes", tmp_path, before) == "started"


def _server_of(arguments: str, folder: Path, before: str) -> str:
    (folder / "train.py").write_text(OWN)
    source = f"import os\nos.chdir({str(folder)!r})\n{before}\n" + COMMAND.format(arguments=arguments)
    with started(source, errors=folder / "errors", warm=False) as program:
        server = program.output.readline().strip()
        told = (folder / "errors").read_text()
        assert program.ended() == 2, f"a study has no --kind and nothing to probe, and fast is no rate: {told}"
    return server


# A worker that reports what it finds, of a server that is a fork or a program of its own.
ASKED = """
def asked(sender):
    import json, os, signal, sys, threading, warnings
    from multiprocessing import forkserver, spawn as theirs, util
    from hogwild.workers.process import spawn
    found = {
        "handlers": {str(number): str(signal.getsignal(number)) for number in (1, 2, 10, 13, 15)},
        "blocked": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))),
        "files": sorted(os.readlink(f"/proc/self/fd/{one}").split(":")[0] for one in os.listdir("/proc/self/fd")
                        if os.path.exists(f"/proc/self/fd/{one}")),
        "locked": [spawn.start_lock.locked(), forkserver._forkserver._lock.locked()],
        "threads": [thread.name for thread in threading.enumerate()],
        "environment": dict(os.environ),
        "warnings": warnings.showwarning.__module__,
        "theirs": [util.spawnv_passfds.__module__, theirs.get_preparation_data.__module__],
        "path": sys.path,
        "torch": "torch" in sys.modules,
    }
    sender.send(json.dumps(found))
"""
LIKE = """
import os, signal, sys, warnings
way, folder = sys.argv[1:]
os.chdir(folder)
sys.path.insert(0, folder)
from asked import asked
from hogwild.workers.process.early import fork_server
from hogwild.workers.process.spawn import start_context, start_process, start_server

file = open("kept", "w")
signal.signal(signal.SIGTERM, lambda *_: None)
warnings.showwarning = lambda *_: None
print("written once", flush=False)
fork_server("processes") if way == "forked" else start_server()
receiver, sender = start_context().Pipe(duplex=False)
process = start_context().Process(target=asked, args=[sender])
assert start_process(process)
told = receiver.recv()
process.join()
assert process.exitcode == 0
print(told)
"""


def test_a_worker_finds_what_it_finds_where_the_server_was_started(tmp_path: Path) -> None:
    (tmp_path / "asked.py").write_text(ASKED)
    forked, anew = (_found(way, tmp_path) for way in ("forked", "started"))
    assert forked == anew
    assert forked["handlers"]["15"] == "0" and forked["locked"] == [False, False] and forked["torch"]
    assert not any("kept" in file for file in forked["files"])


def _found(way: str, folder: Path) -> dict[str, Any]:
    with started(LIKE, way, str(folder), errors=folder / "errors", warm=False) as program:
        assert (program.ended(), (folder / "errors").read_text()) == (0, "")
        once, told = program.output.read().splitlines()
    assert once == "written once"
    found: dict[str, Any] = json.loads(told)
    return found


KILLED = """
import time
from multiprocessing import forkserver
from hogwild.workers.process.early import fork_server

fork_server("processes")
print(forkserver._forkserver._forkserver_pid, flush=True)
time.sleep(600)
"""


def test_the_server_ends_with_a_program_that_is_killed(tmp_path: Path) -> None:
    with started(KILLED, errors=tmp_path / "errors", warm=False) as program:
        server = psutil.Process(int(program.output.readline()))
        assert server.ppid() == program.process.pid
        program.process.kill()
        deadline = time.monotonic() + 30
        while server.is_running() and server.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline
            time.sleep(0.01)


INTERRUPTED = """
import os, signal, sys
from hogwild.workers.process.early import fork_server

signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
os.register_at_fork(after_in_parent=lambda: signal.raise_signal(signal.SIGTERM))
fork_server("processes")
"""


def test_a_signal_that_comes_at_the_fork_is_heard(tmp_path: Path) -> None:
    """What is raised in a hook of a fork is ignored, and logging has one."""
    with started(INTERRUPTED, errors=tmp_path / "errors", warm=False) as program:
        assert program.ended() == 143
    assert (tmp_path / "errors").read_text() == ""


CLOSED = """
import os, sys
from hogwild.workers.process import early

lists, most = sys.argv[1:]
early._LISTS = lists.split(":")
os.sysconf = lambda name: int(most)  # as in many containers
kept, *others = [os.open(os.devnull, os.O_RDONLY) for _ in range(9)]
for other in others[::2]:
    os.close(other)
early._close_all_but({0, 1, 2, kept})
assert {int(one) for one in os.listdir("/proc/self/fd")} == {0, 1, 2, kept, kept + 1}  # that of the list itself
os.fstat(kept)
"""
BY_NUMBER = """
import os

def closerange(low, high):  # as where CPython was built with glibc before 2.34
    for number in range(low, high):
        try:
            os.close(number)
        except OSError:
            pass

os.closerange = closerange
"""


@pytest.mark.parametrize(
    ("lists", "most"), [("/proc/self/fd:/dev/fd", 2**30), ("/not/there:/dev/fd", 2**30), ("/not/there", 1024)]
)
def test_files_are_closed_at_once_whatever_the_limit_on_them(lists: str, most: int) -> None:
    """A billion numbers, closed one by one, would take minutes."""
    command = [sys.executable, "-c", BY_NUMBER + CLOSED, lists, str(most)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
