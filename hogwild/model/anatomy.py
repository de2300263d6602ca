"""A model taken apart: what is trained, what is constant, what is buffered; and what cannot be trained here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from hogwild.errors import ArgumentError, a_type
from hogwild.model.computed import computed_weights


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
        raise ArgumentError(f"model is {a_type(model)}; pass a torch.nn.Module")
    for name, module in model.named_modules():
        kind = type(module).__name__
        if isinstance(module, torch.jit.ScriptModule) or kind == "OptimizedModule":
            raise ArgumentError(
                f"{name or 'the model'} is compiled or scripted ({kind}), and its parameters cannot be re-pointed; "
                f"pass the module it was made from"
            )
        own = computed_weights(module)
        for attribute, value in vars(module).items():
            if isinstance(value, Tensor) and not value.is_leaf and attribute not in own:
                raise ArgumentError(
                    f"{f'{name}.' * bool(name)}{attribute} is the result of a computation, which no worker can copy; "
                    f"set it to None where forward computes it, or keep value.detach()"
                )
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    for name, tensor in tensors:
        if isinstance(tensor, UninitializedParameter | UninitializedBuffer):
            raise ArgumentError(f"{name} is lazy and not yet materialised; run one batch through the model first")
        if tensor.device.type != "cpu":
            raise ArgumentError(f"{name} is on {tensor.device}, and workers share memory of the CPU; pass model.cpu()")
        if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
            form = "nested" if tensor.is_nested else tensor.dtype if tensor.is_quantized else tensor.layout
            beside = "" if tensor.is_nested else ", or where it is a constant an attribute of the layer"
            raise ArgumentError(
                f"{name} is a {form} tensor, and workers share dense ones of plain numbers; make it one{beside}"
            )
        if tensor.is_inference() and (tensor.requires_grad or not isinstance(tensor, nn.Parameter)):
            what, cannot = ("", "trained") if tensor.requires_grad else ("buffer ", "written to, as a run writes to it")
            raise ArgumentError(
                f"{what}{name} was made in torch.inference_mode, and cannot be {cannot}; make it outside of it, or "
                f"clone() it"
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
