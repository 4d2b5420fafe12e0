"""The parent of the trained model: its files, texts, rows and plans, with made-up answers."""

import numpy as np
import pytest

import impls
from attnbench.core.machine import this_machine
from attnbench.core.process import Worker, WorkerLost
from attnbench.core.record import Distance, Record, Status
from attnbench.core.settings import Settings
from attnbench.features.quality import pretrained
from attnbench.features.quality.pretrained import Texts, Trial, TrialOptions
from impls.errors import CantBeDone
from impls.problem import Problem
from tests.models.quality import made_up
from tests.models.quality.made_up import original, step


def test_a_file_is_a_text_a_line_each_paired_with_the_next(tmp_path):
    file = tmp_path / "own.txt"
    file.write_bytes("\ufeffOne is here.\n\n  Zwei für dich \r\nthree\nvier\n".encode())
    texts = pretrained.read_texts(file)
    assert texts.texts == ["One is here.", "Zwei für dich", "three", "vier"]
    assert texts.pairs == [(0, 1), (1, 2), (2, 3)]
    assert texts.source == "own.txt"


def test_a_file_without_texts_is_refused(tmp_path):
    for content, text in (
        (b"caf\xe9 au lait\nb\nc\nd\n", r"not UTF-8 \(byte 3\); save it as UTF-8"),
        (b"one\n\n  \n", "holds 1 texts; give 4 to 2,000"),
    ):
        file = tmp_path / "own.txt"
        file.write_bytes(content)
        with pytest.raises(CantBeDone, match=text):
            pretrained.read_texts(file)


def test_a_variant_that_can_not_be_tried_is_refused_before_any_process():
    for name, status, reason in (
        ("retention", "refused", "retention takes the masks causal on cpu, not none"),
        ("mha", "refused", "mha is a layer"),
        ("sdpa", None, ""),
    ):
        refusal = pretrained.refusal(impls.table().find(name), TrialOptions(), this_machine())
        assert (refusal and refusal["status"]) == status
        assert reason in (refusal or {}).get("reason", "")


TEXTS = Texts(["a", "b", "c", "d"], [(0, 1), (2, 3)], "here")
QUALITY = {**made_up.QUALITY, "similarities": [0.7, 0.2]}


class Answers:
    """In place of a worker: the stages of its answer, then perhaps an exception."""

    def __init__(self, *stages):
        self.stages, self.questions = stages, []

    def messages(self, question, limit_s):
        self.questions.append((question, limit_s))
        if question["do"] == "original":
            whole = original()
            yield {"original": {n: whole[n] for n in ("tokens", "plain", "similarities")}}
            yield {"floor": step(0.8)}
            return
        for stage in self.stages:
            if isinstance(stage, Exception):
                raise stage
            yield stage


@pytest.fixture
def tried(tmp_path):
    def call(*stages):
        worker = Answers(*stages)
        trial = Trial(TEXTS, TrialOptions(layers=2, distil=3), worker, [], tmp_path)
        return trial.run_variant(impls.table().find("nystrom")), worker.questions[-1]

    return call


def test_a_whole_answer_is_a_row_with_summaries(tried):
    layers = {"layers": [[0.9, 0.8], [1.0, 1.0]]}
    row, (question, limit_s) = tried({"quality": QUALITY}, {"step": step(0.9)}, layers)
    assert row["status"] == "measured" and row["amiss"] == []
    assert row["cosine"]["long"]["value"] == pytest.approx(0.98)
    assert row["steps"][0]["comparison"]["verdict"] == "FASTER"
    assert [layer["value"] for layer in row["by_layer"]] == pytest.approx([0.85, 1.0])
    assert (question["learn"], question["judged"]) == ([2, 3], [0, 1])  # no pair is split
    assert question["layer_texts"] == [4, 5] and limit_s == TrialOptions(distil=3).limit_s


@pytest.mark.parametrize("status", ["crashed", "timed_out"])
def test_a_worker_that_is_lost_costs_the_variant_what_has_not_arrived(tried, status):
    lost = WorkerLost("it died", "", timed_out=status == "timed_out")
    row, _ = tried(lost)
    assert (row["status"], row["reason"]) == (status, "it died")
    row, _ = tried({"quality": QUALITY}, lost)
    assert row["status"] == "measured" and row["cosine"]["long"]
    assert row["amiss"] == [f"{status.replace('_', ' ')}: it died"]


class Engine:
    """In place of a worker of the gate: the same figures for each problem."""

    def ask(self, question, limit_s):
        problem = Problem.from_dict(question["job"]["problem"])
        far = Distance(relative=0.25, max=1.0, worst_row=0.5, cosine=0.9, skill=0.75)
        figures = {"error": {}, "distance": far, "entropy": 0.6}
        topk = impls.table().find("topk")
        return {"record": Record.of(topk, problem, Status.MEASURED, **figures).to_dict()}


def test_made_up_inputs_and_each_layer_are_judged_and_each_cell_is_a_row(tmp_path, monkeypatch):
    file, x = str(tmp_path / "layer-0.npz"), np.ones((2, 2, 8, 8), "float32")
    np.savez(file, q=x, k=x, v=x)
    captured = {"captured": {"files": [file], "heads": 2, "head_dim": 8}}
    monkeypatch.setattr(Worker, "messages", lambda *_: iter([captured]))
    asked = pretrained.built_in_texts(), 8, 2, "float32", "cpu", tmp_path, Settings()
    sources, here = pretrained.capture_inputs(*asked), this_machine()
    cells = pretrained.plan_sources(impls.table(), [], sources, here).cells
    tried = {cell.variant.name: cell.left_out is None for cell in cells}
    assert tried["topk"] and tried["mean_v"] and not tried["retention"] and "sdpa" not in tried
    plan = pretrained.plan_sources(impls.table(), ["topk"], sources, here)
    rows = list(pretrained.judge_sources(plan, sources, Engine(), 0))
    assert [row["source"] for row in rows] == ["normal", "peaky", "outliers", "layer 0"]
    assert all((row["skill"], row["distance"], row["entropy"]) == (0.75, 0.25, 0.6) for row in rows)
    assert not any("npz" in str(row) for row in rows)
