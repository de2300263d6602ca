"""A state dict as it is handed out and saved: all that the model's `state_dict()` gives, in memory of its own.

    tensors                                       the tensors of a file
    extra state (`get_extra_state`), and the      the JSON of one entry of its metadata, where it is plain: text,
    versions of modules' forms (`_metadata`)      numbers, booleans, None, lists and dicts; no file holds a pickle

So a state loads strictly into the model that it is of, out of a file too, where its extra state is plain or a tensor.
Workers share parameters and buffers alone: extra state is that of the caller's own model when the state is made.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from hogwild.errors import ArgumentError, some_of, warn_caller
from hogwild.shared.hashing import is_extra

_BESIDE = "beside"  # the key of that entry
_MOST = 1 << 20  # letters of it, of extra state and of forms each


def own_copies(model: nn.Module) -> dict[str, Any]:
    """The tensors and the extra state of the model's state dict, in memory of its own."""
    with torch.no_grad():  # extra state that is computed carries no graph, which could not be copied
        state = model.state_dict()
    kept = {name: value for name, value in state.items() if isinstance(value, Tensor) or is_extra(name)}
    return _state_of({name: _own_copy(value) for name, value in kept.items()}, versions_of(state))


def versions_of(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """The versions of modules' forms that a state dict comes with."""
    return getattr(state, "_metadata", None) or {}


def _own_copy(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    try:
        return deepcopy(value)
    except Exception:  # no reason to lose a run that has ended
        return value


def _state_of(entries: Mapping[str, Any], forms: Mapping[str, Any]) -> dict[str, Any]:
    """A state dict as `load_state_dict` takes it, which looks for `_metadata` on it."""
    state = OrderedDict(entries)
    state._metadata = OrderedDict(deepcopy(forms))  # type: ignore[attr-defined]
    return state


def tensors_of(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of a state, as a file holds them."""
    return {name: value.contiguous() for name, value in state.items() if isinstance(value, Tensor)}


def beside_tensors(state: Mapping[str, Any]) -> dict[str, str]:
    """What else a file holds of a state, for its metadata."""
    plain = _plain_of(_extra_of(state))
    return {_BESIDE: json.dumps({"extra": plain, "forms": _plain_of(versions_of(state))})}


def state_from(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> dict[str, Any]:
    """The state that a file holds: its tensors alone, where it was written when there was no such entry.

    Raises:
        ValueError, KeyError, TypeError, AttributeError, RecursionError: the metadata are not those of a state.
    """
    beside = json.loads(metadata.get(_BESIDE, '{"extra": {}, "forms": {}}'))
    forms = {name: dict(form) for name, form in beside["forms"].items()}
    return _state_of({**beside["extra"], **tensors}, forms)


def refuse_unsaveable(model: nn.Module) -> None:
    """Refuse a model that could be trained and then not be saved; warn of extra state that no file will hold.

    Raises:
        ArgumentError: a tensor of its state has a dtype that no file holds.
    """
    state = model.state_dict()
    for name, value in state.items():
        if isinstance(value, Tensor):
            try:
                save({name: torch.empty(0, dtype=value.dtype)})
            except KeyError:
                raise ArgumentError(
                    f"{name} is {value.dtype}, which safetensors cannot save; train without out"
                ) from None
    extra = _extra_of(state)
    if left_out := sorted({*extra} - {*_plain_of(extra)}):
        warn_caller(
            f"{some_of(left_out)} of the model will be in run.state and in no file, for files hold tensors and plain "
            f"values (text, numbers, lists, dicts); keep tensors in buffers (register_buffer)"
        )


def _extra_of(state: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in state.items() if is_extra(name) and not isinstance(value, Tensor)}


def _plain_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those that JSON gives back as they are, as long as they are no more than a file's metadata may be."""
    found, left = {}, _MOST
    for name, value in values.items():
        try:
            text = json.dumps(value)
            if len(text) <= left and json.loads(text) == value:
                found[name], left = value, left - len(text)
        except (TypeError, ValueError, RecursionError):
            continue
    return found
