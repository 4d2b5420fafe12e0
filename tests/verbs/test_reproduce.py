"""``attnbench reproduce``: what is printed and kept, how it ends, what is refused."""

import json

import pytest

from attnbench.core.evidence import evidence_of, read_evidence
from attnbench.core.machine import this_machine
from attnbench.features.claims import claim as claims
from tests.calling import asked


@pytest.fixture
def reproduce(tmp_path):
    """Calls the verb; returns its status, data and prose."""
    return lambda *words: asked("reproduce", *words, "--out", tmp_path / "results")


def kept(tmp_path):
    (path,) = evidence_of(tmp_path / "results" / this_machine().name, "reproduce")
    return read_evidence(path).rows


def test_all_of_them_end_with_a_count(published, reproduce, tmp_path):
    published["uniform equal"] = 0.5
    status, out, _ = reproduce()
    assert status == 1
    gpus = sum(bool(claim.needs.gpu) for claim in claims.claims())
    assert f"{gpus} needs other hardware" in " ".join(out.split())
    assert len(kept(tmp_path)) == len(claims.claims())


def test_claims_that_can_not_be_tried_here_are_no_finding(reproduce, tmp_path):
    status, _, err = reproduce("h200-sdpa-flash", "h200-llama-fa4")
    assert status == 2 and "no claim was put to the test" in err
    assert [row["verdict"] for row in kept(tmp_path)] == ["needs other hardware"] * 2


def test_ctrl_c_keeps_what_was_found(published, reproduce, tmp_path):
    published["words-identity"] = KeyboardInterrupt()
    status, _, err = reproduce("words-small", "words-identity", "numpy-block")
    assert status == 130 and "what was found until then is kept" in err
    assert [row["verdict"] for row in kept(tmp_path)] == ["reproduced"] + ["not run"] * 2


@pytest.mark.slow
def test_claims_of_each_kind_have_a_verdict(reproduce):
    timed = "key-bias-cost"  # the others need a minute for the gate alone
    names = ("one-head", "words-small", "numpy-block", "h200-sdpa-flash", timed)
    status, out, _ = reproduce(*names, "--json", "--budget", "1")
    verdicts = {row["name"]: row["verdict"] for row in json.loads(out)}
    assert set(verdicts) == set(names)
    assert (status, verdicts["one-head"]) == (1, "not reproduced")
    assert verdicts["words-small"] == verdicts["numpy-block"] == "reproduced"
