"""A claim in a process of its own: whatever becomes of it costs that claim alone."""

import time
from pathlib import Path

import pytest

from attnbench.features.claims.claim import ClaimRequest, ClaimVerdict
from attnbench.features.claims.reproduce import outcome
from tests.claims.made import claim
from tests.processes import gone

DEEDS = f"{Path(__file__).with_name('deeds.py')}"


def tried(deed, limit_s=60.0):
    return outcome(claim(how=f"{DEEDS}:{deed}", timed=True), ClaimRequest(), limit_s)


def test_what_was_found_comes_back():
    one = tried("well")
    assert (one.verdict, one.reason) == (ClaimVerdict.REPRODUCED, "")
    assert one.figure("one").value == 0.5
    assert one.took_s > 0


@pytest.mark.parametrize(
    ("deed", "said"),
    [
        ("raises", "status 1: ZeroDivisionError: a fault of ours"),
        ("segfaults", "SIGSEGV"),
        ("refuses", "not UTF-8 text; give one"),
    ],
)
def test_who_fails_is_not_run_and_says_why(deed, said):
    one = tried(deed)
    assert one.verdict is ClaimVerdict.NOT_RUN
    assert said in one.reason


def test_what_hangs_is_ended_at_its_limit():
    start = time.monotonic()
    one = tried("hangs", 2.0)
    assert one.verdict is ClaimVerdict.NOT_RUN
    assert one.reason == "it was still running after 2 s"
    assert one.remedy
    assert time.monotonic() - start < 15


def test_nothing_is_left_running():
    left = int(tried("leaves").findings.notes[0])
    assert gone(left)


def test_it_has_the_rulers_environment_and_its_own_threads():
    one = outcome(claim(how=f"{DEEDS}:environment"), ClaimRequest(seed=7, threads=1))
    seen = dict(one.findings.tables[0].rows)
    assert seen == {
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "passive",
        "torch": "1",
    }
    assert one.findings.notes == ["7"]
