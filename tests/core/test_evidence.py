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
        ({"rows": [{"error": {"relative": -1e-7}}]}, "row 0, error, relative is -1e-07"),
        ({"rows": [{}, {"error": {"max": float("nan")}}]}, "row 1, error, max is nan"),
        ({"rows": [{"skill": 1.5}]}, "row 0, skill is 1.5"),
        ({"rows": [{"entropy": "x"}]}, "row 0, entropy is 'x'"),
        ({"rows": [{"cosines": [1.0, None, -1.2]}]}, "row 0, cosines is -1.2"),
        ({"rows": [{"curve": [{"accuracy": {"4": 1.0, "8": 1.01}}]}]}, "accuracy, 8 is 1.01"),
        ({"rows": [{"samples_s": {"sdpa": [1.0, -1.0]}}]}, "samples_s, sdpa is -1.0"),
        *(
            ({"rows": [{"x": {"low": low, "ratio": 1.0, "high": 3.0}}]}, f"x is 1.0 [{low}, 3.0]")
            for low in (2.0, -2.0)
        ),
    ):
        text = changed if isinstance(changed, str) else json.dumps({**whole, **changed})
        written.write_text(text)
        refused(lambda: read_evidence(written), said)
    refused(lambda: read_evidence(written.with_name("gone")), "can't read", "No such file")


def test_what_a_name_bounds_is_numbers_and_not_the_counts_beside_them(written):
    row = {"cosine": {"long": {"value": 0.9, "n": 16}}, "skill": -70.0, "entropy": None}
    row |= {"accuracy": {"32": 1.0}, "comparison": {"low": 0.5, "ratio": 1.0, "high": 1.0}}
    written.write_text(json.dumps({**json.loads(written.read_text()), "rows": [row]}))
    assert read_evidence(written).rows == [row]
