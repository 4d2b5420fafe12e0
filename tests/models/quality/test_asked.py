"""What becomes of a variant's row, whatever its process says or how it ends."""

from types import SimpleNamespace

import pytest

import impls
from attnbench.core.machine import this_machine
from attnbench.core.process import WorkerLost
from attnbench.features.quality import pretrained
from attnbench.features.quality.pretrained import (
    NoOriginal,
    Pair,
    Texts,
    Trial,
    Wanted,
    refused,
    rows_of,
)
from tests.models.quality.made_up import flat, original, step

TEXTS = Texts(("a", "b", "c", "d"), (Pair(0, 1, "paraphrase"), Pair(2, 3, "unrelated")), "here")
QUALITY = {
    "quality": {
        "cosines": flat(0.98, 0.001),
        "similarities": [0.7, 0.2],
        "error": {"relative": 0.1},
        "together": True,
        "wrong": "",
        "left_out": {},
    }
}


@pytest.fixture
def said():
    """Of each question, the stages that come, and then how it ends."""
    script = {"stages": [], "end": None, "asked": []}

    def stages(question, limit_s):
        script["asked"].append((question, limit_s))
        if question["do"] == "original":
            whole = original()
            yield {"original": {n: whole[n] for n in ("tokens", "plain", "similarities")}}
            yield {"floor": step(0.8)}
            return
        yield from script["stages"]
        if script["end"]:
            raise script["end"]

    script["worker"] = SimpleNamespace(messages=stages)
    return script


@pytest.fixture
def trial(said, tmp_path):
    made = Trial(TEXTS, Wanted(layers=2, distil=3), said["worker"], [], tmp_path)
    made.begin()
    return made


ROW = impls.table().find("nystrom")


def test_a_whole_answer_is_a_row_with_figures_in_short(said, trial):
    said["stages"] = [QUALITY, {"step": step(0.9)}, {"layers": [[0.9, 0.8], [1.0, 1.0]]}]
    row = trial.variant(ROW)
    assert row["status"] == "measured" and row["amiss"] == []
    assert row["cosine"]["long"]["value"] == pytest.approx(0.98)
    assert row["steps"][0]["comparison"]["verdict"] == "FASTER"
    assert [layer["value"] for layer in row["by_layer"]] == pytest.approx([0.85, 1.0])
    question, limit_s = said["asked"][-1]
    assert question["layer_texts"] == [4, 5] and limit_s == Wanted(distil=3).limit_s


@pytest.mark.parametrize(
    ("end", "status"),
    [
        (WorkerLost("its process died of SIGSEGV", ""), "crashed"),
        (WorkerLost("it was still running after 240 s", "", timed_out=True), "timed_out"),
    ],
)
def test_a_process_that_is_lost_before_it_said_anything_costs_the_variant(said, trial, end, status):
    said["end"] = end
    row = trial.variant(ROW)
    assert (row["status"], row["reason"]) == (status, str(end))


def test_a_process_that_is_lost_later_keeps_what_it_had_said(said, trial):
    said["stages"], said["end"] = [QUALITY], WorkerLost("its process died of SIGKILL", "")
    row = trial.variant(ROW)
    assert row["status"] == "measured" and row["cosine"]["long"]
    assert row["amiss"] == ["crashed: its process died of SIGKILL"]


def test_a_refusal_and_a_failure_are_told_apart(said, trial):
    said["stages"] = [{"refused": "nystrom: not that"}]
    assert trial.variant(ROW)["status"] == "refused"
    said["stages"] = [{"failed": "RuntimeError: no"}]
    assert trial.variant(ROW)["status"] == "failed"


def test_what_does_not_agree_is_wrong(said, trial):
    wrong = {"quality": {**QUALITY["quality"], "wrong": "it is off"}}
    said["stages"] = [wrong]
    row = trial.variant(ROW)
    assert (row["status"], row["reason"]) == ("wrong", "it is off")


def test_without_the_original_there_is_no_trial(tmp_path):
    worker = SimpleNamespace(messages=lambda *_: iter([{"failed": "OSError: no disk"}]))
    with pytest.raises(NoOriginal, match="the original model could not be run: OSError: no disk"):
        Trial(TEXTS, Wanted(), worker, [], tmp_path).begin()


def test_all_cores_are_asked_the_exact_ones_first():
    rows = rows_of(impls.table(), [])
    computed = [row.computes for row in rows]
    assert computed == sorted(computed, key=pretrained.ORDER.index)
    assert {"sdpa", "topk", "performer", "cosine"} <= {row.name for row in rows}
    assert all(row.level == "core" and not row.ranks for row in rows)


@pytest.mark.parametrize(
    ("name", "status", "said"),
    [
        ("retention", "refused", "retention takes the masks causal on cpu, not none"),
        ("mha", "refused", "mha is a layer; a layer calls a core"),
        ("sdpa.cudnn", "unavailable", "sdpa.cudnn"),
    ],
)
def test_who_can_not_be_tried_is_refused_by_name_before_any_process(name, status, said):
    if name == "sdpa.cudnn" and "cuda" in this_machine().devices:
        pytest.skip("there is a GPU")
    found = refused(impls.table().find(name), Wanted(), this_machine())
    assert found["status"] == status and said in found["reason"]


def test_who_takes_padding_or_no_mask_may_be_tried():
    for name in ("sdpa", "linear.elu", "mean_v"):
        assert refused(impls.table().find(name), Wanted(), this_machine()) is None
