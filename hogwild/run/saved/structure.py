"""What a model is, as plain values: by which one is told from another that has the same shapes, and computes otherwise.

parameters, buffers    their dtypes and shapes
modules                their classes
options                what a module says of itself when it is printed, such as the p of a dropout
modes                  which modules are in eval mode
frozen                 SHA-256 of what is not trained, and so in no checkpoint
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from hogwild.errors import class_name
from hogwild.shared.hashing import digest_bytes

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_BETWEEN = re.compile(r", (?![^(\[]*[)\]])")  # a comma outside of brackets


def structure_of(model: nn.Module, trained: Collection[str]) -> dict[str, Any]:
    """A model's, of which the parameters of those names are trained."""
    named = dict(model.named_parameters(remove_duplicate=False))
    modules = dict(model.named_modules(remove_duplicate=False))
    return {
        "parameters": {
            name: form_of_tensor(value) + ("" if name in trained else ", not trained") for name, value in named.items()
        },
        "buffers": {name: form_of_tensor(value) for name, value in model.named_buffers(remove_duplicate=False)},
        "modules": {path: class_name(module) for path, module in modules.items()},
        "options": {path: told for path, module in modules.items() if (told := _options(module))},
        "modes": {path: "eval" for path, module in modules.items() if not module.training},
        "frozen": {name: digest_bytes({"": value}).hex()[:16] for name, value in named.items() if name not in trained},
    }


def trains_as_evaluated(model: nn.Module) -> bool:
    """True where the whole model is in eval mode, and computes otherwise by it."""
    modules = [*model.modules()]
    return not any(one.training for one in modules) and any(isinstance(one, _BatchNorm | _DropoutNd) for one in modules)


def structure_differences(was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """(what, the recorded value, the value now) for all that differs; of options, of those that both name, for another
    version of torch may name more."""
    for kind in ("parameters", "buffers", "modules"):
        before, after = was.get(kind, {}), now[kind]
        for name in dict.fromkeys([*after, *before]):
            one, other = before.get(name, "missing"), after.get(name, "missing")
            if one != other:
                yield f"{kind.removesuffix('s')} {name!r}", one, other
    for path, after in now["options"].items():
        before = was.get("options", {}).get(path, {})
        yield from ((f"{key} of module {path!r}", before[key], after[key]) for key in _unequal(before, after))
    if (modes := was.get("modes")) is not None:
        for path in dict.fromkeys([*now["modes"], *modes]):
            one, other = (side.get(path, "train") for side in (modes, now["modes"]))
            if one != other:
                yield f"the mode of module {path!r}", one, other
    frozen = was.get("frozen", {}), now["frozen"]
    yield from ((f"frozen parameter {name!r}", *(one[name] for one in frozen)) for name in _unequal(*frozen))


def _unequal(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    return [key for key, value in after.items() if key in before and before[key] != value]


def form_of_tensor(tensor: Tensor) -> str:
    """Its dtype and shape."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _options(module: nn.Module) -> dict[str, str]:
    """What a module says of itself, by name or place, without addresses; nothing where it cannot."""
    with suppress(Exception):
        parts = _BETWEEN.split(_ADDRESS.sub("", module.extra_repr()))
        named = [part.partition("=") for part in parts if part]
        return {key if equals else str(place): value or key for place, (key, equals, value) in enumerate(named)}
    return {}
