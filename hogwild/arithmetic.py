"""Steps of the commonest optimizers written out of place: the next version beside the newest, without a copy first.

Each makes the operations of torch's own single-tensor step, in the same order and on the same memory layout, so the
bits are the same; where an option is set that is not written here, `torch.optim` itself is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

_PLAIN_SGD = {"momentum": 0, "dampening": 0, "weight_decay": 0, "nesterov": False, "maximize": False}
_PLAIN_ADAM = {"weight_decay": 0, "amsgrad": False, "maximize": False}
_OTHER_ARITHMETIC = ("fused", "foreach", "differentiable", "capturable")


def is_plain_sgd(optimizer: Optimizer) -> bool:
    """True for SGD without momentum or any other option."""
    return type(optimizer) is torch.optim.SGD and _has_only(optimizer, _PLAIN_SGD)


def is_plain_adam(optimizer: Optimizer) -> bool:
    """True for Adam without weight decay, amsgrad or any other option."""
    return type(optimizer) is torch.optim.Adam and _has_only(optimizer, _PLAIN_ADAM)


def _has_only(optimizer: Optimizer, values: Mapping[str, Any]) -> bool:
    return all(
        isinstance(group["lr"], float)
        and not any(group.get(name) for name in _OTHER_ARITHMETIC)
        and not any(isinstance(beta, Tensor) for beta in group.get("betas", ()))
        and all(group[name] == value for name, value in values.items())
        for group in optimizer.param_groups
    )


def adam(
    group: Mapping[str, Any],
    parameter: Tensor,
    gradient: Tensor,
    before: Mapping[str, Tensor],
    after: Mapping[str, Tensor],
    into: Tensor,
    scratch: Tensor,
) -> None:
    """One step of Adam (Kingma & Ba 2015, arXiv 1412.6980) from `parameter` and state `before` into `into` and `after`.

    All tensors are flat, of one shape and dtype, but for the state's `step`, which has no dimensions.
    """
    beta1, beta2 = group["betas"]
    after["step"].copy_(before["step"]).add_(1)
    torch.lerp(before["exp_avg"], gradient, 1 - beta1, out=after["exp_avg"])
    torch.mul(before["exp_avg_sq"], beta2, out=after["exp_avg_sq"])
    after["exp_avg_sq"].addcmul_(gradient, gradient, value=1 - beta2)
    step = after["step"].item()
    correction1, correction2 = 1 - beta1**step, 1 - beta2**step
    torch.sqrt(after["exp_avg_sq"], out=scratch)
    scratch.div_(correction2**0.5).add_(group["eps"])
    torch.addcdiv(parameter, after["exp_avg"], scratch, value=-(group["lr"] / correction1), out=into)
