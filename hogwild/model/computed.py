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


def computed_weights(layer: nn.Module) -> Mapping[str, Callable[[], Tensor]]:
    """Name of each such weight of that layer → what gives it, and leaves buffers as they are.

    A spectral-normed one is given as it is: until the first forward pass it is the bare parameter's values, and a layer
    whose weight others read, but that nobody calls, stays that way.
    """
    found: dict[str, Callable[[], Tensor]] = {}
    for hook in layer._forward_pre_hooks.values():
        if isinstance(hook, BasePruningMethod):
            found[hook._tensor_name] = partial(hook.apply_mask, layer)
        elif isinstance(hook, WeightNorm):
            found[hook.name] = partial(hook.compute_weight, layer)
        elif isinstance(hook, SpectralNorm):
            found[hook.name] = partial(getattr, layer, hook.name)
    return found


def compute_weights(model: nn.Module) -> None:
    """Compute such weights of a model from the values that its parameters have now."""
    for layer in model.modules():
        for name, compute in computed_weights(layer).items():
            setattr(layer, name, compute())


def weights_as_values(model: nn.Module) -> dict[int, Tensor]:
    """id of each such weight → its values alone, which can be copied where a result of a computation cannot."""
    weights = [getattr(layer, name) for layer in model.modules() for name in computed_weights(layer)]
    return {id(weight): weight.detach().clone() for weight in weights}


def copy_of_model(model: nn.Module) -> nn.Module:
    """A `copy.deepcopy`, of a model that holds such weights too."""
    return copy.deepcopy(model, weights_as_values(model))
