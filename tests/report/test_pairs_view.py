"""Pairs in words and in a table: the verdict, and all that it rests on."""

import pytest

from attnbench.core.record import Status
from attnbench.core.stats import Pairs, paired
from attnbench.features.commits import view
from attnbench.sweep.compare import Compared, counts
from impls.problem import Problem

PROBLEM = Problem(q_len=512, kv_len=512)


def compared(log_ratio, n=40, stop="decided", problem=PROBLEM):
    logs = [log_ratio + 0.0001 * (i % 5 - 2) for i in range(n)]
    return Compared(problem, Pairs(paired(logs, 0.01), [0.010] * n, [0.005] * n, stop))


STOPPED = Compared(PROBLEM, None, Status.WRONG, "a: row 3 moved")


def test_a_line_says_the_verdict_the_interval_and_what_could_have_been_seen():
    text = view.pairs_line(compared(-0.6931), "new", "old")
    assert text.startswith("forward, mask none, 512 tokens")
    assert "new is FASTER than old: 0.500 of its time [0.500, 0.500] (40 pairs; margin 1.0%" in text
    assert "would have been seen" in text


def test_a_line_of_what_could_not_be_compared_says_why():
    assert view.pairs_line(STOPPED, "new", "old").endswith("wrong: a: row 3 moved")


def test_the_table_has_both_times_in_their_own_columns(shown):
    lines = shown(view.show_pairs, [compared(-0.6931)], "new", "old").splitlines()
    head, row = lines[0].split(), lines[1]
    assert head.index("new") < head.index("old")
    assert row.index(" 5 ") < row.index(" 10 ")
    assert "FASTER" in row and "0.500–0.500" in row


@pytest.mark.parametrize(
    ("stop", "said"), [("cap", "40 (at the cap)"), ("budget", "40 (at the b"), ("decided", "40 ")]
)
def test_the_table_says_why_pairs_ended(shown, stop, said):
    assert said in shown(view.show_pairs, [compared(0.02, stop=stop)], "new", "old")


def test_verdicts_are_counted_and_reasons_given_once(shown):
    found = [compared(0.5), compared(-0.5), compared(0.0), compared(0.5), STOPPED]
    text = shown(view.show_pairs, found, "new", "old")
    assert text.splitlines()[-1] == (
        "new against old, 5 problems: FASTER on 1, SLOWER on 2, EQUIVALENT on 1, wrong on 1"
    )
    assert text.count("row 3 moved") == 1
    assert counts(found) == {"FASTER": 1, "SLOWER": 2, "EQUIVALENT": 1, "wrong": 1}


def test_pairs_fit_into_a_pipe(in_a_pipe, reason):
    capped = compared(0.0005, n=640, stop="budget")
    stopped = Compared(PROBLEM, None, Status.OUT_OF_MEMORY, reason)
    names = "mha?core=transformer_engine", "mha?core=sdpa.efficient"
    text = in_a_pipe(view.show_pairs, [capped, stopped], *names)
    assert f"out_of_memory: {PROBLEM}: {reason}" in text
    c = capped.pairs.comparison
    assert f" {c.low:.3f}–{c.high:.3f} 640 " in text
