"""What a step frees is there for the next one."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

# Faults of 20 steps that each take and free three blocks of 8 MiB, once they have been taken for the first time.
PROGRAM = """
import resource, sys, torch
from hogwild.workers.allocator import keep_freed_memory
if sys.argv[1] == "kept":
    assert keep_freed_memory()
def step():
    blocks = [torch.ones(2 << 20) for _ in range(3)]
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library has no mallopt")
def test_a_step_does_not_fault_in_again_what_the_last_one_freed():
    def faults(how: str) -> int:
        done = subprocess.run([sys.executable, "-c", PROGRAM, how], check=True, capture_output=True, text=True)
        return int(done.stdout)

    pages = 20 * 3 * (8 << 20) // 4096
    assert faults("kept") < pages / 20
    assert faults("as it comes") > pages / 4
