"""Code of somebody's own that an experiment stands in, as a run's settings know it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class OwnCode:
    """Code of somebody's own that an experiment stands in.

    Attributes:
        file: its absolute path.
        sha256: of the file's bytes, in hexadecimal, when the run began.
        builder: the name in it of what builds the problem.
        module: its name, where it was named as a module; else empty.
        parameters: the value of each of the builder's own parameters, as TOML has it. One that is None is left out.
    """

    file: str
    sha256: str
    builder: str = ""
    module: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict, hash=False)


def own_code_in(value: Any) -> OwnCode | None:
    """The code of somebody's own that a file of settings has, if any.

    Raises:
        TypeError: it has something else there.
    """
    if value is None or isinstance(value, OwnCode):
        return value
    found = OwnCode(**value)
    texts = (found.file, found.sha256, found.builder, found.module)
    if not all(isinstance(text, str) for text in texts) or not isinstance(found.parameters, Mapping):
        raise TypeError("malformed")
    if not Path(found.file).is_absolute():  # what it means must not depend on where a command is given
        raise TypeError("no absolute path")
    return found
