"""Weights that a hook of torch's computes before each forward pass: pruned, weight-normed and spectral-normed ones.

The parameters of the layer are what they are computed from, as `weight_orig` is; `weight` itself is a plain attribute,
the result of a computation. Its graph is never copied: each copy of a model computes from its own parameters.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial

from torch import Tensor, nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from hogwild.model.row_parameter import RowParameter


def computed_weights(layer: nn.Module) -> Mapping[str, Callable[[], Tensor]]:
    """Name of each such weight that is there → what gives it, and leaves buffers as they are.

    A spectral-normed one is given as it is: until the first forward pass it is the bare parameter's values, and a layer
    whose weight others read, but that nobody calls, stays that way. So is one that a hook computes in a way of its own.
    """
    found: dict[str, Callable[[], Tensor]] = {}
    for hook in layer._forward_pre_hooks.values():
        if not isinstance(hook, BasePruningMethod | WeightNorm | SpectralNorm):
            continue
        name = getattr(hook, "_tensor_name" if isinstance(hook, BasePruningMethod) else "name", None)
        if not isinstance(name, str) or not isinstance(vars(layer).get(name), Tensor):
            continue
        if isinstance(hook, BasePruningMethod) and type(hook).apply_mask is BasePruningMethod.apply_mask:
            found[name] = partial(hook.apply_mask, layer)
        elif isinstance(hook, WeightNorm) and type(hook).compute_weight is WeightNorm.compute_weight:
            found[name] = partial(hook.compute_weight, layer)
        else:
            found[name] = partial(getattr, layer, name)
    return found


def compute_weights(model: nn.Module) -> None:
    """Compute such weights of a model from the values that its parameters have now; of a table that is read by rows, at
    a version, a layer computes them itself."""
    for layer in model.modules():
        if layer._forward_pre_hooks and not any(isinstance(p, RowParameter) for p in layer.parameters(recurse=False)):
            for name, compute in computed_weights(layer).items():
                setattr(layer, name, compute())


def weights_as_values(model: nn.Module) -> dict[int, Tensor]:
    """id of each such weight → its values alone, which can be copied where a result of a computation cannot."""
    weights = [vars(layer)[name] for layer in model.modules() for name in computed_weights(layer)]
    return {id(weight): weight.detach().clone() for weight in weights}


def copy_of_model(model: nn.Module) -> nn.Module:
    """A `copy.deepcopy`, of a model that holds such weights too."""
    return copy.deepcopy(model, weights_as_values(model))
