"""Evidence on disk: what was written is read, what is none is a sentence."""

import json

import pytest

from attnbench.core.evidence import Evidence, evidence_of, made_here, read_evidence, save_evidence
from attnbench.core.machine import this_machine
from tests.core.records import refused

ROWS = [{"name": "one", "ours": 1.5}, {"name": "other", "ours": None}]


@pytest.fixture
def written(tmp_path):
    return save_evidence(tmp_path, Evidence("recall", made_here(this_machine(), seeds=3), ROWS))


def test_what_was_written_is_read_and_the_newest_of_a_kind_comes_first(written, tmp_path):
    found = read_evidence(written)
    assert (found.kind, found.rows, found.made["seeds"]) == ("recall", ROWS, 3)
    assert found.made["machine"]["name"] == this_machine().name
    assert written.parent == tmp_path / this_machine().name / "evidence"
    later = written.with_name("99991231-235959-recall.json")
    later.write_text(written.read_text())
    written.with_name("99991231-235959-model.json").write_text("{}")
    again = save_evidence(tmp_path, read_evidence(written))
    assert list(evidence_of(written.parents[1], "recall")) == [later, again, written]


def test_what_is_none_is_refused_in_a_sentence(written):
    whole = json.loads(written.read_text())
    for changed, said in (
        *((text, "no evidence") for text in ("", "[]", "{", "[" * 100_000, {"kind": "gossip"})),
        *(({"rows": rows}, "no evidence") for rows in ([1], 5)),
        *(({"made": made}, "no evidence") for made in ({}, {"machine": {"name": 5}})),
        ({"schema": 2}, "newer than"),
        ({"schema": "new"}, "newer than"),
    ):
        text = changed if isinstance(changed, str) else json.dumps({**whole, **changed})
        written.write_text(text)
        refused(lambda: read_evidence(written), said)
    refused(lambda: read_evidence(written.with_name("gone")), "can't read", "No such file")
