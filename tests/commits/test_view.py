"""Two variants and two runs, in a table and in words."""

from attnbench.answer.compare_runs import ComparedCell, RunsComparison
from attnbench.core.record import Status
from attnbench.core.stats import unpaired
from attnbench.features.commits import view
from impls.masks import Mask
from impls.problem import Problem

PROBLEM = Problem(q_len=64, kv_len=64, mask=Mask.parse("causal"))


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


def test_of_many_thousand_cells_those_that_differ_are_shown_and_the_rest_counted(shown):
    cells = [*[cell(variant="alike")] * 600, cell(2.0, variant="slow"), cell(0.5, variant="fast")]
    text = shown(view.runs, of_runs(*cells))
    names = [x.split()[0] for x in text.splitlines() if x.startswith(("alike", "slow", "fast"))]
    assert (names[:2], len(names)) == (["slow", "fast"], view.MOST)
    assert "202 more cells are not shown" in text
