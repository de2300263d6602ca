"""The steps that the explorer explores are those that the code takes, in the same order.

What the code does is recorded: every store into a control word, the locks, the writing of a version and of a journal
row. Every step of the model says in `seen` what it should be seen as.
"""

from __future__ import annotations

import threading
from functools import partial

import problems
import pytest
from explorer import ENDED
from protocols import RULES
from tickets import Size
from traits import SAME_BITS, VERSIONED

from hogwild.optim.stepping import SharedOptimizer
from hogwild.rules import Rule
from hogwild.rules.combining import Combining
from hogwild.rules.rechecks import Rechecks
from hogwild.rules.registry import rule_class
from hogwild.rules.versioned import Versioned
from hogwild.run.evaluator import Evaluator
from hogwild.shared.arena import Arena, Space
from hogwild.shared.gradient_slots import GradientSlot
from hogwild.shared.journal import Journal
from hogwild.shared.locks import AnnouncedLock
from hogwild.shared.shards import cut_shards
from hogwild.shared.state import SharedState
from hogwild.shared.tickets import Control, Settled
from hogwild.shared.words import NOBODY, Field, Word
from hogwild.workers.milestones import Milestones
from hogwild.workers.supervisor import Supervisor
from hogwild.workers.worker import Worker

pytestmark = pytest.mark.stress


class Spied:
    """Words whose stores are told."""

    def __init__(self, words, tell):
        self.words, self.tell = words, tell

    def __getitem__(self, place):
        return self.words[place]

    def __setitem__(self, place, value):
        self.words[place] = value
        self.tell(place, value)

    def __len__(self):
        return len(self.words)

    def tolist(self):
        return self.words.tolist()


class SpiedLock:
    def __init__(self, lock, name, events):
        self.lock, self.name, self.events = lock, name, events

    def acquire(self, blocking=True):
        taken = self.lock.acquire(blocking)
        if taken:
            self.events.add(f"lock {self.name}")
        return taken

    def release(self):
        self.events.add(f"unlock {self.name}")
        self.lock.release()

    def __enter__(self):
        self.acquire()

    def __exit__(self, *error):
        self.release()


class Events(list):
    """What the workers, and nobody else, were seen to do; where `everybody` is set, what all were."""

    everybody = False

    def add(self, event):
        if self.everybody or threading.current_thread().name.startswith("hogwild-"):
            self.append(event)


@pytest.fixture
def events(monkeypatch):
    found = Events()

    def word(place, value):
        if place == Word.HOLDER:
            found.add("no holder" if value == NOBODY else "holder")
        elif place in (Word.NEXT, Word.HEAD, Word.SHARED):
            found.add({Word.NEXT: "take", Word.HEAD: "head", Word.SHARED: "share"}[place])

    def row(place, value):
        if place == Field.TICKET:
            found.add("no row" if value == NOBODY else "row")
        elif place == Field.PIN:
            found.add("pin")
        elif place == Field.AGAIN:
            found.add("again" if value else "not again")

    def made(control, *arguments):
        original(control, *arguments)
        control._words = Spied(control._words, word)
        control._rows = [Spied(words, row) for words in control._rows]
        control._reissued = Spied(control._reissued, lambda _, value: found.add(LISTED[value == NOBODY]))

    original = Control.__init__
    monkeypatch.setattr(Control, "__init__", made)
    for name in ("ticket", "commit"):
        monkeypatch.setattr(Control, f"{name}_lock", spied_lock(name, found), raising=False)
    monkeypatch.setattr(Control, "shard_locks", spied_locks(found), raising=False)
    for owner, method, event in (
        (Journal, "write", "journal"),
        (Versioned, "write_version", "write"),
        (Rule, "gradient", "gradient"),
        (SharedOptimizer, "advance_shard", "shard"),
    ):
        monkeypatch.setattr(owner, method, told(getattr(owner, method), event, found))
    slot = GradientSlot.__init__

    def gradient_slot(self, *arguments):
        slot(self, *arguments)
        names = {self.STAMP: "stamp", self.STATUS: "status", self.CHECKED: "checked"}
        self.words = Spied(self.words, lambda place, _: names.get(place) and found.add(names[place]))

    monkeypatch.setattr(GradientSlot, "__init__", gradient_slot)
    state = SharedState.__init__

    def shared_state(self, *arguments):
        state(self, *arguments)
        self.shard_versions = [Spied(words, lambda *_: found.add("count")) for words in self.shard_versions]

    monkeypatch.setattr(SharedState, "__init__", shared_state)
    return found


LISTED = {True: "take", False: "reissue"}


def spied_lock(name, events):
    def put(control, lock):
        spied = lock if isinstance(lock, AnnouncedLock) else SpiedLock(lock, f"{name}s", events)
        control.__dict__[f"spied {name}"] = spied

    return property(lambda control: control.__dict__[f"spied {name}"], put)


def spied_locks(events):
    """Those of the shards."""

    def put(control, locks):
        spied = [lock if isinstance(lock, AnnouncedLock) else SpiedLock(lock, "shard", events) for lock in locks]
        control.__dict__["spied shards"] = spied

    return property(lambda control: control.__dict__.get("spied shards", ()), put)


def told(function, event, events):
    def wrapped(*arguments, **named):
        events.add(event)
        return function(*arguments, **named)

    return wrapped


def seen(steps):
    return [event for step in steps if step.seen for event in step.seen.split(", ")]


def one_worker(rule, tickets, **named):
    """What the model sees one worker do from its start to its end."""
    protocol = RULES[rule](Size(1, tickets, kills=0, **named)).protocol()
    state, steps = protocol.first, []
    while state.workers[0].at != ENDED:
        steps.append(protocol.table[state.workers[0].at][0])
        state = protocol.after(state, 0)
    return seen(steps)


def test_every_versioned_rule_has_a_model():
    assert RULES.keys() == set(VERSIONED)


CODE = {
    named.__name__: named
    for named in (
        *(Combining, Control, Evaluator, Journal, Milestones, Rechecks, Rule, Supervisor, Versioned, Worker),
        *map(rule_class, VERSIONED),
    )
}


@pytest.mark.parametrize("rule", RULES)
def test_every_step_mirrors_a_function_that_there_is(rule):
    twice = (0, 1) if rule in SAME_BITS else ()
    for step in RULES[rule](Size(1, 2, kills=1, twice=twice)).protocol().steps:
        for mirrored in step.mirrors.split(", "):
            owner, function = mirrored.split(".")
            assert callable(getattr(CODE[owner], function, None)), f"{step.name} mirrors {mirrored}"


@pytest.mark.parametrize("rule", RULES)
def test_one_worker_takes_the_steps_of_the_model(rule, events):
    updates = 4
    problems.train(update=rule, workers=1, kind="threads", updates=updates)
    assert events == one_worker(rule, 2 * updates if rule == "sync" else updates)


@pytest.mark.parametrize("rule", SAME_BITS)
def test_one_worker_that_computes_all_twice_takes_the_steps_of_the_model(rule, events):
    tickets = 8 if rule == "sync" else 4
    problems.train(update=rule, workers=1, kind="threads", updates=4, recheck=1)
    assert events == one_worker(rule, tickets, twice=tuple(range(tickets)))


@pytest.mark.parametrize("rule", SAME_BITS)
def test_one_worker_that_makes_versions_in_shards_takes_the_steps_of_the_model(rule, events, monkeypatch):
    """All is computed twice, for what one worker applies at once is made in one piece."""
    monkeypatch.setattr(Combining, "_others_are_idle", lambda rule: True)
    monkeypatch.setattr("hogwild.optim.plan.cut_shards", partial(cut_shards, size=150))
    tickets = 6 if rule == "sync" else 3
    problems.train(update=rule, workers=1, kind="threads", updates=3, recheck=1)
    assert events.count("count") == 2 * 3
    model = one_worker(rule, tickets, twice=tuple(range(tickets)), shards=2)
    assert events == [event for event in model if event != "write"], "beside its shards a version has buffers, or none"


@pytest.mark.parametrize("rule", SAME_BITS)
def test_one_worker_makes_a_version_at_once_where_nobody_is_idle_as_the_model_does(rule, events, monkeypatch):
    monkeypatch.setattr("hogwild.optim.plan.cut_shards", partial(cut_shards, size=150))
    tickets = 6 if rule == "sync" else 3
    problems.train(update=rule, workers=1, kind="threads", updates=3, recheck=1)
    assert events.count("write") == 3
    assert events == one_worker(rule, tickets, twice=tuple(range(tickets)), shards=2, shares="never")


@pytest.fixture
def control(events):
    events.everybody = True
    space = Space()
    offset = Control.reserve(space, 2, 4)
    control = Control(Arena(space.nbytes), offset, 2, 4)
    control.prepare(0, 10)
    control.ticket_lock = threading.Lock()
    events.clear()
    return control


def section(prefix):
    protocol = RULES["ordered"](Size(1, 2, kills=1)).protocol()
    return seen(step for step in protocol.steps if step.name.startswith(prefix))


def test_claims_deaths_and_what_is_handed_back_are_those_of_the_model(events, control):
    def did():
        found = list(events)
        events.clear()
        return found

    assert control.claim(0) == 0
    assert did() == section("claim.")[:-2], "all but the end of one that found none"
    control.hand_back(0)
    assert did() == section("hand_back.")
    assert control.claim(0) == 0, "the lowest first"
    assert did() == section("claim.")[:-2], "from the list as from the counter"
    control.owner_died(0, lambda ticket, phase: Settled.AGAIN)
    assert did() == section(("dead", "died."))


class Killed(BaseException):
    """What a planted death raises; the lock is left as the kernel releases it."""


def claimed_and_done(control, worker):
    ticket = control.claim(worker)
    if ticket is not None:
        control.finish(worker)
    return ticket


@pytest.mark.parametrize("section", ["next", "list", "hand back"])
def test_a_death_after_any_store_of_the_real_code_loses_and_doubles_nothing(section, control):
    """The words are killed after their n-th store, for every n; somebody else claims before the death is dealt with."""
    for last in range(20):
        control.prepare(0, 10)
        if section != "next":
            assert control.claim(0) == 0
        if section == "list":
            control.hand_back(0)
        died = killed_after(last, control, control.hand_back if section == "hand back" else control.claim)
        other = control.claim(1)
        control.owner_died(0, lambda ticket, phase: Settled.AGAIN)
        got = [other, *iter(lambda: claimed_and_done(control, 0), None)]
        assert sorted(got) == list(range(10)), f"{section}, store {last}: {got}"
        assert control.waiting_tickets() == []
        if not died:
            break
    assert last > 0, "nothing was stored, so nobody died"
    assert not died, "the section never came to its end"


def killed_after(stores, control, section):
    """Run worker 0's section and kill it after so many stores; False where it came to its end before."""
    left = [stores]

    def count(tell):
        def counted(place, value):
            tell(place, value)
            if left[0] == 0:
                raise Killed
            left[0] -= 1

        return counted

    spies = [control._words, *control._rows, control._reissued]
    originals = [spy.tell for spy in spies]
    for spy in spies:
        spy.tell = count(spy.tell)
    try:
        section(0)
        return False
    except Killed:
        return True
    finally:
        for spy, tell in zip(spies, originals, strict=True):
            spy.tell = tell
