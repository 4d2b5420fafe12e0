"""The trained model: files, texts, rows and plans with made-up answers; in its process, variants
in a small model that nobody trained.
"""

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
from attnbench.features.quality import pretrained
from attnbench.features.quality import pretrained_worker as worker
from attnbench.features.quality.pretrained import Texts, Trial, TrialOptions
from attnbench.models.attention import NotServed
from attnbench.models.transformers import register_row
from impls.errors import CantBeDone
from impls.problem import Problem
from impls.spec import Variant
from tests.models.quality import made_up
from tests.models.quality.made_up import original, small_model, some_ids, step

IDS = some_ids()
HERE = "tests.models.quality.made_up"


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


def test_made_up_inputs_and_each_layer_are_judged_and_each_cell_is_a_row(tmp_path, monkeypatch):
    def judge(question, limit_s):
        """In place of a worker of the gate: the same figures for each problem."""
        problem = Problem.from_dict(question["job"]["problem"])
        far = Distance(relative=0.25, max=1.0, worst_row=0.5, cosine=0.9, skill=0.75)
        figures = {"error": {}, "distance": far, "entropy": 0.6}
        topk = impls.table().find("topk")
        return {"record": Record.of(topk, problem, Status.MEASURED, **figures).to_dict()}

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
    rows = list(pretrained.judge_sources(plan, sources, SimpleNamespace(ask=judge), 0))
    assert [row["source"] for row in rows] == ["normal", "peaky", "outliers", "layer 0"]
    assert all((row["skill"], row["distance"], row["entropy"]) == (0.75, 0.25, 0.6) for row in rows)
    assert not any("npz" in str(row) for row in rows)


@pytest.fixture(scope="module")
def want():
    return worker.embed(small_model().double(), IDS, together=False).vectors_tw


@pytest.fixture
def judged(want):
    """The figures of a variant, by its name or as a row."""
    plain = worker.embedding_error(worker.embed(small_model(), IDS, together=True).vectors_tw, want)

    def call(row):
        row = impls.table().find(row) if isinstance(row, str) else row
        swappable = worker.SwappableModel(small_model())
        swappable.use(register_row(row))
        made = worker.embed_variant(swappable, row, IDS, "float32")
        return worker.judge_embeddings(made, row, want, plain, [(0, 1), (2, 3)], "float32")

    return call


def wrong_row(deed, computes="softmax"):
    own = {} if computes == "softmax" else {"definition": f"{HERE}:{deed}"}
    build = {"build": f"{HERE}:{deed}", "masks": ("none",)}
    return Variant(name=deed, title="wrong", family="mine", operator=computes, **build, **own)


def test_what_computes_softmax_gives_the_originals_embeddings(judged, want):
    quality = judged("sdpa.flash")
    assert quality["wrong"] == "" and quality["together"] and quality["equal"]
    assert min(quality["cosines"]) > 1 - 1e-6 and quality["error"]["relative"] < 1e-5
    alike = [float(want[a] @ want[b]) for a, b in ((0, 1), (2, 3))]
    assert quality["similarities"] == pytest.approx(alike, abs=1e-6)


def test_a_wrong_head_and_what_gives_no_numbers_are_found(judged):
    quality = judged(wrong_row("last_head"))
    assert "it computes softmax by its row" in quality["wrong"] and not quality["together"]
    quality = judged(wrong_row("no_numbers", "its own operator"))
    assert quality["wrong"] == "the embeddings of 5 of 5 texts are not numbers"
    assert quality["cosines"] == [None] * 5 and quality["error"]["relative"] is None


@pytest.mark.parametrize(
    ("label", "near", "together"),
    [("linear.elu", False, False), ("topk?k=4", False, True), ("topk?k=64", True, True)],
)
def test_what_computes_something_else_is_further_off_and_no_fault(judged, label, near, together):
    quality = judged(label)
    assert quality["wrong"] == "" and quality["equal"] is near
    assert (min(quality["cosines"]) > 1 - 1e-6) is near
    assert (min(quality["cosines"]) < 1 - 1e-4) is not near
    assert quality["together"] is together


def test_a_variant_that_takes_none_of_it_is_refused_in_its_own_words(judged):
    with pytest.raises(NotServed, match=r"^window\.blocked takes the masks .* on cpu, not none$"):
        judged("window.blocked")


def test_one_layer_alone_leaves_the_others_as_they_were(want):
    row, swappable = impls.table().find("mean_v"), worker.SwappableModel(small_model())
    name = register_row(row)
    by_layer = worker.cosines_by_layer(swappable, name, row, IDS, want, "float32")
    swappable.use(name)
    swapped = worker.embed_variant(swappable, row, IDS, "float32").vectors_tw
    all_layers = worker.cosines(swapped, want)
    assert len(by_layer) == 2 and by_layer[0] != by_layer[1] and all_layers not in by_layer
    swappable.use(name, [])
    without = worker.cosines(worker.embed(swappable.model, IDS, together=True).vectors_tw, want)
    assert min(without) > 1 - 1e-6


def test_texts_share_a_batch_with_their_neighbours_in_length_and_padding_changes_nothing(want):
    assert worker.batches([5, 1, 3], together=False) == [[1], [2], [0]]
    assert worker.batches([4096, 10, 4096, 4096], together=True) == [[1, 0], [2, 3]]
    together = worker.embed(small_model(), IDS, together=True).vectors_tw
    torch.testing.assert_close(together, want, rtol=0, atol=1e-5)


def test_each_layer_is_recorded_with_what_it_was_given():
    model, ids = small_model(layers=3), torch.tensor([[3, 1, 4, 1], [5, 9, 2, 6]])
    captured = worker.capture_layers(model, ids)
    assert [q.shape for q, _, _ in captured] == [(2, 2, 4, 8)] * 3
    attention, seen = model.encoder.layer[0].attention.self, model.embeddings(ids)
    projections = (attention.query, attention.key, attention.value)
    for got, project in zip(captured[0], projections, strict=True):
        torch.testing.assert_close(got, project(seen).view(2, 4, 2, 8).transpose(1, 2))


def distilled(label, steps, which="projections"):
    swappable = worker.SwappableModel(small_model())
    swappable.use(register_row(impls.table().find(label)))
    ids = some_ids((6, 9, 12, 15))
    losses = worker.distil(swappable.model, small_model(), ids, steps, which, seed=4)
    return swappable.model, losses


def test_distillation_brings_a_variant_nearer_the_same_way_each_time():
    _, losses = distilled("linear.elu", 12)
    assert len(losses) == 12 and losses[-1] < 0.95 * losses[0]
    assert distilled("linear.elu", 3)[1] == losses[:3]
    assert distilled("einsum", 1)[1][0] < 1e-8  # it has nothing to learn


@pytest.mark.parametrize("which", ["projections", "all"])
def test_only_the_chosen_weights_move(which):
    model, _ = distilled("linear.elu", 2, which)
    before = dict(small_model().named_parameters())
    moved = {name for name, x in model.named_parameters() if not torch.equal(x, before[name])}
    around = {name for name in before if any(part in name for part in worker.PROJECTIONS)}
    assert moved & around and (moved <= around) is (which == "projections")


def elsewhere(question):
    os.chdir("/")
    yield {"said": 1}


def other_threads(question):
    torch.set_num_threads(torch.get_num_threads() + 1)
    yield {"said": 1}


def raising(question):
    yield {"said": 1}
    raise ZeroDivisionError("a fault\nin it")


def test_only_a_process_that_was_changed_gets_no_more_questions(monkeypatch):
    monkeypatch.chdir(".")
    monkeypatch.setenv("OMP_NUM_THREADS", str(threads := torch.get_num_threads()))
    for deed, spoiled, last in (
        (elsewhere, True, {"said": 1}),
        (other_threads, True, {"said": 1}),
        (raising, False, {"failed": "ZeroDivisionError: a fault"}),
    ):
        monkeypatch.setitem(worker.ANSWERS, "variant", deed)
        worker.first_state.cache_clear()
        stages = []
        answers = SimpleNamespace(stage=stages.append)
        found = worker.respond({"do": "variant", "device": "cpu"}, answers)
        torch.set_num_threads(threads)
        assert found == {"spoiled": spoiled} and stages[-1] == last
