"""Runs whose workers are late: they are, and the bits are those of workers that never were."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from late import late
from warm_pythons import warm_python

pytestmark = pytest.mark.stress

LATE = [sys.executable, str(Path(__file__).with_name("late.py"))]
RUN = ["-m", "hogwild", "run", "digits", "--update", "ordered", "--updates", "20", "--json", "--quiet"]


def test_the_workers_are_late_and_the_bits_are_the_same(tmp_path: Path) -> None:
    plain = json.loads(warm_python([*RUN, "--kind", "threads", "--workers", "2", "--out", "plain"], tmp_path).stdout)
    command = [*LATE, "--first", "2", "--often", "1", sys.executable, *RUN, "--workers", "1", "--staleness", "1"]
    for kind in ("threads", "processes"):
        one = json.loads(subprocess.check_output([*command, "--kind", kind], cwd=tmp_path, timeout=120))
        assert one["digest"] == plain["digest"]
        assert one["startup_seconds"] >= 2  # until the first claim, which the worker that is late makes
        assert one["seconds"] > 0.4  # 20 waits of 0.05 s on average


def test_the_exit_status_is_the_commands() -> None:
    assert late([sys.executable, "-c", "import sys; sys.exit(7)"], first=0, often=0, longest=0) == 7
