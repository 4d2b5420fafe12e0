"""The ranking on records made by hand: winners, ties, doubts, margins, and lengths."""

import math
import random

import pytest

from attnbench.answer import ranking, standings
from attnbench.answer.ranking import (
    MARGIN,
    answers,
    canary_spread,
    margin_of,
    margin_reason,
    same_kernel_spread,
)
from attnbench.answer.regimes import regimes
from attnbench.core.record import FINDINGS, Status
from tests.answer.build import line, memory, timed, untimed

nan = math.nan


def one(variant, median, low=None, high=None, *, peak=None, flags=(), least=None, **more):
    """A record of 64 tokens, with the very interval; without low and high, of no width."""
    record = timed(variant, 64, median, near=0, **more)
    low, high = low or median, high or median
    time = record.time.with_(low_s=low, high_s=high, min_s=least or low, flags=list(flags))
    return record.with_(time=time, memory=peak and memory(peak))


def only(*records):
    (answer,) = answers(records)
    return answer


@pytest.mark.parametrize(
    ("others", "winner", "equal", "after", "lead"),
    [
        # (variant, seconds, low, high) beside a: 1.0 [0.95, 1.05]
        ([("b", 1.2, 1.1, 1.3)], "a", ("b",), None, None),
        ([("b", 1.2, 1.11, 1.3)], "a", (), "b", 1.2),
        ([("b", 1.04)], "a", ("b",), None, None),  # however narrow the interval
        ([("b", 1.2, 1.05, 1.4), ("c", 4.0)], "a", ("b",), "c", 4.0),
        ([("b", 2.0), ("wide", 2.1, 0.9, 4.0)], "a", (), "b", 2.0),  # ties end at b
        ([("wide", 1.9, 0.9, 4.0), ("b", 2.0)], "a", ("wide",), "b", 2.0),
        ([("sdpa", 1.02), ("bmm", 2.0)], "sdpa", ("a",), "bmm", 2.0 / 1.02),
        # b is beaten by a, and not by the wider sdpa, which is used
        (
            [("sdpa", 1.02, 0.9, 1.2), ("b", 1.2, 1.11, 1.3), ("c", 4.08)],
            "sdpa",
            ("a",),
            "c",
            4.0,
        ),
    ],
)
def test_what_ties_with_the_fastest_and_what_is_next(others, winner, equal, after, lead):
    others = [(v, s, *(ends or (s, s))) for v, s, *ends in others]
    answer = only(one("a", 1.0, 0.95, 1.05), *(one(*each) for each in others))
    assert (answer.winner, answer.equal, answer.next) == (winner, equal, after)
    assert (answer.lead and answer.lead.value) == (lead and pytest.approx(lead))


@pytest.mark.parametrize(
    ("some", "use"),
    [
        # (variant, seconds, peak, half of the interval): neither the fastest nor the first is used
        ([("chunked", 1.0, 8), ("sdpa", 1.014, 9)], "sdpa"),
        ([("sdpa.flash", 1.0, 1), ("sdpa", 1.01, 9)], "sdpa"),
        ([("chunked", 1.0, 1), ("sdpa.math", 1.01, 9), ("flex", 1.005, 2)], "sdpa.math"),
        ([("chunked", 1.0, 1), ("flex", 1.01, 9)], "flex"),
        ([("matmul", 1.0, 9), ("chunked?block=64", 1.02, 8), ("mine", 1.01, 7)], "mine"),
        ([("matmul", 1.0, 9), ("chunked", 1.01, 9)], "matmul"),  # as much memory: the fastest
        ([("chunked", 1.0, 8), ("sdpa", 1.2, 1)], "chunked"),  # no tie
        ([("chunked", 1.0, 8, 0.2), ("sdpa", 1.2, 1, 0.2)], "sdpa"),  # by wide intervals
        ([("chunked", 1.0, 8, 0.2), ("mine", 1.2, 1, 0.2)], "chunked"),
    ],
)
def test_among_ties_torchs_own_is_preferred_then_memory_then_time(some, use):
    records = [
        one(name, s, s * (1 - wide), s * (1 + wide), peak=peak)
        for name, s, peak, wide in ((*each, 0.01)[:4] for each in some)
    ]
    assert only(*records).winner == only(*records[::-1]).winner == use


def test_only_exact_variants_with_a_time_by_the_common_clock_are_ranked():
    kinds = ("approximates softmax", "its own operator", "softmax on its own pattern")
    wild = [one(f"x{n}", 1e-6, computes=kind) for n, kind in enumerate(kinds)]
    bad = [untimed(f"y{n}", 64, s) for n, s in enumerate(Status) if s is not Status.MEASURED]
    answer = only(*wild, *bad, one("a", 2e-3))
    assert (answer.winner, answer.next) == ("a", None)
    assert list(answers([])) == list(answers(bad)) == list(answers(wild)) == []
    other = one("c", 0.5e-3)
    other = other.with_(time=other.time.with_(clock="e2e"))
    answer = only(one("a", 2e-3), one("b", 3e-3), other)
    assert (answer.winner, answer.next, answer.equal) == ("a", "b", ())
    assert answer.flags == ("c is not ranked: it is timed by the clock e2e, others by host",)


def test_unlike_problems_nodes_and_worlds_are_ranked_apart():
    long = [timed("a", 128, 2e-3), timed("b", 128, 1e-3)]
    found = list(answers([long[0], one("a", 1e-3), long[1], one("b", 2e-3)]))
    assert [(a.problem.kv_len, a.winner) for a in found] == [(128, "b"), (64, "a")]
    records = [one(v, s, node=n) for v, s, n in (("a", 1, "x"), ("b", 2, "x"), ("b", 0.1, "y"))]
    x, y = answers(records)
    assert (x.winner, x.node, x.next) == ("a", "x", "b") and (y.winner, y.next) == ("b", None)
    assert x.where.endswith("forward, on x")
    assert only(*records[:2]).node == ""
    alone, two = answers([one("a", 1.0), one("a", 0.5, world=2)])
    assert (alone.world, two.world) == (None, 2) and two.where.endswith("over 2 processes")


DRIFTING, DRIFTED, WAITED = "drifting: x", "drifted: the canary", "it waited: 20% of each call"


@pytest.mark.parametrize(
    ("doubted", "least", "flags", "said"),
    [
        ("a", None, [DRIFTING, WAITED, DRIFTING], "a drifting and waited"),
        ("b", None, [DRIFTING, WAITED], "b drifting and waited"),
        ("c", None, [DRIFTING, WAITED], ""),
        ("c", 1e-3, [DRIFTING, WAITED], "c drifting and waited"),  # its fastest call might have won
        ("a", None, [DRIFTING, DRIFTED, WAITED], "a drifted and waited"),
    ],
)
def test_flags_that_might_change_the_answer_cast_doubt_on_it(doubted, least, flags, said):
    times = {"a": 1e-3, "b": 2e-3, "c": 3e-3}
    more = {doubted: {"flags": flags, "least": least}}
    answer = only(*(one(name, t, **more.get(name, {})) for name, t in times.items()))
    assert answer.flags == ((said,) if said else ())


def failed(variant, length, status=Status.WRONG, **changes):
    record = timed(variant, length, 1.0, **changes)
    return record.with_(status=status, reason="why", time=None)


@pytest.mark.parametrize("status", [Status.WRONG, Status.OUT_OF_MEMORY])
def test_a_leader_that_failed_at_another_length_is_in_doubt(status):
    assert set(ranking.FAILURES) == FINDINGS
    doubt = (f"a {ranking.FAILURES[status]} at 1,024 tokens",) if status in FINDINGS else ()
    records = [timed("a", 512, 1.0), timed("b", 512, 2.0), timed("b", 4096, 9.0)]
    records += [failed("a", n, status, batch=b) for n, b in ((4096, 1), (1024, 7), (2048, 1))]
    records += [failed("a", 256, phase="train"), failed("b", 256)]  # another problem, a loser
    found = {(a.problem.kv_len, a.problem.phase): (a.winner, a.flags) for a in answers(records)}
    assert found[512, "forward"] == ("a", doubt)


FLASH = "aten::_scaled_dot_product_flash_attention_for_cpu"


def fused(variant, median, *, length=128, kernels=(FLASH, "aten::empty"), peak=64, **more):
    record = timed(variant, length, median, **more)
    return record.with_(kernels=list(kernels), memory=memory(peak))


def test_twins_widen_the_margin_by_as_much_as_they_are_apart():
    called = fused("b", 1.2, kernels=("aten::scaled_dot_product_attention", FLASH))
    near = [fused("c", 1.0, length=256), fused("d", 1.1, length=256)]
    twins = [fused("a", 1.0), called, *near]
    where = "(forward, mask none, 128 tokens)"
    assert same_kernel_spread(twins) == (pytest.approx(0.2), ("a", "b", where))
    assert margin_reason(twins) == (
        "intervals less than 20\u00a0% apart count as ties: a and b ran one kernel, neither noisy, "
        f"and were that far apart {where}"
    )
    pair = [timed("e", 512, 1.0, near=0), timed("f", 512, 1.15, near=0)]
    (alone,) = answers(pair)
    *_, among = answers([*twins, *pair])
    assert (alone.next, alone.equal, alone.margin) == ("f", (), MARGIN)
    assert (among.next, among.equal, among.margin) == (None, ("f",), pytest.approx(0.2))
    assert margin_of([fused("a", 1.0), fused("b", 1.01)]) == MARGIN


BMM = {"kernels": ("aten::bmm", "aten::_softmax", "aten::mul")}


@pytest.mark.parametrize(
    ("own", "other"),
    [
        ({}, {"peak": 65}),
        ({}, {"length": 256}),
        ({}, {"world": 2}),
        ({}, {"flags": ("drifted",)}),
        ({}, {"median": 9e-4}),
        (BMM, BMM),  # what is scaled, and when, no kernel's name says
    ],
)
def test_what_is_not_the_same_work_or_not_well_measured_is_no_twin(own, other):
    assert (
        same_kernel_spread([fused("a", 1.0, **own), fused("b", **{"median": 1.2, **other})])[0]
        == 0.0
    )


def canaries(readings, node=""):
    return [timed(f"v{n}", 256, 1, node=node).with_(canary_s=s) for n, s in enumerate(readings)]


def test_unrest_is_two_deviations_of_the_canarys_readings_on_each_node():
    chance = random.Random(0)
    some = canaries([1e-3 * (1 + 0.07 * chance.gauss(0, 1)) for _ in range(400)])
    assert canary_spread(some) == pytest.approx(0.14, rel=0.1)
    repeated = [1.0, 1.0, 1.0, 1.0, 1.2, 0.8, 1.1, 0.9]
    assert canary_spread(canaries(repeated)) == canary_spread(canaries(sorted(set(repeated))))
    assert canary_spread(canaries([1.0 + n for n in range(ranking.LEAST_READINGS - 1)])) == 0.0
    nodes = [canaries([base + n * 1e-3 for n in range(9)], f"n{base}") for base in (1.0, 2.0)]
    assert canary_spread([*nodes[0], *nodes[1]]) == max(map(canary_spread, nodes)) < 0.01
    assert margin_of(nodes[0]) == MARGIN and "by that much" in margin_reason(nodes[0])
    restless = canaries([0.8, 0.9, 1.0, 1.1, 1.2])
    assert margin_of(restless) == pytest.approx(0.2965, rel=1e-3)  # 2 · 1.4826 · 0.1


LENGTHS = (128, 256, 512, 1024, 2048)


def crossed(*records):
    (found,) = regimes(records)
    return standings.crossings(found, standings.standings(found))


@pytest.mark.parametrize(
    ("ratios", "at"),
    [
        ({100: 0.5, 400: 2.0}, 200),
        ({100: 0.5, 200: 0.25, 800: 4.0}, 400),
        ({100: 1.0, 400: 2.0}, 100),
        ({100: 2.0, 300: 5.0, 400: 3.0}, 200),  # it passes one nowhere: the middle
    ],
)
def test_where_a_ratio_passes_one_is_read_off_logarithms(ratios, at):
    assert standings.equal_at(ratios) == pytest.approx(at)


@pytest.mark.parametrize(
    ("a", "b", "brackets"),
    [
        # the medians at 128, 256, 512, 1024; None: not measured; below nought: flagged
        ((1.0, 1.0, 1.0, 1.0), (2.0, 1.02, 0.99, 0.5), [("a", "b", 128, 1024)]),  # ties within
        ((1.0, 1.04), (1.04, 1.0), []),  # no lead beyond the margin
        ((1.0, 1.0, 1.0), (2.0, 0.5, 2.0), [("a", "b", 128, 256), ("b", "a", 256, 512)]),
        ((1.0, None, 4.0, None), (2.0, 2.0, 2.0, 2.0), [("a", "b", 128, 512)]),
        ((1.0, -4.0, 16.0), (2.0, 2.0, 2.0), [("a", "b", 128, 512)]),
    ],
)
def test_brackets_of_crossings(a, b, brackets):
    records = [
        timed(name, n, median and abs(median), flags=["drifted"] * ((median or 0) < 0))
        for name, medians in (("a", a), ("b", b))
        for n, median in zip(LENGTHS, medians, strict=False)
    ]
    found = crossed(*records)
    assert [(c.before, c.after, c.low, c.high) for c in found] == brackets
    assert all(c.low < c.estimate < c.high for c in found)


def near(*records):
    return {c.variant: c for c in standings.closeness(regimes(records))}


def test_closeness_counts_all_problems_with_two_exact_times():
    found = near(
        *line("a", {128: 1.0, 256: 1.0, 512: 3.0, 1024: 1.0, 2048: 1.0}),
        *line("b", {128: 1.1, 256: 2.0, 512: 1.0, 1024: 4.0}),
        timed("x", 2048, 0.1, computes="its own operator"),
        timed("c", 128, nan),
    )
    assert list(found) == ["a", "b"]
    assert (found["a"].ratios, found["a"].problems) == ((1.0, 1.0, 1.0, 3.0), 4)
    assert [found["b"].share(f) for f in (1.0, 1.5, 2.0, 3.9, 4.0)] == [0.25, 0.5, 0.75, 0.75, 1.0]
    missing = near(*line("a", {128: 2.0, 256: 2.0}), timed("b", 128, 1.0), timed("c", 256, 3.0))
    assert (missing["b"].problems, missing["b"].share(100.0)) == (2, 0.5)
    places = [(1, 256), (1, 512), (1, 1024), (4, 256)]  # a problem on two lines counts once
    records = [timed(v, n, t, batch=b) for b, n in places for v, t in (("a", 1.0), ("b", 2.0))]
    assert [(c.problems, len(c.ratios)) for c in near(*records).values()] == [(4, 4)] * 2


KERNELS = ("aten::_flash_attention_forward", "aten::empty")


def ran(variant, median, *kernels, **more):
    return one(variant, median, **more).with_(kernels=[*kernels])


PRODUCTS = ("aten::bmm", "aten::_softmax")


@pytest.mark.parametrize(
    ("own", "other"),
    [
        (KERNELS, ("aten::_cudnn_attention_forward",)),
        (KERNELS, (*KERNELS, "aten::bmm")),  # it does a part of the work outside the kernel
        (KERNELS, PRODUCTS),
        (KERNELS, ()),
        (PRODUCTS, PRODUCTS),  # in an order that no name says
    ],
)
def test_what_ran_something_else_is_a_tie(own, other):
    answer = only(ran("sdpa", 1.02e-3, *own), ran("sdpa.flash", 1e-3, *other))
    assert (answer.winner, answer.same, answer.equal) == ("sdpa", (), ("sdpa.flash",))
