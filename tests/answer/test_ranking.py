"""The ranking on records made by hand: winners, ties, doubts, margins, and lengths."""

import math
import random

import pytest

import impls
from attnbench.answer.ranking import (
    FAILURES,
    LEAST_READINGS,
    MARGIN,
    Closeness,
    advised,
    answers,
    closeness,
    crossings,
    furthest,
    margin_of,
    margin_reason,
    regime,
    standings,
    stretches,
    torch_rank,
    unrest,
)
from attnbench.answer.regimes import regimes
from attnbench.core.record import FINDINGS, Memory, Status
from impls.problem import Problem
from tests.answer.lines import line, timed, untimed

nan, inf = math.nan, math.inf


def one(variant, median, low=None, high=None, *, peak=None, flags=(), least=None, **more):
    """A record of 64 tokens, with the very interval; without low and high, of no width."""
    record = timed(variant, 64, median, near=0, **more)
    low, high = low or median, high or median
    time = record.time.with_(low_s=low, high_s=high, min_s=least or low, flags=list(flags))
    record = record.with_(time=time)
    if peak is None:
        return record
    memory = Memory(peak_bytes=peak, saved_bytes=None, expected_bytes=None, method="events")
    return record.with_(memory=memory)


def only(*records):
    (answer,) = answers(records)
    return answer


# ---- one problem ---------------------------------------------------------------------------------


def test_the_fastest_is_the_winner_with_its_lead_over_the_next():
    answer = only(one("slow", 3e-3), one("fast", 1e-3, 0.9e-3, 1.1e-3), one("middle", 2e-3))
    assert (answer.winner, answer.equal, answer.next) == ("fast", (), "middle")
    lead = (answer.lead, answer.lead_low, answer.lead_high)
    assert lead == pytest.approx((2.0, 2 / 1.1, 2 / 0.9))
    assert answer.sentence() == (
        "forward, mask none, 64 tokens, b1 h8/8 d64 float32: fast is the fastest exact variant, "
        "at 1 [0.9, 1.1] ms; 2.00x [1.82, 2.22] ahead of middle"
    )
    plain = answer.to_dict()
    assert (plain["winner"], plain["next"], plain["equal"]) == ("fast", "middle", [])
    assert (plain["median_s"], plain["low_s"], plain["high_s"]) == (1e-3, 0.9e-3, 1.1e-3)
    assert (plain["lead"], plain["sentence"]) == (answer.lead, answer.sentence())
    assert plain["problem"] == answer.problem.to_dict()


@pytest.mark.parametrize(
    ("low", "tied"), [(1.04e-3, True), (1.05e-3, True), (1.1e-3, True), (1.11e-3, False)]
)
def test_intervals_within_the_margin_are_a_tie(low, tied):
    answer = only(one("a", 1e-3, 0.95e-3, 1.05e-3), one("b", 1.2e-3, low, 1.3e-3))
    assert (answer.winner, answer.equal) == ("a", ("b",) if tied else ())
    assert answer.next == (None if tied else "b")


@pytest.mark.parametrize(("median", "tied"), [(1.005e-3, True), (1.04e-3, True), (1.08e-3, False)])
def test_a_lead_within_the_margin_is_none_however_narrow_the_intervals(median, tied):
    assert only(one("a", 1e-3), one("b", median)).equal == (("b",) if tied else ())


def test_the_lead_is_over_the_first_that_does_not_tie():
    answer = only(one("a", 1e-3, 0.9e-3, 1.1e-3), one("b", 1.2e-3, 1.05e-3, 1.4e-3), one("c", 4e-3))
    assert (answer.equal, answer.next, answer.lead) == (("b",), "c", pytest.approx(4.0))
    assert "the one to use of 2 that tie" in answer.sentence()
    assert "b can't be told from it; 4.00x [3.64, 4.44] ahead of c" in answer.sentence()
    all_tie = only(one("a", 1e-3), one("b", 1.001e-3), one("c", 1.002e-3))
    assert (all_tie.equal, all_tie.next, all_tie.lead) == (("b", "c"), None, None)
    assert "ahead" not in all_tie.sentence()


def test_ties_end_at_the_first_that_is_slower():
    wide = (0.9e-3, 4e-3)
    answer = only(one("a", 1e-3), one("b", 2e-3), one("wide", 2.1e-3, *wide))
    assert (answer.equal, answer.next) == ((), "b")
    answer = only(one("a", 1e-3), one("wide", 1.9e-3, *wide), one("b", 2e-3))
    assert (answer.equal, answer.next) == (("wide",), "b")


@pytest.mark.parametrize(
    ("some", "use"),
    [
        # (variant, seconds, peak, half of the interval): neither the fastest nor the first is used
        ([("chunked", 1.0, 8), ("sdpa", 1.014, 9)], "sdpa"),
        ([("sdpa.flash", 1.0, 1), ("sdpa", 1.01, 9)], "sdpa"),
        ([("chunked", 1.0, 1), ("sdpa.math", 1.01, 9), ("flex", 1.005, 2)], "sdpa.math"),
        ([("chunked", 1.0, 1), ("flex", 1.01, 9)], "flex"),
        ([("mha", 1.0, 1), ("mha.native?need_weights=true", 1.01, 9)], None),
        ([("matmul", 1.0, 9), ("chunked?block=64", 1.02, 8), ("mine", 1.01, 7)], "mine"),
        ([("matmul", 1.0, 9), ("chunked", 1.01, 9)], "matmul"),  # as much memory: the fastest
        ([("chunked", 1.0, 8), ("sdpa", 1.2, 1)], "chunked"),  # no tie
        ([("chunked", 1.0, 8, 0.2), ("sdpa", 1.2, 1, 0.2)], "chunked"),  # of wide intervals alone
    ],
)
def test_among_ties_torchs_own_is_preferred_then_memory_then_time(some, use):
    records = [
        one(name, s, s * (1 - wide), s * (1 + wide), peak=peak)
        for name, s, peak, wide in ((*each, 0.01)[:4] for each in some)
    ]
    for order in (records, records[::-1]):
        answer = only(*order)
        assert answer.winner == (use or some[1][0])
        assert answer.time.median_s == {name: s for name, s, *_ in some}[answer.winner]


def test_the_lead_is_that_of_the_variant_advised():
    answer = only(one("matmul", 1.0), one("sdpa", 1.02), one("bmm", 2.0))
    assert (answer.winner, answer.equal, answer.next) == ("sdpa", ("matmul",), "bmm")
    assert answer.lead == pytest.approx(2.0 / 1.02)


def test_what_is_torchs_own_is_known_by_the_row():
    ranks = {name: torch_rank(name) for name in impls.table().rows}
    assert [n for n, rank in ranks.items() if rank == 0] == ["sdpa"]
    forced = {"sdpa.math", "sdpa.flash", "sdpa.efficient", "sdpa.cudnn"}
    assert {n for n, rank in ranks.items() if rank == 1} == forced
    others = {"flex", "window.flex", "blocksparse.flex", "mha.native", "block.native"}
    assert {n for n, rank in ranks.items() if rank == 2} == {*others, "torch.varlen"}


def test_only_exact_variants_with_a_time_by_the_common_clock_are_ranked():
    kinds = ("approximates softmax", "its own operator", "softmax on its own pattern")
    wild = [one(f"x{n}", 1e-6, computes=kind) for n, kind in enumerate(kinds)]
    bad = [untimed(f"y{n}", 64, s) for n, s in enumerate(Status) if s is not Status.MEASURED]
    answer = only(*wild, *bad, one("a", 2e-3))
    assert (answer.winner, answer.next) == ("a", None)
    assert "a is the only exact variant measured" in answer.sentence()
    assert list(answers([])) == list(answers(bad)) == list(answers(wild)) == []
    for seconds in (0.5e-3, 9e-3):
        other = one("c", seconds)
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
    assert ", on x: a is" in x.sentence()
    assert only(*records[:2]).node == ""
    alone, two = answers([one("a", 1.0), one("a", 0.5, world=2)])
    assert (alone.world, two.world) == (None, 2) and "over 2 processes" in two.sentence()


@pytest.mark.parametrize(
    ("median", "low", "high", "text"),
    [
        (1.234e-3, 1.2e-3, 1.3e-3, "1.23 [1.2, 1.3] ms"),
        (1.5e-5, 1.4e-5, 1.6e-5, "0.015 [0.014, 0.016] ms"),
        (2.5, 2.25, 3.125, "2500 [2250, 3125] ms"),
    ],
)
def test_the_sentence_has_the_median_and_its_interval_in_milliseconds(median, low, high, text):
    assert text in only(one("a", median, low, high)).sentence()


def test_the_words_of_a_problem_tell_it_from_others():
    changes = [
        {"q_len": 1, "phase": "decode"},
        {"inputs": "peaky"},
        {"dtype": "bfloat16"},
        {"batch": 2},
        {"heads": 16, "kv_heads": 16},
        {"kv_heads": 2},
        {"head_dim": 32, "v_head_dim": 32},
        {"v_head_dim": 32},
        {"phase": "train"},
        {"level": "layer"},
        {},
    ]
    words = [regime(Problem(q_len=64, kv_len=64).with_(**change)) for change in changes]
    assert len(set(words)) == len(changes)
    assert words[0].startswith("decode, mask none, 1 queries on 64 keys")
    assert "peaky inputs" in words[1]


def test_the_most_frugal_is_named_where_it_needs_half_the_winners_memory():
    fast = one("fast", 1e-3, peak=8 << 20)
    said = only(fast, one("frugal", 3e-3, peak=2 << 20)).sentence()
    assert "and 8 MiB" in said
    assert "frugal needs least memory, 2 MiB, at 3.00x the time" in said
    assert "least memory" not in only(fast, one("frugal", 3e-3, peak=5 << 20)).sentence()


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
    answer = only(
        *(
            one(name, t, flags=flags, least=least) if name == doubted else one(name, t)
            for name, t in times.items()
        )
    )
    assert answer.flags == ((said,) if said else ())
    assert (f"(in doubt: {said}" in answer.sentence()) == bool(said)


def failed(variant, length, status=Status.WRONG, **changes):
    record = timed(variant, length, 1.0, **changes)
    return record.with_(status=status, reason="why", time=None)


@pytest.mark.parametrize("status", [s for s in Status if s is not Status.MEASURED])
def test_a_leader_that_failed_at_another_length_is_in_doubt(status):
    assert set(FAILURES) == FINDINGS
    doubt = (f"a {FAILURES[status]} at 1,024 tokens",) if status in FINDINGS else ()
    records = [timed("a", 512, 1.0), timed("b", 512, 2.0), timed("b", 4096, 9.0)]
    records += [failed("a", n, status, batch=b) for n, b in ((4096, 1), (1024, 7), (2048, 1))]
    found = {a.problem.kv_len: (a.winner, a.flags) for a in answers(records)}
    assert found == {512: ("a", doubt), 4096: ("b", ())}


@pytest.mark.parametrize(
    "unlike",
    [{"phase": "train"}, {"dtype": "float16"}, {"inputs": "outliers"}, {"head_dim": 32}],
)
def test_a_failure_on_an_unlike_problem_or_of_a_loser_is_no_doubt(unlike):
    records = [timed("a", 512, 1.0), timed("b", 512, 1.01), timed("c", 512, 9.0)]
    (answer,) = answers([*records, failed("a", 512, **unlike), failed("c", 4096)])
    assert answer.flags == ()
    (answer,) = answers([*records, failed("b", 4096)])
    assert answer.flags == ("b is wrong at 4,096 tokens",)


# ---- the margin ----------------------------------------------------------------------------------

FLASH = "aten::_scaled_dot_product_flash_attention_for_cpu"


def fused(variant, median, *, length=128, kernels=(FLASH, "aten::empty"), peak=64, **more):
    memory = Memory(peak_bytes=peak, saved_bytes=0, expected_bytes=None, method="events")
    record = timed(variant, length, median, **more)
    return record.with_(kernels=list(kernels), memory=memory)


def test_twins_widen_the_margin_by_as_much_as_they_are_apart():
    called = fused("b", 1.2, kernels=("aten::scaled_dot_product_attention", FLASH))
    near = [fused("c", 1.0, length=256), fused("d", 1.1, length=256)]
    twins = [fused("a", 1.0), called, *near]
    found = furthest(twins)
    assert (found.one, found.other, found.apart) == ("a", "b", pytest.approx(0.2))
    assert "leads up to 20%" in margin_reason(twins) and "128 tokens" in margin_reason(twins)
    pair = [timed("e", 512, 1.0, near=0), timed("f", 512, 1.15, near=0)]
    (alone,) = answers(pair)
    *_, among = answers([*twins, *pair])
    assert (alone.next, alone.equal, alone.margin) == ("f", (), MARGIN)
    assert (among.next, among.equal, among.margin) == (None, ("f",), pytest.approx(0.2))
    assert margin_of([fused("a", 1.0), fused("b", 1.01)]) == margin_of([]) == MARGIN


@pytest.mark.parametrize(
    "other",
    [
        {"kernels": ("aten::bmm", "aten::_softmax")},
        {"kernels": (FLASH, "fmha_cutlassF")},
        {"kernels": ()},
        {"peak": 65},
        {"length": 256},
        {"flags": ("drifted",)},
        {"node": "else"},
        {"computes": "its own operator"},
        {"world": 2},
        {"phase": "train"},
        {"median": nan},
        {"median": None},
        {"median": 9e-4},
    ],
)
def test_what_is_not_the_same_work_or_not_well_measured_is_no_twin(other):
    assert furthest([fused("a", 1.0), fused("b", **{"median": 1.2, **other})]) is None
    names = ("aten::bmm", "aten::_softmax", "aten::mul")  # scores scaled, or the queries before
    assert furthest([fused("a", 1.0, kernels=names), fused("b", 1.5, kernels=names)]) is None


def canaries(readings, node=""):
    return [
        timed(f"v{n}", 256, 1e-3, node=node).with_(canary_s=reading)
        for n, reading in enumerate(readings)
    ]


def test_unrest_is_two_deviations_of_the_canarys_readings_on_each_node():
    chance = random.Random(0)
    some = canaries([1e-3 * (1 + 0.07 * chance.gauss(0, 1)) for _ in range(400)])
    assert unrest(some) == pytest.approx(0.14, rel=0.1)
    assert unrest(canaries([1e-3 * (1 + n * 1e-4) for n in range(8)] + [1e-3] * 3 + [5e-3])) < 0.01
    repeated = [1.0, 1.0, 1.0, 1.0, 1.2, 0.8, 1.1, 0.9]
    assert unrest(canaries(repeated)) == unrest(canaries(sorted(set(repeated))))
    assert unrest(canaries([1.0 + n for n in range(LEAST_READINGS - 1)])) == 0.0
    assert unrest(canaries([None] * 9)) == 0.0
    nodes = [canaries([base + n * 1e-3 for n in range(9)], f"n{base}") for base in (1.0, 2.0)]
    assert unrest([*nodes[0], *nodes[1]]) == max(map(unrest, nodes)) < 0.01


def test_unrest_widens_the_margin():
    still = canaries([1.0 + n * 1e-4 for n in range(9)])
    assert (margin_of(still), margin_reason(still)) == (MARGIN, "")
    restless = canaries([0.8, 0.9, 1.0, 1.1, 1.2])
    assert margin_of(restless) == pytest.approx(0.2965, rel=1e-3)  # 2 · 1.4826 · 0.1
    assert "leads up to 30% are said to be none" in margin_reason(restless)


# ---- over lengths --------------------------------------------------------------------------------


def standing(*records):
    (found,) = regimes(records)
    return standings(found)


@pytest.mark.parametrize(
    ("records", "leaders", "sure", "count"),
    [
        ([one("a", 1.0), one("b", 1.3)], ("a",), "clear", 2),
        ([one("a", 1.0), one("b", 1.05), one("c", 2.0)], ("a", "b"), "a tie of 2", 3),
        ([one("a", 1.0), untimed("b", 64)], ("a",), "the only one measured", 1),
        ([one("a", 1.0, flags=["contended: x"]), one("b", 2.0)], ("a",), "in doubt", 2),
        ([one("x", 1.0, computes="other"), untimed("a", 64)], (), "nothing exact was measured", 1),
        *(
            ([timed("a", 64, median), one("b", 1.0)], ("b",), "the only one measured", 1)
            for median in (None, nan, inf)
        ),
    ],
)
def test_the_standing_of_a_length(records, leaders, sure, count):
    (found,) = standing(*records)
    assert (found.leaders, found.sure, found.timed) == (leaders, sure, count)


def test_lengths_with_the_same_leaders_are_one_stretch():
    times = {128: 1.0, 1024: 2.0, 2048: 3.0, 4096: 4.0, 8192: 5.0}
    other = {128: 0.5, 1024: 3.0, 2048: 4.0, 4096: 4.01, 8192: 4.99}
    found = stretches(standing(*line("a", times), *line("b", other), failed("a", 512)))
    spans = [(s.span, set(s.last.leaders), s.last.length) for s in found]
    both = {"a", "b"}
    assert spans[0][:2] == ("128", {"b"})
    assert spans[-2:] == [("1,024 to 2,048", {"a"}, 2048), ("4,096 to 8,192", both, 8192)]
    assert found[-1].doubts == ["a is wrong at 512 tokens"] and found[0].doubts == []


def test_faster_inexact_variants_and_the_best_substitute():
    def found(**skills):
        medians = {"w": 0.97, "x": 0.25, "y": 0.5, "z": 0.8}
        others = [
            one(name, medians[name], computes="other", skill=skill)
            for name, skill in skills.items()
        ]
        return standing(one("a", 1.0), *others)[0]

    some = found(x=0.1, y=0.6, z=0.9, w=0.9)
    assert [(f.variant, f.speedup) for f in some.faster] == [("x", 4.0), ("y", 2.0), ("z", 1.25)]
    assert (some.substitute.variant, some.substitute.distance) == ("y", pytest.approx(0.4))
    none = found(x=0.1, y=0.4, z=None)
    assert (none.substitute, none.nearest.variant) == (None, "y")
    assert found(w=0.9).faster == () and found(w=0.9).nearest is None


def test_a_series_of_as_many_tokens_has_an_answer_at_each_length():
    records = [
        timed(v, 1024 // b, t * b, batch=b) for b in (4, 2, 1) for v, t in (("a", 1.0), ("b", 2.0))
    ]
    assert [(s.length, s.leaders) for s in standing(*records)] == [
        (n, ("a",)) for n in (256, 512, 1024)
    ]


LENGTHS = (128, 256, 512, 1024, 2048)


def power(factor, exponent):
    return {n: factor * n**exponent for n in LENGTHS}


def crossed(*records):
    (found,) = regimes(records)
    return crossings(found, standings(found))


def test_powers_cross_where_they_are_equal():
    (found,) = crossed(*line("square", power(1e-6, 2)), *line("linear", power(7e-4, 1)))
    assert found.estimate == pytest.approx(700)
    assert str(found) == "linear overtakes square between 512 and 1,024 (about 700)"
    three = crossed(
        *line("cube", power(1e-9, 3)),
        *line("square", power(2e-7, 2)),
        *line("linear", power(2e-4, 1)),
    )
    pairs = [("cube", "square"), ("cube", "linear"), ("square", "linear")]
    assert [(c.before, c.after) for c in three] == pairs
    assert [c.estimate for c in three] == pytest.approx([200, 447.2, 1000], rel=1e-3)


@pytest.mark.parametrize(
    ("a", "b", "brackets"),
    [
        # the medians at 128, 256, 512, 1024; None: not measured
        ((1.0, 1.0, 1.0, 1.0), (2.0, 1.02, 0.99, 0.5), [("a", "b", 128, 1024)]),  # ties within
        ((1.0, 1.04), (1.04, 1.0), []),  # no lead beyond the margin
        ((1.0, 2.0, 4.0), (2.0, 4.0, 8.0), []),  # one leads throughout
        ((1.0, 1.0, 1.0), (2.0, 0.5, 2.0), [("a", "b", 128, 256), ("b", "a", 256, 512)]),
        ((1.0, None, 4.0, None), (2.0, 2.0, 2.0, 2.0), [("a", "b", 128, 512)]),
    ],
)
def test_brackets_of_crossings(a, b, brackets):
    records = [
        timed(name, n, median)
        for name, medians in (("a", a), ("b", b))
        for n, median in zip(LENGTHS, medians, strict=False)
    ]
    found = crossed(*records)
    assert [(c.before, c.after, c.low, c.high) for c in found] == brackets
    assert all(c.low < c.estimate < c.high for c in found)


def test_inexact_and_flagged_times_decide_no_crossing():
    assert crossed(*line("a", power(1e-6, 2)), *line("x", power(1e-4, 1), computes="other")) == []
    times, flat = {128: 1.0, 512: 16.0}, {128: 2.0, 256: 2.0, 512: 2.0}
    doubted = timed("a", 256, 4.0, flags=["drifted"])
    (found,) = crossed(*line("a", times), doubted, *line("b", flat))
    assert (found.low, found.high) == (128, 512)


# ---- over all problems ---------------------------------------------------------------------------


def near(*records):
    return {c.variant: c for c in closeness(regimes(records))}


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
    assert near(*line("a", {128: 1.0, 256: 1.0})) == near() == {}
    places = [(1, 256), (1, 512), (1, 1024), (4, 256)]  # a problem on two lines counts once
    records = [timed(v, n, t, batch=b) for b, n in places for v, t in (("a", 1.0), ("b", 2.0))]
    assert [(c.problems, len(c.ratios)) for c in near(*records).values()] == [(4, 4)] * 2


@pytest.mark.parametrize(
    ("best", "sdpa", "use"),
    [
        ((1.0,) * 10, (1.0,) * 9 + (1.04,), "sdpa"),
        ((1.0,) * 10, (1.0,) * 9 + (1.3,), "sdpa"),  # on nine in ten it keeps to 1.05 as well
        ((1.0,) * 5 + (1.2,) * 5, (1.2,) * 10, "sdpa"),  # both keep to 1.25
        ((1.0,) * 10, (1.0,) * 5 + (1.2,) * 5, "best"),
        ((1.0,) * 7 + (3.0,) * 3, (1.0,) * 5 + (9.0,) * 5, "best"),  # 2 is the last factor
    ],
)
def test_torchs_own_is_advised_where_it_keeps_as_near(best, sdpa, use):
    found = [Closeness("best", best, 10), Closeness("sdpa", sdpa, 10)]
    assert advised(found).variant == use
