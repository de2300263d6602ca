"""The checker for `.grad` aliasing, on loops that have the fault and on loops that only look like it."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from hogwild.autograd import gradient_aliases, watch_gradients


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))


def losses(model):
    inputs = torch.linspace(-1, 1, 12).reshape(3, 4)
    return cross_entropy(model(inputs), torch.tensor([0, 1, 0]), reduction="none")


def collect(model, *, set_to_none, copy, view=True):
    """Keep the gradient of each sample and stack them, as many people do."""
    kept = []
    each = losses(model)
    for i in range(3):
        model.zero_grad(set_to_none=set_to_none)
        each[i].backward(retain_graph=True)
        grad = model[0].weight.grad.view(-1) if view else model[0].weight.grad
        kept.append(grad.clone() if copy else grad)
    return torch.stack(kept)


@pytest.mark.parametrize("view", [True, False], ids=["view", "the tensor itself"])
def test_a_kept_gradient_that_was_overwritten_is_named(model, view):
    with watch_gradients(model) as stale:
        collect(model, set_to_none=False, copy=False, view=view)
    assert {one.parameter for one in stale} == {"0.weight"}
    assert len(stale) == 2  # the third is still what it was
    first = stale[0]
    assert first.written == "backward"
    assert first.by == "stack"
    assert first.read.startswith("test_aliasing.py:")
    assert first.used.startswith("test_aliasing.py:")
    assert first.read != first.used
    assert "0.weight" in str(first)


@pytest.mark.parametrize(("set_to_none", "copy"), [(True, False), (True, True), (False, True)])
def test_the_remedies_are_not_blamed(model, set_to_none, copy):
    with watch_gradients(model) as stale:
        collect(model, set_to_none=set_to_none, copy=copy)
    assert stale == []


def test_it_changes_nothing(model):
    plain = collect(model, set_to_none=False, copy=False)
    with watch_gradients(model):
        watched = collect(model, set_to_none=False, copy=False)
    assert torch.equal(plain, watched)
    assert collect(model, set_to_none=False, copy=False).equal(plain)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_training_loop_is_not_blamed(model, set_to_none):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with watch_gradients(model) as stale:
        for _ in range(3):
            optimizer.zero_grad(set_to_none=set_to_none)
            losses(model).mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
    assert stale == []


def test_a_gradient_used_after_it_was_zeroed_is_named(model):
    losses(model).mean().backward()
    with watch_gradients(model) as stale:
        kept = model[2].bias.grad
        model.zero_grad(set_to_none=False)
        kept.sum()
    assert [(one.parameter, one.written, one.by) for one in stale] == [("2.bias", "zero_", "sum")]


def test_looking_at_its_shape_is_no_use_of_it(model):
    losses(model).mean().backward()
    with watch_gradients(model) as stale:
        kept = model[2].bias.grad
        losses(model).mean().backward()
        assert kept.shape == (2,)
        assert len(kept) == kept.size(0) == kept.numel()
    assert stale == []


def test_reading_it_again_is_reading_it_anew(model):
    losses(model).mean().backward()
    with watch_gradients(model) as stale:
        model[2].bias.grad.sum()
        losses(model).mean().backward()
        model[2].bias.grad.sum()
    assert stale == []


def test_it_follows_views_of_views_and_data(model):
    losses(model).mean().backward()
    with watch_gradients(model) as stale:
        kept = model[0].weight.grad.data.t()[1:]
        losses(model).mean().backward()
        kept.norm()
    assert [one.parameter for one in stale] == ["0.weight"]


def test_nothing_is_left_behind(model):
    with watch_gradients(model) as stale:
        pass
    collect(model, set_to_none=False, copy=False)
    assert stale == []
    with pytest.raises(RuntimeError, match="mine"), watch_gradients(model):
        raise RuntimeError("mine")
    assert not any(one._post_accumulate_grad_hooks for one in model.parameters())


def test_gradient_aliases_says_where(model):
    losses(model).mean().backward()
    weight = model[0].weight
    kept = {"views": [weight.grad.view(-1)[2:], weight.grad.clone()], "bias": (model[2].bias.grad,), "n": 3}
    found = gradient_aliases(model, kept)
    assert [(one.parameter, one.where) for one in found] == [("0.weight", "['views'][0]"), ("2.bias", "['bias'][0]")]


def test_gradient_aliases_of_what_is_free(model):
    losses(model).mean().backward()
    kept = model[0].weight.grad
    model.zero_grad(set_to_none=True)
    losses(model).mean().backward()
    assert gradient_aliases(model, [kept]) == ()
