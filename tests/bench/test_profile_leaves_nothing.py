"""What is wrapped around a worker's methods refers back to it; a profile takes it off again."""

from __future__ import annotations

import gc

import psutil
from test_bench_profile import TINY, profiled


def test_a_profile_leaves_no_shared_memory_to_the_garbage_collector() -> None:
    profiled(TINY, "hogwild")  # what is opened once
    gc.collect()
    gc.disable()
    try:
        before = psutil.Process().num_fds()
        profiled(TINY, "hogwild")
        assert psutil.Process().num_fds() == before
    finally:
        gc.enable()
