"""A bench read back from what `hogwild bench --save` wrote or `--json` printed: its speeds beside the serial loop."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hogwild.bench.contenders import SERIAL
from hogwild.bench.measure import Spread
from hogwild.errors import ArgumentError, printable

SAVED_AT = "saved"  # the key of the time at which a bench was saved
_MAX_BYTES = 1 << 28


@dataclass(frozen=True)
class SavedBench:
    """A bench, as far as benches are compared.

    Attributes:
        machine, settings: where and how it was measured.
        ratios: case → contender → its samples per second over those of the serial loop; None where it was not measured.
        serial: case → samples per second of the serial loop, median.
        rules: the contenders that are rules of this package.
        when: when it was saved; empty where nobody noted that.
    """

    machine: Mapping[str, Any]
    settings: Mapping[str, Any]
    ratios: Mapping[str, Mapping[str, Spread | None]]
    serial: Mapping[str, float]
    rules: frozenset[str]
    when: str = ""

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> SavedBench:
        """From a summary.

        Raises:
            KeyError, TypeError, ValueError: it is something else.
        """
        cases = {str(case["name"]): {str(row["name"]): row for row in case["results"]} for case in found["cases"]}
        speeds = {case: rows.get(SERIAL, {}).get("samples_per_second") for case, rows in cases.items()}
        return cls(
            machine=dict(found["machine"]),
            settings=dict(found["settings"]),
            ratios={
                case: {name: _spread(row["over_serial"]) for name, row in rows.items()} for case, rows in cases.items()
            },
            serial={case: _above_zero(speed["median"]) for case, speed in speeds.items() if speed},
            rules=frozenset(str(one["name"]) for one in found["contenders"] if one["rule"]),
            when=printable(str(found.get(SAVED_AT, ""))),
        )


def _spread(value: Mapping[str, Any] | None) -> Spread | None:
    if value is None:
        return None
    median, least, most = (_above_zero(value[name]) for name in ("median", "min", "max"))
    return Spread(median, least, most, int(value["runs"]))


def _above_zero(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"{value!r} is no speed")
    return value


def read_bench(path: Path) -> SavedBench:
    """The bench in a file.

    Raises:
        ArgumentError: there is none; of scaling or a profile, it has no speeds beside a serial loop.
    """
    try:
        if path.exists() and not path.is_file():
            raise ArgumentError(f"{str(path)!r} is not a plain file")
        if path.stat().st_size > _MAX_BYTES:
            raise ArgumentError(f"{str(path)!r} is over {_MAX_BYTES} bytes, and no bench is that long")
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ArgumentError(f"{str(path)!r} does not exist; hogwild bench --save {path} makes it") from None
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, ArgumentError):
            raise
        raise ArgumentError(f"{str(path)!r} cannot be read as JSON: {printable(str(error))}") from error
    try:
        return SavedBench.of(found)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        why = f"{type(error).__name__}: {printable(str(error))}"
        raise ArgumentError(f"{str(path)!r} is not a bench with a serial loop, as --save writes it: {why}") from error
