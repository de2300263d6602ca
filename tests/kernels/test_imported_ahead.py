"""What workers that train by a kernel need first is imported once for all of them, by the fork server."""

from __future__ import annotations

import sys
from multiprocessing import forkserver

import pytest

pytest.importorskip("numba")

from hogwild.workers.process.spawn import start_context


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere workers are spawned")
@pytest.mark.parametrize("imported", [True, False])
def test_the_fork_server_imports_numba_where_the_program_has(imported, monkeypatch):
    """And not for programs that do without."""
    if not imported:
        monkeypatch.delitem(sys.modules, "numba")
    start_context()
    assert ("numba" in forkserver._forkserver._preload_modules) == imported
