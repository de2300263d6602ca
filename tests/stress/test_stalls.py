"""Runs whose processes are stopped again and again: the bits are those of a machine that has nothing else to do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from stalls import under_stalls
from warm_pythons import warm_python

pytestmark = pytest.mark.stress

STALLS = [sys.executable, str(Path(__file__).with_name("stalls.py")), "--longest", "0.2", "--every", "0.02"]
RUN = ["-m", "hogwild", "run", "digits", "--kind", "processes", "--updates", "400", "--json", "--quiet"]


@pytest.mark.parametrize("update", ["ordered", "sync"])
def test_the_bits_are_the_same(update: str, tmp_path: Path) -> None:
    run = [*RUN, "--update", update, "--out"]
    plain = warm_python([*run, "plain"], tmp_path)
    command = [*STALLS, sys.executable, *run, "stalled"]
    stalled = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (plain.returncode, stalled.returncode) == (0, 0), stalled.stderr
    assert json.loads(plain.stdout)["digest"] == json.loads(stalled.stdout)["digest"]
    assert int(stalled.stderr.split()[-2]) > 0


def test_the_exit_status_is_the_commands_and_nobody_stays_stopped() -> None:
    child = (
        "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', 'import time; time.sleep(1)']) + 7)"
    )
    status, stops = under_stalls([sys.executable, "-c", child], longest=0.2, every=0.02)
    assert status == 7 and stops > 0
