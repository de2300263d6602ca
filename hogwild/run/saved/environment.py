"""Where a run was made: versions, processor, flags, code. What decides bits beside the training itself."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hogwild.errors import ArgumentError, printable, some_of, warn_caller
from hogwild.run.saved.fingerprint import fingerprint
from hogwild.workers.surroundings.bit_flags import BitFlags

_VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_DEBUG_CPU_TYPE",
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
    "ONEDNN_CPU_ISA_HINTS",
    "DNNL_CPU_ISA_HINTS",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "DNNL_DEFAULT_FPMATH_MODE",
    "GLIBC_TUNABLES",
    "NPY_DISABLE_CPU_FEATURES",
    "NPY_ENABLE_CPU_FEATURES",
    "NUMBA_CPU_NAME",
    "NUMBA_CPU_FEATURES",
    "NUMBA_OPT",
    "OPENBLAS_CORETYPE",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "BLIS_NUM_THREADS",
    "PYTHONHASHSEED",
)
_LIBRARIES = {
    "mkl": re.compile(r"Math Kernel Library Version (\S+ Build \d+)"),
    "onednn": re.compile(r"MKL-DNN (v\S+ \(Git Hash \w+\))"),
}
_COMPILERS = ("numba", "llvmlite")
_SETS = ("sse4", "avx", "fma", "f16c", "amx", "asimd", "sve", "bf16")  # how the names of instruction sets begin
_TOLD_ONLY = ("command", "host")  # decide no bits
_PATIENCE = 5.0  # seconds for git


def environment() -> dict[str, Any]:
    """What this process computes with, as JSON values.

    `instruction_sets.torch` is what ATen uses; MKL and oneDNN choose among those that the processor has, within what
    the environment variables allow, and tell it only in what they print when asked to be verbose. `fingerprint` is a
    hash of what they compute.
    """
    return {
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu("model name") or platform.processor() or platform.machine(),
        "libraries": _libraries(),
        "instruction_sets": {"torch": torch.backends.cpu.get_cpu_capability(), "processor": _instruction_sets()},
        "fingerprint": fingerprint(),
        "flags": flags_of_torch(),
        "variables": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
        "git": _revision(),
        "command": list(sys.orig_argv),
        "host": platform.node(),
    }


def flags_of_torch() -> dict[str, Any]:
    """Its settings that decide bits, by name, as JSON values (`hogwild.workers.surroundings.bit_flags`)."""
    found = BitFlags.capture()
    values = {**found.values, "intra_op": found.intra_op}
    return {name: value if isinstance(value, bool | int) else str(value) for name, value in values.items()}


def refuse_other_flags(recorded: Mapping[str, Any], folder: Path) -> None:
    """Refuse to go on with a run that was begun under other settings of torch.

    Raises:
        ArgumentError: one that decides bits differs; it is set in the program, which can set it again.
    """
    for name, before, after in differing_values({"flags": recorded.get("flags", {})}, {"flags": flags_of_torch()}):
        raise ArgumentError(
            f"torch's {name.removeprefix('flags.')} is {after}, and the run in {folder} was made with "
            f"{printable(str(before))}; a resumed run needs the same"
        )


def warn_of_another_place(recorded: Mapping[str, Any], now: Mapping[str, Any], folder: Path) -> None:
    """Warn that a run goes on elsewhere than where it was begun. Another revision of the code around is not told."""
    before, after = ({**one, "git": None} for one in (recorded, now))
    if found := environment_differences(before, after):
        warn_caller(
            f"the run in {folder} was begun where something else computed ({some_of(found, between='; ')}); it may end "
            f"with other bits than it would have had there"
        )


def environment_differences(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    """What of two environments differs, a short text each, versions first; what only one of them tells is left out."""
    return tuple(
        printable(f"{name} was {before} and is {after}") for name, before, after in differing_values(recorded, now)
    )


def differing_values(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """(name, value in the one, value in the other) for all that differs, versions first; a variable may be unset, and
    what else only one of them tells is left out."""
    return [(name, before, after) for name, (before, after) in differing_among([recorded, now])]


def differing_among(environments: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[Any]]]:
    """(name, its value in each of them) for all that is not the same in all, as `differing_values`; where there are
    more than two, None stands for what one of them does not tell."""
    flat = [_flat(one) for one in environments]
    optional = {f"variables.{name}" for name in _VARIABLES}
    told = [name for name in dict.fromkeys(key for one in flat for key in one) if sum(name in one for one in flat) > 1]
    names = told + sorted(optional & {name for one in flat for name in one} - {*told})
    found = [(name, [one.get(name, "unset" if name in optional else None) for one in flat]) for name in names]
    return [(name, values) for name, values in found if len({repr(value) for value in values if value is not None}) > 1]


def _flat(found: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in found.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}.{name}": inner for name, inner in value.items()}
        elif key not in _TOLD_ONLY:
            flat[key] = value
    return flat


@cache
def _libraries() -> dict[str, str]:
    """The versions of those that torch calls and that choose instruction sets by themselves, and of what compiles
    kernels."""
    found = {name: _LIBRARIES[name].search(torch.__config__.show()) for name in _LIBRARIES}
    versions = {name: match.group(1) for name, match in found.items() if match is not None}
    for name in _COMPILERS:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def _cpu(field: str) -> str:
    """A field of the first processor, as Linux tells it; empty elsewhere."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == field:
                return value.strip()
    return ""


def _instruction_sets() -> str:
    names = (_cpu("flags") or _cpu("Features")).split()
    return " ".join(sorted(name for name in names if name.startswith(_SETS)))


def _revision() -> str | None:
    """The commit that the working directory is of, with a + where files differ from it; None where there is none."""
    asked = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+"]
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(asked, capture_output=True, text=True, timeout=_PATIENCE, stdin=subprocess.DEVNULL)
        return done.stdout.strip() or None if done.returncode == 0 else None
    return None
