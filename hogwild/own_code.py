"""Code of somebody's own that an experiment stands in, as a run's settings know it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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
