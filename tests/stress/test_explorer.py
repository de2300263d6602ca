"""Every interleaving and every moment of death of the versioned rules, explored; and that the model is the code.

pytest tests/stress/test_explorer.py                  small sizes, with what was explored in the output under -s
HOGWILD_EXPLORE=1 pytest tests/stress -k explorer     larger ones: minutes, and some gigabytes of memory
"""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import replace

import pytest
from explorer import canonical, explore
from protocols import RULES
from tickets import Size
from traits import SAME_BITS

pytestmark = pytest.mark.stress

SMALL = {
    "ordered": [
        Size(2, 4, kills=1),
        Size(2, 4, kills=1, policy="continue"),
        Size(2, 3, kills=2),
        Size(3, 3, kills=0, staleness=2),
        Size(2, 3, kills=1, look=2),
        Size(2, 3, kills=2, look=2, stop=True, policy="continue"),
        Size(2, 2, kills=1, shards=2),
        Size(2, 3, kills=1, shards=1),
        Size(2, 3, kills=1, shards=1, look=2, stop=True),
        *(Size(2, 3, kills=1, shards=1, shares=shares) for shares in ("idle", "before", "after")),
        Size(2, 2, kills=2, shards=2, shares="after"),
        Size(1, 3, kills=1, twice=(1,)),
        Size(2, 3, kills=1, twice=(1,)),
        Size(2, 3, kills=2, twice=(2,), policy="continue"),
        Size(2, 3, kills=1, twice=(1,), look=2, stop=True),
    ],
    "sync": [
        Size(2, 4, kills=1),
        Size(1, 4, kills=1, policy="continue"),
        Size(2, 4, kills=2, policy="continue"),
        Size(2, 5, kills=1, policy="continue"),  # the last update has one micro-batch
        Size(2, 6, kills=1, look=1, stop=True),
        Size(2, 4, kills=1, shards=1),
        *(Size(2, 4, kills=1, shards=1, shares=shares) for shares in ("idle", "before", "after")),
        Size(2, 4, kills=1, twice=(2,)),
        Size(2, 4, kills=1, twice=(1,), policy="continue"),
    ],
    "snapshot": [
        Size(2, 3, kills=1),
        Size(2, 3, kills=1, policy="continue"),
        Size(3, 2, kills=1),
        Size(2, 3, kills=1, look=2, stop=True),
    ],
}
LARGE = {
    "ordered": [
        Size(3, 3, kills=1, staleness=2),
        Size(2, 4, kills=1, look=2),
        Size(2, 4, kills=2, look=2, stop=True, policy="continue"),
        Size(3, 4, kills=1, staleness=2),
        Size(3, 4, kills=1, staleness=2, policy="continue"),
        Size(3, 4, kills=2, staleness=2, policy="continue"),
        Size(2, 4, kills=2),
        Size(3, 4, kills=1, staleness=2, look=2, stop=True),
        Size(2, 3, kills=1, shards=2),
        Size(2, 3, kills=1, twice=(0,), policy="continue"),
        Size(2, 4, kills=1, twice=(1, 2)),
        Size(3, 3, kills=0, staleness=2, twice=(1,)),
        Size(2, 3, kills=1, shards=1, twice=(1,)),
        Size(3, 2, kills=1, staleness=0, twice=(0, 1)),
        Size(3, 3, kills=0, twice=(0, 2)),
    ],
    "sync": [
        Size(3, 2, kills=1, micro_batches=1, twice=(0, 1)),
        Size(3, 4, kills=0, twice=(0, 2)),
        Size(2, 8, kills=1),
        Size(2, 6, kills=2),
        Size(3, 6, kills=1, micro_batches=3),
        Size(2, 6, kills=2, look=2, stop=True),
    ],
    "snapshot": [Size(2, 4, kills=1), Size(2, 3, kills=2), Size(3, 3, kills=1), Size(2, 4, kills=1, look=2)],
}


BASE = {"ordered": Size(2, 3, kills=1), "sync": Size(2, 4, kills=1), "snapshot": Size(2, 3, kills=1)}
PLANTED = [
    ("ordered", "ring", r"version 0 is read in slot 0, which holds \(-2,"),
    ("sync", "ring", "version 1 is to be made of -2"),
    ("snapshot", "ring", "no slot of 2 is free"),
    *((rule, "counter first", "nothing can happen any more|the end cannot be reached") for rule in RULES),
    *((rule, "no repair", "two living workers own one ticket") for rule in RULES),
    ("ordered", "head first", r"version 2 is to be made of -2|is read in slot 1, which holds \(-2,\)"),
    ("sync", "head first", r"version 1 is read in slot 1, which holds \(-2,\)"),
    ("snapshot", "head first", r"version 1 is to be made of \(-2"),
    *((rule, "row last", "row . of the journal is None|version 1 is read in slot 1") for rule in RULES),
    *((rule, "early stop", "the run is over at version 2 of 1") for rule in RULES),
    *((rule, "no hand-back", "nothing can happen any more") for rule in SAME_BITS),
    *((rule, "no last look", "the run is over at version . of .") for rule in SAME_BITS),
    ("ordered", "few gradients", "gradient slot 0 is to be written, and update . has yet to be applied"),
    *((rule, "stamp first", "gradient slot . is to be written while version . is made of it") for rule in SAME_BITS),
    *(
        (rule, "early shard", r"is to be made of -2|version 1 is read in slot 1, which holds \(-2, 1\)")
        for rule in SAME_BITS
    ),
    *((rule, "early end", "is to be made of -2|version 1 is read in slot 1") for rule in SAME_BITS),
    *((rule, "shared unlocked", "write the same piece at once|is to be made of -2") for rule in SAME_BITS),
    *((rule, "made though shared", "write the same piece at once|is to be made of -2") for rule in SAME_BITS),
    ("ordered", "no second look", "work is left, nobody is at it, and nobody died"),
    *((rule, "unchecked", "computed again after it had been applied|is compared with") for rule in SAME_BITS),
    *((rule, "no way out", "nothing can happen any more") for rule in SAME_BITS),
    *((rule, "not let go", "nothing can happen any more") for rule in SAME_BITS),
    *((rule, "any ticket", "nothing can happen any more") for rule in SAME_BITS),
    *((rule, "never alone", "nothing can happen any more") for rule in SAME_BITS),
    *((rule, "asked again", "is compared with") for rule in SAME_BITS),
    ("sync", "slot alone", "slot 0 is to be written while worker . reads version 0 there"),
]
SLOT_ALONE = Size(3, 2, kills=0, micro_batches=1, twice=(0, 1))  # one gradient slot for all
TWICE = "unchecked", "no way out", "not let go", "any ticket", "never alone", "asked again"
SHARED = {"shared unlocked": "after", "made though shared": "before"}
SHARDED = "early shard", "shard ahead", "early end"


def size_for(rule, fault):
    size = BASE[rule]
    if fault == "early stop":
        return replace(size, look=1, stop=True, kills=0)
    if fault == "no hand-back":
        return replace(size, policy="continue")
    if fault in SHARDED:
        return replace(size, shards=1, kills=0)
    if fault in SHARED:
        size = replace(size, shards=1, shares=SHARED[fault])
        two_are_left = fault == "shared unlocked" and rule == "sync"  # where nobody replaces who dies
        return replace(size, workers=3, tickets=2) if two_are_left else size
    if fault == "slot alone":
        return SLOT_ALONE
    if fault == "any ticket":
        return replace(size, tickets=4, kills=0, twice=(0, 2, 3))
    if fault in TWICE:
        return replace(size, twice=(1,), policy="continue" if fault in ("no way out", "never alone") else "replace")
    if fault == "no second look":
        return replace(size, kills=0)
    if fault == "no last look":
        return replace(size, policy="continue", **({"kills": 2} if rule == "ordered" else {"workers": 1}))
    return size


def with_those_of_the_faults(sizes):
    """And every size in which a fault is planted: there nothing is found as long as nothing is.

    The runs of a size are among those of one that differs in that more may be killed, which is explored alone.
    """
    planted = [(rule, size_for(rule, fault)) for rule, fault, _ in PLANTED]
    every = {rule: dict.fromkeys([*some, *(s for r, s in planted if r == rule)]) for rule, some in sizes.items()}
    return {rule: [size for size in some if not is_among(size, some)] for rule, some in every.items()}


def is_among(size, sizes):
    return any(other.kills > size.kills and replace(other, kills=size.kills) == size for other in sizes)


def cases(sizes):
    return [pytest.param(rule, size, id=f"{rule}-{i}") for rule, some in sizes.items() for i, size in enumerate(some)]


@pytest.mark.parametrize(("rule", "size"), cases(with_those_of_the_faults(SMALL)))
def test_no_interleaving_and_no_death_does_harm(rule, size):
    found = explore(RULES[rule](size).protocol())
    print(found)
    assert found.wrong is None, str(found)
    assert found.ends > 0


@pytest.mark.timeout(3600)
@pytest.mark.skipif(not os.environ.get("HOGWILD_EXPLORE"), reason="takes minutes; HOGWILD_EXPLORE=1 runs it")
@pytest.mark.parametrize(("rule", "size"), cases(LARGE))
def test_no_interleaving_and_no_death_does_harm_at_length(rule, size):
    test_no_interleaving_and_no_death_does_harm(rule, size)


@pytest.mark.parametrize(("rule", "fault", "wrong"), PLANTED)
def test_a_planted_fault_is_found_by_what_it_does(rule, fault, wrong):
    """Without the invariants: somebody reads, makes or reports what is wrong, or the run does not end."""
    found = explore(RULES[rule](size_for(rule, fault), [fault], strict=False).protocol())
    print(found)
    assert found.wrong is not None and re.search(wrong, found.wrong), str(found)
    assert len(found.trace) > 5, "a way there that can be read"


@pytest.mark.parametrize("fault", ["ring", "counter first", "head first", "row last"])
@pytest.mark.parametrize("rule", RULES)
def test_the_invariants_are_broken_before_anybody_dies(rule, fault):
    size = replace(BASE[rule], kills=0)
    assert explore(RULES[rule](size, [fault]).protocol()).wrong is not None


def test_a_shard_may_not_be_stepped_further_than_the_version_after_the_newest():
    """It would write over what the versions need that may still be read, and over the newest optimizer's state."""
    found = explore(RULES["ordered"](size_for("ordered", "shard ahead"), ["shard ahead"]).protocol())
    assert re.search("more than a version ahead|which may still be read, is gone", found.wrong), str(found)


def test_the_extra_slot_of_ordered_is_there_for_the_dead():
    """With τ + 1 slots nothing goes wrong until a ticket has to be computed again."""
    for kills, wrong in ((0, False), (1, True)):
        size = replace(BASE["ordered"], kills=kills)
        assert bool(explore(RULES["ordered"](size, ["ring"], strict=False).protocol()).wrong) == wrong


@pytest.mark.parametrize("rule", RULES)
def test_one_of_the_workers_that_are_alike_moves_for_all(rule):
    """In thousands of states: what is explored, and how often, is what all the moves lead to."""
    protocol = RULES[rule](Size(3, 2, kills=2)).protocol()
    seen = {state := canonical(protocol.first)}
    waiting, alike = [state], 0
    while waiting and len(seen) < 5_000:
        state = waiting.pop()
        alike += len({*state.workers}) < len(state.workers)
        moves = Counter(canonical(after) for _, _, after in protocol.moves(state) if after is not None)
        found: Counter = Counter()
        for after, times, _ in protocol.successors(state):
            found[after] += times
        assert found == moves
        waiting += moves.keys() - seen
        seen |= moves.keys()
    assert alike > 100
