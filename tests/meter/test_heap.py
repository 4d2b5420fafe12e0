"""What the C library does with freed pages, by its own account of them."""

import ctypes
import json
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
heap.Pages(4 * MIB).set()
heap.Pages(all=True).give_back()
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
    ("pieces", "size", "everything"),
    [
        ((1000,), heap.LEAST, False),
        ((5 * MIB, 2 * MIB), 5 * MIB, False),
        ((5 * MIB, 5 * MIB, MIB), 5 * MIB, True),
        ((5 * MIB, 40 * MIB), 5 * MIB, True),  # the larger one is always the system's
    ],
)
def test_a_call_is_told_by_its_largest_piece_and_by_all_that_it_holds(pieces, size, everything):
    found = heap.learned(lambda: [torch.empty(n, dtype=torch.int8) for n in pieces])
    assert size <= found.size <= size + 2 * heap.PAGESIZE
    assert found.all is everything


FAULTS = """
import sys
from resource import RUSAGE_SELF, getrusage
from statistics import median
from attnbench.meter.cell import Bench
from attnbench.meter.memory import warm_profiler
from attnbench.meter.timer import Job
from impls import table
from impls.masks import Mask
from impls.problem import Problem

def faults(name, tokens):
    p = Problem(heads=4, kv_heads=4, q_len=tokens, kv_len=tokens, mask=Mask.parse("causal"))
    timed, seen = bench.ready(Job(table().find(name), p)).timed(), []
    for _ in range(7):
        timed.before()
        before = getrusage(RUSAGE_SELF).ru_minflt
        timed.run()
        seen.append(getrusage(RUSAGE_SELF).ru_minflt - before)
    return median(seen)

bench, tokens = Bench(), int(sys.argv[1])
warm_profiler()
print([faults(*each) for each in [("matmul", tokens), ("bmm", 768), ("matmul", tokens)]])
print(faults("sdpa", tokens))
"""


@pytest.mark.parametrize("tokens", [512, 1024])
def test_a_dense_call_faults_its_scores_in_whatever_was_measured_before_it(tokens):
    """Twice, with a longer call of another variant in between, which leaves holes in the heap."""
    command = [sys.executable, "-c", FAULTS, str(tokens)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (first, _, last), fused = map(json.loads, said.splitlines())
    scores = 2 * 4 * tokens * tokens * 4 / heap.PAGESIZE
    assert [first, last] == pytest.approx([scores, scores], rel=0.25)
    assert fused < scores / 10


def test_what_a_user_tells_the_allocator_stays(monkeypatch):
    heap._glibc.cache_clear()
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "1000000")
    try:
        assert heap._glibc() is None
        assert heap.learned(lambda: torch.empty(5 * MIB, dtype=torch.int8)) == heap.Pages()
    finally:
        heap._glibc.cache_clear()
