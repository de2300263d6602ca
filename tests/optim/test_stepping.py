"""With one worker every optimizer leaves the bits of the loop one would write by hand."""

from __future__ import annotations

import functools
from functools import partial
from typing import Any

import problems
import pytest
import torch
from optimizers import OPTIMIZERS, everything, everything_loss, plain, trained
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer
from traits import ONE_OF_EACH, SAME_BITS

import hogwild
from hogwild.optim import kernels
from hogwild.optim import plan as optimizer_plan
from hogwild.optim.gradients import added_in_order
from hogwild.rules import NAMES


def conv() -> nn.Module:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Unflatten(1, (2, 2, 2)), nn.Conv2d(2, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(4, 3))
    return model.to(memory_format=torch.channels_last)


by_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)


@by_optimizer
@pytest.mark.parametrize("update", ONE_OF_EACH)
def test_one_worker_leaves_the_bits_of_the_plain_loop(name, update):
    optimizer = OPTIMIZERS[name]
    assert trained(problems.mlp(), optimizer, update=update) == plain(problems.mlp(), optimizer)


@by_optimizer
@pytest.mark.parametrize("update", ONE_OF_EACH)
def test_parameters_without_a_gradient_in_some_updates(name, update):
    optimizer = OPTIMIZERS[name]
    expected = plain(everything(name), optimizer, everything_loss)
    assert trained(everything(name), optimizer, loss=everything_loss, update=update) == expected


@pytest.mark.parametrize(
    ("name", "update", "missing"),
    [
        (name, update, (number + place) % 2 == 1)
        for number, name in enumerate(OPTIMIZERS)
        for place, update in enumerate(ONE_OF_EACH)
    ],
)
def test_tensor_by_tensor_where_a_flat_step_does_not_pay(name, update, missing, monkeypatch):
    """Each optimizer with all gradients and with some missing, in place and by versions: what is missing is left out
    before the rule is asked."""
    monkeypatch.setattr(optimizer_plan, "_ELEMENTS_PER_TENSOR", {})
    monkeypatch.setattr(optimizer_plan, "_ELEMENTS_PER_TENSOR_OTHERS", 0)
    optimizer = OPTIMIZERS[name]
    model, loss = (partial(everything, name), everything_loss) if missing else (conv, problems.cross_entropy)
    expected = plain(model(), optimizer, loss)
    assert trained(model(), optimizer, loss=loss, update=update) == expected


@pytest.mark.parametrize("name", ["momentum", "nesterov", "decay alone", "adam", "adamw"])
@pytest.mark.parametrize("update", ONE_OF_EACH)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_piece_by_piece_where_caches_do_not_hold_a_tensor(name, update, dtype, monkeypatch):
    def loss(model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        return cross_entropy(model(x.to(dtype)).float(), y)

    monkeypatch.setattr(kernels, "_PIECE", 7)
    optimizer = OPTIMIZERS[name]
    expected = plain(problems.mlp().to(dtype), optimizer, loss)
    assert trained(problems.mlp().to(dtype), optimizer, loss=loss, update=update) == expected


@pytest.mark.parametrize("update", NAMES)
@pytest.mark.parametrize("name", ["momentum", "adam", "adafactor"])
def test_every_rule_steps_alike_when_there_is_one_worker(update, name):
    optimizer = OPTIMIZERS[name]
    assert trained(problems.conv_bn(), optimizer, update=update) == plain(problems.conv_bn(), optimizer)


@pytest.mark.parametrize("name", ["momentum", "adam", "adafactor"])
def test_in_a_process(name):
    optimizer = OPTIMIZERS[name]
    expected = plain(everything(name), optimizer, everything_loss)
    assert trained(everything(name), optimizer, loss=everything_loss, kind="processes") == expected


def test_what_a_batch_does_not_reach_is_not_stepped():
    def loss(model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        return cross_entropy(model(x, branch=hogwild.worker_info().update == 0), y)

    model, once = everything(), everything()
    adam = OPTIMIZERS["adam"]
    trained(model, adam, loss=loss)
    trained(once, adam, loss=loss, updates=1)
    assert torch.equal(model.branch.weight, once.branch.weight), "Adam would have moved it on by its momentum"
    assert not torch.equal(model.branch.weight, everything().branch.weight)


@pytest.mark.parametrize("name", ["momentum", "adam", "adafactor"])
@pytest.mark.parametrize("update", ["hogwild", "sync"])
def test_parameter_groups_keep_their_meaning(name, update):
    def optimizer(named: list[tuple[str, nn.Parameter]]) -> Optimizer:
        biases = [p for n, p in named if n.endswith("bias") and p.requires_grad]
        rest = [p for n, p in named if not n.endswith("bias") and p.requires_grad]
        groups = [{"params": biases, "weight_decay": 0.0}, {"params": rest, "lr": 0.02}]
        return OPTIMIZERS[name].func(groups, lr=0.05, weight_decay=0.1)

    expected = plain(everything(name), optimizer, everything_loss)
    assert trained(everything(name), optimizer, loss=everything_loss, update=update) == expected


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("update", ONE_OF_EACH)
def test_a_hook_of_the_optimizer_is_called_at_every_step_with_the_gradients(name, update):
    def optimizer(named: list[tuple[str, nn.Parameter]]) -> Optimizer:
        made = OPTIMIZERS[name](named)
        made.register_step_pre_hook(double)
        return made

    def double(stepper: Optimizer, *_: Any) -> None:
        for parameter in stepper.param_groups[0]["params"]:
            if parameter.grad is not None:
                calls.append(parameter.shape)
                parameter.grad.mul_(2)

    calls: list[torch.Size] = []
    expected = plain(problems.mlp(), optimizer)
    expected_calls, calls = calls, []
    assert trained(problems.mlp(), optimizer, update=update) == expected
    before = len(calls) - len(expected_calls)  # steps that are tried where the same bits are promised, on copies
    assert calls[before:] == expected_calls
    assert before == (0 if update not in SAME_BITS else 3 * len(list(problems.mlp().parameters())))
    assert expected != plain(problems.mlp(), OPTIMIZERS[name])


@pytest.mark.parametrize("name", ["sgd", "momentum", "adagrad"])
def test_a_factory_that_makes_a_scheduler_too(name):
    """It wraps the optimizer's `step` to count its calls, in a function that belongs to that optimizer."""

    def optimizer(named: list[tuple[str, nn.Parameter]]) -> Optimizer:
        made = OPTIMIZERS[name](named)
        torch.optim.lr_scheduler.LambdaLR(made, lambda number: 1.0)
        return made

    assert trained(problems.mlp(), optimizer) == plain(problems.mlp(), OPTIMIZERS[name])


@pytest.mark.parametrize("name", ["sgd", "adam"])
@pytest.mark.parametrize("scheduled", [False, True])
def test_an_optimizer_whose_step_was_replaced(name, scheduled):
    def optimizer(named: list[tuple[str, nn.Parameter]]) -> Optimizer:
        made = OPTIMIZERS[name](named)
        if scheduled:
            torch.optim.lr_scheduler.LambdaLR(made, lambda number: 1.0)
        step = made.step

        @functools.wraps(step)
        def twice() -> None:
            step()
            step()

        made.step = twice
        return made

    expected = plain(problems.mlp(), optimizer)
    assert trained(problems.mlp(), optimizer) == expected != plain(problems.mlp(), OPTIMIZERS[name])


@pytest.mark.parametrize("update", ONE_OF_EACH)
def test_sparse_gradients_that_come_after_dense_ones(update, monkeypatch):
    """A step that is written for dense ones would leave the momentum out."""
    monkeypatch.setattr(optimizer_plan, "_ELEMENTS_PER_TENSOR", {torch.optim.SGD: 0})

    def model() -> nn.Module:
        torch.manual_seed(4)
        return nn.Sequential(nn.Embedding(20, 4, sparse=True), nn.Flatten(), nn.Linear(32, 3))

    def loss(model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        rows = x.mul(10).long().remainder(20)
        dense = model[0].weight.mean() if (int(y.sum()) + 1) % 4 else 0.0
        kinds.append(bool(dense))
        return cross_entropy(model(rows), y) + dense

    kinds: list[bool] = []
    expected = plain(model(), OPTIMIZERS["momentum"], loss)
    assert kinds[0] and not all(kinds)
    assert trained(model(), OPTIMIZERS["momentum"], loss=loss, update=update) == expected


def test_named_parameter_groups():
    def optimizer(named: list[tuple[str, nn.Parameter]]) -> Optimizer:
        return torch.optim.Adam([{"params": named[:2], "lr": 0.1}, {"params": named[2:]}], lr=0.01)

    assert trained(problems.mlp(), optimizer) == plain(problems.mlp(), optimizer)


@pytest.mark.parametrize("update", ONE_OF_EACH)
def test_parameters_left_out_of_the_optimizer_stay(update):
    def optimizer(named: list[tuple[str, nn.Parameter]]) -> Optimizer:
        return torch.optim.Adam(named[:2], lr=0.01)

    model = problems.mlp()
    assert trained(model, optimizer, update=update) == plain(problems.mlp(), optimizer)
    assert torch.equal(model[2].weight, problems.mlp()[2].weight)
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("update", ["racing", "hogwild", "ordered", "sync"])
@pytest.mark.parametrize("name", ["momentum", "adam", "adafactor"])
def test_learning_rate_schedule(update, name):
    def warm_up(number: int) -> float:
        return min(1.0, (number + 1) / 8)

    def optimizer(named: list[tuple[str, nn.Parameter]]) -> Optimizer:
        return OPTIMIZERS[name].func([{"params": named[:1], "lr": 0.003}, {"params": named[1:]}], lr=0.01)

    expected = plain(problems.mlp(), optimizer, lr_schedule=warm_up)
    assert trained(problems.mlp(), optimizer, lr_schedule=warm_up, update=update) == expected
    assert expected != plain(problems.mlp(), optimizer)


@pytest.mark.parametrize("update", ["racing", "hogwild", "ordered", "sync"])
@pytest.mark.parametrize(("name", "norm"), [("momentum", 0.05), ("adam", 0.05), ("adafactor", 0.05), ("momentum", 1e6)])
def test_clipping_is_by_the_norm_of_the_per_tensor_norms(update, name, norm):
    """A norm above all of them changes no gradient, whatever steps by it."""
    optimizer = OPTIMIZERS[name]
    expected = plain(problems.conv_bn(), optimizer, clip_grad_norm=norm)
    assert trained(problems.conv_bn(), optimizer, clip_grad_norm=norm, update=update) == expected


def test_clipping_with_two_dtypes_and_missing_gradients():
    optimizer = OPTIMIZERS["momentum"]
    expected = plain(everything(), optimizer, everything_loss, clip_grad_norm=0.1)
    assert trained(everything(), optimizer, loss=everything_loss, clip_grad_norm=0.1) == expected


@pytest.mark.parametrize("name", ["momentum", "adam", "adafactor"])
def test_channels_last(name):
    optimizer = OPTIMIZERS[name]
    model = conv()
    assert trained(model, optimizer) == plain(conv(), optimizer)
    assert model[1].weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "optimizer",
    [
        OPTIMIZERS["nesterov"],
        partial(torch.optim.AdamW, lr=0.01, eps=1e-4),  # float16 has no 1e-8
        OPTIMIZERS["adagrad"],
    ],
)
@pytest.mark.parametrize("update", ONE_OF_EACH)
def test_other_dtypes(dtype, optimizer, update):
    """Half precision included, whose bits depend on where the vector loop over a tensor ends."""

    def loss(model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        return cross_entropy(model(x.to(dtype)).float(), y)

    expected = plain(problems.mlp().to(dtype), optimizer, loss)
    assert trained(problems.mlp().to(dtype), optimizer, loss=loss, update=update) == expected


@pytest.mark.parametrize("name", ["momentum", "adam"])
def test_complex_parameters(name):
    def model() -> nn.Module:
        torch.manual_seed(3)
        return nn.Linear(8, 3, dtype=torch.complex64)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        return cross_entropy(model(x.to(torch.complex64)).abs(), y)

    optimizer = OPTIMIZERS[name]
    assert trained(model(), optimizer, loss=loss) == plain(model(), optimizer, loss)


@pytest.mark.parametrize("update", ONE_OF_EACH)
def test_sparse_gradients(update):
    def model() -> nn.Module:
        torch.manual_seed(4)
        return nn.Sequential(nn.Embedding(12, 4, sparse=True), nn.Flatten(), nn.Linear(32, 3))

    def loss(model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        return cross_entropy(model(x.abs().mul(3).long().clamp(max=11)), y)

    for optimizer in (OPTIMIZERS["sgd"], partial(torch.optim.Adagrad, lr=0.1)):
        assert trained(model(), optimizer, loss=loss, update=update) == plain(model(), optimizer, loss)


def test_numbers_are_added_as_by_a_loop_in_every_version_of_python():
    """`sum` of floats carries what is rounded off along since 3.12."""
    assert added_in_order([0.1] * 10) == 0.9999999999999999
    assert added_in_order([1e16, 1.0, -1e16]) == 0.0
