"""Two variants and two runs, in a table and in words."""

import math

import pytest

from attnbench.answer.compare_runs import ComparedCell, Difference, RunsComparison
from attnbench.core.record import Status
from attnbench.core.stats import Pairs, paired, unpaired
from attnbench.features.commits import view
from attnbench.sweep.compare import Compared
from impls.masks import Mask
from impls.problem import Problem

PROBLEM = Problem(q_len=64, kv_len=64, mask=Mask.parse("causal"))
WHERE = "forward, mask causal, 64 tokens, b1 h8/8 d64 float32"


@pytest.fixture
def shown(shown):
    """What a function prints, in a terminal so wide; in a narrow one as a single line."""

    def show(function, *given, width=400):
        text = shown(function, *given, width=width)
        if width == 400:
            return text
        assert all(len(line) <= width and line == line.rstrip() for line in text.splitlines())
        return " ".join(text.split())

    return show


def cell(ratio=1.0, n=40, **more):
    values = {
        "variant": "sdpa",
        "problem": PROBLEM,
        "status_a": Status.MEASURED,
        "status_b": Status.MEASURED,
        "memory_ratio": None,
        "across_devices": False,
        "reason": "",
        "comparison": unpaired([1.0] * n, [ratio] * n, 0.05),
        "notes": (),
    }
    return ComparedCell(**{**values, **more})


def of_runs(*cells, **more):
    values = {"a": "runs/one", "b": "runs/two", "differences": (), "cells": cells, "alike": 0}
    values |= {"only_a": (), "only_b": (), "margin": 0.05}
    return RunsComparison(**{**values, **more})


def test_two_runs_are_shown_with_how_they_differ_first_and_the_counts_last(shown):
    broken = cell(comparison=None, status_b=Status.WRONG, reason="b: it ignores [causal]")
    cells = [cell(2.0, variant="bmm", memory_ratio=1.5), broken,
             cell(0.1, variant="fa", across_devices=True, notes=("a: the machine was busy",)),
             cell(variant="cut", comparison=None, notes=("no samples",))]  # fmt: skip
    differ = (Difference("torch", "2.12.0", "2.13.0"),)
    many = tuple(f"cell {n}" for n in range(15))
    text = shown(view.runs, of_runs(*cells, differences=differ, only_b=many, alike=2))
    lines = text.splitlines()
    starts = ("a  runs/one", "b  runs/two", "torch", "b's time over a's, unpaired", "bmm", "sdpa")
    at = [next(n for n, line in enumerate(lines) if line.startswith(word)) for word in starts]
    assert at == sorted(at)
    for part in (WHERE, "SLOWER, unpaired", "2.000–2.000", " 40 ", "5.0%", "1.5"):
        assert part in lines[at[4]]
    assert "measured → wrong" in lines[at[5]]
    for said in (
        "FASTER, unpaired, across devices",
        "no verdict",
        f"sdpa on {WHERE}: b: it ignores [causal]",
        f"fa on {WHERE}: a: the machine was busy",
        "cell 11; and 3 more",
        "2 cells ended alike in both, without a time",
        "nine in ten at most",
    ):
        assert said in text
    assert lines[-1] == "1 FASTER, 1 SLOWER, 0 EQUIVALENT, 0 INCONCLUSIVE, 1 that ended worse"
    assert "settings and code are the same in both" in shown(view.runs, of_runs(cell()))


def test_of_many_thousand_cells_those_that_differ_are_shown_and_the_rest_counted(shown):
    cells = [*[cell(variant="alike")] * 600, cell(2.0, variant="slow"), cell(0.5, variant="fast")]
    text = shown(view.runs, of_runs(*cells))
    names = [x.split()[0] for x in text.splitlines() if x.startswith(("alike", "slow", "fast"))]
    assert (names[:2], len(names)) == (["slow", "fast"], view.MOST)
    assert "202 more cells are not shown" in text


def compared(log_ratio, n=40, stop="decided"):
    logs = [log_ratio + 0.0001 * (i % 5 - 2) for i in range(n)]
    return Compared(PROBLEM, Pairs(paired(logs, 0.01), [0.010] * n, [0.005] * n, stop))


STOPPED = Compared(PROBLEM, None, Status.WRONG, "a: row 3 moved")


def test_two_variants_have_their_times_in_their_own_columns_and_reasons_once(shown):
    found = [compared(-math.log(2)), compared(0.02, stop="cap"), compared(0.5), STOPPED]
    text = shown(view.show_pairs, found, "new", "old")
    head, row, capped, *_, last = text.splitlines()
    assert head.split().index("new") < head.split().index("old")
    assert row.index(" 5 ") < row.index(" 10 ")
    assert "FASTER" in row and "0.500–0.500" in row
    assert "40 (at the cap)" in capped
    assert last == "new against old, 4 problems: FASTER on 1, SLOWER on 2, wrong on 1"
    assert text.count("row 3 moved") == 1
    line = view.pairs_line(found[0], "new", "old")
    assert "new is FASTER than old: 0.500 of its time [0.500, 0.500] (40 pairs" in line
    assert view.pairs_line(STOPPED, "new", "old").endswith("wrong: a: row 3 moved")
