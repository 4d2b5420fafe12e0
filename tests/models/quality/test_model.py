"""The trained model: texts, rows and sources with made-up answers; and in its process, variants in
a small model that nobody trained.
"""

import argparse
import os
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import impls
from attnbench.core.machine import this_machine
from attnbench.core.process import Worker, WorkerLost
from attnbench.core.record import Distance, Record, Status
from attnbench.core.settings import Settings
from attnbench.core.wire import convert, plain
from attnbench.features.quality import pretrained, real, task
from attnbench.features.quality import pretrained_worker as worker
from attnbench.features.quality import worker as process
from attnbench.features.quality.model import ModelOptions
from attnbench.features.quality.swappable import SwappableModel
from attnbench.features.quality.trial import VariantTrial
from attnbench.models.attention import NotServed
from attnbench.models.transformers import OTHERS, register_row
from impls.errors import CantBeDone
from impls.problem import Problem
from impls.spec import Variant
from tests.models.quality.made_up import QUALITY, WORDS, original, small_model, step

CHANCE = np.random.default_rng(0)
IDS = [CHANCE.integers(WORDS, size=n).tolist() for n in (9, 30, 3, 17, 9)]
HERE = "tests.models.quality.made_up"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"caf\xe9 au lait\nb\nc\nd\n", r"not UTF-8 \(byte 3\); save it as UTF-8"),
        (b"one\n\n  \n", "holds 1 texts; give 4 to 2,000"),
    ],
)
def test_a_file_is_a_text_a_line_or_refused(tmp_path, content, text):
    file = tmp_path / "own.txt"
    file.write_bytes("\ufeffOne is here.\n\n  Zwei für dich \r\nthree\nvier\n".encode())
    assert pretrained.read_texts(file) == ["One is here.", "Zwei für dich", "three", "vier"]
    file.write_bytes(content)
    with pytest.raises(CantBeDone, match=text):
        pretrained.read_texts(file)


@pytest.mark.parametrize(
    ("name", "status", "reason"),
    [
        ("retention?gates=fixed", "refused", "takes the masks causal on cpu, not none"),
        ("retention", "refused", "retention takes g besides q, k and v, which the call has not"),
        ("mha", "refused", "mha is a layer"),
        ("sdpa", None, ""),
    ],
)
def test_a_variant_that_can_not_be_tried_is_refused_before_any_process(name, status, reason):
    row = task.refusal(impls.table().find(name), ModelOptions().problem, this_machine())
    assert (row and row["status"]) == status
    assert reason in (row or {}).get("reason", "")


@pytest.fixture
def tried(tmp_path):
    """The row of a variant whose process answers with these stages, the last perhaps an error."""

    def call(*stages):
        def messages(question, limit_s):
            if question["answer"].endswith(":original"):
                yield {"original": {name: original()[name] for name in ("tokens", "plain")}}
            for stage in stages if question["answer"].endswith(":variant") else ():
                if isinstance(stage, Exception):
                    raise stage
                yield stage

        stand_in = task.TaskWorker(1)
        stand_in.messages = messages
        trial = VariantTrial(ModelOptions().plan(["a"], []), stand_in, tmp_path)
        return trial.run_variant(impls.table().find("nystrom"))

    return call


@pytest.mark.parametrize("status", ["crashed", "timed_out"])
def test_a_worker_that_is_lost_costs_the_variant_what_has_not_arrived(tried, status):
    lost = WorkerLost("it died", "", timed_out=status == "timed_out")
    row = tried(lost)
    assert (row["status"], row["reason"]) == (status, "it died")
    row = tried(QUALITY, {"step": step(0.9)}, lost)
    assert row["status"] == "measured" and len(row["cosines"]) == 14 and len(row["steps"]) == 1
    assert row["amiss"] == [f"{status.replace('_', ' ')}: it died"]


def test_made_up_inputs_and_each_layer_are_judged_and_each_cell_is_a_row(tmp_path, monkeypatch):
    def judge(question, limit_s):
        """In place of a worker of the gate: the same figures for each problem."""
        problem = convert(question["job"]["problem"], Problem)
        far = Distance(relative=0.25, max=1.0, worst_row=0.5, cosine=0.9, skill=0.75)
        figures = {"error": {}, "distance": far, "entropy": 0.6}
        topk = impls.table().find("topk")
        return {"record": plain(Record.of(topk, problem, Status.MEASURED, **figures))}

    file, x = str(tmp_path / "layer-0.npz"), np.ones((2, 2, 8, 8), "float32")
    np.savez(file, q=x, k=x, v=x)
    captured = {"files": [file], "heads": 2, "head_dim": 8}
    monkeypatch.setattr(Worker, "messages", lambda *_: iter([captured]))
    session = pretrained.ModelSession(this_machine(), {}, ["a"], Settings(), "cpu", "float32")
    sources = real.capture_inputs(session, 8, 2, tmp_path)

    def plan(*names):
        asked = argparse.Namespace(table=[], variants=names)
        return real.plan_sources(asked, sources, session)

    tried = {cell.variant.name: cell.left_out is None for cell in plan().cells}
    assert tried["topk"] and tried["mean_v"] and "sdpa" not in tried
    rows = list(real.judge_sources(plan("topk"), sources, SimpleNamespace(ask=judge), 0))
    assert [row["source"] for row in rows] == ["normal", "peaky", "outliers", "layer 0"]
    assert all((row["skill"], row["entropy"]) == (0.75, 0.6) for row in rows)
    assert not any("npz" in str(row) for row in rows)


@pytest.fixture(scope="module")
def want():
    """The embeddings of the texts, each by itself."""
    return torch.cat([worker.embed(small_model().double(), [text], 1) for text in IDS])


@pytest.fixture
def judged(want):
    """The figures of a variant, by its name or as a row."""
    plain = worker.embedding_error(worker.embed(small_model(), IDS, 2), want)

    def call(row):
        row = impls.table().find(row) if isinstance(row, str) else row
        swappable = SwappableModel(small_model())
        swappable.use(register_row(row))
        embeddings = worker.embed(swappable.model, IDS, worker.together_for(row, "float32", "cpu"))
        return worker.judge_embeddings(embeddings, row, want, plain, "float32")

    return call


def wrong_row(deed, computes="softmax"):
    own = {} if computes == "softmax" else {"definition": f"{HERE}:{deed}"}
    build = {"build": f"{HERE}:{deed}", "masks": ("none",)}
    return Variant(name=deed, title="wrong", family="mine", operator=computes, **build, **own)


def test_a_wrong_head_and_what_gives_no_numbers_are_found(judged):
    quality = judged(wrong_row("last_head"))
    assert "it computes softmax by its row" in quality["reason"]
    quality = judged(wrong_row("no_numbers", "its own operator"))
    assert quality["reason"] == "the embeddings of 5 of 5 texts are not numbers"
    assert quality["cosines"] == [None] * 5 and quality["error"]["relative"] is None


@pytest.mark.parametrize(
    ("label", "near"), [("linear.elu", False), ("topk?k=64", True), ("sdpa.flash", True)]
)
def test_what_computes_something_else_is_further_off_and_no_fault(judged, label, near):
    quality = judged(label)
    assert quality["status"] == "measured"
    assert (min(quality["cosines"]) > 1 - 1e-6) is near
    assert (min(quality["cosines"]) < 1 - 1e-4) is not near


def test_a_variant_that_takes_none_of_it_is_refused_in_its_own_words(judged):
    with pytest.raises(NotServed, match=r"^window\.blocked needs a window in the mask") as caught:
        judged("window.blocked")
    assert OTHERS not in str(caught.value)


def test_padding_in_a_batch_changes_nothing(want):
    for together in (2, 5):
        embeddings = worker.embed(small_model(), IDS, together)
        torch.testing.assert_close(embeddings, want, rtol=0, atol=1e-5)


def test_each_layer_is_recorded_with_what_it_was_given():
    model, ids = small_model(layers=3), torch.tensor([[3, 1, 4, 1], [5, 9, 2, 6]])
    captured = worker.capture_layers(model, ids)
    assert [q.shape for q, _, _ in captured] == [(2, 2, 4, 8)] * 3
    attention, seen = model.encoder.layer[0].attention.self, model.embeddings(ids)
    projections = (attention.query, attention.key, attention.value)
    for got, project in zip(captured[0], projections, strict=True):
        torch.testing.assert_close(got, project(seen).view(2, 4, 2, 8).transpose(1, 2))


def elsewhere(question):
    os.chdir("/")
    yield {"step": 1}


def raising(question):
    yield {"step": 1}
    raise ZeroDivisionError("a fault\nin it")


@pytest.mark.parametrize(
    ("deed", "spoiled", "last"),
    [
        ("elsewhere", True, {"step": 1}),
        ("raising", False, {"status": "failed", "reason": "ZeroDivisionError: a fault"}),
    ],
)
def test_only_a_process_that_was_changed_gets_no_more_questions(monkeypatch, deed, spoiled, last):
    monkeypatch.chdir(".")
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))
    process.first_state.cache_clear()
    stages = []
    question = {"answer": f"{__name__}:{deed}", "device": "cpu"}
    found = process.respond(question, SimpleNamespace(stage=stages.append))
    assert found == {"spoiled": spoiled} and stages[-1] == last
