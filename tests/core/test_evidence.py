"""Evidence on disk: what was written is read, what is none is a sentence."""

import json

import pytest

from attnbench.core.disk import StoreError
from attnbench.core.evidence import Evidence, evidence_of, made_here, read_evidence, save_evidence
from attnbench.core.machine import this_machine

ROWS = [{"name": "one", "ours": 1.5}, {"name": "other", "ours": None}]


@pytest.fixture
def written(tmp_path):
    return save_evidence(tmp_path, Evidence("recall", made_here(this_machine(), seeds=3), ROWS))


def test_what_was_written_is_read(written, tmp_path):
    found = read_evidence(written)
    assert (found.kind, found.rows, found.made["seeds"]) == ("recall", ROWS, 3)
    assert found.made["machine"]["name"] == this_machine().name
    assert written.parent == tmp_path / this_machine().name / "evidence"


def test_the_newest_of_a_kind_comes_first(written):
    later = written.with_name("99991231-235959-recall.json")
    later.write_text(written.read_text())
    written.with_name("99991231-235959-model.json").write_text("{}")
    assert list(evidence_of(written.parents[1], "recall")) == [later, written]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"kind": "gossip"}, "no evidence"),
        ({"rows": [1]}, "no evidence"),
        ({"rows": 5}, "no evidence"),
        ({"made": {"machine": {"name": 5}}}, "no evidence"),
        ({"made": {}}, "no evidence"),
        ({"schema": 2}, "newer than"),
        ({"schema": "new"}, "newer than"),
    ],
)
def test_what_is_none_is_refused_in_a_sentence(written, changed, said):
    written.write_text(json.dumps({**json.loads(written.read_text()), **changed}))
    with pytest.raises(StoreError, match=said):
        read_evidence(written)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"error": {"relative": -1e-7}}, "row 0, error, relative is -1e-07"),
        ({"error": {"max": float("nan")}}, "row 0, error, max is nan"),
        ({"skill": 1.5}, "row 0, skill is 1.5"),
        ({"entropy": "x"}, "row 0, entropy is 'x'"),
        ({"cosines": [1.0, None, -1.2]}, "row 0, cosines is -1.2"),
        ({"curve": [{"accuracy": {"4": 1.0, "8": 1.01}}]}, "row 0, curve, accuracy, 8 is 1.01"),
        ({"steps": [{"samples_s": {"sdpa": [1.0, -1.0]}}]}, "samples_s, sdpa is -1.0"),
        ({"comparison": {"low": 2.0, "ratio": 1.0, "high": 3.0}}, r"comparison is 1.0 \[2.0, 3.0"),
        ({"comparison": {"low": -2.0, "ratio": 1.0, "high": 3.0}}, r"comparison is 1.0 \[-2.0"),
    ],
)
def test_a_figure_that_can_be_none_of_its_kind_is_named(written, row, said):
    written.write_text(json.dumps({**json.loads(written.read_text()), "rows": [row]}))
    with pytest.raises(StoreError, match=f"is damaged: .*{said}"):
        read_evidence(written)


def test_what_a_name_bounds_is_numbers_and_not_the_counts_beside_them(written):
    rows = [
        {
            "cosine": {"long": {"value": 0.9, "n": 16}},
            "skill": -70.0,
            "entropy": None,
            "accuracy": {"32": 1.0},
            "comparison": {"low": 0.5, "ratio": 1.0, "high": 1.0},
        }
    ]
    written.write_text(json.dumps({**json.loads(written.read_text()), "rows": rows}))
    assert read_evidence(written).rows == rows


@pytest.mark.parametrize("text", ["", "[]", "{", "nul"])
def test_a_file_cut_off_is_refused(written, text):
    written.write_text(text)
    with pytest.raises(StoreError, match="no evidence"):
        read_evidence(written)


def test_a_file_that_is_not_there_is_a_sentence(tmp_path):
    with pytest.raises(StoreError, match=r"can't read .*No such file"):
        read_evidence(tmp_path / "gone.json")
