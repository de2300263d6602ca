"""Copies: of tensors into others, and of models and data sources for workers, which keep what lies in shared memory."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch import Tensor

from hogwild.errors import ArgumentError, one_line

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
    made = dict(kept)
    try:
        return copy.deepcopy(value, made), made
    except Exception:
        others = {id(one): one.clone() if isinstance(one, Tensor) else one for one in _parts_of(own)}
        if not others:
            raise
    made = {**others, **kept}
    return copy.deepcopy(value, made), made


def _parts_of(values: Iterable[Any]) -> Iterator[Any]:
    """The modules of Python, and tensors that `copy.deepcopy` cannot copy, in them and in their lists and dicts."""
    found, seen = [*values], set[int]()
    while found and len(seen) < _MOST:
        one = found.pop()
        if isinstance(one, ModuleType) or (isinstance(one, Tensor) and one.layout not in _COPIED):
            yield one
        elif isinstance(one, dict | list | tuple) and id(one) not in seen:
            seen.add(id(one))
            found += dict.values(one) if isinstance(one, dict) else one


def is_in_shared_memory(value: Any) -> bool:
    """True for a tensor whose memory other processes may have too; one that is sparse has none of that kind."""
    try:
        return isinstance(value, Tensor) and value.is_shared()  # type: ignore[no-untyped-call]
    except (NotImplementedError, RuntimeError):  # it has no storage to ask
        return False
