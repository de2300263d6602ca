"""What the doctor finds, on this machine and on made-up ones."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from hogwild.bench import doctor
from hogwild.bench.doctor import Finding
from hogwild.cli import main
from hogwild.errors import WorkerError
from hogwild.shared import limits

NAMES = [
    "cores",
    "memory",
    "shared memory",
    "/dev/shm",
    "start methods",
    "interpreter",
    "torch",
    "thread variables",
    "open files",
    "first start",
    "second start",
]


def test_json_has_every_finding(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["doctor", "--json"])
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert [finding["name"] for finding in found["findings"]] == NAMES
    assert {finding["verdict"] for finding in found["findings"]} <= {"ok", "note", "problem"}
    assert status == (found["verdict"] == "problem")
    assert "\x1b" not in err
    assert "two worker processes train after" in found["findings"][-1]["found"]


def test_a_problem_is_exit_status_1_and_stands_in_the_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "examine", lambda: iter([Finding("cores", "1 of 1", "problem", "buy another")]))
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "problem" in out and "1 of 1" in out and "buy another" in out


@pytest.mark.parametrize(
    ("verdicts", "worst"), [([], "ok"), (["ok", "note"], "note"), (["problem", "ok"], "problem"), (["ok"], "ok")]
)
def test_the_verdict_is_the_worst(verdicts: list[doctor.Verdict], worst: str) -> None:
    assert doctor.doctor_summary([Finding("x", "y", verdict) for verdict in verdicts])["verdict"] == worst


@pytest.mark.parametrize(("text", "cores"), [("150000 100000", 1.5), ("max 100000", None), ("nonsense", None)])
def test_quota_of_cgroup_2(text: str, cores: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "cgroup_folders", lambda root: [root])
    (tmp_path / "cpu.max").write_text(f"{text}\n")
    assert limits.cgroup_quota(tmp_path) == cores


@pytest.mark.parametrize(("quota", "cores"), [("50000", 0.5), ("-1", None)])
def test_quota_of_cgroup_1(quota: str, cores: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "cgroup_folders", lambda root: [root])
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(quota)
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000")
    assert limits.cgroup_quota(tmp_path) == cores


@pytest.mark.parametrize(("text", "limit"), [("1073741824", 1 << 30), ("max", None), (str((1 << 63) - 4096), None)])
def test_memory_of_cgroup_2(text: str, limit: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "cgroup_folders", lambda root: [root])
    (tmp_path / "memory.max").write_text(text)
    assert limits.cgroup_memory(tmp_path) == limit


def test_the_tightest_cgroup_on_the_way_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    monkeypatch.setattr(limits, "cgroup_folders", lambda root: [inner, inner.parent, root])
    (inner / "cpu.max").write_text("max 100000")
    (inner.parent / "cpu.max").write_text("200000 100000")
    (tmp_path / "cpu.max").write_text("400000 100000")
    assert limits.cgroup_quota(tmp_path) == 2.0


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system binds no process to cores")
def test_affinity_limits_the_cores() -> None:
    mine = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(mine)})
        assert doctor.usable_cores() <= 1
        assert doctor._cores().verdict == "problem"
    finally:
        os.sched_setaffinity(0, mine)


def test_where_shared_memory_is_a_file_its_folder_and_the_space_there_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sys.platform == "linux":
        assert doctor._shared_memory().found == "in memory (memfd), without a name"
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    found = doctor._shared_memory()
    assert re.fullmatch(rf"an unlinked file in {tmp_path}, [\d.]+ GiB free", found.found)
    assert found.verdict == "note" and "TMPDIR" in found.advice
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "not there"))
    assert doctor._shared_memory().verdict == "problem"


def test_workers_that_do_not_start_are_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise WorkerError("worker 0 raised OSError\n\nTraceback ...")

    monkeypatch.setattr(doctor, "_tiny_run", fails)
    found = list(doctor._workers())
    assert [finding.verdict for finding in found] == ["problem"]
    assert "OSError" in found[0].found and "\n" not in found[0].found


def test_a_free_threaded_interpreter_is_told_from_one_with_the_gil(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sysconfig.get_config_var", lambda name: 1)
    monkeypatch.setattr("sys._is_gil_enabled", lambda: False, raising=False)
    assert "GIL is off" in doctor._gil().found and "takes threads" in doctor._gil().advice
    monkeypatch.setattr("sys._is_gil_enabled", lambda: True, raising=False)
    assert "GIL is on" in doctor._gil().found and doctor._gil().verdict == "note"
    assert "PYTHON_GIL=0" in doctor._gil().advice
    monkeypatch.setattr("sysconfig.get_config_var", lambda name: 0)
    assert "with the GIL" in doctor._gil().found and "takes processes" in doctor._gil().advice
    told = re.search(r"docs/\S+\.md", doctor._gil().advice)
    assert told is not None and (Path(__file__).parents[2] / told.group()).is_file()
