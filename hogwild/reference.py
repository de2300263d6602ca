"""What every rule computes, as plain serial PyTorch: no shared memory, no workers.

Training makes one version of the model after another. Commit k makes version k + 1 out of version k and a gradient,
which was computed on version v ≤ k:

    w[k + 1] = step(w[k], g)                    w: parameters; step: that of the `torch.optim` optimizer
    g = mean over b of ∇ loss(w[v], batch b)    b: the batches of update u, in order

A rule says no more than which update, batches and version those are:

    rule                                                update u   batches b               version read v
    ordered, staleness τ                                k          k                       max(0, k − τ)
    sync, M micro-batches                               k          k M, …, k M + M − 1     k
    racing, hogwild, locked, snapshot with one worker   k          k                       k
    a run whose journal has (u, v) in row k             u          u                       v

With accumulate N each number b in that table stands for the batches b N, …, b N + N − 1, which are computed one after
the other on version v, and whose gradients are averaged first. A batch, and what is drawn while its gradient is
computed, depend on (seed, b) alone; the learning rate on u. A parameter without a gradient is not stepped. Buffers are
those that the forward pass left, corrected for what was committed since version v (see `_rebased`). `hogwild.train`
leaves these very bits, but for what docs/tables.md says of sparse gradients: under `ordered` and `sync` with any number
of workers, under the other rules with one, and under `snapshot` with several by the rows of the run's journal.

With compensation="auto", `ordered` steps SGD and Adam as `_Stale` does; update k reads what was predicted of w[k − τ].
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from typing import Any

import numpy as np
import torch
from threadpoolctl import ThreadpoolController
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _NormBase

from hogwild.data.seeding import mix, preserved_generators
from hogwild.optim.factory import Factory, made_by
from hogwild.optim.stability import largest_stable_step

_Version = dict[str, Tensor]  # name → value of each parameter and buffer
_Part = tuple[float, Sequence[Tensor | None]]  # a loss and its gradient: a tensor or None for each trained parameter


def train_serially(
    model: nn.Module,
    data: Any,
    loss: Callable[[nn.Module, Any], Any],
    *,
    optimizer: Factory,
    update: str = "hogwild",
    staleness: int = 1,
    compensation: str = "auto",
    measured: bool = True,
    micro_batches: int = 2,
    accumulate: int = 1,
    journal: Iterable[tuple[int, int]] | None = None,
    epochs: int = 1,
    updates: int | None = None,
    batch_size: int = 64,
    drop_last: bool = False,
    shuffle: bool = True,
    seed: int = 0,
    lr_schedule: Callable[[int], float] | None = None,
    clip_grad_norm: float | None = None,
) -> list[float]:
    """Train a model in place; returns the loss of each commit.

    The arguments are those of `hogwild.train`, `lr_schedule` as a function; `updates` goes before `epochs`. `data` is a
    tuple of equally long tensors, or a `Source`. `journal` has the (update, version_read) of each commit of a run that
    is to be made again. Without `measured` the curvature is not known before the run, as `hogwild.launch` does not.
    """
    source = data if hasattr(data, "batch") else _Batches(data, batch_size, drop_last, shuffle, seed)
    M, N = micro_batches if update == "sync" else 1, accumulate
    batches = epochs * len(source) if updates is None else updates * M * N
    plan = _plan(update, -(-batches // N), staleness, M) if journal is None else [(u, [u], v) for u, v in journal]
    stepper = made_by(optimizer, list(model.named_parameters()))
    stepped = {parameter for group in stepper.param_groups for parameter in group["params"]}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad and parameter in stepped]
    oldest = max((k - v for k, (_, _, v) in enumerate(plan)), default=0)  # how many commits ago a version may be read
    versions, losses = {0: _version(model)}, []
    read = {0: versions[0]}  # what gradients are computed on: the version, or what was predicted of it
    with _as_in_a_worker():
        stale = None
        if (update, compensation) == ("ordered", "auto") and staleness and _is_studied(model, stepper):
            eps = _eps(stepper)
            known = measured and {p.dtype for p in trained} <= {torch.float32, torch.float64}
            first = range(0, N * min(4 if eps else 2, len(plan)), N) if known else ()
            products = partial(_products, model, loss, source, seed, first, trained)
            curvature, grows = _curvature(model, products, trained, eps) if first else (0.0, 3)
            if not curvature or any(map(partial(_is_large, staleness, curvature), stepper.param_groups)):
                stale = _Stale(stepper, staleness, curvature, grows)
        rates: list[Any] = [group.get("lr") for group in stepper.param_groups]
        for k, (u, numbers, v) in enumerate(plan):
            parts, newest = [], versions[k]
            for b in numbers:
                _load(model, read[v])
                some = range(b * N, min(b * N + N, batches))
                outputs = (loss(model, source.batch(one, _seeded(mix(seed, one)))) for one in some)
                parts.append(_shared(update, _differentiate(outputs, trained), trained))
                after = _version(model)
                serial = v == k and b == numbers[0]  # nothing came between
                newest = after if serial else newest | _rebased(model, versions[v], after, newest)
            value, gradient = _mean(parts)
            _load(model, newest)
            for parameter, part in zip(trained, gradient, strict=True):
                parameter.grad = part
            if clip_grad_norm is not None:
                nn.utils.clip_grad_norm_(trained, clip_grad_norm)
            if lr_schedule is not None:
                for group, rate in zip(stepper.param_groups, rates, strict=True):
                    group["lr"] = rate * lr_schedule(u)
            predicted = stepper.step() if stale is None else stale.step(u, dict(model.named_parameters()))
            versions[k + 1] = _version(model)
            read[k + 1] = versions[k + 1] | (predicted or {})
            for kept in (versions, read):
                kept.pop(k - oldest, None)  # read for the last time
            losses.append(value)
    model.zero_grad()
    return losses


def _plan(update: str, batches: int, staleness: int, M: int) -> list[tuple[int, Sequence[int], int]]:
    """(update, its batches, version read) for each commit; the last of `sync` may have fewer than M batches."""
    if update == "sync":
        return [(k, range(first, min(first + M, batches)), k) for k, first in enumerate(range(0, batches, M))]
    delay = {"racing": 0, "hogwild": 0, "locked": 0, "snapshot": 0, "ordered": staleness}[update]
    return [(k, [k], max(0, k - delay)) for k in range(batches)]


class _Stale:
    """The steps of SGD and of Adam by gradients that are τ updates old, as `hogwild.optim.compensation` has them."""

    def __init__(self, optimizer: torch.optim.Optimizer, staleness: int, curvature: float, grows: int) -> None:
        self.groups, self.staleness, self.state = optimizer.param_groups, staleness, dict[Tensor, list[Any]]()
        for group in self.groups:
            if "betas" in group:
                scale = 1 / math.sqrt(staleness + 1)
                if curvature:
                    scale = 1 / min(staleness + 1, math.sqrt(max(1.0, curvature * group["lr"] * (staleness + 1) / 2)))
                group["betas"] = 1 - (1 - group["betas"][0]) / (staleness + 1), group["betas"][1]
                group["weight_decay"] /= scale if group["decoupled_weight_decay"] else 1
            else:
                own, remembers = 1 / (1 - group["momentum"]), (staleness + 1) / (1 - max(group["momentum"], 0.9))
                shorter = math.sqrt(remembers / own) / (staleness + 1)
                if curvature:
                    shorter = remembers / own / (grows * curvature * max(group["lr"], 1e-30) * (staleness + 1) ** 2)
                shorter = min(1.0, shorter)
                scale = shorter / (remembers / own)
                group["shortest"], group["longest"] = remembers, remembers / shorter
            group["lr"] *= scale

    @torch.no_grad()
    def step(self, update: int, named: _Version) -> _Version:
        """Step in place; returns what is predicted of the parameters by name, where it is something else."""
        for group in [group for group in self.groups if "shortest" in group]:
            group["momentum"] = 1 - 1 / min(group["longest"], max(group["shortest"], update / 5))
        predicted, delay = {}, min(update, self.staleness)
        names = {parameter: name for name, parameter in named.items()}
        for group in self.groups:
            for p in [p for p in group["params"] if p.grad is not None]:
                if "betas" in group:
                    self._adam(p, p.grad, delay, group)
                else:
                    predicted[names[p]] = self._sgd(p, p.grad, delay, group)
        return predicted

    def _sgd(self, p: Tensor, g: Tensor, delay: int, group: dict[str, Any]) -> Tensor:
        momentum, rate = group["momentum"], group["lr"]
        g = g.add(p, alpha=group["weight_decay"]) if group["weight_decay"] else g
        (v,) = self.state[p] = [g.add(self.state[p][0], alpha=momentum) if p in self.state else g.clone()]
        kept = momentum ** (delay + group["nesterov"])
        s = v.add(g, alpha=(1 - kept) / (1 - momentum) / kept)
        predicted = p.add(s, alpha=-rate * kept * (1 + self.staleness))
        p.add_(s, alpha=-rate * kept)
        return predicted

    def _adam(self, p: Tensor, g: Tensor, delay: int, group: dict[str, Any]) -> None:
        (beta1, beta2), rate, decay = group["betas"], group["lr"], group["weight_decay"]
        if decay and group["decoupled_weight_decay"]:
            p.mul_(1 - rate * decay)
        elif decay:
            g = g.add(p, alpha=decay)
        t, m, v = self.state.get(p, [0, torch.zeros_like(p), torch.zeros_like(p)])
        t, m, v = self.state[p] = [t + 1, m.lerp(g, 1 - beta1), (v * beta2).addcmul(g, g, value=1 - beta2)]
        s = g.lerp(m, beta1**delay) if delay else m
        size = v.sqrt().div((1 - beta2**t) ** 0.5).add(group["eps"])
        p.addcdiv_(s, size, value=-rate / (1 - beta1**t))


def _is_studied(model: nn.Module, optimizer: torch.optim.Optimizer) -> bool:
    """True where `_Stale` is made for that optimizer and its options, and no layer has sparse gradients."""
    others = ("dampening", "amsgrad", "maximize", "foreach", "fused", "capturable", "differentiable")
    known = type(optimizer) in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)
    set_ = [isinstance(group["lr"], Tensor) or group.get(name) for group in optimizer.param_groups for name in others]
    return known and not any(set_) and not any(getattr(layer, "sparse", False) for layer in model.modules())


def _is_large(staleness: int, curvature: float, group: dict[str, Any]) -> bool:
    """True where a step is more than half of what is stable by gradients that old, or Adam's is for the curvature."""
    if "betas" in group:
        return bool(group["lr"] * curvature * (staleness + 1) > 0.2)
    stable = largest_stable_step(staleness, group["momentum"], group["nesterov"])
    return bool(group["lr"] * curvature > 0.5 * stable)


def _curvature(
    model: nn.Module,
    products: Callable[[Sequence[Tensor] | None], Iterator[list[Tensor]]],
    trained: Sequence[nn.Parameter],
    eps: dict[Tensor, float] | None,
) -> tuple[float, int]:
    """(the largest eigenvalue of the loss's Hessian, with Adam's `eps` in units of its steps; what it may grow to)."""
    gradients = list(products(None))
    units, number = list(map(torch.ones_like, trained)), len(gradients)
    if eps is not None:
        squares = [_average([part.square() for part in parts]) for parts in zip(*gradients, strict=True)]
        squares = [(number * square + square.mean()) / (number + 1) for square in squares]
        units = [(square.sqrt() + eps[p]).rsqrt() * (square != 0) for square, p in zip(squares, trained, strict=True)]
    vector = [unit * _average(parts) for unit, parts in zip(units, zip(*gradients, strict=True), strict=True)]
    for _ in range(4):
        along = [unit * (part * (1 / (_length(vector) or math.inf))) for unit, part in zip(units, vector, strict=True)]
        vector = [unit * _average(parts) for unit, *parts in zip(units, *products(along), strict=True)]
    grows = 1 if number > 1 and _is_normalised(model, trained, gradients) else 3
    return float(np.nan_to_num(_length(vector), posinf=0)), grows


@torch.no_grad()
def _is_normalised(model: nn.Module, trained: Sequence[nn.Parameter], gradients: Sequence[Sequence[Tensor]]) -> bool:
    """True where all layers with a matrix but one are at right angles to their gradients: scaled, the loss stays."""
    scaled, seen = [], set[int]()
    for layer in model.modules():
        here = {id(one) for one in layer.parameters(recurse=False)} - seen
        own, seen = [i for i, p in enumerate(trained) if id(p) in here], seen | here
        if any(trained[i].dim() > 1 for i in own):
            values, *along = (torch.cat([part[i].double().flatten() for i in own]) for part in (trained, *gradients))
            cosines = [torch.cosine_similarity(values, one, 0) if values.any() and one.any() else 1 for one in along]
            scaled.append(max(map(abs, map(float, cosines))) * math.sqrt(len(values)) <= 0.01)
    return any(scaled) and scaled.count(False) <= 1


def _products(
    model: nn.Module,
    loss: Callable[[nn.Module, Any], Any],
    source: Any,
    seed: int,
    first: Sequence[int],
    trained: Sequence[nn.Parameter],
    vector: Sequence[Tensor] | None,
) -> Iterator[list[Tensor]]:
    """The gradient of each batch, or the product of its Hessian with a vector."""
    start = _version(model)
    for b in first:
        _load(model, start)
        with sdpa_kernel(SDPBackend.MATH):
            output = loss(model, source.batch(b, _seeded(mix(seed, b))))
            scalars = [output] if isinstance(output, Tensor) else list(output)
            parts = []
            for scalar in [one / len(scalars) for one in scalars]:
                part = torch.autograd.grad(scalar, trained, create_graph=vector is not None, materialize_grads=True)
                if vector is not None:
                    along = torch.stack([(g * v).sum() for g, v in zip(part, vector, strict=True)]).sum()
                    part = torch.autograd.grad(along, trained, materialize_grads=True)
                parts.append(part)
        yield [reduce(torch.add, column) for column in zip(*parts, strict=True)]
    _load(model, start)


def _average(tensors: Sequence[Tensor]) -> Tensor:
    return reduce(torch.add, tensors) / len(tensors)


def _length(vector: Sequence[Tensor]) -> float:
    return math.sqrt(reduce(float.__add__, [float(torch.linalg.vector_norm(v.double())) ** 2 for v in vector]))


def _eps(optimizer: torch.optim.Optimizer) -> dict[Tensor, float] | None:
    """Adam's of each parameter; None for SGD."""
    return {p: group["eps"] for group in optimizer.param_groups if "eps" in group for p in group["params"]} or None


class _Batches:
    """Every epoch each sample once, in an order of (seed, epoch); its last batch has what is left, or is left out."""

    def __init__(self, data: Sequence[Tensor], batch_size: int, drop_last: bool, shuffle: bool, seed: int) -> None:
        self.data, self.batch_size, self.drop_last, self.shuffle, self.seed = data, batch_size, drop_last, shuffle, seed

    def __len__(self) -> int:
        return (len(self.data[0]) + (0 if self.drop_last else self.batch_size - 1)) // self.batch_size

    def batch(self, number: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        epoch, place = divmod(number, len(self))
        mixed, samples = generator.manual_seed(mix(self.seed, 1, epoch)), len(self.data[0])
        order = torch.randperm(samples, generator=mixed) if self.shuffle else torch.arange(samples)
        rows = order[place * self.batch_size : (place + 1) * self.batch_size]
        return tuple(tensor.index_select(0, rows) for tensor in self.data)


def _version(model: nn.Module) -> _Version:
    """A copy of all parameters and buffers."""
    return {name: tensor.detach().clone() for name, tensor in [*model.named_parameters(), *model.named_buffers()]}


@torch.no_grad()
def _load(model: nn.Module, version: _Version) -> None:
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        tensor.copy_(version[name])


def _differentiate(outputs: Iterable[Any], trained: Sequence[nn.Parameter]) -> _Part:
    """The mean over the batches; what is a list of scalars is averaged, or a generator of them, one by one."""
    batches = []
    for output in outputs:
        if isinstance(output, list):
            output = torch.stack([scalar.reshape(()) for scalar in output]).mean()
        parts = []
        for scalar in [output] if isinstance(output, Tensor) else output:
            for parameter in trained:
                parameter.grad = None
            scalar.backward()
            parts.append((scalar.item(), [parameter.grad for parameter in trained]))
        batches.append(_mean(parts))
    return _mean(batches)


def _mean(parts: Sequence[_Part]) -> _Part:
    """The sum in order (`sum` of Python 3.12 has another), over the number of parts; None where no part has any."""
    values, gradients = zip(*parts, strict=True)
    present = [[gradient for gradient in column if gradient is not None] for column in zip(*gradients, strict=True)]
    return reduce(float.__add__, values) / len(parts), [_sum(some) / len(parts) if some else None for some in present]


def _sum(gradients: list[Tensor]) -> Tensor:
    if len(gradients) > 1 and all(gradient.is_sparse for gradient in gradients):
        rows, values = ([part(g) for g in gradients] for part in (Tensor._indices, Tensor._values))
        return torch.sparse_coo_tensor(torch.cat(rows, 1), torch.cat(values), gradients[0].shape)
    return reduce(torch.add, [gradient.to_dense() for gradient in gradients] if len(gradients) > 1 else gradients)


def _shared(update: str, part: _Part, trained: Sequence[nn.Parameter]) -> _Part:
    """What workers share of a gradient is dense: under `racing` added to one `.grad` that is zeroed, never None."""
    if update != "racing":
        return part
    return part[0], [torch.zeros_like(p) + (0 if g is None else g) for p, g in zip(trained, part[1], strict=True)]


def _rebased(model: nn.Module, before: _Version, after: _Version, base: _Version) -> _Version:
    """What the buffers become: a forward pass took them from `before` to `after`, and they are `base` by now.

    A running average of momentum m, after n passes: after + (1 − m)ⁿ (base − before); of momentum None: the mean over
    base's batches and these. Signed integers, but of shape [1]: base + (after − before). Left alone: base. Else: after.
    """
    committed = {}
    for name, _ in model.named_buffers():
        b, a, newest = before[name], after[name], base[name]
        path, _, own_name = name.rpartition(".")
        layer, counter = model.get_submodule(path), f"{path}.num_batches_tracked".lstrip(".")
        if torch.equal(a, b):
            committed[name] = newest
        elif isinstance(layer, _NormBase) and own_name in ("running_mean", "running_var"):
            seen, others = int(before[counter]), int(base[counter])
            passes = int(after[counter]) - seen or 1  # InstanceNorm does not count
            if layer.momentum is not None:
                committed[name] = a + (1 - layer.momentum) ** passes * (newest - b)
            else:
                committed[name] = (newest * others + (a * (seen + passes) - b * seen)) / (others + passes)
        elif a.dtype in (torch.int8, torch.int16, torch.int32, torch.int64) and a.shape != (1,):
            committed[name] = newest + (a - b)
        else:
            committed[name] = a
    return committed


def _seeded(number: int) -> torch.Generator:
    """Seed the generators of the process, as a worker does before each batch; returns one that is seeded too."""
    torch.default_generator.manual_seed(number)
    np.random.seed(number & 0xFFFFFFFF)  # as many bits as it takes
    random.seed(number)
    return torch.Generator().manual_seed(number)


@contextmanager
def _as_in_a_worker() -> Iterator[None]:
    """One thread of torch and of NumPy's BLAS, TorchScript as it is written; threads and generators are put back."""
    threads, optimizes = torch.get_num_threads(), torch._C._get_graph_executor_optimize()
    torch.set_num_threads(1)
    torch._C._set_graph_executor_optimize(False)
    try:
        with ThreadpoolController().select(user_api="blas").limit(limits=1), preserved_generators():
            yield
    finally:
        torch._C._set_graph_executor_optimize(optimizes)
        torch.set_num_threads(threads)
