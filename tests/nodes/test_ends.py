"""The last moments of a run on several machines, and of one machine: what is finished stays so."""

from __future__ import annotations

import threading
import time
from functools import partial
from queue import SimpleQueue

import problems
import pytest
from clocks import Clock
from machines import WAITS_LONG, refusals, together
from side_by_side import within
from torch.distributed import HashStore

from hogwild import ArgumentError, NodeError
from hogwild.nodes import correspondent
from hogwild.nodes.correspondent import Correspondent
from hogwild.nodes.invitation import Invitation
from hogwild.nodes.messages import Kind
from hogwild.nodes.party import Party
from hogwild.nodes.party import _check_secret as check_secret
from hogwild.nodes.peer import Broken, Peer
from hogwild.nodes.returning import Door
from hogwild.nodes.store_watch import StoreWatch, told_in_time
from hogwild.run.machines import Machines

SETTINGS = {"update": "ordered", "staleness": 3, "workers": 1, "updates": 40}

DIES_AT_THE_END = """
from hogwild.run import machines
machines._TELLING = 1.0
if os.environ["RANK"] == "1":
    machines.Machines.usage_of_all = lambda *arguments: (print(json.dumps({}), flush=True), os._exit(0))
"""


def test_a_machine_that_dies_after_the_last_version_takes_nothing_of_the_run_away(tmp_path):
    first, _ = together(2, tmp_path, DIES_AT_THE_END, **SETTINGS)
    assert first["digest"] == problems.train(**SETTINGS).digest
    assert first["failures"] == ["machine 1 has not told what its workers used"]
    assert [worker for _, worker, _ in first["workers"]] == [0, 1]
    assert sum(computed for _, _, computed in first["workers"]) == SETTINGS["updates"]


STOPS_ON_ONE = """
if os.environ["RANK"] == "0":
    extra = {"evaluate": lambda model: {"accuracy": 1.0}, "stop": lambda progress: True}
"""


def test_what_may_end_the_run_is_given_on_every_machine(tmp_path):
    assert "stop is False on machine 1 and True on machine 0" in refusals(
        together(2, tmp_path, STOPS_ON_ONE, **SETTINGS)
    )


def test_a_run_that_has_ended_is_given_back_on_every_machine(tmp_path):
    folder = tmp_path / "run"
    ended = problems.train(**SETTINGS, out=folder)
    told = together(2, tmp_path, WAITS_LONG, **SETTINGS, resume=str(folder), out=str(folder))
    assert [one.get("digest", one) for one in told] == [ended.digest] * 2


def test_more_machines_than_bits_are_refused():
    assert Invitation(63, "host", 1).nodes == 63
    with pytest.raises(ArgumentError, match="64 machines are over the 63"):
        Invitation(64, "host", 1)


DIES_WHILE_IT_PREPARES = """
from hogwild.nodes import party
party._BEAT, party._SILENT = 0.1, 1.0
def loss(model, batch):
    if os.environ["RANK"] == "1":
        print(json.dumps({}), flush=True)
        os._exit(0)
    return problems.cross_entropy(model, batch)
extra = {"loss": loss}
"""


def test_a_machine_that_dies_while_it_prepares_is_not_waited_for_long(tmp_path):
    first, _ = together(2, tmp_path, DIES_WHILE_IT_PREPARES, **SETTINGS)
    assert (first["error"], first["message"]) == ("NodeError", "machine 1 of 2 has given no sign of life for 1 s")


PREPARES_LONG = """
from hogwild.nodes import party
from side_by_side import within
party._BEAT, party.signs, party.seen = 0.01, [], False  # a module is not copied with the loss, as all else is
program, added = os.getpid(), party.Party._added
def noted(self, what, amount):
    if amount:
        party.signs.append(what)
    return added(self, what, amount)
party.Party._added = noted
def loss(model, batch):
    if os.environ["RANK"] == "1" and os.getpid() == program and not party.seen:
        before = len(party.signs)
        within(60, lambda: party.signs[before:].count("alive/1") > 5)
        party.seen = more["signs"] = True
    return problems.cross_entropy(model, batch)
extra = {"loss": loss}
"""


def test_one_that_prepares_gives_signs_of_life(tmp_path):
    told = together(2, tmp_path, PREPARES_LONG, **SETTINGS)
    assert "signs" in told[1]
    assert [one.get("digest", one) for one in told] == [problems.train(**SETTINGS).digest] * 2


# --- one machine


def party(store, node, nodes=3):
    return Party(Invitation(nodes, "host", 1, timeout=0.1), node, store, "run")


@pytest.fixture
def watch():
    """Of machine 0 of three, of which the second was lost."""
    store = HashStore()
    mine = party(store, 0)
    mine.lost = {1}
    made = StoreWatch(mine, Door(mine, lambda: 0b101), lambda machine: None)
    yield made, store
    made.close()
    made._thread.join(60)
    assert not made._thread.is_alive()


until = partial(within, 30)


def test_a_machine_that_was_lost_ends_nothing(watch):
    watch, store = watch
    for node in (1, 2):
        other = party(store, node)
        other.decide(f"called off {other.draw('called off')}", [node, f"said {node}"])
    until(lambda: watch.called_off)
    assert watch.called_off == [2, "said 2"]


def test_a_machine_that_dies_while_it_ends_the_run_deafens_nobody_to_the_next(watch):
    watch, store = watch
    dies, next_one = party(store, 1), party(store, 2)
    dies.draw("called off")
    next_one.decide(f"called off {next_one.draw('called off')}", [2, "why"])
    until(lambda: watch.called_off)
    assert watch.called_off == [2, "why"]


def test_what_is_decided_is_heard_without_waiting(watch):
    watch, store = watch
    assert watch.decided("stop 10") is None
    party(store, 2).decide("stop 10", False)
    until(lambda: watch.decided("stop 10") is False)


def test_whoever_asks_to_come_back_in_no_known_words_ends_no_watch(watch, caplog):
    watch, store = watch
    stranger = party(store, 2)
    stranger.decide(f"called off {stranger.draw('called off')}", 7)
    stranger.decide(f"return {stranger.draw('returns')} asks", [])
    until(lambda: "number 1 is no machine of this run" in caplog.text)
    assert watch.decided("anything") is None
    stranger.decide("anything", 1)
    until(lambda: watch.decided("anything") == 1)


def test_who_can_no_longer_ask_what_is_decided_ends(watch):
    watch, _ = watch
    machines = object.__new__(Machines)
    machines._watch, machines._party, machines._ended = watch, watch._party, False
    assert machines.decided("stop 10") is None
    watch.unreached_since, watch.unreached = time.monotonic() - 1, "connection reset"
    with pytest.raises(NodeError, match="what machine 0 decides is not heard any more: connection reset"):
        machines.decided("stop 10")
    machines._ended = True  # all versions are there
    assert machines.decided("stop 10") is None


def test_a_store_that_answers_nobody_is_not_waited_for():
    answers, told = threading.Event(), threading.Event()

    def tell():
        answers.wait(60)
        told.set()

    told_in_time(tell, 0.01)
    assert not told.is_set()
    answers.set()
    assert told.wait(60)


class Gone:
    """Mail to a machine that is gone."""

    def expect(self, *arguments):
        raise ConnectionError("Connection closed by peer")

    send = expect


def test_a_machine_that_is_gone_once_it_is_connected_is_told_as_lost():
    news = SimpleQueue()
    peer = Peer(1, Gone(), news, slot_bytes=8, window=4, per_update=1, beat=1.0, kind=Kind.LIVES)
    found = news.get(timeout=30)
    assert isinstance(found, Broken) and found.peer is peer and "closed by peer" in found.why
    peer.part()


def test_who_has_heard_an_earlier_run_proves_nothing_by_it(monkeypatch):
    """It makes the store say what all said then, also in place of what machine 0 says now."""
    mine = Party(Invitation(2, "host", 1, token="secret"), 0, HashStore(), "run")
    said = ["once", "before"]
    proofs = {node: mine.proof(node, said) for node in range(2)}
    heard = {"nonce": dict(enumerate(said)), "proof": proofs}
    monkeypatch.setattr(mine, "hear_all", lambda what, patience, **warns: heard[what])
    with pytest.raises(ArgumentError, match="machine 0, 1 has another token than machine 0"):
        check_secret(mine)


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(correspondent, "time", made)
    return made


class Ending(Correspondent):
    """Has nothing to do but to part, and looks ten times in a second of that clock."""

    def __init__(self, timeout, clock, **peers):
        super().__init__(timeout)
        self._peers = dict(enumerate(peers.values(), 1))
        self.clock, self.lost = clock, []

    def _act(self):
        return False

    def _is_over(self):
        return True

    def _hear(self, timeout):
        self.clock.sleep(0.1)

    def _take_news(self, news):
        pass

    def _lose(self, peer, why):
        peer.parted = True
        self.lost.append(why)


class Slow:
    """A machine that is done so many seconds from now, and says meanwhile that it lives, or says nothing."""

    def __init__(self, seconds, clock, *, talks=True):
        self.done_at, self.talks, self.parted = clock.now + seconds, talks, False
        self.clock, self._heard = clock, clock.now

    @property
    def heard(self):
        return self.clock.now if self.talks else self._heard

    @heard.setter
    def heard(self, moment):
        self._heard = moment

    @property
    def done(self):
        return self.clock.now > self.done_at

    @property
    def sent_to(self):
        return not self.parted

    def tell(self, kind, head):
        assert (kind, head) == (Kind.DONE, 40)


def test_who_is_done_stays_until_the_others_are_however_long_what_was_sent_is_on_its_way(clock):
    began, ending = clock.now, Ending(0.5, clock, quick=Slow(0.1, clock), slow=Slow(3000.0, clock))
    ending._part(40)
    assert clock.now - began >= 3000 and ending.lost == []


def test_who_is_done_does_not_wait_for_one_that_says_nothing(clock):
    began, ending = clock.now, Ending(0.5, clock, quick=Slow(0.1, clock), silent=Slow(60.0, clock, talks=False))
    ending._part(40)
    assert 0.5 < clock.now - began < 0.8 and ending.lost == ["it has said nothing for 0.5 s"]
