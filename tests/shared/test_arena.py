"""Arenas: memory that is the same for everyone, given once, and given back."""

from __future__ import annotations

import gc
import mmap
import os
import resource
import sys

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hogwild import ArgumentError
from hogwild.shared.arena import ALIGNMENT, Arena, Space


@given(st.lists(st.integers(0, 1000), max_size=20))
def test_a_space_gives_no_byte_twice(sizes):
    space = Space()
    end = 0
    for size in sizes:
        offset = space.reserve(size)
        assert offset % ALIGNMENT == 0
        assert offset >= end
        end = offset + size
    assert space.nbytes >= end


def test_tensors_arrays_words_and_bytes_look_at_one_memory():
    arena = Arena(256)
    words, array = arena.words(64, 4), arena.array(64, 4, torch.zeros(0, dtype=torch.int64).numpy().dtype)
    tensor, raw = arena.tensor(64, 4, torch.int64), arena.bytes(64, 32)
    words[1] = -5
    array[2] = 7
    raw[24] = 9
    assert tensor.tolist() == [0, -5, 7, 9]
    assert arena.tensor(0, 8, torch.int64).tolist() == [0] * 8


@pytest.mark.parametrize("private", [False, True])
def test_a_shared_arena_arrives_as_the_same_memory_and_a_private_one_as_a_copy_on_write(private):
    arena = Arena(4096, private=private)
    arena.words(0, 1)[0] = 42
    there = _mapped_again(arena)
    assert there.words(0, 1)[0] == 42
    there.words(0, 1)[0] = 43
    assert arena.words(0, 1)[0] == (42 if private else 43)


def _mapped_again(arena):
    there = Arena.__new__(Arena)
    descriptor = _Descriptor(os.dup(arena.descriptor))
    there.__setstate__({"descriptor": descriptor, "nbytes": arena.nbytes, "private": arena.private, "bell": None})
    return there


class _Descriptor:
    def __init__(self, number: int) -> None:
        self._number = number

    def detach(self) -> int:
        return self._number


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere pages come as they are used")
def test_memory_that_is_mapped_in_takes_no_fault_a_page_where_it_is_written():
    pages = 2000
    arena = Arena(pages * mmap.PAGESIZE)
    arena.tensor(0, arena.nbytes, torch.uint8).fill_(1)

    def faults_of_writing(start):
        there = _mapped_again(arena)
        if start is not None:
            there.map_in(start, arena.nbytes - start)
        written = there.tensor(0, arena.nbytes, torch.uint8)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        written.fill_(2)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    assert faults_of_writing(None) >= pages
    if not _populates():
        pytest.skip("this kernel has no MADV_POPULATE_READ")
    assert faults_of_writing(100) < pages / 20


def _populates():
    try:
        mmap.mmap(-1, mmap.PAGESIZE).madvise(22, 0, mmap.PAGESIZE)
    except OSError:
        return False
    return True


def test_a_closed_arena_gives_its_descriptor_back_and_its_tensors_stay():
    process = psutil.Process()
    gc.collect()
    before = process.num_fds()
    arena = Arena(64)
    assert process.num_fds() > before
    tensor = arena.tensor(0, 8, torch.float64)
    arena.close()
    arena.close()
    assert tensor.fill_(2.0).sum() == 16
    del arena, tensor
    gc.collect()
    assert process.num_fds() == before, "the map's own descriptor goes with the last tensor"


def test_memory_without_a_name_leaves_nothing_in_the_file_system():
    arena = Arena(1 << 20)
    assert os.fstat(arena.descriptor).st_nlink == 0


def test_more_than_the_machine_has_is_refused_before_it_is_taken():
    needed = 2 * psutil.virtual_memory().total
    with pytest.raises(ArgumentError, match=rf"needs {needed / 1e6:,.0f} MB of shared memory, over the [\d,]+ MB left"):
        Arena(needed)
    gc.collect()  # what was not made must not fail when it is collected


def test_nothing_takes_no_memory():
    arena = Arena(0)
    assert arena.nbytes == ALIGNMENT
    assert arena.tensor(0, 0, torch.float32).shape == (0,)
    assert len(arena.array(0, 0, torch.zeros(0).numpy().dtype)) == 0
