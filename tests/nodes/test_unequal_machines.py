"""Machines of which one computes faster than another: it is dealt more tickets, and the bits are the same.

HOGWILD_PAIRS=4 pytest tests/nodes -k deal_in_turn -s     how fast that is, and how fast dealing in turn is
"""

from __future__ import annotations

import os
import statistics

import problems
import pytest
from machines import together
from traits import SAME_BITS

pytestmark = pytest.mark.filterwarnings("ignore:staleness")
PAIRS = int(os.environ.get("HOGWILD_PAIRS", "0"))
SETTINGS = {"staleness": 7, "micro_batches": 8, "updates": 60, "recheck": 0.0, "compensation": "none"}
LONGER = {"updates": 120}
SEEMS = """
import types
import hogwild.run.trial.dry_run as dry_run
dry_run.time = types.SimpleNamespace(perf_counter=lambda: getattr(dry_run, "now", 0.0))
def seems(model, batch):
    dry_run.now = getattr(dry_run, "now", 0.0) + {seconds}[int(os.environ["RANK"])]
    return problems.cross_entropy(model, batch)
extra["loss"] = seems
"""  # to take so long, by the clock that gradients are timed by
IS = """
from side_by_side import within
program, done = os.getpid(), []
def there(wanted):
    return os.path.exists({path!r}) and os.path.getsize({path!r}) >= wanted
def as_fast(model, batch):
    if os.getpid() != program:
        done.append(batch)
        if os.environ["RANK"] == "0":
            with open({path!r}, "ab") as file:
                file.write(b".")
        else:
            within(120, lambda: there(min(2 * len(done), len(done) + 4)))  # as many as dealing in turn lets it compute
            within({patience}, lambda: there(2 * len(done)), f"machine 0 is held up before gradient {{2 * len(done)}}")
    return seems(model, batch)
extra["loss"] = as_fast
"""  # machine 0 has begun two gradients whenever machine 1 has computed one
IN_TURN = """
import hogwild.run.machines as module
module.turns_of = lambda speeds: ()
"""
WAITS = """
import time
def waits(model, batch):
    time.sleep({seconds}[int(os.environ["RANK"])])
    return problems.cross_entropy(model, batch)
extra["loss"] = waits
"""
TIMED = """
def evaluate(model):
    moments.append(time.monotonic())
    more["moments"] = moments
    return {}
moments = []
if os.environ["RANK"] == "0":
    extra["evaluate"] = evaluate
"""


@pytest.mark.parametrize(
    ("seconds", "workers"), [((0.04, 0.08), (1, 1)), ((0.04, 0.04), (2, 1))], ids=["twice as fast", "two workers"]
)
@pytest.mark.parametrize("update", SAME_BITS)
def test_who_computes_twice_as_many_gradients_a_second_is_dealt_twice_as_many(update, seconds, workers, tmp_path):
    own = [{"workers": number} for number in workers]
    told = together(2, tmp_path, SEEMS.format(seconds=seconds), own=own, update=update, **SETTINGS)
    alone = problems.train(problems.mlp(), update=update, workers=1, optimizer=problems.SGD, **SETTINGS)
    assert {one["digest"] for one in told} == {alone.digest}
    computed = [sum(count for node, _, count in told[0]["workers"] if node == one) for one in range(2)]
    assert computed[0] == 2 * computed[1] > 0


def test_the_faster_of_two_is_not_held_up_by_the_other(tmp_path):
    before = SEEMS.format(seconds=(0.06, 0.12)) + IS.format(path=str(tmp_path / "computed"), patience=60)
    told = together(2, tmp_path, before, update="ordered", workers=1, max_restarts=0, **SETTINGS)
    assert [(one.get("updates", str(one)), one.get("failures")) for one in told] == [(SETTINGS["updates"], [])] * 2


def test_it_is_held_up_where_each_computes_every_other_one(tmp_path):
    """Staleness 7 lets nobody come far enough ahead. While machine 1 computes its fifth gradient, machine 0 can begin
    its ninth and no tenth."""
    before = IN_TURN + SEEMS.format(seconds=(0.06, 0.12)) + IS.format(path=str(tmp_path / "computed"), patience=2)
    told = together(2, tmp_path, before, update="ordered", workers=1, max_restarts=0, **SETTINGS)
    assert "machine 0 is held up before gradient 10" in told[1].get("message", ""), told


@pytest.mark.skipif(not PAIRS, reason="measures, where HOGWILD_PAIRS says how often")
def test_that_is_faster_than_to_deal_in_turn(tmp_path):
    """A gradient takes 60 ms on one of two machines and 120 on the other: 25 a second where both are busy, and 17 where
    each computes every other one."""

    def rate(*, in_turn: bool) -> float:
        before = WAITS.format(seconds=(0.06, 0.12)) + TIMED + (IN_TURN if in_turn else "")
        told = together(2, tmp_path, before, update="ordered", workers=1, evaluate_every=40, **SETTINGS | LONGER)
        first, _, last = told[0]["moments"]  # at which update 40, 80 and 120 were evaluated
        return 80 / (last - first)

    dealt, in_turn = zip(*[(rate(in_turn=False), rate(in_turn=True)) for _ in range(PAIRS)], strict=True)
    for how, rates in (("as they are fast", dealt), ("in turn", in_turn)):
        print(f"{how}: {statistics.median(rates):.1f} updates/s ({min(rates):.1f} to {max(rates):.1f})")
    assert statistics.median(dealt) > 1.2 * statistics.median(in_turn)
