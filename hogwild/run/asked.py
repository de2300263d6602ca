"""What a person's `evaluate` says of a model: asked in eval mode and without grad, and checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from hogwild.errors import ArgumentError, a_type
from hogwild.model.computed import compute_weights
from hogwild.run.job import Evaluate
from hogwild.run.saved.metrics import OF_AN_EVALUATION


def metrics_of(model: nn.Module, evaluate: Evaluate, given: str) -> dict[str, float]:
    """What `evaluate` says of what the model holds; its training flags are put back. `given`, in words, is noted at
    what it raises.

    Raises:
        ArgumentError: it returned something else than numbers by name.
    """
    flags = [(module, module.training) for module in model.modules()]
    try:
        with torch.no_grad():
            compute_weights(model)
            model.eval()  # which a model may have made return nothing
            metrics: Any = evaluate(model)
    except Exception as error:
        error.add_note(f"raised by evaluate=, which {given}")
        raise
    finally:
        for module, training in flags:
            module.training = training
    if not isinstance(metrics, Mapping):
        raise ArgumentError(f"evaluate returned {a_type(metrics)}; it must return a dict of floats")
    if wrong := [name for name in metrics if not isinstance(name, str)]:
        raise ArgumentError(f"evaluate returned a metric named {wrong[0]!r:.40}; its name must be a string")
    if taken := [name for name in OF_AN_EVALUATION if name in metrics]:
        raise ArgumentError(f"evaluate returned a metric {taken[0]!r}, which every row has; give it another name")
    return {name: _number(name, value) for name, value in metrics.items()}


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except OverflowError as error:
        raise ArgumentError(f"evaluate returned the metric {name!r} as a number that no float holds") from error
    except (TypeError, ValueError, RuntimeError) as error:  # RuntimeError: a tensor of several numbers
        form = f"a tensor of shape {list(value.shape)}" if isinstance(value, torch.Tensor) else f"{value!r:.40}"
        raise ArgumentError(f"evaluate returned the metric {name!r} as {form}; it must be a number") from error
