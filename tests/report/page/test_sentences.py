"""What a report says of its runs: headlines, how sure, and what is missing."""

import re

import pytest

from attnbench.features.report.page import sentences
from attnbench.report.sentences import beside, headlines, how_sure, missing, only
from tests.report.page import runs
from tests.report.page.runs import NEAR, OWN, at, timed, untimed


def told(*records):
    return list(map(str, headlines(runs.staged(*records)[0], several_runs=False)))


def test_of_a_tie_one_is_recommended_and_doubt_and_the_only_one_and_none_are_said():
    some = [timed(f"v{n}", (1 + n / 100) * 1e-3) for n in range(6)]
    (line,) = told(*some, timed("e", 3e-3))
    assert "use v0: 1.00 ms [0.980, 1.02], tied with v1, v2, v3 and 2 more; " in line
    assert "; 3.00× [2.88, 3.12] faster than the next, e." in line
    (line,) = told(timed("sdpa", flags=["contended: 3 of 9"]), timed("b", 2e-3))
    assert re.search(r"faster than the next, b; noisy: sdpa\b.*\bcontended\.", line)
    (line,) = told(timed("sdpa"), timed("w", 2e-3, computes=NEAR))
    assert "sdpa takes 1.00 ms [0.980, 1.02]; it is the only exact variant measured" in line
    nothing = "To run forward at 64 tokens, nothing that is exactly softmax has a time."
    assert told(timed("w", computes=OWN)) == [nothing]
    assert told(untimed("a", "failed"))[0].startswith("Nothing was measured")
    busy = [timed("sdpa", 2e-3, 128, flags=["contended: 3 of 9"]), timed("matmul", 4e-3, 128)]
    (scene,), _ = runs.staged(*busy)
    first, second = sentences(scene)
    assert first.startswith("at 128: use sdpa: 2.00 ms") and first.endswith("sdpa contended")
    assert second.startswith("at 128: Nothing else")


def test_training_comes_first_and_each_phase_once_at_its_longest_regime():
    masks = (runs.CAUSAL, runs.PROBLEM.mask)
    phases = ("forward", "train", "backward")
    every = [at(n, phase=p, mask=m) for p in phases for m in masks for n in (64, 128)]
    lines = told(*(timed("sdpa", 1e-3, problem) for problem in every), timed("a", 3e-4, 256))
    start = "To run forward at 256 tokens (no mask)"
    assert [line[: len(start)] for line in lines][1] == start
    assert len(lines) == 2 and lines[0].startswith("To train at 128 tokens")


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ([("w", 1e-4, 0.7)], "but not exact: w, 10.0× as fast, 70\u00a0% fidelity to softmax ("),
        (
            [("w", 1e-4, 0.2), ("x", 2e-4, 0.4)],
            "has 50\u00a0% fidelity to softmax. Nearest: x, 5.00× as fast, 40\u00a0% fidelity.",
        ),
        ([("w", 1e-4, -3.0)], "Nothing faster has even 5\u00a0% fidelity to softmax."),
        ([("w", 1e-4, None)], "not measured: w, 10.0× as fast (approximates softmax)."),
        ([], "Nothing else measured is clearly faster, exact or not."),
    ],
)
def test_what_is_faster_and_not_exact_is_said_with_what_it_loses(others, words):
    more = [
        timed(name, median, computes=NEAR, distance=None if skill is None else runs.far(skill))
        for name, median, skill in others
    ]
    (scene,), _ = runs.staged(timed("sdpa"), *more)
    assert words in str(beside(scene.standings[0]))


def test_each_answer_is_counted_once_by_how_sure_it_is():
    flags = ["drifted: much"]
    records = [timed("a", 1e-3, n, flags=flags * (n == 256)) for n in (64, 128, 192, 256, 1024)]
    records += [timed("b", 2e-3, 64), timed("b", 1e-3, 128), timed("b", 1e-3, 192, flags=flags)]
    records += [timed("b", 2e-3, 256), timed("near", 1e-3, 1024, computes=OWN)]
    records += [timed("c", 4e-3, 128)]  # behind a tie
    assert how_sure(runs.staged(*records)[0]) == (
        "of 5 answers 1 is clear, 1 is tied, 1 is of the only exact variant, 2 are noisy; "
        "9 samples a timing at the median; 2 of 11 timings were noisy"
    )
    assert how_sure(runs.staged(timed("w", computes=OWN))[0]) == ""


def told_only(*records):
    found, _ = runs.staged(*records)
    return only(found[0].run, found)


def races(*ratios):
    """A problem for each: how many times the best ``a`` took there."""
    for n, ratio in enumerate(ratios, 1):
        yield timed("a", 1e-3 * ratio, 64 * n)
        yield timed("best" if ratio > 1 else "slow", 1e-3 if ratio > 1 else 9e-3, 64 * n)


@pytest.mark.parametrize(
    ("ratios", "near"),
    [
        ((1, 1, 1), "within 1.05× of the best on 3 of 3 problems"),
        ((1, 1, 1.2), "within 1.25× of the best on 3 of 3 problems, at worst 1.20× (f"),
        ((1,) * 9 + (2.13,), "within 1.05× of the best on 9 of 10 problems, at worst 2.13× (f"),
        ((1,) * 8 + (1.2, 2.13), "within 1.25× of the best on 9 of 10 problems, at worst 2.13× (f"),
        ((1, 1, 1, 4, 1, 5), "within 2× of the best on 4 of 6 problems, at worst 5.00× (f"),
    ],
)
def test_the_smallest_factor_that_covers_nine_in_ten_is_said(ratios, near):
    best = told_only(*races(*ratios))
    assert best.variant == "a" and best.near.startswith(near)


def test_of_few_problems_none_is_advised_and_problems_without_a_time_are_counted():
    records = [*races(1, 1, 1, 1, 1), timed("x", 1e-3, 999), timed("y", 1e-3, 999)]
    assert told_only(*records).near == "within 2× of the best on 5 of 6 problems; no time on 1"
    assert told_only(*races(1, 1)) is None


def untimed_of(*records):
    return missing(runs.staged(*records)[0])


def test_reasons_that_differ_in_numbers_alone_are_one_and_other_remedies_are_not():
    full = [untimed("a", "out_of_memory", f"it asked for {n * 3.5} GiB", n) for n in (64, 128)]
    memory, run = untimed_of(*full, *(timed("b", 1.0, n) for n in (32, 64, 128)))
    assert memory.reason.startswith("it asked for 224.0 GiB (with other numbers")
    assert memory.cells == 2 and memory.where[0].endswith(": 64; 128")
    assert (run.status, run.variants, run.cells) == ("not run", ("a",), 1)
    assert "--resume" in run.remedy and run.where[0].endswith(": 32")
    records = [untimed("a", "failed", "no", remedy="x"), untimed("b", "failed", "no")]
    found = untimed_of(*records, untimed("c", "crashed", "no"), untimed("d", "measured", ""))
    texts = [(f.status, f.remedy, f.variants) for f in found]
    assert texts[:3] == [("failed", "x", ("a",)), ("failed", "", ("b",)), ("crashed", "", ("c",))]
    assert "no time was taken" in found[3].reason
    records = [untimed("a", "failed", "no", n) for n in (64, 128)]
    (found,) = untimed_of(*records, untimed("b", "failed", "no"), timed("b", 1.0, 128))
    assert (found.variants, found.cells) == (("a", "b"), 3)
    assert found.where[0].endswith(": all lengths")  # of one of two it is not everywhere
