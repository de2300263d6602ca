"""Copies: of tensors into others, and of models and data sources for workers, which keep what lies in shared memory."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from torch import Tensor

from hogwild.errors import ArgumentError, one_line

T = TypeVar("T")


def copy_all(targets: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy tensors one by one."""
    for target, value in zip(targets, values, strict=True):
        target.copy_(value.detach())


def copy_for_worker(
    value: T,
    holders: Iterable[object],
    substitutes: Mapping[int, Any],
    *,
    subject: str,
    advice: str,
    copies: dict[int, Any] | None = None,
) -> T:
    """A deep copy of `value`.

    Args:
        value: what is copied.
        holders: objects in it, whose attributes stay the same where they are tensors in shared memory.
        substitutes: id of an object in it → what stands there in the copy.
        subject, advice: how the error begins, and ends.
        copies: is given the copy of each object in it, by the id of the object.

    Raises:
        ArgumentError: it cannot be copied.
    """
    kept = {} if copies is None else copies
    kept.update(substitutes)
    for holder in holders:
        for attribute in vars(holder).values():
            if isinstance(attribute, Tensor) and attribute.is_shared():  # type: ignore[no-untyped-call]
                kept[id(attribute)] = attribute
    try:
        return copy.deepcopy(value, kept)
    except Exception as error:
        raise ArgumentError(f"{subject} cannot be copied for each worker: {one_line(error)}; {advice}") from error
