"""A claim in a process of its own: whatever becomes of it costs that claim alone."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import attnbench
from attnbench.features.claims.claim import ClaimRequest, ClaimVerdict
from attnbench.features.claims.reproduce import outcome
from tests.claims.made import claim
from tests.processes import gone

ROOT = Path(attnbench.__file__).parents[1]
DEEDS = f"{Path(__file__).with_name('deeds.py')}"


def tried(deed, limit_s=60.0, **asked):
    return outcome(claim(how=f"{DEEDS}:{deed}", timed=True), ClaimRequest(**asked), limit_s)


def test_what_was_found_comes_back():
    one = tried("well")
    assert (one.verdict, one.reason) == (ClaimVerdict.REPRODUCED, "")
    assert one.figure("one").value == 0.5
    assert one.took_s > 0


@pytest.mark.parametrize(
    ("deed", "said"),
    [
        ("raises", "status 1: ZeroDivisionError: a fault of ours"),
        ("exits", "status 3"),
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
    left = int(tried("leaves").found.notes[0])
    assert gone(left)


def test_no_number_does_not_hold():
    assert tried("nan").verdict is ClaimVerdict.NOT_REPRODUCED


def test_it_has_the_rulers_environment_and_its_own_threads():
    one = outcome(claim(how=f"{DEEDS}:environment"), ClaimRequest(seed=7, threads=1))
    seen = dict(one.found.tables[0].rows)
    assert seen == {
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "passive",
        "torch": "1",
    }
    assert one.found.notes == ("7",)


def test_who_is_killed_takes_its_claims_process_along(tmp_path):
    """The parent's death closes the child's standard input."""
    code = (
        "from tests.claims.made import claim\nfrom attnbench.features.claims.claim import Asked\n"
        "from attnbench.features.claims.reproduce import outcome\n"
        f"outcome(claim(how='{DEEDS}:hangs', timed=True), Asked(), 100)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    child = _child_of(parent.pid)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert gone(child)


def _child_of(pid):
    for _ in range(200):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for child in children:
            if b"attnbench.features.claims.child" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
        time.sleep(0.05)
    raise AssertionError("no child was started")


def test_a_process_whose_parent_is_gone_before_it_asked_ends():
    child = [sys.executable, "-m", "attnbench.features.claims.child"]
    half = subprocess.run(child, input=b'{"how":', cwd=ROOT, capture_output=True, timeout=30)
    assert half.returncode == 0
