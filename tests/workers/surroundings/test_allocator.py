"""What a step frees is there for the next one, or comes in large pages."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from programs import UNIMPORTED

from hogwild.bench.children import in_children

# Faults of 2 steps that each take and free three blocks, once the heap has its shape. The least of five counts: what
# is given back is faulted in again at every step, while a kernel that reclaims pages of a program that waits for a core
# (seen with DAMON, at a load of 9 on 2 cores: 7,740 faults in 20 steps) adds to some of them. What is asked for holds
# for the whole process, so a fork says what there is without.
PROGRAM = """
import os, resource, sys, torch
from hogwild.workers.surroundings.allocator import ask_for_huge_pages, keep_freed_memory
def step(size):
    blocks = [torch.ones(size << 18) for _ in range(3)]
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def counted(size, steps):
    before = faults()
    for _ in range(steps):
        step(size)
    return faults() - before
def tell(how):
    for size in map(int, sys.argv[1:]):
        counted(size, 5)
        print(how, size, min(counted(size, 2) for _ in range(5)), sep=",", flush=True)
if not os.fork():
    tell("as it comes")
    os._exit(0)
assert os.wait()[1] == 0
ask_for_huge_pages()
assert keep_freed_memory()
tell("kept")
"""
SIZES = 8, 48  # MiB of a block that is kept, and of one that is mapped

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
with_huge_pages = pytest.mark.skipif(
    not HUGE_PAGES.exists() or "[never]" in HUGE_PAGES.read_text(), reason="the kernel gives no huge pages"
)


@pytest.fixture(scope="module")
def faults():
    """By what was asked for, and size."""
    # Without the adjustments that glibc makes by itself, in some orders of allocations and not in others.
    fixed = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(128 << 10)}
    command = [sys.executable, "-c", PROGRAM, *map(str, SIZES)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=fixed)
    told = [line.split(",") for line in done.stdout.splitlines()]
    return {(how, int(size)): int(count) for how, size, count in told}


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library has no mallopt")
@pytest.mark.parametrize("size", [8, pytest.param(48, marks=with_huge_pages)], ids=["kept", "in huge pages"])
def test_a_step_does_not_fault_in_again_what_the_last_one_freed(size, faults):
    pages = 2 * 3 * (size << 20) // 4096
    assert faults["kept", size] < pages / 20
    assert faults["as it comes", size] > pages / 2


HOW = ["own.py", "run own.py --updates 2 --kind processes", "run own.py --updates 2 --kind threads"]
SWITCH = "THP_MEM_ALLOC_ENABLE"
OWN_FILE = """
import os, torch, hogwild

def loss(model, batch):
    block = torch.ones(48 << 18)
    if hogwild.worker_info().update == 1:
        with open("/proc/self/smaps_rollup") as of_process, open("found", "w") as found:
            (kilobytes,) = [line.split()[1] for line in of_process if line.startswith("AnonHugePages")]
            print(kilobytes, os.environ.get("THP_MEM_ALLOC_ENABLE"), file=found)
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])

def build():
    return hogwild.Problem(torch.nn.Linear(4, 2), (torch.ones(64, 4), torch.zeros(64, dtype=torch.int64)), loss)

if __name__ == "__main__":
    problem = build()
    hogwild.train(problem.model, problem.data, loss, optimizer=torch.optim.SGD, updates=2, kind="processes")
else:
    hogwild.define_experiment(build, epochs=1)
"""
# Each in a fork of a program that has imported torch and made no tensor: as where nothing was done yet. The fork server
# of the file is started anew, and those of commands are forks of them.
IMPORTS = "hogwild.api, hogwild.cli.running, hogwild.workers.loop, hogwild.workers.process.process_main, torch._dynamo"
PROGRAMS = f"import json, os, runpy, traceback, {IMPORTS}" + UNIMPORTED
PROGRAMS += """
for folder, how, switch in json.loads(sys.argv[1]):
    if os.fork():
        os.wait()
        continue
    try:
        os.chdir(folder)
        sys.path.insert(0, folder)
        if switch is not None:
            os.environ["THP_MEM_ALLOC_ENABLE"] = switch
        if how == "own.py":
            runpy.run_path(how, run_name="__main__")
        else:
            assert hogwild.cli.main(how.split()) == 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)
"""


def kernel_gives_them():
    """True where it does on request alone, and has some."""
    if not HUGE_PAGES.exists() or "[madvise]" not in HUGE_PAGES.read_text():
        return False
    with mmap.mmap(-1, 48 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        memory.write(bytes(len(memory)))
        return huge_pages() > 0


@pytest.fixture
def _asked_for():
    if not kernel_gives_them():
        pytest.skip("the kernel has no huge pages for who asks, or gives them to all")


def huge_pages():
    """Those of this process, in kB."""
    return int(Path("/proc/self/smaps_rollup").read_text().split("AnonHugePages:")[1].split()[0])


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What a worker of each program found, by how the program was called and what its environment said."""
    programs = [(str(tmp_path_factory.mktemp("program")), how, switch) for how in HOW for switch in (None, "0")]
    for folder, *_ in programs:
        (Path(folder) / "own.py").write_text(OWN_FILE)
    before = {name: value for name, value in os.environ.items() if name != SWITCH}
    command = [sys.executable, "-c", PROGRAMS, json.dumps(programs)]
    ran = subprocess.run(command, env=before, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0 and "Traceback" not in ran.stderr, ran.stderr
    return {(how, switch): (Path(folder) / "found").read_text().split() for folder, how, switch in programs}


@pytest.mark.usefixtures("_asked_for")
@pytest.mark.parametrize("switch", [None, "0"])
@pytest.mark.parametrize("how", HOW)
def test_a_worker_is_given_huge_pages_unless_the_caller_says_no(how, switch, found):
    """Torch hears it once, so the fork server's is to hear it, also where that is a fork of the command line."""
    kilobytes, heard = found[how, switch]
    assert (int(kilobytes) > 0) == (switch is None)
    assert heard == str(switch), "a worker has its program's environment"


def huge_pages_beside_a_block(rank):
    block = torch.ones(48 << 18)
    return huge_pages() if len(block) else None


@pytest.mark.usefixtures("_asked_for")
def test_what_a_training_is_compared_with_is_given_none():
    """It is to be what most programs are."""
    assert in_children(huge_pages_beside_a_block, 1, (), 60.0, asks=False) == [0]
    assert in_children(huge_pages_beside_a_block, 1, (), 60.0) > [0]
