"""Faults planted at random, each run judged, and the table of it.

HOGWILD_FAULTS=500 pytest tests/stress -k fault_table -s      the table of the README
HOGWILD_SEED=… repeats what was drawn
"""

from __future__ import annotations

import os
import random
import time
from collections import defaultdict
from pathlib import Path

import problems
import pytest
from faults import FAULTS, Case, Verdict, attempt, draw

pytestmark = pytest.mark.stress

COUNT = int(os.environ.get("HOGWILD_FAULTS", "15"))
SEED = int(os.environ.get("HOGWILD_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
TAKEN = FAULTS if len(FAULTS) <= COUNT else random.Random(SEED).sample(FAULTS, COUNT)  # others in another run


def shared_files() -> set[str]:
    folders = [Path("/dev/shm"), Path("/tmp")]
    return {str(p) for folder in folders if folder.is_dir() for p in folder.glob("*") if mine(p.name)}


def mine(name: str) -> bool:
    return name.startswith(("torch_", "psm_", "sem.", "pymp-")) and str(os.getpid()) in name


@pytest.mark.timeout(3600)
def test_fault_table():
    print(f"\nHOGWILD_SEED={SEED} HOGWILD_FAULTS={COUNT}")
    choices = random.Random(SEED)
    files = shared_files()
    tried: dict[str, list[tuple[Case, Verdict]]] = defaultdict(list)
    began, missed, number = time.monotonic(), 0, 0
    problems.train(kind="processes", updates=2)  # the fork server stays, and is no leak
    while sum(map(len, tried.values())) < COUNT:
        case = draw(choices, TAKEN[number % len(TAKEN)])
        verdict = attempt(case)
        if not verdict.met:
            missed += 1
            assert missed <= COUNT, "most faults meet nobody"
            continue
        number += 1
        tried[case.fault].append((case, verdict))
        if verdict.wrong:
            print(f"WRONG {case}: {verdict.wrong}")
    print(table(tried))
    print(f"\n{COUNT} faults, {missed} more that met nobody, in {time.monotonic() - began:.0f} s")
    wrong = [f"{case}: {verdict.wrong}" for pairs in tried.values() for case, verdict in pairs if verdict.wrong]
    assert not wrong, "\n".join(wrong)
    assert shared_files() <= files


def table(tried: dict[str, list[tuple[Case, Verdict]]]) -> str:
    """A Markdown table with a row for each fault and one for all."""
    lines = [
        "| fault | planted | runs that completed, or ended, as they should | updates lost | updates in doubt | leaks |",
        "|---|---|---|---|---|---|",
    ]
    lines += [row(fault, [verdict for _, verdict in tried[fault]]) for fault in FAULTS]
    everything = [verdict for pairs in tried.values() for _, verdict in pairs]
    return "\n".join([*lines, row("**all**", everything)])


def row(name: str, verdicts: list[Verdict]) -> str:
    right = sum(not verdict.wrong for verdict in verdicts)
    counts = [sum(getattr(verdict, what) for verdict in verdicts) for what in ("lost", "in_doubt", "leaks")]
    return f"| {name} | {len(verdicts)} | {right} | {' | '.join(map(str, counts))} |"
