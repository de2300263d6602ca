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
from pathlib import Path

import torch

_SWITCH = "THP_MEM_ALLOC_ENABLE"
_GIVEN = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_DISABLE_HUGE_PAGES = 41  # PR_SET_THP_DISABLE of prctl(2)
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # names of mallopt(3)
_KEPT = 512 << 20  # bytes free at the end of the heap before some are given back
_MAPPED = 32 << 20  # bytes of a block from which on it is mapped by itself


def ask_for_huge_pages() -> None:
    """Let torch ask the kernel for them, unless the caller's environment says otherwise.

    Torch looks at that switch once, at the first tensor of a process, or of one that it was forked from.
    """
    is_set = _SWITCH in os.environ
    os.environ.setdefault(_SWITCH, "1")
    try:
        torch.empty(1)
    finally:
        if not is_set:
            os.environ.pop(_SWITCH, None)


def refuse_huge_pages() -> None:
    """Let this process, whose torch asks for them, have none from here on where the kernel gives them on request."""
    if _GIVEN.exists() and "[madvise]" in _GIVEN.read_text():
        ctypes.CDLL(None).prctl(_DISABLE_HUGE_PAGES, *map(ctypes.c_ulong, (1, 0, 0, 0)))


def keep_freed_memory() -> bool:
    """Tell the C library; False where it cannot be told."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _MAPPED)) and bool(mallopt(_TRIM_THRESHOLD, _KEPT))
