"""Gradients that are long on their way: whoever sends one is heard all the same."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from machines import machines, told_by
from slow_links import links

from hogwild.bench.links import Host

WIDE = """
def wide():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 1 << 17), torch.nn.ReLU(), torch.nn.Linear(1 << 17, 3))

problems.wide = wide
"""
SETTINGS = {"update": "ordered", "updates": 2, "workers": 1, "batch_size": 8}


def narrow(host: Host) -> None:
    """Let no more than 0.6 MB/s leave that host."""
    limit = ["qdisc", "add", "dev", "hogwild0", "root", "tbf", "rate", "5mbit", "burst", "64kb", "latency", "10s"]
    made = subprocess.run(["nsenter", f"--net={host.path}", "tc", *limit], capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"no link can be made narrow here: {made.stderr}")


def test_a_gradient_that_takes_longer_than_the_time_of_silence_loses_nobody(tmp_path):
    """One of 6.3 MB takes 10 s, and a MiB of it 1.7; the time of silence is 5."""
    if not (shutil.which("tc") and shutil.which("nsenter")):
        pytest.skip("tc and nsenter make a link narrow")
    with machines(1, tmp_path, WIDE, model="wide", **SETTINGS) as programs:
        alone = told_by(programs[0])
    with links(2) as net:
        for host in net.hosts:
            narrow(host)
        with machines(2, tmp_path, WIDE, hosts=net.hosts, model="wide", node_timeout=5.0, **SETTINGS) as programs:
            found = [told_by(program) for program in programs]
    assert [told.get("digest", str(told)) for told in found] == [alone["digest"]] * 2
    assert [told["failures"] for told in found] == [[], []]
