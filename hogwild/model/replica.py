"""A worker's copy of the model: an `nn.Module` whose parameters are views of a slot.

Invariants: a replica's parameters share a slot's memory but nothing else, so an in-place update by another worker
never bumps a version counter that this worker's graph has saved; its buffers are private, so a forward pass never
writes into shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hogwild.errors import ArgumentError
from hogwild.model.buffers import BufferRule
from hogwild.model.computed import compute_weights, weights_as_values
from hogwild.model.row_parameter import RowParameter
from hogwild.shared.copying import copy_for_worker
from hogwild.shared.layout import Layout


class Binding:
    """Binds a replica to slots: parameters become views of one, buffers private copies of one.

    Args:
        module: the replica.
        parameters: its trained parameters, in the order of the parameter layout.
        layout: of the buffers, whose names are those of `module.named_buffers()`.
    """

    def __init__(self, module: nn.Module, parameters: Sequence[nn.Parameter], layout: Layout) -> None:
        self.module = module
        self.parameters = list(parameters)
        self._tables = [parameter for parameter in parameters if isinstance(parameter, RowParameter)]
        self._whole = [(i, p) for i, p in enumerate(parameters) if not isinstance(p, RowParameter)]
        self._entries = layout.entries
        self._rules = BufferRule.for_model(module, [entry.name for entry in layout.entries])
        self._homes = _homes(module, [entry.name for entry in layout.entries])
        self._own = [torch.empty_strided(e.shape, e.stride, dtype=e.dtype) for e in layout.entries]
        self._before = [torch.empty_like(own) for own in self._own]
        compute_weights(module)  # for who reads them before the first forward pass

    def point_at(self, parameters: Sequence[Tensor], buffers: Sequence[Tensor], version: int = 0) -> nn.Module:
        """The replica, ready for a forward pass on that slot: its parameters views, its buffers private copies, and its
        tables at that version."""
        for table in self._tables:
            table.version = version
        for i, parameter in self._whole:
            parameter.data = parameters[i]
        for homes, own, before, shared in zip(self._homes, self._own, self._before, buffers, strict=True):
            before.copy_(shared)
            own.copy_(before)
            for module, name in homes:
                module._buffers[name] = own
        return self.module

    def changed_buffers(self) -> list[Tensor]:
        """After a forward pass: the values it left, good until the next `point_at`.

        Raises:
            ArgumentError: the forward pass gave a buffer another shape or dtype.
        """
        after = []
        for homes, entry in zip(self._homes, self._entries, strict=True):
            module, name = homes[0]
            value = module._buffers[name]
            if value is None or tuple(value.shape) != entry.shape or value.dtype != entry.dtype:
                form = "None" if value is None else f"{value.dtype} {list(value.shape)}"
                raise ArgumentError(
                    f"the forward pass changed buffer {entry.name} from {entry.dtype} {list(entry.shape)} to {form}; "
                    f"its shape and dtype must stay; where the first batch shapes it, run one through the model first"
                )
            after.append(value.detach())
        return after

    def commit_buffers(self, base: Sequence[Tensor], into: Sequence[Tensor], *, unchanged: bool) -> None:
        """Write into `into` what the buffers of `base` become by the last forward pass. Called without grad mode.

        `unchanged` says that base is the very version that the pass was made on.
        """
        if not self._entries:
            return
        after = self.changed_buffers()
        if not unchanged:
            after = self.rebase(self._before, after, base)
        for target, value in zip(into, after, strict=True):
            target.copy_(value)

    def rebase(self, before: Sequence[Tensor], after: Sequence[Tensor], base: Sequence[Tensor]) -> list[Tensor]:
        """What the buffers become when a change from `before` to `after` is committed to `base`."""
        return [rule.commit(i, before, after, base) for i, rule in enumerate(self._rules)]


def _homes(model: nn.Module, names: Sequence[str]) -> list[list[tuple[nn.Module, str]]]:
    """For each named buffer every (module, attribute) that holds it."""
    places: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                places.setdefault(id(buffer), []).append((module, name))
    by_name = dict(model.named_buffers())
    return [places[id(by_name[name])] for name in names]


def stand_ins_of(model: nn.Module) -> dict[int, nn.Parameter]:
    """id of each parameter → a parameter of its own on the same memory, with the same attributes and hooks."""
    stand_ins = {}
    for _, parameter in model.named_parameters():  # for a class may give others to optimizers by `parameters`
        stand_in = nn.Parameter(parameter.detach(), requires_grad=parameter.requires_grad)
        carry(extras_of(parameter), stand_in)
        stand_ins[id(parameter)] = stand_in
    return stand_ins


def replicate(
    model: nn.Module, substitutes: dict[int, nn.Parameter], copies: dict[int, Any] | None = None
) -> nn.Module:
    """A copy of the model in which the parameter of each id is the given one, and all else is copied.

    Tensors in shared memory that a module holds beside its parameters and buffers stay the same. `copies` is given the
    copy of each object, by the id of the object.

    Raises:
        ArgumentError: the model holds what cannot be copied.
    """
    return copy_for_worker(
        model,
        model.modules(),
        {**weights_as_values(model), **substitutes},
        subject=f"the model {type(model).__name__}",
        advice="give what it holds a __deepcopy__, or make it in its first forward pass",
        copies=copies,
    )


Extras = tuple[dict[str, Any], list[Callable[[Tensor], Tensor | None]]]


def extras_of(parameter: nn.Parameter) -> Extras:
    """What a parameter carries besides its values: Python attributes, and gradient hooks (masks, for instance)."""
    return vars(parameter), list((parameter._backward_hooks or {}).values())


def carry(extras: Extras, target: nn.Parameter) -> None:
    """Give a parameter of a replica the attributes and hooks of the caller's."""
    attributes, hooks = extras
    vars(target).update(attributes)
    if target.requires_grad:
        for hook in hooks:
            target.register_hook(hook)  # type: ignore[no-untyped-call]
