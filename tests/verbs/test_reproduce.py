"""``attnbench reproduce``: what is printed and kept, how it ends, what is refused."""

import json

import pytest

from attnbench.core.evidence import evidence_of, read_evidence
from attnbench.core.machine import this_machine
from attnbench.features.claims import claim as claims
from attnbench.features.claims.claim import ClaimFigure, ClaimFindings, ClaimOutcome
from tests.calling import attnbench_


@pytest.fixture
def reproduce(tmp_path):
    """Calls the verb; returns its status, data and prose."""

    def call(*words):
        done = attnbench_("reproduce", *words, "--out", tmp_path / "results")
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout, done.stderr

    return call


def kept(tmp_path):
    (path,) = evidence_of(tmp_path / "results" / this_machine().name, "reproduce")
    return read_evidence(path), path


@pytest.fixture
def made_up(monkeypatch):
    """Every point of every claim gets what was published, but of those that are named."""

    def measured(changed=None, maps=()):
        def outcome(claim, request, limit_s=None):
            figures = {p.name: ClaimFigure(p.published) for p in claim.points}
            figures |= {
                name: ClaimFigure(value)
                for name, value in (changed or {}).items()
                if name in figures
            }
            return ClaimOutcome.of(claim, ClaimFindings(figures, (), (), maps), 0.5)

        monkeypatch.setattr("attnbench.features.claims.verb.outcome", outcome)
        return outcome

    return measured


def test_all_of_them_end_with_a_count(made_up, reproduce, tmp_path):
    made_up({"uniform equal": 0.5})
    status, out, _ = reproduce()
    assert status == 1
    gpus = sum(bool(claim.needs.gpu) for claim in claims.claims())
    assert f"{gpus} needs other hardware" in " ".join(out.split())
    evidence, _ = kept(tmp_path)
    assert len(evidence.rows) == len(claims.claims())


def test_claims_that_can_not_be_tried_here_are_no_finding(reproduce, tmp_path):
    status, _, err = reproduce("h200-sdpa-flash", "words-glove")
    assert status == 2 and "no claim was put to the test" in err
    assert [row["verdict"] for row in kept(tmp_path)[0].rows] == ["needs other hardware", "not run"]


def test_a_bad_file_of_vectors_is_a_sentence(reproduce, tmp_path):
    file = tmp_path / "vectors.txt"
    file.write_bytes(b"\xff\xfe\x00word 1 2\n")
    status, out, _ = reproduce("words-glove", "--embeddings", file, "--json")
    (glove,) = json.loads(out)
    assert (status, glove["verdict"]) == (2, "not run")
    assert "is not UTF-8 text; a GloVe file is" in glove["reason"]


def test_ctrl_c_keeps_what_was_found(made_up, reproduce, monkeypatch, tmp_path):
    true = made_up()

    def stopped(claim, request):
        if claim.name == "words-identity":
            raise KeyboardInterrupt
        return true(claim, request)

    monkeypatch.setattr("attnbench.features.claims.verb.outcome", stopped)
    status, _, err = reproduce("words-small", "words-identity", "words-tables")
    assert status == 130
    assert "what was found until then is kept" in err
    assert [row["verdict"] for row in kept(tmp_path)[0].rows] == ["reproduced"] + ["not run"] * 2


@pytest.mark.slow
def test_claims_of_each_kind_have_a_verdict(reproduce):
    timed = "key-bias-cost"  # the others need a minute for the gate alone
    names = ("one-head", "words-tables", "numpy-block", "words-glove", "h200-sdpa-flash", timed)
    status, out, _ = reproduce(*names, "--json", "--budget", "4")
    verdicts = {row["name"]: row["verdict"] for row in json.loads(out)}
    assert set(verdicts) == set(names)
    assert (status, verdicts["one-head"]) == (1, "not reproduced")
    assert verdicts["words-tables"] == verdicts["numpy-block"] == "reproduced"
    assert verdicts["words-glove"] == "not run"
