"""What a step frees is there for the next one, or comes in large pages."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

# Faults of 20 steps that each take and free three blocks, once the heap has its shape. The least of three counts: what
# is given back is faulted in again at every step, while a kernel that reclaims pages of a program that waits for a core
# (seen with DAMON, at a load of 9 on 2 cores: 7,740 faults) adds to some of them.
PROGRAM = """
import resource, sys, torch
from hogwild.workers.surroundings.allocator import keep_freed_memory
if sys.argv[1] == "kept":
    assert keep_freed_memory()
def step():
    blocks = [torch.ones(int(sys.argv[2]) << 18) for _ in range(3)]
for _ in range(10):
    step()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def counted():
    before = faults()
    for _ in range(20):
        step()
    return faults() - before
print(min(counted() for _ in range(3)))
"""


HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
with_huge_pages = pytest.mark.skipif(
    not HUGE_PAGES.exists() or "[never]" in HUGE_PAGES.read_text(), reason="the kernel gives no huge pages"
)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library has no mallopt")
@pytest.mark.parametrize("size", [8, pytest.param(48, marks=with_huge_pages)], ids=["kept", "in huge pages"])
def test_a_step_does_not_fault_in_again_what_the_last_one_freed(size):
    def faults(how: str) -> int:
        # Without the adjustments that glibc makes by itself, in some orders of allocations and not in others.
        fixed = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(128 << 10)}
        command = [sys.executable, "-c", PROGRAM, how, str(size)]
        return int(subprocess.run(command, check=True, capture_output=True, text=True, env=fixed).stdout)

    pages = 20 * 3 * (size << 20) // 4096
    assert faults("kept") < pages / 20
    assert faults("as it comes") > pages / 2
