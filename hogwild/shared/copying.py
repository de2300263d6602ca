"""Copies: of tensors into others, and of models and data sources for workers, which keep what lies in shared memory."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from hogwild.errors import ArgumentError, one_line
from hogwild.shared.mapped_files import MappedFiles
from hogwild.shared.placement import as_it_lies, is_plain_array, is_plain_tensor, lies_as_new

T = TypeVar("T")
_MOST = 10_000  # lists and dicts that are looked into
_COPIED = (torch.strided, torch.sparse_coo)  # layouts of which `copy.deepcopy` of a tensor is one


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
        holders: objects in it, whose attributes stay the same where they are tensors in shared memory. Of a
            layout that `copy.deepcopy` cannot copy they are cloned, also in lists and dicts.
        substitutes: id of an object in it → what stands there in the copy.
        subject, advice: how the error begins, and ends.
        copies: is given the copy of each object in it, by the id of the object.

    Raises:
        ArgumentError: it cannot be copied.
    """
    own = [attribute for holder in holders for attribute in vars(holder).values()]
    kept = {**substitutes, **{id(one): one for one in own if is_in_shared_memory(one)}}
    try:
        copied, made = _copied(value, kept, own)
    except Exception as error:
        raise ArgumentError(f"{subject} cannot be copied for each worker: {one_line(error)}; {advice}") from error
    if copies is not None:
        copies.update(made)
    return copied


def _copied(value: T, kept: Mapping[int, Any], own: Sequence[Any]) -> tuple[T, dict[int, Any]]:
    """(a deep copy, all copies by the id of their object); where there is none, what `copy.deepcopy` cannot copy of
    what its holders own, and nobody trains, is looked for."""
    parts = [*_parts_of(own)]
    atoms = {id(one): one for one in parts if type(one) is object}  # which is nothing but itself
    files = MappedFiles()
    mapped = {id(one): files.again(one) for one in parts if _is_to_be_read(one)}  # which a copy would load
    lying = {id(one): as_it_lies(one) for one in parts if _would_move(one)} | atoms
    lying |= {key: one for key, one in mapped.items() if one is not None}
    made = {**lying, **kept}
    try:
        return copy.deepcopy(value, made), made
    except Exception:
        others = {id(one): one.clone() if isinstance(one, Tensor) else one for one in parts if _cannot_be_copied(one)}
        if not others:
            raise
    made = {**lying, **others, **kept}
    return copy.deepcopy(value, made), made


def _is_to_be_read(one: Any) -> bool:
    """True for a file that is mapped to be read."""
    return type(one) is np.memmap and not one.flags.writeable and not one.dtype.hasobject


def _would_move(one: Any) -> bool:
    """True for what `copy.deepcopy` would lay out anew."""
    return (is_plain_tensor(one) or is_plain_array(one)) and not lies_as_new(one)


def _cannot_be_copied(one: Any) -> bool:
    """True for a module of Python, and for a tensor that `copy.deepcopy` cannot copy."""
    return isinstance(one, ModuleType) or (isinstance(one, Tensor) and one.layout not in _COPIED)


def _parts_of(values: Iterable[Any]) -> Iterator[Any]:
    """They themselves and what their lists and dicts hold, which are none."""
    found, seen = [*values], set[int]()
    while found and len(seen) < _MOST:
        one = found.pop()
        if not isinstance(one, dict | list | tuple):
            yield one
        elif id(one) not in seen:
            seen.add(id(one))
            found += dict.values(one) if isinstance(one, dict) else one


def is_in_shared_memory(value: Any) -> bool:
    """True for a tensor whose memory other processes may have too; one that is sparse has none of that kind."""
    try:
        return isinstance(value, Tensor) and value.is_shared()  # type: ignore[no-untyped-call]
    except (NotImplementedError, RuntimeError):  # it has no storage to ask
        return False
