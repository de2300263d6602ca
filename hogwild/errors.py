"""Every failure a user can meet, one exception each."""

from __future__ import annotations


class HogwildError(Exception):
    """Whatever this package raises on purpose."""


class ArgumentError(HogwildError, ValueError):
    """An argument or a configuration that cannot work: one line with the value, the rule it broke, what would work."""


class WorkerError(HogwildError, RuntimeError):
    """A worker raised, or died and could not be replaced. The message ends with the worker's own traceback."""


class NonFiniteError(HogwildError, ArithmeticError):
    """A loss or a gradient was NaN or infinite; the shared model was not touched by it."""


class NotReproducible(HogwildError, RuntimeError):  # noqa: N818 - it names a finding about the training, not a slip
    """The training draws random numbers that this worker kind cannot reproduce."""


class RunDirectoryError(HogwildError, ValueError):
    """A file of a run directory is missing, damaged, or not what it should be."""


def one_line(error: BaseException) -> str:
    """The message of an exception on one line, or its type where it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def printable(text: str, limit: int = 160) -> str:
    """Text that a file may have chosen, as one short line without control characters."""
    shown = "".join(letter if letter.isprintable() else "�" for letter in " ".join(text[: 4 * limit].split()))
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"
