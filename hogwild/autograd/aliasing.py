"""Find gradients that were read from `.grad`, kept, and overwritten before they were used.

`.grad` is one buffer per parameter for as long as it is zeroed in place: `backward()` adds into it. Whoever
keeps `parameter.grad`, or a view of it, holds that buffer and not the values read; the next `backward()`
changes what was kept. Neither torch nor the loss complains. A copy (`.clone()`), or
`zero_grad(set_to_none=True)`, which gives every `backward()` a new buffer, keeps the values.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary


@dataclass(frozen=True)
class GradientAlias:
    """A kept tensor that shares memory with a parameter's `.grad`; `where` it is in what was given."""

    parameter: str
    where: str


@dataclass(frozen=True)
class StaleGradient:
    """A gradient used after its buffer was written again.

    Attributes:
        parameter: the name of the parameter whose `.grad` was read.
        read: `file:line` where it was read.
        written: what wrote the buffer since: `backward` or `zero_`.
        used: `file:line` of the use.
        by: the operation that used it.
    """

    parameter: str
    read: str
    written: str
    used: str
    by: str

    def __str__(self) -> str:
        return (
            f"the gradient of {self.parameter} read at {self.read} had been overwritten by {self.written} "
            f"when {self.by} used it at {self.used}: keep a .clone(), or zero_grad(set_to_none=True)"
        )


def gradient_aliases(model: nn.Module, kept: Any) -> tuple[GradientAlias, ...]:
    """Which of the kept tensors share memory with a `.grad` of the model as it is now.

    Args:
        model: the module whose parameters have the gradients.
        kept: a tensor, or lists, tuples and mappings of such, nested at will.
    """
    owners = {
        parameter.grad.untyped_storage().data_ptr(): name
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    return tuple(
        GradientAlias(owners[_memory(tensor)], where)
        for where, tensor in _tensors(kept, "")
        if _memory(tensor) in owners
    )


@contextmanager
def watch_gradients(model: nn.Module) -> Iterator[list[StaleGradient]]:
    """Run a loop under this; the list it gives fills with every gradient that the loop used too late.

        with watch_gradients(model) as stale:
            my_own_loop(model, batch)
        assert not stale, stale[0]

    It reports faults, not habits: a view of `.grad` that is used before the buffer is written again is fine.
    A buffer is written by `backward()` adding into it and by `zero_()`, which `zero_grad(set_to_none=False)`
    calls. Inside the block each read of `.grad` gives a tensor object of its own, over the same memory.

    It sees what the calling thread does through torch's functions. A gradient that left as a numpy array, or
    that has a graph of its own (`create_graph=True`), is out of its sight.
    """
    watch = _Watch(model)
    try:
        with watch:
            yield watch.stale
    finally:
        watch.remove()


@dataclass(frozen=True)
class _Reading:
    """When (in writes seen so far) and where a gradient was read."""

    parameter: str
    time: int
    place: str


class _Watch(TorchFunctionMode):
    """Follows every tensor that came out of a `.grad`, and every write to the buffers of those.

    Invariant: `_written[m]` is the time of the last write to the buffer at address m, and a reading is stale
    once that is later than its own time. An address cannot be reused while a reading of it is alive.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.stale: list[StaleGradient] = []
        self._names = {id(one): name for name, one in model.named_parameters()}
        self._readings: Any = WeakTensorKeyDictionary()
        self._written: dict[int, tuple[int, str]] = {}
        self._time = 0
        self._hooks = [
            one.register_post_accumulate_grad_hook(self._accumulated)  # type: ignore[no-untyped-call]
            for one in model.parameters()
            if one.requires_grad
        ]

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", str(func))
        attribute = getattr(getattr(func, "__self__", None), "__name__", "") if name == "__get__" else ""
        if attribute == "grad":
            return self._read(args[0], func(*args, **kwargs))
        used = [one for _, one in _tensors((args, kwargs), "") if one in self._readings]
        if not (attribute or name in _ASK_NO_VALUES or name in _ZEROING):
            for one in used:
                self._use(one, name)
        result = func(*args, **kwargs)
        if name in _ZEROING:
            for one in used:
                self._write(one, "zero_")
        elif used:
            self._follow(used, result)
        return result

    def _read(self, owner: Tensor, grad: Tensor | None) -> Tensor | None:
        name = self._names.get(id(owner))
        if grad is None or name is None or grad.requires_grad:
            return grad
        mine = grad.detach()
        self._readings[mine] = _Reading(name, self._time, _place())
        return mine

    def _use(self, tensor: Tensor, by: str) -> None:
        reading: _Reading = self._readings[tensor]
        time, how = self._written.get(_memory(tensor), (0, ""))
        if time > reading.time:
            self.stale.append(StaleGradient(reading.parameter, reading.place, how, _place(), by))

    def _follow(self, used: list[Tensor], result: Any) -> None:
        """A view of something read from `.grad` was read when and where that was."""
        for _, out in _tensors(result, ""):
            for one in used:
                if out is not one and out not in self._readings and _memory(out) == _memory(one):
                    self._readings[out] = self._readings[one]

    def _accumulated(self, parameter: Tensor) -> None:
        if parameter.grad is not None:
            self._write(parameter.grad, "backward")

    def _write(self, tensor: Tensor, how: str) -> None:
        self._time += 1
        self._written[_memory(tensor)] = (self._time, how)


_ZEROING = frozenset({"zero_", "_foreach_zero_"})

_ASK_NO_VALUES = frozenset(
    {
        "size",
        "dim",
        "numel",
        "stride",
        "data_ptr",
        "is_contiguous",
        "untyped_storage",
        "element_size",
        "storage_offset",
        "ndimension",
        "nelement",
        "get_device",
        "is_floating_point",
        "is_complex",
        "requires_grad_",
        "detach_",
        "__len__",
        "__hash__",
    }
)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _tensors(found: Any, where: str) -> Iterator[tuple[str, Tensor]]:
    """Every tensor in nested containers, with the path to it."""
    if isinstance(found, Tensor):
        yield where, found
    elif isinstance(found, Mapping):
        for key, one in found.items():
            yield from _tensors(one, f"{where}[{key!r}]")
    elif isinstance(found, list | tuple):
        for index, one in enumerate(found):
            yield from _tensors(one, f"{where}[{index}]")


_NOT_THE_USERS = (f"{Path(torch.__file__).parent}/", __file__)


def _place() -> str:
    """`file:line` of the innermost frame that is neither torch's nor ours."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_NOT_THE_USERS):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
