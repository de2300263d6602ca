"""A loop of one's own, or a loss, that writes to what it reads: a version, what is frozen, the shared model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from loops import EVERY, gradients, launched, squared, trained
from torch import Tensor, nn
from traits import KINDS, NAMES, VERSIONED

import hogwild

# --- what the replica shows


def sharpness_aware(worker: hogwild.Worker) -> None:
    """Perturbs the replica in place and puts it back, as is done where it is one's own."""
    while (ticket := worker.claim()) is not None:
        replica = worker.read(ticket)
        steps, _ = gradients(replica)
        with torch.no_grad():
            for parameter, step in zip(replica.parameters(), steps, strict=True):
                parameter.add_(step, alpha=0.05)
        own = gradients(replica)
        with torch.no_grad():
            for parameter, step in zip(replica.parameters(), steps, strict=True):
                parameter.sub_(step, alpha=0.05)
        worker.commit(ticket, *own)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("update", VERSIONED)
def test_a_loop_does_not_write_to_a_version(update: str, kind: str) -> None:
    message = rf"weight, bias of the replica was written to before the commit, and under {update} others read"
    with pytest.raises(hogwild.ArgumentError, match=message):
        launched(sharpness_aware, update=update, kind=kind)


def test_rules_in_place_have_no_version_to_write_to() -> None:
    assert launched(sharpness_aware, update="hogwild").updates == 6


def stepping(worker: hogwild.Worker) -> None:
    """Steps itself as well, as a loop does that is ported as it was."""
    optimizer = None
    while (ticket := worker.claim()) is not None:
        replica = worker.read(ticket)
        optimizer = optimizer or torch.optim.SGD(replica.parameters(), lr=0.01)
        own = gradients(replica)
        for parameter, gradient in zip(replica.parameters(), own[0], strict=True):
            parameter.grad = gradient
        optimizer.step()
        worker.commit(ticket, *own)


@pytest.mark.parametrize("update", sorted({*NAMES} - {*VERSIONED}))
def test_a_step_in_the_loop_is_told_once(update, caplog):
    launched(stepping, update=update, workers=2)
    told = f"weight, bias of the replica was written to before the commit: under {update} that changes the shared model"
    assert caplog.text.count(told) == len(caplog.records) == 1


def renormalised(worker: hogwild.Worker) -> None:
    while (ticket := worker.claim()) is not None:
        replica = worker.read(ticket)
        loss = replica(torch.arange(4)).square().mean()
        worker.commit(ticket, torch.autograd.grad(loss, [*replica.parameters()]), loss)


def test_what_a_forward_pass_renormalises_is_not(caplog):
    launched(renormalised, nn.Embedding(4, 3, max_norm=0.5), update="hogwild")
    assert not caplog.records


class Target(nn.Module):
    """A target network that its own forward pass moves."""

    def __init__(self) -> None:
        super().__init__()
        self.online, self.target = nn.Linear(3, 2), nn.Linear(3, 2).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            for target, online in zip(self.target.parameters(), self.online.parameters(), strict=True):
                target.lerp_(online, 0.1)
        return self.online(x) - self.target(x)


@EVERY
@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_does_not_write_to_what_is_frozen(update: str, kind: str) -> None:
    def work(worker: hogwild.Worker) -> None:
        while (ticket := worker.claim()) is not None:
            worker.commit(ticket, *gradients(worker.read(ticket)))

    with pytest.raises(hogwild.ArgumentError, match=r"target\.weight, target\.bias of the replica was written to"):
        launched(work, Target(), update=update, kind=kind)


# --- the same in a loss


@EVERY
def test_a_loss_does_not_write_to_what_is_frozen_and_trying_it_changes_nothing(update: str) -> None:
    model = Target()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    message = r"the loss writes to target\.weight, target\.bias while it is computed, which is not trained, .*buffers"
    with pytest.raises(hogwild.ArgumentError, match=message):
        trained(model, squared, update=update)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("update", VERSIONED)
@pytest.mark.parametrize("how", ["by the tensor", "by its data"])
def test_a_loss_does_not_write_to_a_version_and_trying_it_changes_nothing(how: str, update: str) -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        with torch.no_grad():
            (model.weight if how == "by the tensor" else model.weight.data).mul_(0.9)
        return squared(model, batch)

    model = nn.Linear(3, 2)
    before = model.weight.clone()
    with pytest.raises(hogwild.ArgumentError, match=r"the loss writes to weight while it is computed"):
        trained(model, loss, update=update)
    assert torch.equal(model.weight, before)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("update", VERSIONED)
def test_nor_does_it_later(update: str, kind: str) -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        if hogwild.worker_info().update == 5:
            with torch.no_grad():
                model.weight.mul_(0.9)
        return squared(model, batch)

    with pytest.raises(hogwild.ArgumentError, match=r"weight of the replica was written to before the commit"):
        trained(nn.Linear(3, 2), loss, update=update, kind=kind, recheck=0)
