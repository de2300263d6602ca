"""What the text behind a flag becomes; text that does not fit is refused in words of ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tyro.constructors import PrimitiveConstructorSpec

LARGEST_WHOLE = (1 << 63) - 1


def whole(metavar: str) -> PrimitiveConstructorSpec[int | None]:
    """A flag that takes a whole number."""
    return _one(metavar, _whole, int)


def wholes(metavar: str) -> PrimitiveConstructorSpec[tuple[int, ...]]:
    """A flag that takes whole numbers, one or several."""
    return _some(metavar, _whole, int)


def numbers(metavar: str) -> PrimitiveConstructorSpec[tuple[float, ...]]:
    """A flag that takes numbers, one or several."""
    return _some(metavar, _number, int | float)


def words(metavar: str, alone: tuple[str, ...] = ()) -> PrimitiveConstructorSpec[tuple[str, ...] | None]:
    """A flag that takes texts, one or several; without any it has those of `alone`."""
    return PrimitiveConstructorSpec(
        nargs="*",
        metavar=metavar,
        instance_from_str=lambda texts: tuple(texts) or alone,
        is_instance=lambda value: value is None or isinstance(value, tuple),
        str_from_instance=lambda value: list(value or ()),
    )


def number(metavar: str) -> PrimitiveConstructorSpec[float | None]:
    """A flag that takes a number."""
    return _one(metavar, _number, int | float)


def truth() -> PrimitiveConstructorSpec[bool | None]:
    """A flag that takes `true` or `false`."""
    return _one("true|false", _truth, bool)


def read(form: str, text: str) -> Any:
    """The value that a text stands for, where it must be an int, float, bool or str.

    Raises:
        ValueError: it stands for none.
    """
    forms: Mapping[str, Callable[[str], Any]] = {"int": _whole, "float": _number, "bool": _truth, "str": str}
    return forms[form](text)


def folder(metavar: str) -> PrimitiveConstructorSpec[str | None]:
    """A flag that takes a folder; what it becomes does not depend on the folder in which the command was given."""
    return _one(metavar, lambda text: str(Path(text).absolute()), str)


def _one(metavar: str, read: Callable[[str], Any], form: Any) -> PrimitiveConstructorSpec[Any]:
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=lambda texts: read(texts[0]),
        is_instance=lambda value: value is None or isinstance(value, form),
        str_from_instance=lambda value: [str(value)],
    )


def _some(metavar: str, read: Callable[[str], Any], form: Any) -> PrimitiveConstructorSpec[tuple[Any, ...]]:
    return PrimitiveConstructorSpec(
        nargs="*",
        metavar=metavar,
        instance_from_str=lambda texts: tuple(map(read, texts)),
        is_instance=lambda value: isinstance(value, tuple) and all(isinstance(one, form) for one in value),
        str_from_instance=lambda values: list(map(str, values)),
    )


def _whole(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number; 2 is one") from None
    if abs(value) > LARGEST_WHOLE:
        raise ValueError(f"{text} has over 64 bits; {LARGEST_WHOLE} is the largest that works")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number; 0.05 is one") from None


def _truth(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(f"{text!r} is neither true nor false")
    return text == "true"
