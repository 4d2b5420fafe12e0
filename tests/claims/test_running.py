"""A claim in a process of its own: whatever becomes of it costs that claim alone."""

from pathlib import Path

import pytest

from attnbench.features.claims.claim import ClaimRequest, ClaimVerdict
from attnbench.features.claims.trial import outcome
from tests.claims.made import claim

DEEDS = f"{Path(__file__).with_name('deeds.py')}"


def tried(deed, limit_s=60.0):
    return outcome(claim(measure=f"{DEEDS}:{deed}", timed=True), ClaimRequest(), limit_s)


@pytest.mark.parametrize(
    ("deed", "limit_s", "said"),
    [
        ("raises", 60.0, "status 1: ZeroDivisionError: a fault of ours"),
        ("segfaults", 60.0, "SIGSEGV"),
        ("refuses", 60.0, "not UTF-8 text; give one"),
        ("hangs", 1.0, "it was still running after 1 s"),
    ],
)
def test_who_fails_is_not_run_and_says_why(deed, limit_s, said):
    one = tried(deed, limit_s)
    assert one.verdict is ClaimVerdict.NOT_RUN
    assert said in one.reason
    assert bool(one.remedy) == (deed != "refuses")


def test_it_has_the_rulers_environment_and_its_own_threads():
    one = outcome(claim(measure=f"{DEEDS}:environment"), ClaimRequest(seed=7, threads=1))
    seen = dict(one.findings.tables[0].rows)
    assert seen == {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "torch": "1"}
    assert one.findings.notes == ["7"]
    assert (one.verdict, one.reason) == (ClaimVerdict.REPRODUCED, "")
    assert one.findings.figures["one"].value == 0.0
    assert one.took_s > 0
