"""What will bite on this machine: what is measured, a verdict, and one line of advice each."""

from __future__ import annotations

import multiprocessing
import os
import platform
import shutil
import sys
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import psutil
import torch

from hogwild.config import RunConfig
from hogwild.errors import HogwildError
from hogwild.run.result import Run
from hogwild.run.training import train_config
from hogwild.shared.limits import cgroup_memory, cgroup_quota, usable_cores
from hogwild.shared.nameless import nameless_file, space_in
from hogwild.workers.surroundings.interpreter import has_gil

Severity = Literal["ok", "note", "problem"]

_GIB = 1 << 30
_SLOW_FIRST, _SLOW_SECOND = 4.0, 1.5  # seconds until two workers train
_FEW_FILES = 256
_WAIT = "--kind auto takes processes unless a step is long, for threads wait for each other on small models"
_HOW = "docs/free-threading.md"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    `verdict` is ok; note, where it is good to know; or problem, where training will fail or crawl.
    """

    name: str
    found: str
    verdict: Severity = "ok"
    advice: str = ""


def examine() -> Iterator[Finding]:
    """Look at this machine; the last findings take seconds, for they start workers."""
    for look in (_cores, _memory, _shared_memory, _shm, _starts, _gil, _torch, _threads_variable, _files):
        yield look()
    yield from _workers()


def doctor_summary(findings: list[Finding]) -> dict[str, Any]:
    """The findings as plain values: what `hogwild doctor --json` prints."""
    worst = max((finding.verdict for finding in findings), key=("ok", "note", "problem").index, default="ok")
    return {"verdict": worst, "findings": [asdict(finding) for finding in findings]}


def _cores() -> Finding:
    cores, all_of_them, quota = usable_cores(), os.cpu_count() or 1, cgroup_quota()
    found = f"{cores:g} of {all_of_them} usable"
    if quota is not None and quota <= cores:
        found += f" (cgroup quota {quota:g})"
    if cores < 2:
        return Finding(
            "cores", found, "problem", "workers share one core: no speed is gained, only rules can be compared"
        )
    return Finding("cores", found, advice=f"--workers {int(cores)} keeps them busy; more does not help")


def _memory() -> Finding:
    memory, limit = psutil.virtual_memory(), cgroup_memory()
    free = memory.available
    found = f"{memory.available / _GIB:.1f} of {memory.total / _GIB:.1f} GiB available"
    if limit is not None and limit < memory.total:
        found += f", cgroup limit {limit / _GIB:.1f} GiB"
        free = min(free, limit)
    if free < 2 * _GIB:
        return Finding(
            "memory",
            found,
            "problem",
            "a worker process needs 0.2 to 0.4 GiB before its model; --kind threads needs less",
        )
    return Finding("memory", found)


def _shared_memory() -> Finding:
    try:
        descriptor, folder = nameless_file()
    except OSError as error:
        return Finding("shared memory", f"cannot be had: {error.strerror}", "problem", "no model can be shared")
    os.close(descriptor)
    if folder is None:
        return Finding("shared memory", "in memory (memfd), without a name", "ok", "none is left behind")
    found = f"an unlinked file in {folder}, {space_in(folder) / _GIB:.1f} GiB free"
    return Finding("shared memory", found, "note", "slower than memory; TMPDIR may name another folder")


def _shm() -> Finding:
    without = "not needed: what workers share is not there"
    if not Path("/dev/shm").is_dir():
        return Finding("/dev/shm", "absent", "ok", without)
    usage = shutil.disk_usage("/dev/shm")
    found = f"{usage.free / _GIB:.1f} of {usage.total / _GIB:.1f} GiB free"
    if usage.free < _GIB:
        return Finding("/dev/shm", found, "note", f"{without}; a torch DataLoader with workers does need it")
    return Finding("/dev/shm", found, "ok", without)


def _starts() -> Finding:
    methods = multiprocessing.get_all_start_methods()
    used = "forkserver" if sys.platform == "linux" else "spawn"
    found = ", ".join(methods)
    if used not in methods:
        return Finding("start methods", found, "problem", f"{used} is missing; --kind threads works")
    return Finding("start methods", found, "ok", f"worker processes start by {used}, never by a bare fork")


def _gil() -> Finding:
    version = platform.python_version()
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        found = f"Python {version} with the GIL"
        return Finding("interpreter", found, "note", f"{_WAIT}; python3.14t has no GIL: {_HOW} says how to get it")
    if has_gil():
        found = f"Python {version}, free-threaded, but the GIL is on"
        return Finding(
            "interpreter",
            found,
            "note",
            f"{_WAIT}; an extension or PYTHON_GIL=1 turned it on, PYTHON_GIL=0 keeps it off",
        )
    found = f"Python {version}, free-threaded, the GIL is off"
    return Finding(
        "interpreter", found, "ok", f"--kind auto takes threads, which do not wait for an interpreter; {_HOW} says more"
    )


def _torch() -> Finding:
    inside, between = torch.get_num_threads(), torch.get_num_interop_threads()
    found = f"torch {torch.__version__}, {inside} intra-op and {between} inter-op threads"
    return Finding("torch", found, "ok", "each worker sets itself to one intra-op thread")


def _threads_variable() -> Finding:
    found = {name: os.environ[name] for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS") if name in os.environ}
    if not found:
        return Finding("thread variables", "OMP_NUM_THREADS and MKL_NUM_THREADS are not set")
    text = ", ".join(f"{name}={value}" for name, value in found.items())
    return Finding("thread variables", text, "note", "they bind your own torch code; workers set one thread anyway")


def _files() -> Finding:
    try:
        import resource
    except ImportError:
        return Finding("open files", "no limit known")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    shown = ["unlimited" if limit == resource.RLIM_INFINITY else f"{limit:,}" for limit in (soft, hard)]
    found = f"at most {shown[0]} (hard limit {shown[1]})"
    if soft != resource.RLIM_INFINITY and soft < _FEW_FILES:
        return Finding("open files", found, "note", "each worker process takes a few; raise it with ulimit -n")
    return Finding("open files", found)


def _workers() -> Iterator[Finding]:
    """Train something tiny twice: the first start brings up the fork server, the second finds it there."""
    for name, limit in (("first start", _SLOW_FIRST), ("second start", _SLOW_SECOND)):
        began = time.monotonic()
        try:
            run = _tiny_run()
        except (HogwildError, OSError) as error:
            yield Finding(name, " ".join(str(error).split())[:200], "problem", "--kind threads may work")
            return
        whole = time.monotonic() - began
        found = f"two worker processes train after {run.startup_seconds:.2f} s, and are gone after {whole:.2f} s"
        if run.startup_seconds > limit:
            yield Finding(name, found, "note", f"over {limit:g} s: is the machine busy, or its disk slow?")
        else:
            yield Finding(name, found)


def _tiny_run() -> Run:
    data = torch.ones(8, 1)
    config = RunConfig(name="doctor", kind="processes", updates=4, batch_size=4)
    return train_config(config, torch.nn.Linear(1, 1), data, _tiny_loss, optimizer=partial(torch.optim.SGD, lr=0.1))


def _tiny_loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(batch).square().mean()
    return loss
