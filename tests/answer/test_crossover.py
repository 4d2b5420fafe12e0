"""What is said of where one overtakes the other: worked out by hand, from made-up looks."""

import math

import pytest

from attnbench.core.record import Status
from attnbench.core.stats import paired
from attnbench.features.crossover.search import (
    BUDGET,
    CrossoverAnswer,
    CrossoverSearch,
    LengthRatio,
)


def look(length, ratio, margin=0.01, spread=0.0):
    """The other's time over one's."""
    logs = [math.log(ratio) + spread * (i % 9 - 4) for i in range(40)]
    return LengthRatio(length, paired(logs, margin), a_s=0.001, b_s=0.001 * ratio)


def answer(*looks, rungs=None, ended="", what="tokens", asked=None):
    lengths = [each.length for each in looks]
    search = CrossoverSearch(rungs or lengths or [64, 128])
    for each in looks:
        search.hear(each)
    asked = asked or (search.rungs[0], search.rungs[-1])
    return CrossoverAnswer("sdpa", "elu", what, asked, search, ended)


FAILED = LengthRatio(256, None, Status.OUT_OF_MEMORY, "sdpa: it needs 9 GiB")


@pytest.mark.parametrize(
    ("looks", "said"),
    [
        (
            [look(64, 1.5), look(1024, 1.2), look(1088, 0.9), look(4096, 0.2)],
            "from 64 to 1,024 tokens sdpa is faster; from 1,088 to 4,096 elu is faster. "
            "elu overtakes sdpa between 1,024 and 1,088 (160 pairs at 4 lengths)",
        ),
        (
            [look(64, 1.5), look(1088, 1.004), look(1408, 0.999, margin=0.025), look(1472, 0.9)],
            "at 64 tokens sdpa is faster; from 1,088 to 1,408 they can't be told apart at 1 to "
            "2.5 %; at 1,472 elu is faster. elu overtakes sdpa between 64 and 1,472. Where they "
            "tie, use sdpa: it is torch's own (160 pairs at 4 lengths)",
        ),
        (
            [look(64, 1.4), look(128, 1.2), FAILED],
            "sdpa is faster throughout, from 64 to 128 tokens: it takes 0.714 [0.714, 0.714] at 64 "
            "and 0.833 [0.833, 0.833] at 128 of elu's time (80 pairs at 2 lengths)",
        ),
        ([FAILED], "sdpa and elu were compared at no length"),
    ],
)
def test_the_sentence_says_who_leads_where_and_where_that_changes(looks, said):
    assert answer(*looks, asked=(64, 4096)).sentence() == said


def test_what_else_must_be_known_is_noted():
    found = answer(look(64, 1.4), look(128, 1.3), rungs=[64, 128, 256], ended=BUDGET)
    assert "the budget was spent before 256 was looked at" in found.notes()
    found.search.cut = 256
    assert "the budget was spent while 256 was looked at" in found.notes()
    assert "before" not in " ".join(found.notes())
    torn = LengthRatio(128, paired([0.3, -0.3] * 20, 0.01))
    wrong = LengthRatio(96, None, Status.WRONG, "elu: row 3 moved")
    assert answer(look(64, 1.4), wrong, torn, FAILED).notes() == [
        "at 96 they can't be compared: wrong: elu: row 3 moved",
        "from 256 on they can't be compared: out of memory: sdpa: it needs 9 GiB",
        "at 128 the pairs did not decide",
        "two crossovers within an octave of lengths would not be seen",
    ]
