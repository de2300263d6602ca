"""What is said at the store where a machine comes back: who gets which place, and who proves what."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import HashStore

from hogwild import ArgumentError, NodeError
from hogwild.nodes.invitation import Invitation
from hogwild.nodes.party import Party
from hogwild.nodes.returning import ENDED, NO_PLACE, TRAINS, Door, be_let_in, take_place

NODES = 4


class Run:
    """Machines that live, as one thread; whoever comes back is a thread of its own."""

    def __init__(self, living, token="secret"):
        self.store = HashStore()
        self.living = living
        self.doors = {node: Door(self.party(node, token), self.bits) for node in living}
        self.connected = {node: [] for node in living}
        self.party(0).decide(TRAINS, True)

    def bits(self):
        return sum(1 << node for node in self.living)

    def party(self, node, token="secret"):
        return Party(Invitation(NODES, "host", 1, token=token, timeout=0.1), node, self.store, "run")

    def look_until(self, *ended):
        deadline = time.monotonic() + 30
        while not all(one.done() for one in ended):
            assert time.monotonic() < deadline
            self.look()

    def look(self):
        for node, door in self.doors.items():
            self.connected[node] += door.look()


def comes(run, wish=None, token="secret"):
    party = run.party(NO_PLACE, token)
    take_place(party, wish)
    return party


@pytest.fixture(scope="module")
def pool():
    with ThreadPoolExecutor() as made:
        yield made


def test_it_gets_a_place_and_all_that_live_connect(pool):
    run = Run([0, 2])
    coming = pool.submit(comes, run, 3)
    run.look_until(coming)
    let_in = pool.submit(be_let_in, coming.result())
    run.look_until(let_in)
    assert (coming.result().node, coming.result().returns, let_in.result()) == (3, 1, [0, 2])
    assert run.connected == {0: [(3, 1)], 2: [(3, 1)]}


def test_who_has_another_secret_is_connected_with_by_nobody(pool):
    run = Run([0, 2, 3])
    coming = pool.submit(comes, run, None, "another")
    run.look_until(coming)
    let_in = pool.submit(be_let_in, coming.result())
    run.look_until(let_in)
    with pytest.raises(ArgumentError, match="machine 0, 2, 3 has another token than this one"):
        let_in.result()
    assert run.connected == {0: [], 2: [], 3: []}


def test_a_proof_of_before_proves_nothing(pool):
    """Each machine that lives gives a number of its own, so what was once said is of no use."""
    run = Run([0, 2, 3])
    coming = pool.submit(comes, run)
    run.look_until(coming)
    party = coming.result()
    run.party(NO_PLACE).decide("return 1 proof", "what was heard before")
    let_in = pool.submit(be_let_in, party)
    run.look_until(let_in)
    with pytest.raises(ArgumentError, match="another token"):
        let_in.result()
    assert run.connected == {0: [], 2: [], 3: []}


def test_those_that_were_lost_get_a_place_each_and_come_in_one_after_another(pool):
    run = Run([0, 1])
    coming = [pool.submit(comes, run) for _ in range(2)]
    run.look_until(*coming)
    assert sorted(one.result().node for one in coming) == [2, 3]
    let_in = [pool.submit(be_let_in, one.result()) for one in coming]
    while not any(one.done() for one in let_in):
        run.look()
    for _ in range(20):
        run.look()
    first, second = sorted(let_in, key=lambda one: not one.done())
    assert not second.done()
    node = run.connected[0][0][0]
    run.living.append(node)
    run.doors[node] = Door(run.party(node), run.bits)
    run.connected[node] = []
    run.look_until(second)
    assert first.result() == [0, 1]
    assert second.result() == [0, 1, node], "it is connected to the one that came before it"


def test_the_place_is_whose_who_asks_last(pool):
    run = Run([0, 1, 2])
    coming = pool.submit(comes, run)
    run.look_until(coming)
    again = pool.submit(comes, run)
    run.look_until(again)
    let_in = [pool.submit(be_let_in, one.result()) for one in (coming, again)]
    run.look_until(*let_in)
    with pytest.raises(NodeError, match="another machine has taken the place of machine 3"):
        let_in[0].result()
    assert let_in[1].result() == [0, 1, 2]
    assert run.connected[0] == [(3, 2)]


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        (1, "machine 1 is there, and none is lost"),
        (None, "all 4 machines are there, and none is lost"),
        (0, "machine 0 cannot come back to host:1: it decides and keeps the record"),
    ],
)
def test_nobody_gets_the_place_of_one_that_is_there(wish, message, pool):
    run = Run([0, 1, 2, 3])
    coming = pool.submit(comes, run, wish)
    run.look_until(coming)
    with pytest.raises(ArgumentError, match=message):
        coming.result()


def test_there_is_a_place_only_while_a_run_trains():
    run = Run([0])
    run.party(0).decide(ENDED, True)
    with pytest.raises(ArgumentError, match="machine 2 came again to host:1; --nodes is 4, and no run trains there"):
        comes(run, 2)
    run.store = HashStore()
    with pytest.raises(ArgumentError, match="more than 4 machines came to host:1; --nodes is 4, and no run trains"):
        comes(run)
