"""MKL's vector functions, called once each before anything computes at the same time.

Each chooses its kernel at its first call. Where several threads make that call at once, one of them may silently be
given a kernel of low accuracy (PyTorch issue 188792, seen with oneMKL 2024.2), and keep it. So a lock is held: of two
trainings that begin at once in one program, the second waits until the first has called them.
"""

from __future__ import annotations

import threading
from functools import cache

import torch

FUNCTIONS = (
    *("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "sin", "sinh", "tan", "tanh"),
    *("exp", "exp2", "expm1", "log", "log10", "log1p", "log2", "sqrt", "rsqrt", "reciprocal", "pow", "sigmoid"),
    *("erf", "erfc", "erfinv", "lgamma", "digamma", "abs", "ceil", "floor", "round", "trunc", "frac", "neg", "square"),
)
_ELEMENTS = 1024  # enough for the vector path; too few for torch to divide them among threads


_lock = threading.Lock()


def call_vector_functions() -> None:
    """Call each once in this process, for float32 and float64. It takes 5 to 10 ms; later calls do nothing."""
    with _lock:
        _call_each()


@cache
def _call_each() -> None:
    with torch.no_grad():
        for dtype in (torch.float32, torch.float64):
            values = torch.full((_ELEMENTS,), 0.5, dtype=dtype, device="cpu")
            for name in FUNCTIONS:
                function = getattr(torch, name)
                function(values, 2.5) if name == "pow" else function(values)
            torch.atan2(values, values)
