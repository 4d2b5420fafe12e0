"""What the C library does with freed pages, by its own account of them."""

import ctypes
import subprocess
import sys

import pytest
import torch

from attnbench.gate.process_state import _MallocInfo
from attnbench.meter import heap

MIB = 1 << 20
pytestmark = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="another C library"
)
IN_A_PROCESS = """
import torch
from attnbench.meter import heap
from tests.meter.test_heap import MIB, taken_from_the_system
torch.empty(24 * MIB, dtype=torch.int8)  # from now on glibc keeps pieces of up to 24 MiB
print(taken_from_the_system(8 * MIB))
heap.give_back_from(4 * MIB)
print(taken_from_the_system(8 * MIB), taken_from_the_system(2 * MIB))
"""


def taken_from_the_system(nbytes):
    """Whether memory of this size is taken from the system, and given back when it is freed."""
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = _MallocInfo
    before = mallinfo().hblkhd
    piece = torch.empty(nbytes, dtype=torch.int8)
    there = mallinfo().hblkhd - before
    del piece
    return there >= nbytes and mallinfo().hblkhd == before


def test_pages_come_and_go_by_the_size_that_was_set_and_not_by_what_was_freed_before():
    said = subprocess.run(
        [sys.executable, "-c", IN_A_PROCESS], capture_output=True, text=True, check=True
    ).stdout
    assert said.split() == ["False", "True", "False"]


@pytest.mark.parametrize(
    ("pieces", "most"),
    [((1000,), heap.LEAST), ((2 * MIB, 5 * MIB), 5 * MIB), ((5 * MIB, 40 * MIB), 5 * MIB)],
)
def test_the_size_is_that_of_the_largest_piece_that_glibc_would_learn_from(pieces, most):
    found = heap.learned(lambda: [torch.empty(n, dtype=torch.int8) for n in pieces])
    assert most <= found <= most + 2 * heap.PAGESIZE


def test_what_a_user_tells_the_allocator_stays(monkeypatch):
    heap._mallopt.cache_clear()
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "1000000")
    try:
        assert heap._mallopt() is None
        assert heap.learned(lambda: torch.empty(5 * MIB, dtype=torch.int8)) == heap.LEAST
    finally:
        heap._mallopt.cache_clear()
