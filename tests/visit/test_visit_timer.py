"""Our timer beside another's: here beside one that is known to be off by so much."""

import time

import pytest

from proofs import visit_timer


def twice(run):
    """The middle of twenty times, and as much again."""
    taken = []
    for _ in range(20):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return sorted(taken)[10] * 2.0


def test_a_timer_that_is_off_by_a_factor_is_told_by_that_factor(capsys):
    assert visit_timer.main(["cpu"], twice, kernels=("matmul",), lengths=(64,)) == 1
    line, last = capsys.readouterr().out.splitlines()
    assert float(line.split()[-1]) == pytest.approx(0.5, rel=0.3)
    assert last.startswith("against triton's do_bench, 1 cell:")
