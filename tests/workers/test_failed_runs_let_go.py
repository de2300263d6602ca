"""A run that fails lets go of its shared memory once its error is let go, with no need of the collector of cycles."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import problems
import pytest
import torch
from traits import KINDS

import hogwild
from hogwild.errors import HogwildError


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    gc.collect()


def mapped() -> int:
    """Shared memory of runs that this process has open."""
    found = 0
    for one in Path("/proc/self/fd").iterdir():
        try:
            found += "memfd:hogwild" in str(one.readlink())
        except FileNotFoundError:  # the folder's own
            continue
    return found


def raises(model: torch.nn.Module, batch: object) -> torch.Tensor:
    if (info := hogwild.worker_info()) is not None and info.update == 5:
        raise ValueError("update 5")
    return problems.cross_entropy(model, batch)


def becomes_nan(model: torch.nn.Module, batch: object) -> torch.Tensor:
    info = hogwild.worker_info()
    return problems.cross_entropy(model, batch) * (float("nan") if info is not None and info.update == 5 else 1)


@pytest.mark.skipif(sys.platform != "linux", reason="counts what Linux shows of open memory")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loss", [raises, becomes_nan])
def test_nothing_is_mapped_once_the_error_is_gone(loss, kind):
    before = mapped()
    for _ in range(2):
        with pytest.raises(HogwildError):
            problems.train(loss=loss, kind=kind, update="ordered", workers=2, updates=10, on_worker_failure="raise")
    assert mapped() == before
