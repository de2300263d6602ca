"""Tickets: a number that knows its update, its batch and its share; and what each rule makes of a number."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import problems
import pytest
import torch
from traits import NAMES, SAME_BITS

import hogwild
from hogwild import Ticket
from hogwild.rules import Ordered, Sync
from hogwild.rules.registry import names_where, rule_class
from hogwild.rules.replayed import Replayed

ONE_EACH = names_where(lambda rule: rule().tickets_per_update == 1)
ATTRIBUTES = ("number", "update", "batch", "share")


def told(ticket: Ticket) -> tuple[int, int, int, float]:
    return ticket.number, ticket.update, ticket.batch, ticket.share


def test_a_ticket_is_its_number():
    ticket = Ticket(7, update=3, batch=5, share=0.25)
    assert isinstance(ticket, int) and ticket == 7 and hash(ticket) == hash(7)
    assert told(ticket) == (7, 3, 5, 0.25)
    assert type(ticket.number) is int
    assert list(range(10))[ticket] == 7 and {7: "seven"}[ticket] == "seven"
    assert type(ticket + 1) is int, "a sum is no ticket"
    assert Ticket(7, update=7, batch=7).share == 1.0
    assert hogwild.Ticket is Ticket


def test_a_ticket_says_what_it_is():
    assert repr(Ticket(7, 3, 5, 0.25)) == "Ticket(number=7, update=3, batch=5, share=0.25)"


@pytest.mark.parametrize("name", [*ATTRIBUTES, "other"])
def test_a_ticket_is_frozen(name):
    ticket = Ticket(7, update=3, batch=5, share=0.25)
    with pytest.raises(AttributeError, match=rf"^{name} of a ticket cannot be changed$"):
        setattr(ticket, name, 1)
    with pytest.raises(AttributeError, match=rf"^{name} of a ticket cannot be removed$"):
        delattr(ticket, name)
    assert told(ticket) == (7, 3, 5, 0.25)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_ticket_is_sent_whole(protocol):
    ticket = Ticket(7, update=3, batch=5, share=0.25)
    there = pickle.loads(pickle.dumps(ticket, protocol))
    assert type(there) is Ticket and told(there) == told(ticket)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copied_ticket_is_whole(copied):
    ticket = copied(Ticket(7, update=3, batch=5, share=0.25))
    assert type(ticket) is Ticket and told(ticket) == (7, 3, 5, 0.25)


@pytest.mark.parametrize("update", ONE_EACH)
def test_where_an_update_has_one_ticket_all_numbers_are_one(update):
    rule = rule_class(update)()
    assert [told(rule.ticket(number, 9)) for number in range(9)] == [(n, n, n, 1.0) for n in range(9)]


def test_all_rules_but_sync_give_an_update_one_ticket():
    assert {*NAMES} - {*ONE_EACH} == {"sync"}
    assert {"sync"} < {*SAME_BITS}


@pytest.mark.parametrize(
    ("micro_batches", "total", "updates", "shares"),
    [
        (1, 3, [0, 1, 2], [1, 1, 1]),
        (2, 4, [0, 0, 1, 1], [1 / 2] * 4),
        (3, 8, [0, 0, 0, 1, 1, 1, 2, 2], [1 / 3] * 6 + [1 / 2] * 2),
        (4, 5, [0, 0, 0, 0, 1], [1 / 4] * 4 + [1]),
        (5, 2, [0, 0], [1 / 2] * 2),
    ],
)
def test_under_sync_an_update_has_as_many_as_its_set_and_the_last_set_may_be_shorter(
    micro_batches, total, updates, shares
):
    tickets = [Sync(micro_batches).ticket(number, total) for number in range(total)]
    assert [told(ticket) for ticket in tickets] == [
        (number, update, number, share) for number, (update, share) in enumerate(zip(updates, shares, strict=True))
    ]
    for update in set(updates):
        assert sum(ticket.share for ticket in tickets if ticket.update == update) == pytest.approx(1)


def test_a_number_past_the_end_has_a_ticket_too():
    """A worker may hold one when a version ends the run before it."""
    assert told(Ordered(2).ticket(12, 9)) == (12, 12, 12, 1.0)
    past = Sync(2).ticket(12, 8)
    assert (past.number, past.update, past.batch) == (12, 6, 12)
    assert past.share == 1.0


def test_a_replay_takes_update_and_batch_from_the_row():
    rows = np.zeros(3, dtype=[("update", np.int64), ("version_read", np.int64)])
    rows["update"] = [2, 0, 5]
    assert [told(Replayed(rows).ticket(k, 3)) for k in range(3)] == [(0, 2, 2, 1.0), (1, 0, 0, 1.0), (2, 5, 5, 1.0)]


@pytest.mark.parametrize("update", NAMES)
def test_a_loop_of_ones_own_is_given_tickets(update):
    """`worker.claim` gives what the rule's `ticket` says, and `worker_info` is told the same."""
    given = []

    def work(worker: hogwild.Worker) -> None:
        while (ticket := worker.claim()) is not None:
            given.append((told(ticket), (worker.info.update, worker.info.batch)))
            replica = worker.read(ticket)
            worker.commit(ticket, [torch.zeros_like(p) for p in replica.parameters()], 0.0)

    settings = {"optimizer": problems.SGD, "updates": 3, "kind": "threads", "workers": 1, "update": update}
    hogwild.launch(work, problems.mlp(), micro_batches=2, **settings)
    rule = Sync(2) if update == "sync" else rule_class(update)()
    total = 3 * rule.tickets_per_update
    assert given == [(told(t), (t.update, t.batch)) for t in (rule.ticket(number, total) for number in range(total))]
