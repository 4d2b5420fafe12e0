"""Where a run comes from, and what it may be trusted for."""

import hashlib

from attnbench.features.report.provenance import about, commands
from tests.report.page import runs
from tests.report.page.runs import timed


def test_what_a_run_may_be_trusted_for_is_said(gathered):
    (run,) = gathered(
        [
            timed("a", flags=["contended: 3"]),
            timed("b", flags=["contended: 4", "drift"]),
            timed("c", canary_s=1.2e-3),
            runs.untimed("d", "wrong", canary_s=9e-3),
        ]
    )
    (run.path / "spoiled.jsonl").write_text("{}\n{}\n")
    check, noise, refused, flags, drift, again = about(run).trust
    assert check == "ruler self-check: 74/74 on this machine (2026-01-01)"
    assert noise.endswith("0.40% for calls of 1 ms")
    assert refused == "3 cells passed the checks and have a time; 1 wrong"
    assert flags == "2 of 3 times were taken while something was amiss: contended (2), drift (1)"
    assert "between 1.00 and 1.20 times its median; 1 of 3 times" in drift
    assert again.startswith("2 cells measured while the machine drifted were done again")


PARTS = (
    "machine", "settings", "code", "selfcheck", "ceilings", "started", "command", "grid", "noise",
)  # fmt: skip


def test_a_header_that_says_little_is_shown_as_it_is(gathered):
    (run,) = gathered(runs.small(), **dict.fromkeys(PARTS))
    found = about(run)
    assert all(isinstance(value, str) and value for _, value in found.facts)
    assert all(found.trust) and found.trust[1].startswith("noise floor: not measured")


def test_commands_and_facts_say_no_path_of_the_machine(gathered, tmp_path):
    asked = "attnbench run --out=/a/b/results --table /a/mine.py --mask dense:/a/m.npy --seq 64"
    (run,) = gathered(runs.small(), command=asked)
    told = "attnbench run --out=results --table mine.py --mask dense:m.npy --seq 64"
    assert commands(run) == (told, "attnbench report results/m/run0")
    facts = dict(about(run).facts)
    assert str(tmp_path) not in str(facts) and facts["compiler"] == "g++"
    digest = hashlib.sha256((run.path / "records.jsonl").read_bytes()).hexdigest()
    assert facts["records"] == f"31, sha256 {digest}"
