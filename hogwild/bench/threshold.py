"""What `--fail-if` takes: a few comparisons, read by a grammar of two lines. Nothing of it is evaluated as code.

    expression = term { "and" term }
    term       = ( "median" | "min" | "max" ) ( "<" | "<=" | ">" | ">=" ) number

`median`, `min` and `max` are of the ratio now ÷ then: `median<0.95` holds where a contender lost over 5 %, and `max<1`
only where even the best repeat now is slower than the worst then.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hogwild.errors import ArgumentError

NAMES_OF_RATIO = ("median", "min", "max")
_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_TERM = re.compile(r"\s*([A-Za-z_]\w*)\s*(<=|>=|<|>)\s*([^\s<>=]+)\s*")


@dataclass(frozen=True)
class _Term:
    name: str
    sign: str
    limit: float


@dataclass(frozen=True)
class Threshold:
    """A condition on a ratio; `text` as it was given."""

    text: str
    terms: tuple[_Term, ...]

    @classmethod
    def read(cls, text: str) -> Threshold:
        """From its text.

        Raises:
            ArgumentError: it is not of the grammar; the message names the part that is not.
        """
        return cls(text, tuple(_term(part, text) for part in re.split(r"\band\b", text)))

    def holds(self, ratio: Mapping[str, float]) -> bool:
        """Whether all terms hold for a ratio with its `median`, `min` and `max`."""
        return all(_COMPARE[term.sign](ratio[term.name], term.limit) for term in self.terms)


def _term(part: str, text: str) -> _Term:
    match = _TERM.fullmatch(part)
    if match is None:
        what = f"{part.strip()!r} is not of the form NAME<NUMBER" if part.strip() else "a term is missing"
        raise ArgumentError(f"--fail-if {text!r}: {what}; 'median<0.95' and 'median<0.95 and max<1' are examples")
    name, sign, number = match.groups()
    if name not in NAMES_OF_RATIO:
        raise ArgumentError(f"--fail-if {text!r}: {name!r} is not known; {', '.join(NAMES_OF_RATIO)} of now ÷ then are")
    try:
        limit = float(number)
    except ValueError:
        raise ArgumentError(f"--fail-if {text!r}: {number!r} is not a number; 0.95 is one") from None
    if not 0 < limit < math.inf:
        raise ArgumentError(f"--fail-if {text!r}: {number} is not above 0; ratios of now ÷ then are about 1")
    return _Term(name, sign, limit)
