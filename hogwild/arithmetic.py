"""Steps of the commonest optimizers, from one place into another: the next version beside the newest without a copy
first, or in place.

Each makes the operations of torch's own single-tensor step, in the same order and on the same memory layout, so the
bits are the same. What torch allocates for every step is one piece of memory here, which the caller keeps. Where an
option is set that is not written here, `torch.optim` itself is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

State = Mapping[str, Tensor]

Step = Callable[[Mapping[str, Any], Tensor, Tensor, State, State, Tensor, Tensor, bool], None]
"""(options, parameter, gradient, before, after, into, scratch, begun): one step from `parameter` and the state `before`
into `into` and `after`, which may be the same memory. Parameter, gradient, scratch and what has a value per element of
the state have one shape, dtype and strides; nobody else writes to scratch. Not `begun`: it is the first step, and
`before` is zero."""

_SGD_OPTIONS = {"maximize": False}
_ADAM_OPTIONS = {"maximize": False, "amsgrad": False}
_OTHER_ARITHMETIC = ("fused", "foreach", "differentiable", "capturable")
_NUMBERS = ("lr", "momentum", "dampening", "weight_decay", "eps")


def written_step(optimizer: Optimizer) -> Step | None:
    """The step of that optimizer, where it is written here."""
    if type(optimizer) is torch.optim.SGD and _has_only(optimizer, _SGD_OPTIONS):
        return sgd
    if type(optimizer) in (torch.optim.Adam, torch.optim.AdamW) and _has_only(optimizer, _ADAM_OPTIONS):
        decays = [group for group in optimizer.param_groups if group["weight_decay"]]
        return adam if all(group["decoupled_weight_decay"] for group in decays) else None
    return None


def is_plain_sgd(optimizer: Optimizer) -> bool:
    """True for SGD without momentum or weight decay, whose step is one addition."""
    groups = optimizer.param_groups
    return written_step(optimizer) is sgd and not any(group["momentum"] or group["weight_decay"] for group in groups)


def _has_only(optimizer: Optimizer, values: Mapping[str, Any]) -> bool:
    return all(
        all(isinstance(group.get(name, 0), int | float) for name in _NUMBERS)
        and all(isinstance(beta, int | float) for beta in group.get("betas", ()))
        and not any(group.get(name) for name in _OTHER_ARITHMETIC)
        and all(group[name] == value for name, value in values.items())
        for group in optimizer.param_groups
    )


def sgd(
    options: Mapping[str, Any],
    parameter: Tensor,
    gradient: Tensor,
    before: State,
    after: State,
    into: Tensor,
    scratch: Tensor,
    begun: bool,
) -> None:
    """One step of SGD with momentum as torch has it (Sutskever et al. 2013, with the learning rate outside).

    Without momentum and weight decay the gradient may be sparse, where `into` is the parameter itself.
    """
    momentum, decay = options["momentum"], options["weight_decay"]
    if decay:
        gradient = torch.add(gradient, parameter, alpha=decay, out=scratch)
    if momentum:
        velocity = after["momentum_buffer"]
        if begun:
            torch.mul(before["momentum_buffer"], momentum, out=velocity)
            velocity.add_(gradient, alpha=1 - options["dampening"])
        else:
            velocity.copy_(gradient)
        gradient = torch.add(gradient, velocity, alpha=momentum, out=scratch) if options["nesterov"] else velocity
    if gradient.is_sparse:
        into.add_(gradient, alpha=-options["lr"])
    else:
        torch.add(parameter, gradient, alpha=-options["lr"], out=into)


def adam(
    options: Mapping[str, Any],
    parameter: Tensor,
    gradient: Tensor,
    before: State,
    after: State,
    into: Tensor,
    scratch: Tensor,
    begun: bool,  # noqa: ARG001
) -> None:
    """One step of Adam (Kingma & Ba 2015, arXiv 1412.6980), or of AdamW (Loshchilov & Hutter 2019, arXiv 1711.05101)
    where there is weight decay."""
    beta1, beta2 = options["betas"]
    rate, decay = options["lr"], options["weight_decay"]
    torch.add(before["step"], 1, out=after["step"])
    if decay:
        parameter = torch.mul(parameter, 1 - rate * decay, out=into)
    torch.lerp(before["exp_avg"], gradient, 1 - beta1, out=after["exp_avg"])
    torch.mul(before["exp_avg_sq"], beta2, out=after["exp_avg_sq"])
    after["exp_avg_sq"].addcmul_(gradient, gradient, value=1 - beta2)
    step = after["step"].item()
    correction1, correction2 = 1 - beta1**step, 1 - beta2**step
    torch.sqrt(after["exp_avg_sq"], out=scratch)
    scratch.div_(correction2**0.5).add_(options["eps"])
    torch.addcdiv(parameter, after["exp_avg"], scratch, value=-(rate / correction1), out=into)
