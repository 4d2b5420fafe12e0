"""Our timer beside another's: here beside one that is known to be off by so much."""

import time

import pytest

from proofs import visit_timer


def off_by(factor):
    def theirs(run):
        taken = []
        for _ in range(20):
            start = time.perf_counter()
            run()
            taken.append(time.perf_counter() - start)
        return sorted(taken)[len(taken) // 2] * factor

    return theirs


def test_a_timer_that_is_off_by_a_factor_is_told_by_that_factor(capsys):
    assert visit_timer.main(["cpu"], off_by(2.0), kernels=("matmul",), lengths=(64,)) == 1
    line, last = capsys.readouterr().out.splitlines()
    assert float(line.split()[-1]) == pytest.approx(0.5, rel=0.3)
    assert last.startswith("against triton's do_bench, 1 cell:")


def test_what_can_not_be_run_says_why_and_the_rest_is_compared(capsys):
    def fails(run):
        raise RuntimeError("no kernel image\nis there")

    assert visit_timer.main(["cpu"], fails, kernels=("matmul", "sdpa.cudnn"), lengths=(64,)) == 2
    first, second, last = capsys.readouterr().out.splitlines()
    assert first.endswith("RuntimeError: no kernel image")
    assert "sdpa.cudnn" in second
    assert last == "nothing was compared, for the reasons said"
