"""Who leads at one length and came to grief at another is in doubt where it leads."""

from pathlib import Path

import pytest

from attnbench.answer.ranking import FAILURES, answers, standings, stretches
from attnbench.answer.regimes import regimes
from attnbench.core.record import FINDINGS, Status
from impls.loading import load_file

made = load_file(Path(__file__).with_name("lines.py"))
timed = made.timed


def fell(variant, length, status=Status.WRONG, **changes):
    record = timed(variant, length, 1.0)
    problem = {**record.problem.to_dict(), **changes}
    return record.with_(status=status, reason="why", time=None, problem=problem)


def doubts(*records):
    return {a.problem.kv_len: (a.winner, a.flags) for a in answers(records)}


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (Status.WRONG, "is wrong"),
        (Status.IMPLAUSIBLE, "is implausible"),
        (Status.FAILED, "failed"),
        (Status.CRASHED, "crashed"),
        (Status.OUT_OF_MEMORY, None),
        (Status.TIMED_OUT, None),
        (Status.UNSUPPORTED, None),
    ],
)
def test_the_winner_is_in_doubt_where_it_came_to_grief_at_another_length(status, words):
    grief = () if words is None else (f"a {words} at 4,096 tokens",)
    found = doubts(
        timed("a", 512, 1.0), timed("b", 512, 2.0), fell("a", 4096, status), timed("b", 4096, 9.0)
    )
    assert found == {512: ("a", grief), 4096: ("b", ())}


def test_of_several_lengths_the_shortest_is_named():
    found = doubts(timed("a", 512, 1.0), fell("a", 4096), fell("a", 1024), fell("a", 2048))
    assert found == {512: ("a", ("a is wrong at 1,024 tokens",))}


@pytest.mark.parametrize(
    "unlike",
    [
        {"mask": "causal"},
        {"phase": "train"},
        {"dtype": "float16"},
        {"inputs": "outliers"},
        {"head_dim": 32},
    ],
)
def test_what_befell_it_on_an_unlike_problem_is_told_there_alone(unlike):
    assert fell("a", 512, **unlike).problem != fell("a", 512).problem
    assert doubts(timed("a", 512, 1.0), fell("a", 512, **unlike))[512] == ("a", ())


def test_a_batch_that_shrinks_as_sequences_grow_is_alike():
    found = doubts(timed("a", 512, 1.0), fell("a", 4096, batch=7))
    assert found == {512: ("a", ("a is wrong at 4,096 tokens",))}


def test_one_that_ties_with_the_winner_is_doubted_too_and_one_that_loses_is_not():
    rest = (fell("b", 4096), fell("c", 4096))
    near = doubts(timed("a", 512, 1.0), timed("b", 512, 1.01), timed("c", 512, 9.0), *rest)
    assert near == {512: ("a", ("b is wrong at 4,096 tokens",))}


def test_a_page_tells_it_at_each_length_that_is_led():
    records = [
        timed("a", 256, 1.0),
        timed("a", 512, 1.0),
        fell("a", 4096),
        timed("b", 256, 2.0),
        timed("b", 512, 2.0),
        timed("b", 4096, 9.0),
    ]
    (regime,) = regimes(records)
    found = standings(regime)
    assert [s.sure for s in found] == ["in doubt", "in doubt", "the only one measured"]
    first, last = stretches(found)
    assert first.doubts == ["a is wrong at 4,096 tokens"]
    assert last.doubts == []


def test_every_finding_has_its_words():
    assert set(FAILURES) == FINDINGS
