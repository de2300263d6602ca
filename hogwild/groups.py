"""Groups of parameters, by a pattern of their names, whose options of the optimizer are others than the rest's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Group:
    """Options of the optimizer, by name, for the parameters whose names match a pattern of `fnmatch` and no earlier
    group's.

    Raises:
        ValueError: the pattern is no text, or there is no option.
    """

    match: str
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not isinstance(self.match, str) or not isinstance(self.options, Mapping):
            raise ValueError(f"{self.match!r} with {self.options!r} is not a pattern with options")
        if not self.options or "params" in self.options:
            raise ValueError(f"{self.match!r} is given no option of an optimizer; weight_decay=0 is an example")

    def to_mapping(self) -> dict[str, Any]:
        """As a file has it: the pattern and the options side by side."""
        return {"match": self.match, **self.options}

    def __str__(self) -> str:
        """As the command line has it."""
        return " ".join([self.match, *(f"{name}={value}" for name, value in self.options.items())])


def groups_in(values: Iterable[Group | Mapping[str, Any]]) -> tuple[Group, ...]:
    """Groups as a file has them.

    Raises:
        ValueError: something there is none.
    """
    found = []
    for one in values:
        if not isinstance(one, Group) and not (isinstance(one, Mapping) and "match" in one):
            raise ValueError(f"{one!r} is not a match and options")
        given = one.to_mapping() if isinstance(one, Group) else dict(one)
        if set(given) == {"match", "options"} and isinstance(given["options"], Mapping):  # as JSON has a Group
            given = {"match": given["match"], **given["options"]}
        found.append(Group(given.pop("match"), given))
    return tuple(found)
