"""What the page's script draws from: ceilings, and why a length has no winner."""

import pytest

from attnbench.core.record import Ranks
from attnbench.features.report.facts import Roof, roof, why_none
from tests.report.page import runs
from tests.report.page.runs import at, other, timed, untimed

CEILINGS = {"flops": {"float32": 1e11}, "copy": {"1024": 4e10, "4096": 8e10, "65536": 2e10}}
NODES = {"slow": {"ceilings": {"flops": {"float32": 1e9}, "copy": {"8": 1e9}}}}
FOUR = Ranks(world=4, time_s=[], peak_bytes=[], sent_bytes=[], backend="gloo")


@pytest.mark.parametrize(
    ("record", "ceilings"),
    [
        ({}, Roof(flops=1e11, memory=2e10, cache=8e10)),
        ({"node": "slow"}, Roof(1e9, 1e9, 1e9)),
        ({"node": "other"}, Roof(1e11, 2e10, 8e10)),
        ({"ranks": FOUR}, Roof(4e11, 8e10, 3.2e11)),
    ],
)
def test_the_roof_is_of_the_machine_that_measured_and_of_all_its_processes(record, ceilings):
    (scene,), _ = runs.staged(timed("a", **record), ceilings=CEILINGS, nodes=NODES)
    assert roof(scene) == ceilings


def test_there_is_no_roof_without_ceilings():
    (scene,), _ = runs.staged(timed("a"), ceilings={})
    assert roof(scene) is None


NEVER = [untimed(f"n{k}", "unavailable", problem=512) for k in range(5)]


@pytest.mark.parametrize(
    ("records", "why"),
    [
        (NEVER, "not available"),
        ([*NEVER, untimed("a", "out_of_memory", problem=512)], "out of memory"),
        ([other("b", 1.0, 512)], "nothing exact, others timed"),
        ([timed("a", 1.0, at(512, phase="decode").with_(q_len=1))], "not run"),
    ],
)
def test_a_length_that_nobody_won_says_why_and_what_was_tried_goes_before_the_rest(records, why):
    (scene, *_), _ = runs.staged(timed("a", 1.0, 256), *records)
    assert why_none(scene, 512) == why
