"""A worker's copy of the model: an `nn.Module` whose parameters are views of a slot.

Invariants: a replica's parameters share a slot's memory but nothing else, so an in-place update by another worker
never bumps a version counter that this worker's graph has saved; its buffers are private, so a forward pass never
writes into shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from hogwild.copying import copy_for_worker
from hogwild.errors import ArgumentError
from hogwild.memory import Layout


@dataclass(frozen=True)
class Anatomy:
    """A model taken apart: what is trained, what is constant, what is buffered. Tied parameters appear once."""

    trained: dict[str, nn.Parameter]
    constant: dict[str, nn.Parameter]
    buffers: dict[str, Tensor]

    @classmethod
    def of(cls, model: nn.Module) -> Anatomy:
        """Take the model apart; every parameter that requires a gradient is trained.

        Raises:
            ArgumentError: the model is of a kind that cannot be trained here; the message names what and why.
        """
        _refuse_unusable(model)
        named = dict(model.named_parameters())
        trained = {name: p for name, p in named.items() if p.requires_grad}
        if not trained:
            raise ArgumentError(
                f"the model {type(model).__name__} has no trainable parameters; set requires_grad on some"
            )
        constant = {name: p for name, p in named.items() if not p.requires_grad}
        return cls(trained, constant, dict(model.named_buffers()))

    def restricted_to(self, optimized: set[int]) -> Anatomy:
        """The same, where only parameters whose id is in `optimized` are trained and the others are constant."""
        trained = {name: p for name, p in self.trained.items() if id(p) in optimized}
        idle = {name: p for name, p in self.trained.items() if id(p) not in optimized}
        return Anatomy(trained, {**self.constant, **idle}, self.buffers)


def _refuse_unusable(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"model is a {type(model).__name__}; pass a torch.nn.Module")
    for name, module in model.named_modules():
        kind = type(module).__name__
        if isinstance(module, torch.jit.ScriptModule) or kind == "OptimizedModule":
            raise ArgumentError(
                f"{name or 'the model'} is compiled or scripted ({kind}), and its parameters cannot be re-pointed; "
                f"pass the module it was made from"
            )
        for attribute, value in vars(module).items():
            if isinstance(value, Tensor) and not value.is_leaf:
                raise ArgumentError(
                    f"{f'{name}.' * bool(name)}{attribute} is the result of a computation, which no worker can copy; "
                    f"compute it in forward, or keep value.detach()"
                )
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    for name, tensor in tensors:
        if isinstance(tensor, UninitializedParameter | UninitializedBuffer):
            raise ArgumentError(f"{name} is lazy and not yet materialised; run one batch through the model first")
        if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
            raise ArgumentError(
                f"{name} is a {tensor.layout} tensor on {tensor.device}, and workers share dense tensors of the CPU; "
                f"pass model.cpu()"
            )
        if getattr(tensor, "_post_accumulate_grad_hooks", None):
            raise ArgumentError(
                f"{name} has a post-accumulate-grad hook, which no worker's gradient would pass through"
            )
    _refuse_overlap(tensors)


def _refuse_overlap(tensors: Sequence[tuple[str, Tensor]]) -> None:
    places: dict[int, list[tuple[str, Tensor]]] = {}
    for name, tensor in tensors:
        if tensor.numel() == 0:
            continue
        others = places.setdefault(tensor.untyped_storage().data_ptr(), [])
        for other_name, other in others:
            if other is not tensor and _spans_meet(tensor, other):
                raise ArgumentError(
                    f"{other_name} and {name} share memory without being one Parameter; assign the same Parameter "
                    f"to both"
                )
        others.append((name, tensor))


def _spans_meet(a: Tensor, b: Tensor) -> bool:
    def span(tensor: Tensor) -> tuple[int, int]:
        extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        return tensor.data_ptr(), tensor.data_ptr() + extent * tensor.element_size()

    (a_start, a_end), (b_start, b_end) = span(a), span(b)
    return a_start < b_end and b_start < a_end


@dataclass(frozen=True)
class BufferRule:
    """How one buffer's change in a forward pass is committed to values that may have changed meanwhile.

    With `before` and `after` the buffer around the forward pass, `base` the newest shared value and n the
    forward passes counted between `before` and `after`:

    - running average with momentum m: after + (1 − m)^n (base − before), which weighs this batch's statistic as if
      it had been computed on base, stays positive for a variance, and is `after` where base is before;
    - cumulative average (`momentum=None`): the mean of base's batches and this one's;
    - integer counter: base + (after − before);
    - anything else: after.

    A buffer that the forward pass left alone keeps base.
    """

    averages: bool = False
    momentum: float | None = None
    counter: int | None = None

    def commit(self, index: int, before: Sequence[Tensor], after: Sequence[Tensor], base: Sequence[Tensor]) -> Tensor:
        """The new value of buffer `index`; the sequences hold all buffers, for their counters."""
        b, a, newest = before[index], after[index], base[index]
        if torch.equal(b, a):
            return newest
        if self.averages:
            passes = 1 if self.counter is None else int(after[self.counter] - before[self.counter]) or 1
            if self.momentum is not None:
                return a + (1 - self.momentum) ** passes * (newest - b)
            if self.counter is not None:
                seen, others = int(before[self.counter]), int(base[self.counter])
                return (newest * others + (a * (seen + passes) - b * seen)) / (others + passes)
        if not a.dtype.is_floating_point and not a.dtype.is_complex and a.dtype is not torch.bool:
            return newest + (a - b)
        return a

    @classmethod
    def for_model(cls, model: nn.Module, names: Sequence[str]) -> list[BufferRule]:
        """The rules of the named buffers: averages are those of torch's own normalisation layers."""
        position = {name: i for i, name in enumerate(names)}
        rules = [cls() for _ in names]
        for path, module in model.named_modules():
            if isinstance(module, _NormBase):
                prefix = f"{path}." if path else ""
                counter = position.get(f"{prefix}num_batches_tracked")
                for statistic in ("running_mean", "running_var"):
                    if (i := position.get(prefix + statistic)) is not None:
                        rules[i] = cls(True, module.momentum, counter)
        return rules


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
        self._entries = layout.entries
        self._rules = BufferRule.for_model(module, [entry.name for entry in layout.entries])
        self._homes = _homes(module, [entry.name for entry in layout.entries])
        self._own = [torch.empty_strided(e.shape, e.stride, dtype=e.dtype) for e in layout.entries]
        self._before = [torch.empty_like(own) for own in self._own]

    def point_at(self, parameters: Sequence[Tensor], buffers: Sequence[Tensor]) -> nn.Module:
        """The replica, ready for a forward pass on that slot: its parameters views, its buffers private copies."""
        for parameter, view in zip(self.parameters, parameters, strict=True):
            parameter.data = view
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
                    f"its shape and dtype must stay"
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
    for parameter in model.parameters():
        stand_in = nn.Parameter(parameter.detach(), requires_grad=parameter.requires_grad)
        carry(extras_of(parameter), stand_in)
        stand_ins[id(parameter)] = stand_in
    return stand_ins


def replicate(model: nn.Module, substitutes: dict[int, nn.Parameter]) -> nn.Module:
    """A copy of the model in which the parameter of each id is the given one, and all else is copied.

    Tensors in shared memory that a module holds beside its parameters and buffers stay the same.

    Raises:
        ArgumentError: the model holds what cannot be copied.
    """
    return copy_for_worker(
        model,
        model.modules(),
        substitutes,
        subject=f"the model {type(model).__name__}",
        advice="give what it holds a __deepcopy__, or make it in its first forward pass",
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
