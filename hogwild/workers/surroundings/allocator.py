"""Large blocks of a worker process: those that a step frees stay for the next one, or come in large pages.

glibc hands freed blocks of 128 KiB and more back to the kernel until it has learned better, and every step then faults
its pages in again; here blocks of up to 32 MiB are kept. Larger ones could be kept too, but glibc 2.36 does not find an
aligned block of the same size again, and a worker on 10 million parameters grew to eight times its gradient. They are
faulted in by huge pages instead (`THP_MEM_ALLOC_ENABLE` of torch), where the kernel allows it (`madvise` or `always` in
/sys/kernel/mm/transparent_hugepage/enabled). A hand-written loop on that model took 42 ms a step with SGD and 108 with
Adam, and 27 to 30 and 58 to 66 so (medians; 9,668 and 29,004 faults a step; 471 and 1,413). Tried with glibc 2.36 on
Linux 6.18; where there is no mallopt, as on macOS and with musl, torch's switch alone is set.
"""

from __future__ import annotations

import ctypes
import os

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # names of mallopt(3)
_KEPT = 512 << 20  # bytes free at the end of the heap before some are given back
_MAPPED = 32 << 20  # bytes of a block from which on it is mapped by itself


def keep_freed_memory() -> bool:
    """Tell torch, before its first tensor is made, and the C library; False where the latter cannot be told."""
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # torch looks when it first allocates
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _MAPPED)) and bool(mallopt(_TRIM_THRESHOLD, _KEPT))
