"""A loop of one's own that takes its gradients from `.grad`: what is left there of the ticket before."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from loops import EVERY, INPUT, TARGET, launched
from torch import nn
from traits import SAME_BITS

import hogwild


def by_backward(worker: hogwild.Worker) -> None:
    while (ticket := worker.claim()) is not None:
        replica = worker.read(ticket)
        loss = nn.functional.mse_loss(replica(INPUT + int(ticket.batch)), TARGET)
        loss.backward()
        worker.commit(ticket, [parameter.grad for parameter in replica.parameters()], loss)


def by_grad(worker: hogwild.Worker) -> None:
    while (ticket := worker.claim()) is not None:
        replica = worker.read(ticket)
        loss = nn.functional.mse_loss(replica(INPUT + int(ticket.batch)), TARGET)
        worker.commit(ticket, torch.autograd.grad(loss, [*replica.parameters()]), loss)


@EVERY
def test_no_gradient_of_an_earlier_ticket_is_left(update):
    """So a loop by `backward()` trains as one by `autograd.grad`, whoever computed what."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    digests = {launched(work, deepcopy(model), update=update).digest for work in (by_backward, by_grad)}
    if update in SAME_BITS:
        digests.add(launched(by_backward, deepcopy(model), update=update, workers=2).digest)
    assert len(digests) == 1


def by_views(worker: hogwild.Worker) -> None:
    """Its gradients lie in one buffer of its own, as it likes to have them."""
    flat = torch.zeros(8)
    while (ticket := worker.claim()) is not None:
        replica = worker.read(ticket)
        flat.zero_()
        replica.weight.grad, replica.bias.grad = flat[:6].view(2, 3), flat[6:]
        views = [replica.weight.grad, replica.bias.grad]
        assert worker.read(ticket) is replica, "which may be read again"
        loss = nn.functional.mse_loss(replica(INPUT + int(ticket.batch)), TARGET)
        loss.backward()
        worker.commit(ticket, views, loss)


def test_gradients_in_a_buffer_of_the_loop_are_left_there():
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    assert launched(by_views, deepcopy(model)).digest == launched(by_grad, deepcopy(model)).digest


def by_old_gradients(worker: hogwild.Worker) -> None:
    kept = None
    while (ticket := worker.claim()) is not None:
        replica = worker.read(ticket)
        nn.functional.mse_loss(replica(INPUT), TARGET).backward()
        kept = kept or [parameter.grad for parameter in replica.parameters()]
        worker.commit(ticket, kept)


def test_a_gradient_that_is_not_grad_any_more_is_refused():
    with pytest.raises(hogwild.ArgumentError, match=r"gradient was \.grad at an earlier ticket"):
        launched(by_old_gradients)
