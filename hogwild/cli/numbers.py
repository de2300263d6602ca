"""Numbers as flags: text that is none is refused in words of ours."""

from __future__ import annotations

from tyro.constructors import PrimitiveConstructorSpec

LARGEST = (1 << 63) - 1


def whole(metavar: str) -> PrimitiveConstructorSpec[int | None]:
    """A flag that takes a whole number."""
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=lambda texts: _whole(texts[0]),
        is_instance=lambda value: value is None or isinstance(value, int),
        str_from_instance=lambda value: [str(value)],
    )


def wholes(metavar: str) -> PrimitiveConstructorSpec[tuple[int, ...]]:
    """A flag that takes whole numbers, one or several."""
    return PrimitiveConstructorSpec(
        nargs="*",
        metavar=metavar,
        instance_from_str=lambda texts: tuple(map(_whole, texts)),
        is_instance=lambda value: isinstance(value, tuple) and all(isinstance(one, int) for one in value),
        str_from_instance=lambda values: list(map(str, values)),
    )


def number(metavar: str) -> PrimitiveConstructorSpec[float | None]:
    """A flag that takes a number."""
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=lambda texts: _number(texts[0]),
        is_instance=lambda value: value is None or isinstance(value, int | float),
        str_from_instance=lambda value: [str(value)],
    )


def _whole(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number; 2 is one") from None
    if abs(value) > LARGEST:
        raise ValueError(f"{text} has over 64 bits; {LARGEST} is the largest that works")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number; 0.05 is one") from None
