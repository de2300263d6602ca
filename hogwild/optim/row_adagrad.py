"""Adagrad with one accumulator a row, as PyTorch-BigGraph trains embeddings with it (Lerer et al. 2019, arXiv
1903.12287).

What holds when workers race: a row is stepped by the sum that the worker itself has added its gradient to, which is at
least the mean of the gradient's squares, so no step of a row is longer than lr × √(its elements). The sum is stored
afterwards, so what a lost store leaves small is never divided by. What does not: of two sums that are stored at once
one is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from hogwild.errors import ArgumentError
from hogwild.optim.step_form import Rooms, StepState, like_gradient, store_rows


class RowAdagrad(Optimizer):
    """Adagrad that keeps one number for each row of a parameter: the sum of the means of its gradients' squares.

        sum[r] += mean(g[r]²)        w[r] -= lr · g[r] / (√sum[r] + eps)

    A parameter of one dimension has rows of one element, which is Adagrad. Gradients may be sparse, where a step
    touches the rows that they name, or dense.

    Args:
        params: as torch.optim takes them.
        lr: learning rate.
        eps: added to the root.
        initial_accumulator_value: what every sum begins with.

    Raises:
        ArgumentError: one of them is negative.
    """

    def __init__(
        self, params: ParamsT, lr: float = 0.1, eps: float = 1e-10, initial_accumulator_value: float = 0.0
    ) -> None:
        options = {"lr": lr, "eps": eps, "initial_accumulator_value": initial_accumulator_value}
        for name, value in options.items():
            if not value >= 0:
                raise ArgumentError(f"RowAdagrad: {name} {value} is negative; 0 and more work")
        super().__init__(params, options)
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["sum"] = p.new_full(p.shape[:1], group["initial_accumulator_value"])

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Step each parameter that has a gradient; returns what the closure returns, if one is given."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    state = self.state[p]
                    row_adagrad(group, p, p.grad, state, state, p, Rooms((), races=False), begun=True)
        return loss


def row_adagrad(
    options: Mapping[str, Any],
    parameter: Tensor,
    gradient: Tensor,
    before: StepState,
    after: StepState,
    into: Tensor,
    rooms: Rooms,  # noqa: ARG001
    begun: bool,  # noqa: ARG001
) -> None:
    """One step of RowAdagrad. The gradient may be sparse, where `into` is the parameter itself."""
    rate, eps = options["lr"], options["eps"]
    if gradient.is_sparse:
        gradient = gradient.coalesce()
        rows, values = gradient._indices()[0], gradient._values()
        total = before["sum"].index_select(0, rows).add_(_means(values))
        store_rows(after["sum"], gradient, total)
        into.add_(like_gradient(gradient, values / _as_column(total.sqrt_().add_(eps), values)), alpha=-rate)
        return
    total = before["sum"] + _means(gradient)
    after["sum"].copy_(total)
    torch.addcdiv(parameter, gradient, _as_column(total.sqrt_().add_(eps), gradient), value=-rate, out=into)


def _means(values: Tensor) -> Tensor:
    """The mean square of each row."""
    squares = values.square()
    return squares.flatten(1).mean(1) if values.dim() > 1 else squares


def _as_column(numbers: Tensor, values: Tensor) -> Tensor:
    """One number a row, in a form that divides the values."""
    return numbers.reshape(-1, *[1] * (values.dim() - 1)) if values.dim() > 1 else numbers
