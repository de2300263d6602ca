"""The flags that say how to train: fields of `RunConfig` that were named on the command line, or None."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any

from tyro.conf import arg

from hogwild.cli.numbers import number, whole
from hogwild.config import RunConfig

_OWN = "(default: the experiment's)"


def _default(name: str) -> str:
    return f"(default: {getattr(RunConfig, name)})"


@dataclass(frozen=True)
class Settings:
    """How to train. What is not given is the experiment's own setting, or that of the config.toml."""

    workers: Annotated[int | None, whole("N"), arg(help_behavior_hint=_default("workers"))] = None
    """Workers that train one model at once. More than the machine has cores does not help."""
    kind: Annotated[str | None, arg(metavar="threads|processes", help_behavior_hint=_default("kind"))] = None
    """What a worker is. Processes are faster for small models, which the interpreter's lock makes threads wait for."""
    update: Annotated[str | None, arg(metavar="RULE", help_behavior_hint=_default("update"))] = None
    """How a gradient reaches the shared model: racing, hogwild, locked, snapshot; with the same bits: ordered, sync."""
    staleness: Annotated[int | None, whole("T"), arg(help_behavior_hint=_default("staleness"))] = None
    """For ordered: a gradient is computed on the model of T updates ago. Allows T + 1 workers; 0 is serial training."""
    micro_batches: Annotated[int | None, whole("M"), arg(help_behavior_hint=_default("micro_batches"))] = None
    """For sync: the batches that are averaged into one update. Allows M workers."""
    gradient: Annotated[str | None, arg(metavar="backward|grad", help_behavior_hint="(default: the rule's)")] = None
    """Take gradients by loss.backward() or by torch.autograd.grad()."""
    optimizer: Annotated[str | None, arg(metavar="NAME", help_behavior_hint=_OWN)] = None
    """sgd, momentum (SGD with momentum 0.9), adam, adamw, adagrad, rmsprop or adafactor."""
    lr: Annotated[float | None, number("RATE"), arg(help_behavior_hint=_OWN)] = None
    """The learning rate."""
    epochs: Annotated[int | None, whole("N"), arg(help_behavior_hint=_OWN)] = None
    """Train for so many passes over the data ..."""
    updates: Annotated[int | None, whole("N"), arg(help_behavior_hint="")] = None
    """... or for so many updates of the model."""
    batch_size: Annotated[int | None, whole("N"), arg(help_behavior_hint=_OWN)] = None
    """Samples in a batch."""
    seed: Annotated[int | None, whole("N"), arg(help_behavior_hint=_default("seed"))] = None
    """Decides the initial model, the order of the samples, and what updates draw."""

    def given(self) -> dict[str, Any]:
        """The settings that were named."""
        return {key: value for key, value in asdict(self).items() if value is not None}
