"""TorchScript functions in a training: run as they are written, never optimized.

The first calls of such a function are watched, and a later one is computed by a graph that was optimized for what was
seen: with other bits, which depend on how often this worker has called it, and on what. Without that graph each call
has the bits of the same lines in Python, and is about as fast (73 µs instead of 69 for a GELU with its gradient).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch


@contextmanager
def scripts_as_written() -> Iterator[None]:
    """Inside, this thread computes TorchScript functions operation by operation. Other threads do as before."""
    before = torch._C._get_graph_executor_optimize()
    torch._C._set_graph_executor_optimize(False)
    try:
        yield
    finally:
        torch._C._set_graph_executor_optimize(before)


def forget_optimized_scripts() -> None:
    """Let go of the optimized graphs of this process, which are used wherever they exist. The next calls outside a
    training make them again. Functions in modules read by `torch.jit.load` are not known here, and keep theirs."""
    compiled: Any = torch.jit._state._python_cu
    for function in compiled.get_functions():
        if _is_optimized(function):
            with suppress(RuntimeError):  # an executor of an older kind has nothing to let go of
                function._debug_flush_compilation_cache()


def _is_optimized(function: Any) -> bool:
    """True where a graph was optimized. Another may be in use by another thread, and must stay."""
    try:
        function.get_debug_state()
    except RuntimeError:
        return False
    return True
