"""What every test stands on: models small enough to train in milliseconds, and the police that fails a test that
leaves anything behind."""

from __future__ import annotations

import gc
import io
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import threadpoolctl  # noqa: F401 - the first training would import it, and it sets environment variables
import torch
import torch._dynamo  # the first optimizer would import it, and it sets an environment variable
from hypothesis import settings

# Helpers of the standard library that outlive a test, by what stands in their command line.
_SERVERS = ("multiprocessing.forkserver import main", "multiprocessing.resource_tracker import main")
_GRACE = 5.0  # seconds for the operating system to reap what has ended


def pytest_configure() -> None:
    """Parallel test processes share the cores: one torch thread each, in this process and in those it starts. And none
    looks for cycles in what was imported."""
    gc.freeze()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    settings.register_profile("shared cores", deadline=None)  # what an example takes hangs on what else runs
    settings.load_profile("shared cores")


def pytest_xdist_auto_num_workers() -> int:
    """Two test processes more than there are cores: many tests wait, for kills, time limits and starting programs."""
    return (os.cpu_count() or 1) + 2


@pytest.fixture(scope="session")
def fonts() -> None:
    """For tests that draw: matplotlib keeps the files of the fonts that it has used open."""
    from matplotlib.figure import Figure

    drawn = Figure()
    drawn.suptitle("bold", weight="bold")
    drawn.add_subplot().plot([1.0, 1e6])
    drawn.axes[0].set_yscale("log")
    drawn.savefig(io.BytesIO())


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """It interrupts, also where the tests are a program in the background of a shell, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def _threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("hogwild")}


def _descendants() -> list[int]:
    """Children of this process, and of the fork server, which is the parent of all workers. Linux tells of those of one
    process; psutil, which asks every process there is for its parent, takes a hundred times as long."""
    if not Path("/proc/thread-self/children").exists():
        return [process.pid for process in psutil.Process().children(recursive=True)]
    found = [os.getpid()]
    for number in found:
        with suppress(OSError):  # it has ended
            for task in Path(f"/proc/{number}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found[1:]


def _processes() -> set[str]:
    """Those that are no helper of the standard library."""
    found = set()
    for number in _descendants():
        try:
            process = psutil.Process(number)
            command = " ".join(process.cmdline())
            workers_parent = process.ppid() != os.getpid()
            if process.status() != psutil.STATUS_ZOMBIE and (workers_parent or not any(s in command for s in _SERVERS)):
                found.add(f"process {number}: {command[:120]}")
        except psutil.NoSuchProcess:
            continue
    return found


def _shared_memory() -> set[str]:
    folder = Path("/dev/shm")
    mine = {f"torch_{os.getpid()}", f"psm_{os.getpid()}"}
    return {path.name for path in folder.iterdir() if any(m in path.name for m in mine)} if folder.is_dir() else set()


def _temporary_folders() -> set[str]:
    return {str(path) for path in Path("/tmp").glob(f"pymp-*{os.getpid()}*")}


def _left() -> set[str]:
    return _threads() | _processes() | _shared_memory() | _temporary_folders()


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fails a test that leaves a thread, a process, shared memory, a temporary folder or an environment variable."""
    before, environment, descriptors = _left(), dict(os.environ), psutil.Process().num_fds()
    threads = torch.get_num_threads()
    yield
    deadline = time.monotonic() + _GRACE
    while (left := _left() - before) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not left, f"left behind: {sorted(left)}"
    changed = {
        key
        for key in {*environment, *os.environ} - {"PYTEST_CURRENT_TEST"}
        if environment.get(key) != os.environ.get(key)
    }
    assert not changed, f"environment variables changed: {sorted(changed)}"
    assert torch.get_num_threads() == threads, "torch's threads were not given back"
    assert psutil.Process().num_fds() < descriptors + 8, "file descriptors were left open"
