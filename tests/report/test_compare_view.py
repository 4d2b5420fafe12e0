"""What the tables of a comparison say, read back from their text."""

import math
from pathlib import Path

import pytest

from attnbench.answer.compare_runs import ComparedCell, Difference, RunsComparison
from attnbench.core.checkout import Commit
from attnbench.core.record import Status
from attnbench.core.stats import Pairs, paired, unpaired
from attnbench.features.commits import view
from attnbench.features.commits.pairs import CommitCell, CommitsComparison
from impls.masks import Mask
from impls.problem import Problem

PROBLEM = Problem(q_len=64, kv_len=64, mask=Mask.parse("causal"))
WHERE = "forward, mask causal, 64 tokens, b1 h8/8 d64 float32"


def cell(ratio=1.0, **more):
    values = {
        "variant": "sdpa",
        "problem": PROBLEM,
        "status_a": Status.MEASURED,
        "status_b": Status.MEASURED,
        "memory_ratio": None,
        "across_devices": False,
        "reason": "",
        "comparison": unpaired([1.0] * 40, [ratio] * 40, 0.05),
        "notes": (),
    }
    return ComparedCell(**{**values, **more})


def of_runs(*cells, **more):
    values = {
        "a": "runs/one",
        "b": "runs/two",
        "differences": (),
        "cells": cells,
        "alike": 0,
        "only_a": (),
        "only_b": (),
        "margin": 0.05,
    }
    return RunsComparison(**{**values, **more})


def commit_cell(ratio=1.0, **more):
    comparison = paired([math.log(ratio)] * 40, 0.01)
    pairs = Pairs(comparison, [1e-3] * 40, [ratio * 1e-3] * 40, "decided")
    return CommitCell(**{"variant": "sdpa", "problem": PROBLEM, "pairs": pairs, **more})


def of_commits(*cells, changed=("impls/dense/sdpa.py",)):
    a, b = Commit("HEAD~1", "a" * 40, "the [old] way"), Commit("HEAD", "b" * 40, "the new way")
    return CommitsComparison(a, b, tuple(changed), cells, 0.01)


# ---- runs ----------------------------------------------------------------------------------------


def test_of_many_thousand_cells_those_that_differ_are_shown_and_the_rest_counted(shown):
    alike = [cell(1.0, variant="alike")] * 600
    cells = [*alike, cell(2.0, variant="slower"), cell(0.5, variant="faster")]
    text = shown(view.runs, of_runs(*cells))
    lines = [
        line.split()[0] for line in text.splitlines() if " unpaired" in line and "·" not in line
    ]
    rows = [name for name in lines if name in ("alike", "slower", "faster")]
    assert (rows[:2], len(rows)) == (["slower", "faster"], view.MOST)
    assert "202 more cells are not shown" in text
    assert "600 EQUIVALENT" in text


@pytest.mark.parametrize(
    ("ratio", "verdict"), [(2.0, "SLOWER"), (0.5, "FASTER"), (1.0, "EQUIVALENT")]
)
def test_a_line_a_cell_with_ratio_interval_verdict_and_what_could_be_seen(shown, ratio, verdict):
    text = shown(view.runs, of_runs(cell(ratio, memory_ratio=1.5)))
    (row,) = (x for x in text.splitlines() if x.startswith("sdpa"))
    for part in (
        WHERE,
        f"{verdict}, unpaired",
        f"{ratio:.3f}",
        f"{ratio:.3f}–{ratio:.3f}",
        " 40 ",
        "5.0%",
        "1.5",
    ):
        assert part in row
    assert "across devices" not in text


def test_how_the_runs_differ_comes_first_and_the_counts_last(shown):
    differ = (Difference("torch", "2.12.0", "2.13.0"), Difference("gpu 0 name", "H100", "A100"))
    found = of_runs(cell(2.0), cell(1.0, variant="bmm"), differences=differ)
    lines = shown(view.runs, found).splitlines()
    at = {
        word: next(n for n, x in enumerate(lines) if x.startswith(word))
        for word in ("a  runs/one", "b  runs/two", "torch", "gpu 0 name", "variant", "sdpa", "bmm")
    }
    assert list(at.values()) == sorted(at.values())
    assert lines[at["torch"]].split() == ["torch", "2.12.0", "2.13.0"]
    assert lines[-1] == "0 FASTER, 1 SLOWER, 1 EQUIVALENT, 0 INCONCLUSIVE"


def test_runs_that_differ_in_nothing_say_so(shown):
    text = shown(view.runs, of_runs(cell()))
    assert "machine, versions, settings and code are the same in both" in text


def test_that_the_two_were_not_measured_in_turn_is_said_with_the_margin(shown):
    text = shown(view.runs, of_runs(cell(), margin=0.08))
    assert "unpaired: the two were not measured in turn, so the margin is 8.0%" in text


def test_a_verdict_across_devices_is_marked(shown):
    text = shown(view.runs, of_runs(cell(0.1, across_devices=True)))
    assert "FASTER, unpaired, across devices" in text


def test_a_status_that_changed_stands_in_the_verdicts_place_with_its_reason_below(shown):
    broken = cell(comparison=None, status_b=Status.WRONG, reason="b: it ignores [causal]")
    text = shown(view.runs, of_runs(broken))
    assert "measured → wrong" in text
    assert f"sdpa on {WHERE}: b: it ignores [causal]" in text
    assert text.splitlines()[-1].endswith("1 that ended worse")


def test_two_times_without_a_verdict_are_no_change_of_status(shown):
    text = shown(view.runs, of_runs(cell(comparison=None, notes=("no samples",))))
    assert "no verdict" in text
    assert "measured →" not in text


def test_what_was_amiss_is_said_below(shown):
    text = shown(view.runs, of_runs(cell(notes=("a: the machine was busy",))))
    assert f"sdpa on {WHERE}: a: the machine was busy" in text


def test_cells_of_one_side_alone_are_named_up_to_a_point(shown):
    many = tuple(f"cell {n}" for n in range(11))
    text = shown(view.runs, of_runs(cell(), only_a=("x on y",), only_b=many, alike=2))
    assert "only in a: x on y" in text
    assert "only in b: cell 0; cell 1" in text
    assert "cell 7; and 3 more" in text
    assert "cell 8" not in text
    assert "2 cells ended alike in both, without a time" in text


def test_how_far_two_runs_lie_apart_is_told_of_the_middle_cell_and_of_nine_in_ten(shown):
    def off(ratio):
        return cell(comparison=unpaired([1.0] * 30, [ratio] * 30, 0.05))

    cells = [off(ratio) for ratio in (1.0, 1.01, 1 / 1.02, 1.03, 1.5)]
    text = shown(view.runs, of_runs(*cells))
    assert (
        "of 5 cells timed in both the middle one is 2.0% apart, nine in ten at most 31.2%" in text
    )
    assert "the times are 50.0% apart" in shown(view.runs, of_runs(cells[-1]))
    assert "apart" not in shown(view.runs, of_runs(cell(comparison=None)))


def test_two_runs_fit_into_a_pipe(in_a_pipe, reason):
    """With all that makes a line of the table long, and none of its numbers broken."""
    long = cell(
        0.1,
        variant="transformer_engine",
        across_devices=True,
        memory_ratio=1.25,
        comparison=unpaired([1.0] * 9999, [2.0] * 9999, 0.05),
    )
    broken = cell(comparison=None, status_b=Status.WRONG, reason=reason)
    differ = [Difference("OMP_NUM_THREADS", reason, reason)]
    text = in_a_pipe(view.runs, of_runs(long, broken, differences=differ))
    for number in ("2.000", "2.000–2.000", "9999", "5.0%", "1.25"):
        assert f" {number} " in text
    assert reason in text
    a, b = (Path("x" * 150), Path("y" * 150))
    assert f"{a}" in in_a_pipe(view.runs, of_runs(long, a=str(a), b=str(b))).replace(" ", "")


def test_two_commits_fit_into_a_pipe(in_a_pipe, reason):
    long = commit_cell(2.0, variant="transformer_engine")
    text = in_a_pipe(view.commits, of_commits(long, commit_cell(pairs=None, why_b=reason)))
    assert " 2.000–2.000 " in text
    assert reason in text


# ---- commits -------------------------------------------------------------------------------------


def test_two_commits_are_named_with_what_changed_in_between(shown):
    lines = shown(view.commits, of_commits(commit_cell())).splitlines()
    assert lines[0] == "a  aaaaaaa (HEAD~1)  the [old] way"
    assert lines[1] == "b  bbbbbbb (HEAD)  the new way"
    assert lines[2] == "changed in between: impls/dense/sdpa.py"
    same = shown(view.commits, of_commits(commit_cell(), changed=()))
    assert "changed in between: nothing: impls is the same in both" in same


def test_a_cell_of_two_commits_has_times_ratio_verdict_and_pairs(shown):
    text = shown(view.commits, of_commits(commit_cell(2.0)))
    (row,) = (x for x in text.splitlines() if x.startswith("sdpa"))
    for part in (WHERE, "SLOWER", " 1 ", " 2 ", "2.000", "2.000–2.000", " 40", "1.0%"):
        assert part in row
    assert "unpaired" not in text
    assert text.splitlines()[-1] == "0 FASTER, 1 SLOWER, 0 EQUIVALENT, 0 INCONCLUSIVE"


@pytest.mark.parametrize(
    ("why", "word"),
    [
        ({"why_b": "gone"}, "not by b"),
        ({"why_a": "not yet"}, "not by a"),
        ({"why_a": "no", "why_b": "no"}, "not by a nor b"),
    ],
)
def test_a_cell_that_a_commit_could_not_take_says_which_and_why(shown, why, word):
    text = shown(view.commits, of_commits(commit_cell(pairs=None, **why)))
    assert word in text
    assert f"sdpa on {WHERE}: {next(iter(why.values()))}\n" in text


def test_one_cell_as_a_sentence():
    said = view.line(commit_cell(2.0))
    assert said.startswith(f"sdpa on {WHERE}: b is SLOWER than a: 2.000 of its time")
    lost = view.line(commit_cell(pairs=None, why_b="commit b: gone"))
    assert lost == f"sdpa on {WHERE}: commit b: gone"


def test_a_device_other_than_the_cpu_is_named(shown):
    on_cuda = PROBLEM.with_(device="cuda")
    assert f"{WHERE} on cuda" in shown(view.runs, of_runs(cell(problem=on_cuda)))
