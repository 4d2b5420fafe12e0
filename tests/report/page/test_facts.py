"""The data that the page's script draws from: why a length has no winner."""

import pytest

from attnbench.features.report.facts import why_none
from tests.report.page import runs
from tests.report.page.runs import at, other, timed, untimed

NEVER = [untimed(f"n{k}", "unavailable", problem=512) for k in range(5)]


@pytest.mark.parametrize(
    ("records", "why"),
    [
        (NEVER, "unavailable"),
        ([*NEVER, untimed("a", "out_of_memory", problem=512)], "out of memory"),
        ([other("b", 1.0, 512)], "nothing exact, others timed"),
        ([timed("a", 1.0, at(512, phase="decode").with_(q_len=1))], "not run"),
    ],
)
def test_a_length_that_nobody_won_says_why_and_what_was_tried_goes_before_the_rest(records, why):
    (scene, *_), _ = runs.staged(timed("a", 1.0, 256), *records)
    assert why_none(scene, 512) == why
