"""Steps of the commonest optimizers, from one place into another: the next version beside the newest without a copy
first, or in place.

Each makes the operations of torch's own single-tensor step, in the same order and on the same memory layout, so the
bits are the same. What torch allocates for every step is memory here that the caller keeps. Where an option is set that
is not written here, `torch.optim` itself is used.

What holds when workers race in place: the moments that a parameter is stepped by are the worker's own, computed in
private memory from what it read and from its gradient, and stored afterwards. So the sum of Adagrad is at least g², the
mean square of RMSprop at least (1 − α) g², and of Adam's moments v ≥ m² / K, as in every serial run: no step is larger
than it could be serially (as in PyTorch-BigGraph: Lerer et al. 2019, arXiv 1903.12287). What does not: of two moments
that are stored at once one may be lost, so a step may be larger than the same step would have been.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from hogwild.optim.row_adagrad import RowAdagrad, row_adagrad
from hogwild.optim.step_form import Rooms, StepState, WrittenStep, like_gradient, named_rows, store_rows
from hogwild.shared.optimizer_state import PARAMETER
from hogwild.shared.shards import SHARD

_OTHER_ARITHMETIC = ("fused", "foreach", "capturable")
_PIECE = SHARD  # 10 to 20 % faster than whole tensors where these have millions

# In other dtypes a kernel rounds differently in its vectors and at a tensor's end (seen for bfloat16 and float16), so
# that a step on a flat tensor, or on a piece of one, has other bits than steps on the tensors.
FLAT_DTYPES = (torch.float32, torch.float64)
_NUMBERS = ("lr", "momentum", "dampening", "weight_decay", "eps", "alpha", "lr_decay")


def written_step(optimizer: Optimizer) -> WrittenStep | None:
    """The step of that optimizer, where it is written here."""
    step, options = _WRITTEN.get(type(optimizer), (None, {}))
    return step if step is not None and _has_only(optimizer, options) else None


def written_keys(optimizer: Optimizer, group: int) -> set[str]:
    """The state that the written step of that optimizer keeps of a parameter of that group."""
    momentum = {"momentum_buffer"} if optimizer.param_groups[group].get("momentum") else set()
    return _KEYS.get(type(optimizer), set()) | momentum


def is_plain_sgd(optimizer: Optimizer) -> bool:
    """True for SGD without momentum or weight decay, whose step is one addition."""
    groups = optimizer.param_groups
    return written_step(optimizer) is sgd and not any(group["momentum"] or group["weight_decay"] for group in groups)


def takes_sparse(optimizer: Optimizer) -> bool:
    """True where the written step takes sparse gradients, in place."""
    return is_plain_sgd(optimizer) or written_step(optimizer) in (adagrad, row_adagrad, sparse_adam)


def _has_only(optimizer: Optimizer, values: Mapping[str, Any]) -> bool:
    return all(
        all(isinstance(group.get(name, 0), int | float) for name in _NUMBERS)
        and all(isinstance(beta, int | float) for beta in group.get("betas", ()))
        and not any(group.get(name) for name in _OTHER_ARITHMETIC)
        and all(group.get(name, value) == value for name, value in values.items())
        for group in optimizer.param_groups
    )


def sgd(
    options: Mapping[str, Any],
    parameter: Tensor,
    gradient: Tensor,
    before: StepState,
    after: StepState,
    into: Tensor,
    rooms: Rooms,
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
    old, velocity = (state.get("momentum_buffer", rooms.tensors[0]) for state in (before, after))
    for old_p, new_p, g, old_v, v, s in _pieces(parameter, into, gradient, old, velocity, rooms=rooms.tensors[:1]):
        if decay:
            g = torch.add(g, old_p, alpha=decay, out=s)
        if momentum and begun:
            torch.mul(old_v, momentum, out=v).add_(g, alpha=1 - options["dampening"])
        elif momentum:
            v.copy_(g)
        if momentum:
            g = torch.add(g, v, alpha=momentum, out=s) if options["nesterov"] else v
        torch.add(old_p, g, alpha=-rate, out=new_p)


def predicting_sgd(
    options: Mapping[str, Any],
    parameter: Tensor,  # noqa: ARG001
    gradient: Tensor,
    before: StepState,
    after: StepState,
    into: Tensor,
    rooms: Rooms,
    begun: bool,
) -> None:
    """One step of SGD by a stale gradient, and where the model will be when the next is read; see
    `hogwild.optim.compensation`, which sets the options `delay` and `ahead`.

    The parameter itself is part of the state. `into` gets what is predicted of it: where it would be had it made this
    step `ahead` times more.
    """
    momentum, decay, ahead = (options[name] for name in ("momentum", "weight_decay", "ahead"))
    kept = momentum ** (options["delay"] + options["nesterov"])  # Nesterov's look ahead is a delay of one update
    missed, rate = (1 - kept) / (1 - momentum) / kept, options["lr"] * kept
    own, moved = before[PARAMETER], after[PARAMETER]
    velocities = before["momentum_buffer"], after["momentum_buffer"]
    for p, new_p, g, old_v, v, hat, s in _pieces(own, moved, gradient, *velocities, into, rooms=rooms.tensors[:1]):
        if decay:
            g = torch.add(g, p, alpha=decay, out=hat)
        if begun:
            torch.add(g, old_v, alpha=momentum, out=v)
        else:
            v.copy_(g)
        torch.add(v, g, alpha=missed, out=s)
        torch.add(p, s, alpha=-rate * (1 + ahead), out=hat)
        torch.add(p, s, alpha=-rate, out=new_p)


def adam(
    options: Mapping[str, Any],
    parameter: Tensor,
    gradient: Tensor,
    before: StepState,
    after: StepState,
    into: Tensor,
    rooms: Rooms,
    begun: bool,  # noqa: ARG001
) -> None:
    """One step of Adam (Kingma & Ba 2015, arXiv 1412.6980), or of AdamW (Loshchilov & Hutter 2019, arXiv 1711.05101)
    where the weight decay is not part of the gradient.

    By a stale gradient where there is a `delay`, which `hogwild.optim.compensation` sets; then nobody races.
    """
    beta1, beta2 = options["betas"]
    rate, decay, decoupled = options["lr"], options["weight_decay"], options["decoupled_weight_decay"]
    step = _count(before, after)
    size, root = rate / (1 - beta1**step), (1 - beta2**step) ** 0.5
    least, delay = least_square(beta1, beta2, parameter.dtype), options.get("delay", 0)
    moments = before["exp_avg"], after["exp_avg"], before["exp_avg_sq"], after["exp_avg_sq"]
    for p, new_p, g, old_m, m, old_v, v, s, *own in _pieces(parameter, into, gradient, *moments, rooms=rooms.tensors):
        if decay and decoupled:
            p = torch.mul(p, 1 - rate * decay, out=new_p)
        elif decay:
            g = torch.add(g, p, alpha=decay, out=own[0])
        if rooms.races:  # m is read first, and v stored first: a v that belongs to an older m is too large
            own_v, own_m = s, torch.lerp(old_m, g, 1 - beta1, out=own[1])
            v.copy_(torch.mul(old_v, beta2, out=own_v).addcmul_(g, g, value=1 - beta2))
            m.copy_(own_m)
            m = own_m
            _keep_together(own_m, own_v, least, own[0])
            own_v.sqrt_()
        else:
            torch.mul(old_v, beta2, out=v).addcmul_(g, g, value=1 - beta2)
            torch.lerp(old_m, g, 1 - beta1, out=m)
            torch.sqrt(v, out=s)
            if delay:
                m = torch.lerp(g, m, beta1**delay, out=own[1])
        s.div_(root).add_(options["eps"])
        torch.addcdiv(p, m, s, value=-size, out=new_p)


def sparse_adam(
    options: Mapping[str, Any],
    parameter: Tensor,  # noqa: ARG001
    gradient: Tensor,
    before: StepState,
    after: StepState,
    into: Tensor,
    rooms: Rooms,  # noqa: ARG001
    begun: bool,  # noqa: ARG001
) -> None:
    """One step of SparseAdam: Adam's in the rows that the gradient names, where `into` is the parameter itself.

    Raises:
        RuntimeError: the gradient is dense, as torch raises it.
    """
    if not gradient.is_sparse:
        raise RuntimeError("SparseAdam does not support dense gradients, please consider Adam instead")
    beta1, beta2 = options["betas"]
    step = _count(before, after)
    gradient = gradient.coalesce()
    g = gradient._values()
    if not g.numel():
        return
    old_m, old_v = (named_rows(before[key], gradient) for key in ("exp_avg", "exp_avg_sq"))
    m = g.sub(old_m).mul_(1 - beta1).add_(old_m)
    v = g.pow(2).sub_(old_v).mul_(1 - beta2).add_(old_v)
    _keep_together(m, v, least_square(beta1, beta2, g.dtype), torch.empty_like(m))
    store_rows(after["exp_avg_sq"], gradient, v)
    store_rows(after["exp_avg"], gradient, m)
    size = options["lr"] * math.sqrt(1 - beta2**step) / (1 - beta1**step)
    into.add_(like_gradient(gradient, -size * m.div_(v.sqrt_().add_(options["eps"]))))


def adagrad(
    options: Mapping[str, Any],
    parameter: Tensor,
    gradient: Tensor,
    before: StepState,
    after: StepState,
    into: Tensor,
    rooms: Rooms,
    begun: bool,  # noqa: ARG001
) -> None:
    """One step of Adagrad (Duchi et al. 2011). The gradient may be sparse, where `into` is the parameter itself."""
    decay, eps = options["weight_decay"], options["eps"]
    size = options["lr"] / (1 + (_count(before, after) - 1) * options["lr_decay"])
    if gradient.is_sparse:
        if decay:
            raise RuntimeError("weight_decay option is not compatible with sparse gradients")
        gradient = gradient.coalesce()
        values = gradient._values()
        total = named_rows(before["sum"], gradient).add_(values.pow(2))
        store_rows(after["sum"], gradient, total)
        into.add_(like_gradient(gradient, values / total.sqrt_().add_(eps)), alpha=-size)
        return
    sums = before["sum"], after["sum"]
    for p, new_p, g, old, new, s, own_g, *_ in _pieces(parameter, into, gradient, *sums, rooms=rooms.tensors):
        if decay:
            g = torch.add(g, p, alpha=decay, out=own_g)
        if rooms.races:
            new.copy_(torch.addcmul(old, g, g, out=s))
            s.sqrt_()
        else:
            torch.sqrt(torch.addcmul(old, g, g, out=new), out=s)
        torch.addcdiv(p, g, s.add_(eps), value=-size, out=new_p)


def rmsprop(
    options: Mapping[str, Any],
    parameter: Tensor,
    gradient: Tensor,
    before: StepState,
    after: StepState,
    into: Tensor,
    rooms: Rooms,
    begun: bool,  # noqa: ARG001
) -> None:
    """One step of RMSprop (Tieleman & Hinton 2012, lecture 6.5) with momentum, not centred."""
    alpha, momentum, decay, rate = (options[name] for name in ("alpha", "momentum", "weight_decay", "lr"))
    races = rooms.races
    _count(before, after)
    squares = before["square_avg"], after["square_avg"]
    buffers = [state.get("momentum_buffer", rooms.tensors[0]) for state in (before, after)]
    for p, new_p, g, old_v, v, old_b, b, s, own_g, own_b in _pieces(
        parameter, into, gradient, *squares, *buffers, rooms=rooms.tensors
    ):
        if decay:
            g = torch.add(g, p, alpha=decay, out=own_g)
        mean = torch.mul(old_v, alpha, out=s if races else v).addcmul_(g, g, value=1 - alpha)
        if races:
            v.copy_(mean)
        torch.sqrt(mean, out=s).add_(options["eps"])
        if not momentum:
            torch.addcdiv(p, g, s, value=-rate, out=new_p)
            continue
        step = torch.mul(old_b, momentum, out=own_b if races else b).addcdiv_(g, s)
        if races:
            b.copy_(step)
        torch.add(p, step, alpha=-rate, out=new_p)


_WRITTEN: Mapping[type[Optimizer], tuple[WrittenStep, Mapping[str, Any]]] = {
    torch.optim.SGD: (sgd, {"maximize": False}),
    torch.optim.Adam: (adam, {"maximize": False, "amsgrad": False}),
    torch.optim.AdamW: (adam, {"maximize": False, "amsgrad": False}),
    torch.optim.SparseAdam: (sparse_adam, {"maximize": False}),
    torch.optim.Adagrad: (adagrad, {"maximize": False}),
    RowAdagrad: (row_adagrad, {}),
    torch.optim.RMSprop: (rmsprop, {"maximize": False, "centered": False}),
}
"""Optimizer → its step, and the options that it is written for."""
_KEYS: Mapping[type[Optimizer], set[str]] = {
    torch.optim.Adam: {"step", "exp_avg", "exp_avg_sq"},
    torch.optim.AdamW: {"step", "exp_avg", "exp_avg_sq"},
    torch.optim.SparseAdam: {"step", "exp_avg", "exp_avg_sq"},
    torch.optim.Adagrad: {"step", "sum"},
    RowAdagrad: {"sum"},
    torch.optim.RMSprop: {"step", "square_avg"},
}


def _count(before: StepState, after: StepState) -> float:
    """The number of this step, from 1, which becomes the state's."""
    step: float = before["step"].item() + 1
    after["step"].fill_(step)
    return step


@cache
def least_square(beta1: float, beta2: float, dtype: torch.dtype) -> tuple[float, Tensor] | None:
    """(c, r) such that Adam's v is at least c m² + r in every serial run; r is a tensor of one number, below 0. None
    where v may be anything.

    By Cauchy and Schwarz m² ≤ K v, with K = (1 − β1)² / ((1 − β2)(1 − β1² / β2)): both are sums over the gradients so
    far. What moments of that dtype may lose by rounding, over the 1 / (1 − β2) steps that they remember, is granted.
    """
    if beta1**2 >= beta2:
        return None
    most = (1 - beta1) ** 2 / ((1 - beta2) * (1 - beta1**2 / beta2))
    form, steps = torch.finfo(dtype), 4 / (1 - beta2)
    least_number = form.smallest_normal * form.eps
    return 1 / (most * (1 + form.eps * steps)), torch.tensor(-least_number * steps, dtype=dtype)


def _keep_together(m: Tensor, v: Tensor, least: tuple[float, Tensor] | None, room: Tensor) -> None:
    """Raise v where m is larger than the gradients of that v can have made it: what another worker wrote was lost."""
    if least is not None:
        torch.addcmul(least[1], m, m, value=least[0], out=room)
        torch.maximum(v, room, out=v)


def _pieces(*tensors: Tensor, rooms: Sequence[Tensor]) -> Iterator[tuple[Tensor, ...]]:
    """The tensors, rooms last: whole, or piece by piece where they are larger than what caches hold.

    In half precision the bits depend on where a vector loop ends, so those tensors stay whole.
    """
    numel = rooms[0].numel()
    if numel <= _PIECE or rooms[0].dtype not in FLAT_DTYPES:
        yield *tensors, *rooms
        return
    small = [room.as_strided((_PIECE,), (1,)) for room in rooms]
    flats = [torch.split(tensor.as_strided((numel,), (1,)), _PIECE) for tensor in tensors]
    for pieces in zip(*flats, strict=True):
        yield *pieces, *(room[: len(pieces[0])] for room in small)
