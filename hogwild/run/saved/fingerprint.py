"""The numerical fingerprint of a machine: a hash of the results of a fixed set of operations.

Two machines with one fingerprint have, as far as these operations tell, the same bits of the same training: they have
instruction sets, libraries and versions in common, or such as compute alike. One torch thread computes them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from functools import cache, partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from hogwild.data.seeding import preserved_generators
from hogwild.optim.factory import Factory, made_by, try_step
from hogwild.shared.hashing import raw_bytes
from hogwild.workers.surroundings.bit_flags import BitFlags
from hogwild.workers.surroundings.vector_math import call_vector_functions

_SHAPES = ((1, 1, 1), (2, 3, 5), (16, 8, 3), (64, 64, 64), (7, 129, 33), (128, 512, 10), (1, 784, 256), (200, 96, 1))
_STEPS = 3
_LENGTH = 16  # hexadecimal digits


def fingerprint() -> str:
    """Sixteen hexadecimal digits; takes some hundredths of a second, once for the settings of torch as they are."""
    return _computed(str(BitFlags.capture().values))


@cache
def _computed(flags: str) -> str:  # noqa: ARG001
    call_vector_functions()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        sha = hashlib.sha256()
        with preserved_generators():  # a network is made with values drawn from them
            for result in _results():
                sha.update(raw_bytes(result))
        return sha.hexdigest()[:_LENGTH]
    finally:
        torch.set_num_threads(threads)


def _numbers(*shape: int) -> Tensor:
    """Numbers that no generator and no vector function makes: float32, about as large as normalised data."""
    count = math.prod(shape)
    integers = torch.arange(1, count + 1, dtype=torch.int64) * 2654435761 % (1 << 20)
    return (integers.to(torch.float32) / (1 << 18) - 2.0).reshape(shape)


def _results() -> Iterator[Tensor]:
    for dtype in (torch.float32, torch.float64):
        for rows, inner, columns in _SHAPES:
            yield _numbers(rows, inner).to(dtype) @ _numbers(inner, columns).to(dtype)
        values = _numbers(10_007).to(dtype)
        positive = values.abs() + 0.001
        for function in (torch.exp, torch.tanh, torch.sigmoid, torch.erf, torch.sin, functional.gelu):
            yield function(values)
        for function in (torch.sqrt, torch.rsqrt, torch.log):
            yield function(positive)
        yield values.sum()
        yield values.var()
        yield values[:10_000].reshape(100, 100).norm(dim=0)
        yield values[:10_000].reshape(100, 100).mean(1)
        yield functional.softmax(values[:10_000].reshape(100, 100), 1)
        yield functional.log_softmax(values[:10_000].reshape(10, 1000), 1)
    yield functional.conv2d(_numbers(4, 3, 16, 16), _numbers(8, 3, 3, 3), padding=1)
    yield functional.conv2d(_numbers(2, 16, 9, 9), _numbers(4, 16, 5, 5), stride=2)
    yield functional.conv1d(_numbers(4, 1, 8), _numbers(4, 1, 3))
    yield from _trained(partial(torch.optim.SGD, lr=0.01, momentum=0.9))
    yield from _trained(partial(torch.optim.Adam, lr=0.01))


def _trained(factory: Factory) -> Iterator[Tensor]:
    """The parameters of a small network after a few steps."""
    network = nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)
    ).to(torch.float32)  # whatever the default is
    parameters = list(network.parameters())
    with torch.no_grad():
        for parameter in parameters:
            parameter.copy_(_numbers(*parameter.shape) / math.sqrt(parameter.numel()))
    optimizer = made_by(factory, list(network.named_parameters()))
    data, targets = _numbers(32, 64), torch.arange(32) % 10
    for _ in range(_STEPS):
        loss = functional.cross_entropy(network(data), targets)
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.grad = gradient
        try_step(optimizer)
    yield from (parameter.detach() for parameter in parameters)
