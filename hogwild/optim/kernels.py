"""Steps of the commonest optimizers, from one place into another: the next version beside the newest without a copy
first, or in place.

Each makes the operations of torch's own single-tensor step, in the same order and on the same memory layout, so the
bits are the same. What torch allocates for every step is one piece of memory here, which the caller keeps. Where an
option is set that is not written here, `torch.optim` itself is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

StepState = Mapping[str, Tensor]

WrittenStep = Callable[[Mapping[str, Any], Tensor, Tensor, StepState, StepState, Tensor, Tensor, bool], None]
"""(options, parameter, gradient, before, after, into, scratch, begun): one step from `parameter` and the state `before`
into `into` and `after`, which may be the same memory. Parameter, gradient, scratch and what has a value per element of
the state have one shape, dtype and strides; nobody else writes to scratch. Not `begun`: it is the first step, and
`before` is zero."""

_SGD_OPTIONS = {"maximize": False}
_ADAM_OPTIONS = {"maximize": False, "amsgrad": False}
_OTHER_ARITHMETIC = ("fused", "foreach", "differentiable", "capturable")
_PIECE = 1 << 18  # elements; 10 to 20 % faster than whole tensors where these have millions (2 MiB of L2, 32 of L3)

# In other dtypes a kernel rounds differently in its vectors and at a tensor's end (seen for bfloat16 and float16), so
# that a step on a flat tensor, or on a piece of one, has other bits than steps on the tensors.
FLAT_DTYPES = (torch.float32, torch.float64)
_NUMBERS = ("lr", "momentum", "dampening", "weight_decay", "eps")


def written_step(optimizer: Optimizer) -> WrittenStep | None:
    """The step of that optimizer, where it is written here."""
    if type(optimizer) is torch.optim.SGD and _has_only(optimizer, _SGD_OPTIONS):
        return sgd
    if type(optimizer) in (torch.optim.Adam, torch.optim.AdamW) and _has_only(optimizer, _ADAM_OPTIONS):
        decays = [group for group in optimizer.param_groups if group["weight_decay"]]
        return adam if all(group["decoupled_weight_decay"] for group in decays) else None
    return None


def written_keys(optimizer: Optimizer, group: int) -> set[str]:
    """The state that the written step of that optimizer keeps of a parameter of that group."""
    if type(optimizer) is not torch.optim.SGD:
        return {"step", "exp_avg", "exp_avg_sq"}
    return {"momentum_buffer"} if optimizer.param_groups[group]["momentum"] else set()


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
    before: StepState,
    after: StepState,
    into: Tensor,
    scratch: Tensor,
    begun: bool,
) -> None:
    """One step of SGD with momentum as torch has it (Sutskever et al. 2013, with the learning rate outside).

    Without momentum and weight decay the gradient may be sparse, where `into` is the parameter itself.
    """
    momentum, decay, rate = options["momentum"], options["weight_decay"], options["lr"]
    if gradient.is_sparse:
        into.add_(gradient, alpha=-rate)
        return
    if not momentum and not decay:
        torch.add(parameter, gradient, alpha=-rate, out=into)
        return
    old, velocity = (state.get("momentum_buffer", scratch) for state in (before, after))
    for old_p, new_p, g, old_v, v, s in _pieces(parameter, into, gradient, old, velocity, scratch=scratch):
        if decay:
            g = torch.add(g, old_p, alpha=decay, out=s)
        if momentum and begun:
            torch.mul(old_v, momentum, out=v).add_(g, alpha=1 - options["dampening"])
        elif momentum:
            v.copy_(g)
        if momentum:
            g = torch.add(g, v, alpha=momentum, out=s) if options["nesterov"] else v
        torch.add(old_p, g, alpha=-rate, out=new_p)


def adam(
    options: Mapping[str, Any],
    parameter: Tensor,
    gradient: Tensor,
    before: StepState,
    after: StepState,
    into: Tensor,
    scratch: Tensor,
    begun: bool,  # noqa: ARG001
) -> None:
    """One step of Adam (Kingma & Ba 2015, arXiv 1412.6980), or of AdamW (Loshchilov & Hutter 2019, arXiv 1711.05101)
    where there is weight decay."""
    beta1, beta2 = options["betas"]
    rate, decay = options["lr"], options["weight_decay"]
    torch.add(before["step"], 1, out=after["step"])
    step = after["step"].item()
    size, root = rate / (1 - beta1**step), (1 - beta2**step) ** 0.5
    moments = before["exp_avg"], after["exp_avg"], before["exp_avg_sq"], after["exp_avg_sq"]
    for p, new_p, g, old_m, m, old_v, v, s in _pieces(parameter, into, gradient, *moments, scratch=scratch):
        if decay:
            p = torch.mul(p, 1 - rate * decay, out=new_p)
        torch.lerp(old_m, g, 1 - beta1, out=m)
        torch.mul(old_v, beta2, out=v).addcmul_(g, g, value=1 - beta2)
        torch.sqrt(v, out=s).div_(root).add_(options["eps"])
        torch.addcdiv(p, m, s, value=-size, out=new_p)


def _pieces(*tensors: Tensor, scratch: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The tensors, scratch last: whole, or piece by piece where they are larger than what caches hold.

    In half precision the bits depend on where a vector loop ends, so those tensors stay whole.
    """
    numel = scratch.numel()
    if numel <= _PIECE or scratch.dtype not in FLAT_DTYPES:
        yield *tensors, scratch
        return
    room = scratch.as_strided((_PIECE,), (1,))
    flats = [torch.split(tensor.as_strided((numel,), (1,)), _PIECE) for tensor in tensors]
    for pieces in zip(*flats, strict=True):
        yield *pieces, room[: len(pieces[0])]
