"""The optimizers that the command line can name, and the learning rates that they begin with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch

from hogwild.errors import ArgumentError
from hogwild.optim.factory import Factory

OPTIMIZERS: Mapping[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "momentum": partial(torch.optim.SGD, momentum=0.9),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adagrad": torch.optim.Adagrad,
    "rmsprop": torch.optim.RMSprop,
    "adafactor": torch.optim.Adafactor,
}
"""What the command line's `--optimizer` can name."""


def optimizer_named(name: str, lr: float | None) -> Factory:
    """The factory of a named optimizer; `lr` None leaves torch's own default.

    Raises:
        ArgumentError: no optimizer has that name.
    """
    if name not in OPTIMIZERS:
        raise ArgumentError(f"optimizer {name!r} is not known; {', '.join(OPTIMIZERS)} are")
    return OPTIMIZERS[name] if lr is None else partial(OPTIMIZERS[name], lr=lr)


LEARNING_RATES: Mapping[str, float] = {
    "sgd": 0.1,
    "momentum": 0.01,
    "adam": 0.001,
    "adamw": 0.001,
    "adagrad": 0.01,
    "rmsprop": 0.001,
    "adafactor": 0.01,
}
"""What an optimizer begins with where neither the experiment nor a flag says otherwise."""
