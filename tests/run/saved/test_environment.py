"""What the bits of a machine hang on is recorded: libraries, instruction sets, and the variables that limit them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hogwild.run.saved.environment import environment, environment_differences

LIMITS = [
    "ATEN_CPU_CAPABILITY",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
    "ONEDNN_CPU_ISA_HINTS",
    "DNNL_CPU_ISA_HINTS",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "DNNL_DEFAULT_FPMATH_MODE",
    "GLIBC_TUNABLES",
    "NPY_DISABLE_CPU_FEATURES",
    "OPENBLAS_CORETYPE",
    "OPENBLAS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "BLIS_NUM_THREADS",
]


@pytest.mark.parametrize("name", LIMITS)
def test_a_variable_that_limits_instruction_sets_is_recorded_and_named(name, monkeypatch):
    monkeypatch.delenv(name, raising=False)
    before = environment()
    monkeypatch.setenv(name, "AVX2")
    now = environment()
    assert name not in before["variables"] and now["variables"][name] == "AVX2"
    assert environment_differences(before, now) == (f"variables.{name} was unset and is AVX2",)


def test_the_libraries_that_choose_instruction_sets_are_recorded():
    found = environment()["libraries"]
    assert set(found) - {"numba", "llvmlite"} == {"mkl", "onednn"}
    shown = torch.__config__.show()
    assert all(found[name] and found[name] in shown for name in ("mkl", "onednn"))
    moved = {**environment(), "libraries": {**found, "mkl": "2021.1"}}
    assert environment_differences(moved, environment()) == (f"libraries.mkl was 2021.1 and is {found['mkl']}",)


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="no such file")
def test_the_instruction_sets_that_libraries_choose_among_are_recorded():
    line = next(x for x in Path("/proc/cpuinfo").read_text().splitlines() if x.startswith(("flags", "Features")))
    chosen = ("avx", "avx2", "avx512f", "avx512bw", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16", "fma", "f16c")
    recorded = environment()["instruction_sets"]["processor"].split()
    assert [name for name in chosen if name in line.split()] == [name for name in chosen if name in recorded]
