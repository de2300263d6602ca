"""Large blocks that a step frees stay with the process, for the next step to take.

glibc hands freed blocks of 128 KiB and more back to the kernel, at least until it has learned better, and every step
then faults its pages in again: one worker on the convolutional net with batch 64 trained 7,500 samples per second so,
and 8,400 with what is set here (glibc 2.36; nothing is done where there is no mallopt).
"""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # names of mallopt(3)
_KEPT = 512 << 20  # bytes free at the end of the heap before some are given back


def keep_freed_memory() -> bool:
    """Tell this process's allocator; False where it cannot be told."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_MMAP_MAX, 0)) and bool(mallopt(_TRIM_THRESHOLD, _KEPT))
