"""What this machine lets a run have: cores, memory, open files; and what would be over, told before training."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import psutil

from hogwild.errors import ArgumentError, warn_caller

CGROUP = Path("/sys/fs/cgroup")
_FILES_A_WORKER = 6  # two pipes, the sentinel, and what starting it takes for a moment
_FILES_BESIDE = 16  # the arenas, the fork server's connection, and files of the run directory
_FILES_A_JOB = 4  # of a sweep: two pipes, the sentinel, and the pipe by which it hears of our end
_FILES_OF_A_START = 12  # its log, its ends of the pipes, and what the fork server is told by


def refuse(workers: int, *, own_processes: bool) -> None:
    """Refuse a number of workers that the limits do not allow, and warn where it is more than there are cores.

    Raises:
        ArgumentError: so many worker processes would need more open files than this process may have.
    """
    if own_processes:
        needed = _FILES_A_WORKER * workers + _FILES_BESIDE
        _refuse_files(f"{workers} worker processes need", needed, "fewer workers or kind='threads' need")
    cores = usable_cores()
    if workers > max(1.0, cores):
        warn_caller(
            f"{workers} workers share {cores:g} cores; {max(1, int(cores))} keep them busy, and more are not faster"
        )


def refuse_jobs(jobs: int) -> None:
    """Refuse so many runs of a sweep at once, where the limits do not allow them.

    Raises:
        ArgumentError: they would need more open files than this process may have.
    """
    _refuse_files(f"--jobs {jobs} needs", _FILES_A_JOB * jobs + _FILES_OF_A_START, "a lower --jobs needs")


def _refuse_files(what: str, needed: int, less: str) -> None:
    left = open_files_left()
    if left is not None and needed > left:
        raise ArgumentError(
            f"{what} some {needed} open files, over the {left} left of this process's limit; ulimit -n raises it, "
            f"{less} less"
        )


def open_files_left() -> int | None:
    """Files that this process may still open; None where there is no limit, or none is known."""
    try:
        import resource
    except ImportError:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft - psutil.Process().num_fds()


def usable_cores() -> float:
    """Cores that this process may use: of those it is bound to, what its cgroup's quota allows."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup_quota()
    return min(float(bound), quota) if quota is not None else float(bound)


def memory_limits(root: Path = CGROUP) -> Iterator[tuple[str, int]]:
    """(what sets it, bytes still free) for every limit that shared memory counts against."""
    yield "free memory of this machine", psutil.virtual_memory().available
    for folder in cgroup_folders(root):
        yield from _free(folder / "memory.max", folder / "memory.current")
    for folder in cgroup_folders(root / "memory"):
        yield from _free(folder / "memory.limit_in_bytes", folder / "memory.usage_in_bytes")


def _free(limit: Path, used: Path) -> Iterator[tuple[str, int]]:
    try:
        most = _bytes(limit)
        if most is not None:
            yield f"memory limit in {limit}", int(most) - int(used.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # no such control group
        return


def cgroup_quota(root: Path = CGROUP) -> float | None:
    """Cores that the cgroup's quota comes to; None where there is no quota."""
    limits = [*_limits(root, "cpu.max", _quota_v2), *_limits(root / "cpu", "cpu.cfs_quota_us", _quota_v1)]
    return min(limits, default=None)


def cgroup_memory(root: Path = CGROUP) -> int | None:
    """Bytes of memory that the cgroup allows; None where it sets no limit."""
    limits = [*_limits(root, "memory.max", _bytes), *_limits(root / "memory", "memory.limit_in_bytes", _bytes)]
    return int(min(limits)) if limits else None


def _limits(root: Path, name: str, read: Callable[[Path], float | None]) -> Iterable[float]:
    """The limits of this process's cgroup and of those it is in."""
    for folder in cgroup_folders(root):
        try:
            limit = read(folder / name)
        except (OSError, ValueError, IndexError):
            continue
        if limit is not None:
            yield limit


def cgroup_folders(root: Path, own: Path = Path("/proc/self/cgroup")) -> list[Path]:
    """The folders of this process's cgroup and of those it is in, innermost first; of cgroup v1, where `root` has the
    name of a controller, and each has groups of its own."""
    try:
        lines = [line.split(":", 2) for line in own.read_text(encoding="utf-8").splitlines()]
    except OSError:
        lines = []
    groups = {name: path for _, names, path in filter(_is_whole, lines) for name in names.split(",")}
    inner = Path(groups.get(root.name, groups.get("", "")).lstrip("/"))  # that of v2 has no controllers before it
    return [root / part for part in (inner, *inner.parents)] if inner.parts else [root]


def _is_whole(line: Sequence[str]) -> bool:
    return len(line) == 3


def _quota_v2(path: Path) -> float | None:
    quota, period = path.read_text(encoding="utf-8").split()
    return None if quota == "max" else int(quota) / int(period)


def _quota_v1(path: Path) -> float | None:
    quota = int(path.read_text(encoding="utf-8"))
    period = int(path.with_name("cpu.cfs_period_us").read_text(encoding="utf-8"))
    return quota / period if quota > 0 else None


def _bytes(path: Path) -> float | None:
    text = path.read_text(encoding="utf-8").strip()
    # cgroup v1 writes "no limit" as a number near 2^63.
    return None if text == "max" or int(text) >= 1 << 60 else int(text)
