"""The choice among records with known times, what is left out and why, and when nothing is."""

import math
import re
from dataclasses import replace

import pytest

import impls
from attnbench.answer.choose import Excluded, Wants, Why, choose, make_choice, settle
from attnbench.answer.ranking import Candidate
from attnbench.core.record import Determinism, Error
from attnbench.core.stats import Interval, paired
from attnbench.sweep.compare import Compared
from impls.loading import load_function
from tests.answer.build import dense, ended, problem, seen, timed

TABLE = impls.table()
LENGTHS = (128, 256, 512, 1024, 2048)
ONE = problem()


def chosen(records, asked=ONE, **wants):
    return choose(records, asked, Wants(**wants), TABLE)


def winner(choice):
    return choice.ranking.winner.variant if choice.ranking else None


def lines(at=problem, **seconds):
    """Records of variants at five lengths, by functions of the problem."""
    return [seen(name, at(n), time(at(n))) for n in LENGTHS for name, time in seconds.items()]


def out(choice, name):
    (found,) = [e for e in choice.excluded if e.variant == name]
    return found


@pytest.mark.parametrize(
    ("records", "ranked", "said"),
    [
        (
            [seen("matmul", ONE, 2.0), seen("sdpa", ONE, 1.0)],
            [["sdpa"], "matmul"],
            "use sdpa, 1,000 ms [990, 1,010] and 16 MiB; 2.00× [1.96, 2.04] ahead of matmul",
        ),
        (
            [seen(v, ONE, s) for v, s in (("einsum", 1.5), ("matmul", 1.01), ("sdpa", 1.03))],
            [["sdpa", "matmul"], "einsum"],
            "tied with matmul; 1.46× [1.43, 1.49] ahead of einsum",
        ),
        ([seen("sdpa", ONE, 1.0)], [["sdpa"], None], "the only one that is known"),
        (
            [timed("sdpa", 64, 1.0, flags=["drifted: x", "contended: y"])],
            [["sdpa"], None],
            "(noisy: drifted and contended)",
        ),
        (  # the last record of a cell counts; a time that is no number above nought does not
            [seen("sdpa", ONE, s) for s in (5.0, 1.0)]
            + [seen("matmul", ONE, 2.0), seen("einsum", ONE, 0.0)],
            [["sdpa"], "matmul"],
            "",
        ),
        (  # of another kind of machine
            [*lines(sdpa=dense), seen("matmul", ONE, 1e-9).with_(node="b")],
            [["sdpa"], None],
            "",
        ),
    ],
)
def test_on_a_measured_problem_it_is_the_fastest_with_its_own_interval(records, ranked, said):
    found = chosen(records, records[-1].problem)
    r = found.ranking
    leaders = [r.winner.variant, *(c.variant for c in r.equal)]
    assert [leaders, r.next and r.next.variant] == ranked
    assert said in found.sentence() and r.winner.measured


def test_one_query_lies_on_the_line_of_what_was_measured_without_a_mask():
    def decoding(mask, length, queries=1):
        return problem(length, mask=mask).with_(phase="decode", q_len=queries)

    records = [
        seen(name, decoding("none", n, queries), time * n)
        for n in LENGTHS
        for name, time in (("sdpa", 1e-6), ("matmul", 2e-6))
        for queries in (1, 2)
    ]
    choice = chosen(records, decoding("causal", 700))
    assert (winner(choice), choice.ranking.winner.measured) == ("sdpa", False)
    assert chosen(records, decoding("causal@upper-left", 700)).ranking is None  # one key alone
    assert chosen(records, decoding("causal", 700, 2)).ranking is None


def test_what_is_untried_is_advised_where_it_was_measured_alone(monkeypatch):
    rows = {**TABLE.rows, "sdpa": TABLE.rows["sdpa"].with_(untried=True)}
    table, records = replace(TABLE, rows=rows), lines(sdpa=dense, matmul=lambda p: 2 * dense(p))
    measured = choose(records, problem(512), Wants(), table)
    assert winner(measured) == "sdpa" and measured.ranking.winner.measured
    found = choose(records, problem(700), Wants(), table)
    assert winner(found) == "matmul"
    assert out(found, "sdpa").why is Why.UNTRIED
    assert "sdpa" in [e.variant for e in found.unknown]


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (problem(heads=64), "outside what was measured (its shape was not measured)"),
        (
            problem(4096),
            "outside what was measured (of its shape 128 to 2,048 tokens were measured)",
        ),
        (problem(mask="causal@upper-left"), "outside what was measured (its shape was not"),
        (problem(mask="window:64,0"), "nothing of this phase, dtype, kind of mask, inputs, level"),
        (
            problem(700),
            "matmul may be faster than sdpa, and its time there is only known to within",
        ),
    ],
)
def test_where_too_little_is_known_nothing_is_said(asked, why):
    noisy = lines(matmul=lambda p: dense(p) / 20 * (9.0 if p.kv_len in (256, 1024) else 1.0))
    found = chosen([*lines(sdpa=dense), *noisy], asked)
    assert found.ranking is None
    assert found.why_not.startswith(why) and why in found.sentence()


@pytest.mark.parametrize(
    ("about_s", "at_best_s", "answered", "unknown"),
    [
        (0.9, 0.5, False, True),
        (1.005, 0.5, False, True),
        (1.01, 0.5, True, True),
        (1.02, 1.01, True, False),
        (None, None, True, True),
    ],
)
def test_a_rival_of_uncertain_time_is_faster_for_all_that_is_known(
    about_s, at_best_s, answered, unknown
):
    """The best takes 0.99 to 1.01 s."""
    best = Candidate("a", "softmax", 1.0, 0.99, 1.01, measured=True)
    time = None if about_s is None else Interval(about_s, at_best_s, 2 * about_s)
    rival = Excluded("b", Why.UNKNOWN, "its time is not known", time=time)
    choice = make_choice(ONE, Wants(), [best, rival], margin=0.05)
    assert (choice.ranking is not None, choice.unknown) == (answered, [rival] * unknown)


SAME, FROM_CALL_TO_CALL = (
    Determinism(repeats=True, batch=True, place=True),
    Determinism(repeats=False),
)
APART = Determinism(repeats=True, batch=False, place=True)
SLOWLY_BUILT = Determinism(repeats=True, why="building took 3 s")


@pytest.mark.parametrize(
    ("bits", "why", "said"),
    [
        (SAME, None, ""),
        (APART, Why.BITS, "not across batches, on b1"),
        (FROM_CALL_TO_CALL, Why.BITS, "not over repeats, on b1"),
        (SLOWLY_BUILT, Why.UNKNOWN, "its bits were not tried on b1 .*: building took 3 s"),
        (None, Why.UNKNOWN, "its bits were not tried on b1 .*; a run with --same-bits tries each"),
    ],
)
def test_only_what_was_seen_to_give_the_same_bits_is_chosen_where_they_are_wanted(bits, why, said):
    fast = seen("matmul", ONE, 1.0, determinism=bits)
    records = [fast, seen("sdpa", ONE, 2.0, determinism=SAME)]
    assert winner(chosen(records)) == "matmul"
    choice = chosen(records, same_bits=True)
    assert winner(choice) == ("sdpa" if why else "matmul")
    if why:
        assert out(choice, "matmul").why is why and re.match(said, out(choice, "matmul").said)
    assert "the same bits whatever the batch" in choice.sentence()


def test_the_same_bits_of_a_length_between_are_those_of_both_around_it_and_of_no_other():
    def between(*bits):
        at = zip(LENGTHS, bits, strict=True)
        records = [seen("matmul", problem(n), n / 1e4, determinism=d) for n, d in at]
        return chosen(records, problem(700), same_bits=True)

    assert winner(between(None, None, SAME, SAME, None)) == "matmul"
    assert out(between(None, None, SAME, None, SAME), "matmul").why is Why.UNKNOWN
    assert out(between(APART, None, SAME, SAME, None), "matmul").why is Why.BITS


@pytest.mark.parametrize(
    ("wants", "best", "why"),
    [
        ({"max_memory": 50 << 20}, "matmul", ""),
        ({"max_memory": 10 << 20}, None, "--max-memory 50MiB would let matmul in"),
        (
            {"max_memory": 10 << 20, "max_error": 1e-9},
            None,
            "no variant keeps the limits; --max-memory 50MiB and --max-error 4.5e-07 would let",
        ),
        ({"allowed": ("other",)}, "linear.elu", ""),
        ({"allowed": ("other",), "max_error": 0.6}, "linear.elu", ""),
        ({"allowed": ("other",), "max_error": 0.5}, "sdpa", ""),
    ],
)
def test_limits_leave_out_and_name_what_would_do(wants, best, why):
    off = {"forward": Error(relative=4.4e-7, max=1e-6, worst_row=1e-6, cosine=1.0)}
    records = [
        seen(name, ONE, seconds, peak=peak << 20).with_(error=off)
        for name, seconds, peak in (("sdpa", 1.0, 100), ("matmul", 2.0, 50))
    ]
    other = seen("linear.elu", ONE, 0.1, computes="its own operator", error=0.6)
    choice = chosen([*records, other], **wants)
    assert winner(choice) == best and why in choice.why_not
    if "allowed" not in wants:
        assert out(choice, "linear.elu").why is Why.COMPUTES
        assert out(choice, "sdpa").said.startswith("it needs 100 MiB")
    words = "--allow pattern,approximate,other would let those in that are not exact (1)"
    assert chosen([other]).why_not.endswith(words)


@pytest.mark.parametrize(("above", "expected"), [(1.01, 1.0), (2.0, 2.0)])
def test_memory_that_was_not_measured_there_is_the_rows_formula_where_that_held(above, expected):
    def peak_of(p):
        return load_function(TABLE.find("matmul").cost)(p).peak_bytes

    records = []
    for p in map(problem, LENGTHS):
        record = seen("matmul", p, dense(p), peak=int(above * peak_of(p)))
        memory = record.memory.with_(expected_bytes=peak_of(p))
        records.append(record.with_(memory=memory))
    peak = chosen(records, problem(1500)).ranking.winner.memory_bytes
    assert peak == pytest.approx(expected * peak_of(problem(1500)), rel=1e-2)


@pytest.mark.parametrize(
    ("peaks", "why", "words"),
    [
        ((128, 256, 512, 1024, 2048), Why.MEMORY, "it needs about 1.46 GiB"),
        ((1, 100, 1, 100, 1), Why.UNKNOWN, "how much memory it needs there is not known"),
    ],
)
def test_memory_between_the_lengths_is_predicted_or_not_known(peaks, why, words):
    sizes = zip(map(problem, LENGTHS), peaks, strict=True)
    records = [seen("sdpa", p, dense(p), peak=peak << 20) for p, peak in sizes]
    reason = out(chosen(records, problem(1500), max_memory=10), "sdpa")
    assert (reason.why, reason.said) == (why, words)


def test_an_error_that_was_not_measured_there_is_the_larger_of_the_lengths_beside():
    records = []
    for n in LENGTHS:
        error = {"forward": Error(relative=1e-9 * n, max=1.0, worst_row=1.0, cosine=1.0)}
        records.append(seen("sdpa", problem(n), dense(problem(n)), error=None).with_(error=error))
    assert chosen(records, problem(700)).ranking.winner.error == pytest.approx(1.024e-6)
    assert chosen(records, problem(512)).ranking.winner.error == pytest.approx(5.12e-7)


@pytest.mark.parametrize(
    ("status", "where", "why", "said"),
    [
        ("wrong", problem(512), Why.STATUS, f"wrong on {problem(512)}: the reason"),
        ("crashed", problem(2048), Why.STATUS, f"crashed on {problem(2048)}: the reason"),
        ("out_of_memory", ONE, Why.STATUS, f"out of memory already on {ONE}: the reason"),
        ("timed_out", problem(512), Why.STATUS, f"timed out already on {problem(512)}: the reason"),
        ("unavailable", problem(512), Why.SUPPORT, "the reason"),
        ("unsupported", ONE, Why.SUPPORT, "the reason"),
        ("out_of_memory", problem(2048), None, ""),  # which says nothing of a smaller one
        ("unsupported", problem(512), None, ""),
    ],
)
def test_how_it_ended_there_or_elsewhere_leaves_a_variant_out(status, where, why, said):
    faster = [seen("matmul", ONE, 0.1)] * (where != ONE)
    found = chosen([seen("sdpa", ONE, 1.0), *faster, ended("matmul", where, status)])
    assert winner(found) == ("sdpa" if why else "matmul")
    left_out = [(e.why, e.said) for e in found.excluded if e.variant == "matmul"]
    assert left_out == [(why, said)] * bool(why)


def test_who_ran_out_of_memory_on_a_smaller_problem_is_not_tried_on_this():
    records = lines(sdpa=dense, matmul=lambda p: dense(p) / 2)
    records = [r for r in records if not (r.variant == "matmul" and r.problem.kv_len == 2048)]
    records.append(ended("matmul", problem(2048), "out_of_memory"))
    assert out(chosen(records, problem(2500)), "matmul").why is Why.STATUS
    assert winner(chosen(records, problem(700))) == "matmul"


def held(judged, against, ratio):
    """A hundred pairs whose ratios lie evenly about one."""
    logs = [math.log(ratio) + 0.002 * (i - 49.5) / 50 for i in range(100)]
    comparison = paired(logs, 0.01)
    return Compared(problem=ONE, variant=judged, against=against, comparison=comparison)


@pytest.mark.parametrize(
    ("seconds", "pairs", "leaders", "slower", "lead"),
    [
        # a tie of medians that pairs tell apart is none
        ((1.0, 1.03, 2.0), [("b", "a", 1.03)], "a", "bc", 1.03),
        ((1.0, 1.03, 2.0), [("b", "a", 0.95)], "b", "ac", 1 / 0.95),
        ((1.0, 1.03, 2.0), [("b", "a", 1.002)], "ab", "c", 2.0),
        # the fastest of several that are faster; near it another
        ((1.0, 1.03, 1.04), [("b", "a", 0.9), ("c", "a", 0.901)], "bc", "a", 1 / 0.9),
        # who was equal and was held against nobody stays equal
        ((1.0, 1.01, 1.02, 1.03, 2), [("b", "a", 1.001), ("c", "a", 1.002)], "abcd", "e", 2.0),
        # the lead of two that were held against a third
        ((1.0, 1.03, 1.01), [("b", "a", 0.8), ("c", "a", 0.9)], "b", "ca", 0.9 / 0.8),
        ((1.0, 1.03), [("sdpa", "a", 1.004)], ["sdpa", "a"], "", None),
        ((1.0, 1.03), [("sdpa", "a", 1.03)], ["a"], ["sdpa"], 1.03),
        # pairs of somebody who was not ranked change nothing
        ((1.0, 1.03), [("x", "a", 0.5)], "ab", "", None),
        ((1.0, 1.03), [("b", "x", 0.5)], "ab", "", None),
        ((1.0, 1.03), [], "ab", "", None),
    ],
)
def test_pairs_say_who_wins_who_ties_and_who_comes_next(seconds, pairs, leaders, slower, lead):
    names = ("a", "sdpa") if pairs and pairs[0][0] == "sdpa" else "abcde"
    each = zip(names, seconds, strict=False)
    known = [Candidate(n, "softmax", s, s * 0.99, s * 1.01, measured=True) for n, s in each]
    start = make_choice(ONE, Wants(), known, margin=0.05)
    found = settle(start, [held(*pair) for pair in pairs])
    r = found.ranking
    assert [r.winner.variant, *(c.variant for c in r.equal)] == list(leaders)
    assert [c.variant for c in r.slower] == list(slower)
    assert (r.lead and r.lead.value) == (lead and pytest.approx(lead, rel=1e-3))
    assert lead is None or r.lead.low <= r.lead.value <= r.lead.high
    kept = [(pair["judged"], pair["against"]) for pair in found.to_dict()["pairs"]]
    assert kept in ([], [pair[:2] for pair in pairs])


def test_what_only_the_fastest_is_ahead_of_is_in_the_json_too():
    medians = {"a": 1.0, "sdpa": 1.04, "b": 1.08, "c": 2.0}
    plain = chosen([seen(name, ONE, s) for name, s in medians.items()]).to_dict()
    assert (plain["winner"]["variant"], plain["next"]["variant"]) == ("sdpa", "c")
    rest = {name: [c["variant"] for c in plain[name]] for name in ("equal", "slower")}
    assert rest == {"equal": ["a"], "slower": ["b"]}
