"""The parts that need no rank: shared pages, the clock of the slowest, the second clock."""

import mmap
import os
from types import SimpleNamespace

import pytest
import torch

from attnbench.meter.cell import CALLS, audit_ranks
from attnbench.meter.ranks import Pages, RanksClock
from impls.problem import Problem

PROBLEM = Problem(
    batch=2, heads=4, kv_heads=2, q_len=6, kv_len=6, head_dim=3, v_head_dim=5, phase="train"
)


def test_pages_are_the_same_memory_wherever_they_are_mapped():
    made = Pages(PROBLEM)
    other = Pages(PROBLEM, os.dup(made.file))
    for number, name in enumerate(("q", "k", "v", "out", "dout", "dq", "dk", "dv")):
        made[name].fill_(number)
    for number, name in enumerate(("q", "k", "v", "out", "dout", "dq", "dk", "dv")):
        assert bool((other[name] == number).all())  # each has a place of its own
    assert other["out"].shape == (2, 4, 6, 5)
    assert other["dk"].shape == (2, 2, 6, 3)
    other.close_file()
    made.close_file()


def test_pages_without_gradients_hold_the_ends_alone():
    pages = Pages(PROBLEM.with_(phase="forward", dtype="bfloat16"))
    assert pages["q"].dtype == torch.bfloat16
    with pytest.raises(KeyError):
        pages["dq"]
    size = os.fstat(pages.file).st_size
    pages.close_file()
    assert 0 < size < mmap.PAGESIZE


class Scripted:
    """Ranks that spend what the script says at each call."""

    def __init__(self, *script):
        self._script, self.spent, self.checked = iter(script), [0.0, 0.0], 0

    def begin(self):
        self.spent = [0.0, 0.0]

    def check(self):
        self.checked += 1

    def call(self):
        more = next(self._script)
        for rank, seconds in enumerate(more):
            self.spent[rank] += seconds


def test_a_call_takes_as_long_as_its_slowest_rank():
    ranks = Scripted((1.0, 2.0), (4.0, 3.0))
    clock = RanksClock(ranks)
    assert clock.samples(lambda: None, ranks.call, 2) == [2.0, 4.0]
    assert clock.taken == [[1.0, 2.0], [4.0, 3.0]]


def test_the_two_halves_of_a_training_step_are_added_rank_by_rank():
    ranks = Scripted((1.0, 2.0), (5.0, 1.0))
    clock = RanksClock(ranks)
    assert clock.samples(lambda: None, lambda: (ranks.call(), ranks.call()), 1) == [6.0]


def test_what_goes_before_a_call_is_not_counted_even_of_the_next():
    ranks = Scripted((9.0, 9.0), (1.0, 2.0), (9.0, 9.0), (2.0, 1.0))
    clock = RanksClock(ranks)
    assert clock.samples(ranks.call, ranks.call, 2) == [2.0, 2.0]
    assert clock.taken == [[1.0, 2.0], [2.0, 1.0]]


def audited(*script):
    ranks = Scripted(*script)
    timed = SimpleNamespace(before=lambda: None, run=ranks.call, settle=lambda: None)
    return audit_ranks(timed, ranks), ranks


def test_no_rank_can_have_taken_longer_than_the_call_from_end_to_end():
    audit, ranks = audited(*[(1e-9, 2e-9)] * CALLS)
    assert audit.implausible is None
    assert audit.clock == "e2e"
    assert ranks.checked == 1
    audit, _ = audited(*[(0.0, 100.0)] * CALLS)
    assert audit.implausible.startswith("rank 1 says that it took 1e+05 ms of a call that took")
