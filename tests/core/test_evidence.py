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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *((text, "is not an evidence file") for text in ("", "[]", "{", {"kind": "gossip"})),
        *(({"rows": rows}, "is not an evidence file") for rows in ([1], 5)),
        ({"schema": 2}, "newer than"),
    ],
    ids=str,
)
def test_what_is_none_is_refused_in_a_sentence(written, changes, message):
    whole = json.loads(written.read_text())
    written.write_text(changes if isinstance(changes, str) else json.dumps({**whole, **changes}))
    refused(lambda: read_evidence(written), message)


def test_a_file_that_is_gone_is_refused(written):
    refused(lambda: read_evidence(written.with_name("gone")), "can't read", "No such file")
