"""Verdicts on made-up records: who is fastest, who can't be told apart, and what is not ranked."""

import re

import pytest

from attnbench.answer.ranking import answers, regime
from attnbench.core.record import Memory, Record, Status, Time
from impls.problem import Problem

PROBLEM = Problem(q_len=64, kv_len=64)


def timed(variant, median, low=None, high=None, *, problem=PROBLEM, computes="softmax"):
    low, high = low or median, high or median
    time = Time(
        median_s=median,
        low_s=low,
        high_s=high,
        q25_s=low,
        q75_s=high,
        min_s=low,
        n=1,
        clock="host",
        stop="budget",
        samples_s=[median],
    )
    return Record(
        status=Status.MEASURED,
        variant=variant,
        problem=problem.to_dict(),
        time=time,
        computes=computes,
    )


def untimed(variant, status):
    return Record(
        status=status, reason="why", variant=variant, problem=PROBLEM.to_dict(), computes="softmax"
    )


def only(*records):
    (answer,) = answers(records)
    return answer


def test_the_fastest_is_the_winner_with_its_lead_over_the_next():
    answer = only(timed("slow", 3e-3), timed("fast", 1e-3), timed("middle", 2e-3))
    assert (answer.winner, answer.equal, answer.next) == ("fast", (), "middle")
    assert answer.lead == pytest.approx(2.0)
    assert "fast is the fastest exact variant" in answer.sentence()
    assert "2.00x [2.00, 2.00] ahead of middle" in answer.sentence()
    assert "slow" not in answer.sentence()


def test_what_another_clock_timed_is_named_and_not_ranked():
    def by(clock, record):
        return record.with_(time=record.time.with_(clock=clock))

    graphs = [by("graph", timed(name, t)) for name, t in (("a", 2e-3), ("b", 3e-3))]
    for others in (0.5e-3, 9e-3):
        answer = only(*graphs, by("e2e", timed("c", others)))
        assert (answer.winner, answer.next, answer.equal) == ("a", "b", ())
        assert answer.flags == ("c is not ranked: it is timed by the clock e2e, others by graph",)
    assert only(by("e2e", timed("c", 1e-3)), by("e2e", timed("d", 2e-3))).flags == ()


@pytest.mark.parametrize(
    ("low", "tied"), [(1.04e-3, True), (1.05e-3, True), (1.1e-3, True), (1.11e-3, False)]
)
def test_intervals_that_come_within_a_twentieth_are_a_tie(low, tied):
    answer = only(timed("a", 1e-3, 0.95e-3, 1.05e-3), timed("b", 1.2e-3, low, 1.3e-3))
    assert answer.winner == "a"
    assert answer.equal == (("b",) if tied else ())
    assert answer.next == (None if tied else "b")


@pytest.mark.parametrize(("median", "tied"), [(1.005e-3, True), (1.04e-3, True), (1.08e-3, False)])
def test_less_than_a_twentieth_apart_is_no_difference_however_narrow(median, tied):
    answer = only(timed("a", 1e-3), timed("b", median))
    assert answer.equal == (("b",) if tied else ())


def test_the_lead_is_over_the_first_that_can_be_told_apart():
    answer = only(
        timed("a", 1e-3, 0.9e-3, 1.1e-3), timed("b", 1.2e-3, 1.05e-3, 1.4e-3), timed("c", 4e-3)
    )
    assert (answer.equal, answer.next, answer.lead) == (("b",), "c", pytest.approx(4.0))
    assert re.search(r"\bb\b.*can't be told", answer.sentence())
    assert "4.00x [3.64, 4.44] ahead of c" in answer.sentence()
    assert (answer.lead_low, answer.lead_high) == (pytest.approx(4 / 1.1), pytest.approx(4 / 0.9))


def test_where_all_are_tied_nobody_is_ahead():
    answer = only(timed("a", 1e-3), timed("b", 1.001e-3), timed("c", 1.002e-3))
    assert (answer.equal, answer.next, answer.lead) == (("b", "c"), None, None)
    assert "ahead" not in answer.sentence()


def test_only_what_is_exact_is_ranked():
    others = ("approximates softmax", "its own operator", "softmax on its own pattern")
    wild = [timed(f"x{n}", 1e-6, computes=c) for n, c in enumerate(others)]
    answer = only(*wild, timed("a", 2e-3), timed("b", 4e-3))
    assert (answer.winner, answer.next, answer.equal) == ("a", "b", ())


def test_a_variant_without_a_time_is_not_ranked():
    bad = [untimed(f"x{n}", s) for n, s in enumerate(Status) if s is not Status.MEASURED]
    answer = only(*bad, timed("a", 2e-3))
    assert answer.winner == "a"
    assert "a is the only exact variant measured" in answer.sentence()
    assert "ahead" not in answer.sentence()


def test_where_nothing_exact_was_measured_there_is_no_answer():
    assert list(answers([])) == []
    assert list(answers([untimed("a", Status.WRONG)])) == []
    assert list(answers([timed("x", 1e-3, computes="its own operator")])) == []


def test_each_problem_has_its_own_answer_in_the_order_of_the_records():
    long = PROBLEM.with_(q_len=128, kv_len=128)
    found = list(
        answers(
            [
                timed("a", 2e-3, problem=long),
                timed("a", 1e-3),
                timed("b", 1e-3, problem=long),
                timed("b", 2e-3),
            ]
        )
    )
    assert [(a.problem.kv_len, a.winner) for a in found] == [(128, "b"), (64, "a")]


@pytest.mark.parametrize(
    ("median", "low", "high", "text"),
    [
        (1.234e-3, 1.2e-3, 1.3e-3, "1.23 [1.2, 1.3] ms"),
        (1.5e-5, 1.4e-5, 1.6e-5, "0.015 [0.014, 0.016] ms"),
        (2.5, 2.25, 3.125, "2500 [2250, 3125] ms"),
    ],
)
def test_the_sentence_gives_the_median_with_its_interval_in_milliseconds(median, low, high, text):
    assert text in only(timed("a", median, low, high)).sentence()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ["forward", "mask none", "64 tokens"]),
        ({"q_len": 1, "phase": "decode"}, ["decode", "1 queries on 64 keys"]),
        ({"inputs": "peaky"}, ["peaky inputs"]),
    ],
)
def test_a_problem_is_said_in_words(changes, words):
    text = regime(PROBLEM.with_(**changes))
    for word in words:
        assert word in text


def test_answers_about_unlike_problems_can_be_told_apart():
    changes = [
        {},
        {"dtype": "bfloat16"},
        {"batch": 2},
        {"heads": 16, "kv_heads": 16},
        {"kv_heads": 2},
        {"head_dim": 32, "v_head_dim": 32},
        {"v_head_dim": 32},
        {"phase": "train"},
    ]
    found = answers([timed("a", 1e-3, problem=PROBLEM.with_(**c)) for c in changes])
    assert len({a.sentence() for a in found}) == len(changes)


def test_as_plain_values_an_answer_says_the_same():
    answer = only(timed("a", 1e-3, 0.9e-3, 1.1e-3), timed("b", 3e-3))
    said = answer.to_dict()
    assert said["sentence"] == answer.sentence()
    assert (said["winner"], said["next"], said["equal"]) == ("a", "b", [])
    assert (said["median_s"], said["low_s"], said["high_s"]) == (1e-3, 0.9e-3, 1.1e-3)
    assert said["lead"] == pytest.approx(3.0)
    assert said["problem"] == PROBLEM.to_dict()


def test_what_needs_half_the_memory_is_named_with_its_price():
    def sized(name, median, peak):
        memory = Memory(peak_bytes=peak, saved_bytes=None, expected_bytes=None, method="events")
        return timed(name, median).with_(memory=memory)

    answer = only(sized("fast", 1e-3, 8 << 20), sized("frugal", 3e-3, 2 << 20))
    assert "at 1 [" in answer.sentence()
    assert "and 8 MiB" in answer.sentence()
    assert "frugal needs least memory, 2 MiB, at 3.00x the time" in answer.sentence()
    near = only(sized("fast", 1e-3, 8 << 20), sized("frugal", 3e-3, 5 << 20))
    assert "least memory" not in near.sentence()


@pytest.mark.parametrize(
    ("doubted", "least", "said"),
    [
        ("a", None, "a drifting and waited"),
        ("b", None, "b drifting and waited"),
        ("c", None, ""),
        ("c", 1e-3, "c drifting and waited"),
    ],
)
def test_an_answer_is_in_doubt_for_what_might_change_it_and_for_nothing_else(doubted, least, said):
    flags = ["drifting: the last third took longer", "it waited: 20% of each call", "drifting: x"]

    def shaky(record):
        if record.variant != doubted:
            return record
        time = record.time.with_(flags=flags, min_s=least or record.time.min_s)
        return record.with_(time=time)

    answer = only(*map(shaky, (timed("a", 1e-3), timed("b", 2e-3), timed("c", 3e-3))))
    assert answer.flags == ((said,) if said else ())
    assert ("(in doubt: " + said in answer.sentence()) == bool(said)


def test_where_the_whole_machine_drifted_that_the_cell_did_so_too_is_not_said():
    record = timed("a", 1e-3)
    for flags, said in (
        (
            ["drifting: the last third took longer", "drifted: the canary", "it waited"],
            "a drifted and waited",
        ),
        (["drifting: the last third took longer", "it waited"], "a drifting and waited"),
    ):
        answer = only(record.with_(time=record.time.with_(flags=flags)))
        assert answer.flags == (said,)


def test_unlike_machines_share_no_ranking_and_each_is_named():
    records = [
        timed("a", 1e-3).with_(node="small"),
        timed("b", 2e-3).with_(node="small"),
        timed("b", 1e-4).with_(node="big"),
    ]
    small, big = answers(records)
    assert (small.winner, small.node, small.lead) == ("a", "small", pytest.approx(2.0))
    assert (big.winner, big.node, big.next) == ("b", "big", None)
    assert ", on small: a is" in small.sentence()
    (alone,) = answers(records[:2])
    assert (alone.node, "small" in alone.sentence()) == ("", False)


def test_a_wide_interval_makes_no_choice_of_what_is_slower_than_the_next():
    answer = only(timed("a", 1e-3), timed("b", 2e-3), timed("wide", 2.1e-3, 0.9e-3, 4e-3))
    assert (answer.equal, answer.next) == ((), "b")
    answer = only(timed("a", 1e-3), timed("wide", 1.9e-3, 0.9e-3, 4e-3), timed("b", 2e-3))
    assert (answer.equal, answer.next) == (("wide",), "b")
