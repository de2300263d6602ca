"""Limits are met early and told in one line: disk, memory, open files, cores."""

from __future__ import annotations

import errno
import os
import resource
import sys
import threading
import warnings
from contextlib import contextmanager
from pathlib import Path

import problems
import psutil
import pytest
import torch
from traits import KINDS

import hogwild
from hogwild.config import RunConfig
from hogwild.determinism.replay import read_record
from hogwild.run.saved.directory import begin_directory
from hogwild.shared import arena, limits
from hogwild.shared.arena import Arena


@contextmanager
def limited(which, most=None):
    """Inside, this process has that soft limit, or one that `limit` gives it there."""
    soft, hard = resource.getrlimit(which)
    compiles = sys.dont_write_bytecode
    try:
        if most is not None:
            limit(which, most)
        yield
    finally:
        resource.setrlimit(which, (soft, hard))
        sys.dont_write_bytecode = compiles


def limit(which, most):
    """Give this process that soft limit. It writes no module's compiled text then: of one that a limit on files cut off
    the import system would leave a part, and take it for the whole in all programs to come."""
    sys.dont_write_bytecode = True
    resource.setrlimit(which, (most, resource.getrlimit(which)[1]))


def one_line(caught):
    message = str(caught.value)
    assert "\n" not in message and len(message) < 400, message
    return message


def nothing_half_written(folder: Path):
    return [path.name for path in folder.iterdir() if path.name.startswith(".")] == []


# --- the disk


@pytest.mark.parametrize("kind", KINDS)
def test_a_disk_that_fills_while_the_run_is_saved(kind, tmp_path):
    """A file may grow to 300 bytes: config.toml may, the model may not."""

    def evaluate(model):
        limit(resource.RLIMIT_FSIZE, 300)
        return {}

    wanted = "the run cannot be saved in .*File too large"
    with limited(resource.RLIMIT_FSIZE), pytest.raises(hogwild.RunDirectoryError, match=wanted) as caught:
        problems.train(kind=kind, evaluate=evaluate, evaluate_every=40, out=tmp_path)
    one_line(caught)
    assert nothing_half_written(tmp_path)
    with pytest.raises(hogwild.RunDirectoryError, match=r"holds no run\.json: its run (failed \(|was interrupted)"):
        read_record(tmp_path)


def test_a_run_that_cannot_be_saved_leaves_the_one_before_it_whole(tmp_path):
    run = problems.train(update="ordered", updates=8, out=tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    other = problems.train(update="ordered", updates=9)
    with limited(resource.RLIMIT_FSIZE, 300), pytest.raises(hogwild.RunDirectoryError, match="cannot be saved"):
        other.save(tmp_path, overwrite=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert read_record(tmp_path).digest == run.digest


@pytest.mark.parametrize("kind", KINDS)
def test_a_disk_that_fills_while_a_checkpoint_is_saved(kind, tmp_path):

    def loss(model, batch):
        info = hogwild.worker_info()
        if info.update == 12:  # of the process that is about to save; under threads that is this one
            limit(resource.RLIMIT_FSIZE, 300)
        return problems.cross_entropy(model, batch)

    settings = {"update": "ordered", "workers": 1, "updates": 20}
    wanted = "no checkpoint of version .* in .*File too large"
    with limited(resource.RLIMIT_FSIZE), pytest.raises(hogwild.RunDirectoryError, match=wanted) as caught:
        problems.train(kind=kind, loss=loss, out=tmp_path, checkpoint_every=10, **settings)
    one_line(caught)
    assert nothing_half_written(tmp_path)
    resumed = problems.train(resume=tmp_path, **settings)
    assert resumed.digest == problems.train(**settings).digest, "from the one before"


def test_a_place_that_cannot_be_written_is_told_before_training(tmp_path):
    trained = []
    wanted = "a run cannot be saved in .*File too large"
    with limited(resource.RLIMIT_FSIZE, 10), pytest.raises(hogwild.RunDirectoryError, match=wanted) as caught:
        begin_directory(tmp_path, RunConfig(updates=1))
    one_line(caught)
    assert caught.value.__suppress_context__
    (tmp_path / "file").write_text("")
    wanted = r"^a run cannot be saved in .*run \(Not a directory\); name another one$"
    with pytest.raises(hogwild.RunDirectoryError, match=wanted) as caught:
        problems.train(out=tmp_path / "file" / "run", progress=trained.append)
    one_line(caught)
    assert caught.value.__suppress_context__ and caught.value.__cause__ is None
    assert trained == []


# --- memory


def test_memory_that_the_system_does_not_give_is_one_line(monkeypatch):
    before = psutil.Process().num_fds()
    with (
        limited(resource.RLIMIT_AS, psutil.Process().memory_info().vms + (64 << 20)),
        pytest.raises(hogwild.ArgumentError, match="268 MB of shared memory cannot be had: Cannot allocate") as caught,
    ):
        Arena(256 << 20)
    one_line(caught)
    assert psutil.Process().num_fds() == before
    monkeypatch.setattr(arena, "memory_limits", list)
    with pytest.raises(hogwild.ArgumentError, match="cannot be had"):
        Arena(1 << 70)


def fake_cgroup(root, folder, most, used, names=("memory.max", "memory.current")):
    place = root / folder
    place.mkdir(parents=True, exist_ok=True)
    for name, value in zip(names, (most, used), strict=True):
        (place / name).write_text(f"{value}\n")


def test_the_limit_of_every_cgroup_on_the_way_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "cgroup_folders", lambda root: [root / "a" / "b", root / "a", root])
    fake_cgroup(tmp_path, "a/b", "max", 5000)
    fake_cgroup(tmp_path, "a", 1_000_000, 400_000)
    fake_cgroup(tmp_path, "memory/a/b", 2_000_000, 1, ("memory.limit_in_bytes", "memory.usage_in_bytes"))
    fake_cgroup(tmp_path, "memory", (1 << 63) - 4096, 1, ("memory.limit_in_bytes", "memory.usage_in_bytes"))
    found = dict(limits.memory_limits(tmp_path))
    del found["free memory of this machine"]
    assert found == {
        f"memory limit in {tmp_path}/a/memory.max": 600_000,
        f"memory limit in {tmp_path}/memory/a/b/memory.limit_in_bytes": 1_999_999,
    }


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_over_the_limit_is_refused_before_training(kind, monkeypatch, tmp_path):
    monkeypatch.setattr(arena, "memory_limits", lambda: [("limit of this test", 10_000_000)])
    with pytest.raises(hogwild.ArgumentError, match=r"needs \d+ MB of shared memory, over the 10 MB left") as caught:
        hogwild.train(
            torch.nn.Linear(1000, 2000),
            torch.randn(8, 1000),
            lambda model, x: model(x).square().mean(),
            optimizer=problems.SGD,
            updates=1,
            batch_size=4,
            kind=kind,
            out=tmp_path / "run",
        )
    one_line(caught)
    assert not (tmp_path / "run").exists()


# --- open files


def test_too_few_open_files_are_told_before_training(tmp_path):
    problems.train(kind="processes", updates=2)  # the fork server is there
    before = psutil.Process().num_fds()
    with (
        limited(resource.RLIMIT_NOFILE, before + 30),
        pytest.raises(hogwild.ArgumentError, match=r"3 worker processes need some 34 open files, over") as caught,
    ):
        problems.train(kind="processes", workers=3, updates=2, out=tmp_path / "run")
    one_line(caught)
    assert psutil.Process().num_fds() <= before
    assert not (tmp_path / "run").exists()


def test_just_enough_open_files_are_enough():
    problems.train(kind="processes", updates=2)
    with limited(resource.RLIMIT_NOFILE, psutil.Process().num_fds() + 36):
        assert problems.train(kind="processes", workers=3, updates=6).updates == 6


def test_no_descriptor_for_the_arena_is_one_line():
    free = [os.open(os.devnull, os.O_RDONLY)]
    top = max(free)
    os.close(free.pop())
    with (
        limited(resource.RLIMIT_NOFILE, top),
        pytest.raises(hogwild.ArgumentError, match=f"cannot be had: {os.strerror(errno.EMFILE)}") as caught,
    ):
        Arena(1 << 16)
    one_line(caught)


# --- threads


@pytest.mark.parametrize("which", ["hogwild-0", "hogwild-1"])
def test_a_thread_that_cannot_be_started_is_one_line(which, monkeypatch):
    start = threading.Thread.start

    def limited_start(thread):
        if thread.name == which:
            raise RuntimeError("can't start new thread")
        start(thread)

    before = threading.active_count()
    monkeypatch.setattr(threading.Thread, "start", limited_start)
    message = (
        rf"^no thread can be started for worker {which[-1]} \(can't start new thread\): .*fewer workers need less$"
    )
    with pytest.raises(hogwild.ArgumentError, match=message) as caught:
        problems.train(kind="threads", workers=2)
    one_line(caught)
    assert threading.active_count() == before


# --- cores


@pytest.mark.parametrize("kind", KINDS)
def test_more_workers_than_cores_are_told(kind, monkeypatch):
    monkeypatch.setattr(limits, "usable_cores", lambda: 2.0)
    with pytest.warns(UserWarning, match="3 workers share 2 cores; 2 keep them busy, and more are not faster"):
        problems.train(workers=3, kind=kind, updates=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        problems.train(workers=2, kind=kind, updates=2)


@pytest.mark.parametrize(
    ("own", "memory", "second"),
    [
        ("9:name=systemd:/\n4:memory:/job/7\n3:cpu,cpuacct:/half\n0::/user\n", ["job/7", "job", ""], ["user", ""]),
        ("4:cpu:/half\n3:memory:/\n", [""], [""]),
        ("1:name=systemd:/x\n0::/user/a\n", ["user/a", "user", ""], ["user/a", "user", ""]),
        ("", [""], [""]),
        ("what is this?\n", [""], [""]),
    ],
)
def test_each_controller_of_cgroup_1_has_a_group_of_its_own(own, memory, second, tmp_path):
    root, told = tmp_path / "cgroup", tmp_path / "own"
    told.write_text(own)
    assert limits.cgroup_folders(root / "memory", told) == [root / "memory" / part for part in memory]
    assert limits.cgroup_folders(root, told) == [root / part for part in second]
    assert limits.cgroup_folders(root, tmp_path / "not there") == [root]
