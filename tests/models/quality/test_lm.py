"""A language model with variants in it: what is measured of each, and what is not what it says."""

import copy
import json
import math
import random
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM

import impls
from attnbench.core.evidence import Evidence
from attnbench.core.stats import share_interval
from attnbench.features.quality import causal, distil, lm, lm_worker
from attnbench.features.quality.passages import (
    CONTINUATION,
    DEPTHS,
    build_passage,
    draw_needles,
    draw_passages,
)
from attnbench.features.quality.task import mean_figure
from attnbench.models.transformers import EagerMask
from impls.errors import CantBeDone

SEQ, PASSAGES = 240, 3
SMALL = causal.find_model(causal.SMALL)
BOOK = causal.built_in_book()
ROWS = """
from impls.spec import Variant
HERE = "tests.models.quality.test_lm"
MORE = {"family": "mine", "masks": ("causal", "none"), "phases": ("forward", "decode")}
ELU = {"operator": "its own operator", "definition": "impls.linear.elu:definition",
       "options": {"chunk": 128}}
SOFTMAX = {"operator": "softmax"}
ROWS = [
    Variant(name="leaves", title="t", build=HERE + ":leaves", **MORE, **ELU),
    Variant(name="peeks", title="t", build=HERE + ":peeks", **MORE, **SOFTMAX),
    Variant(name="prompt", title="t", build=HERE + ":prompt", **MORE, **SOFTMAX),
    Variant(name="again", title="t", build="impls.linear.elu:build", **MORE, **ELU),
]
"""


def attention(q, k, v, seen):
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    return F.scaled_dot_product_attention(q, k, v, seen)


def visible(problem, ahead=0):
    """Causal, and so many keys more."""
    seen = torch.ones(problem.q_len, problem.kv_len, dtype=torch.bool)
    return seen.tril(problem.kv_len - problem.q_len + ahead)


def leaves(problem, chunk):
    """Leaves the original in place."""
    return lambda q, k, v: attention(q, k, v, visible(problem))


def peeks(problem):
    """Sees the next token."""
    return lambda q, k, v: attention(q, k, v, visible(problem, 1))


def prompt(problem):
    """Sees no token that was decoded: only the prompt."""
    seen = visible(problem)
    if problem.q_len == 1:
        seen[:, -1] = False
    return lambda q, k, v: attention(q, k, v, seen)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A variant's row, or the original's facts, as the process makes them."""
    folder = tmp_path_factory.mktemp("lm")
    table = folder / "rows.py"
    table.write_text(ROWS)
    options = lm.LmOptions("float32", "cpu", (SEQ,), PASSAGES, 0)
    plan = options.plan(SMALL, BOOK, [str(table)])
    question = {**plan.question, "folder": str(folder)}
    stages = [*lm_worker.original({**question, **plan.original_only})]
    originals = [stage["passages"] for stage in stages if "passages" in stage]
    question["original"] = {"passages": originals}

    def run(name, **more):
        row = impls.table([str(table)]).find(name)
        about = {"variant": name, "computes": row.computes, "family": row.family}
        some = {**about, "passages": [], "amiss": [], "reason": "", "remedy": ""}
        for stage in lm_worker.variant({**question, **more, "variant": name}):
            for key in {"passages", "amiss"} & stage.keys():
                some[key].append(stage.pop(key))
            some |= stage
        return some

    run.originals, run.question = originals, question
    return run


def evidence_of(measured, *rows):
    wanted = {"seq": [SEQ], "layers": [], "passages": PASSAGES, "seed": 0}
    return Evidence("lm", {"original": {"passages": measured.originals}, "wanted": wanted}, rows)


def test_a_passage_is_text_with_needles_a_continuation_and_questions():
    tokens = list(range(1000, 1000 + SEQ))
    words = []

    def tokenize(text):
        words.append(text)
        return [ord(letter) for letter in text[-6:]]

    chance = np.random.default_rng(0)
    passage = build_passage(tokens, 0, draw_needles(tokenize, chance, len(DEPTHS)), SEQ)
    continuation = [7] * CONTINUATION
    whole = passage.whole(continuation)
    assert len(whole) == SEQ and len({*words[::3]}) == len(DEPTHS)
    first, past = passage.continuation
    assert whole[first:past] == continuation
    text = [token for start, end in passage.text for token in whole[start:end]]
    assert text == tokens[len(tokens[: len(text) + 1]) - len(text) : len(text) + 1]
    for needle, (start, end) in zip(passage.needles, passage.answers, strict=True):
        assert whole[start:end] == list(needle.answer)
        at = len(needle.tokens)
        assert any(whole[n : n + at] == needle.tokens for n in range(first - at + 1))
        assert whole[start - len(needle.question) : start] == list(needle.question)


@pytest.mark.parametrize(
    ("tokens", "length", "words"),
    [(700, 240, "the text has 700 tokens, and 3 passages of 240 take 720"),
     (9000, 100, "--seq 100 is too short: needles, questions and a continuation take")],
)  # fmt: skip
def test_a_text_or_a_passage_that_is_too_short_is_refused(tokens, length, words):
    with pytest.raises(CantBeDone, match=words):
        draw_passages([1] * tokens, lambda text: [1] * len(text), length, 3, 0)


@pytest.mark.slow
def test_exact_variants_predict_what_the_original_does_and_find_what_it_finds(measured):
    for name in ("sdpa", "chunked"):
        row = measured(name)
        assert row["status"] == "measured" and not row["amiss"]
        for own, base in zip(row["passages"], measured.originals, strict=True):
            assert abs(own["loss"] - base["loss"]) < 1e-4 and own["kl"] < 1e-6
            assert own["same"] == CONTINUATION and own["found"] == base["found"]
            assert len(own["token_s"]) == lm_worker.TOKENS


def test_the_loss_is_that_of_torch_and_the_small_model_has_learned_english(measured):
    swappable, _ = lm_worker.load(SMALL, "float32", "cpu")
    swappable.use("eager")
    record = torch.load(f"{measured.question['folder']}/0.pt", weights_only=False)
    ids = torch.tensor([record["whole"]])
    with torch.no_grad():
        logits = swappable.model(input_ids=ids).logits[0]
    places = [n for first, past in record["passage"].text for n in range(first, past)]
    loss = F.cross_entropy(logits[[n - 1 for n in places]], ids[0, places])
    assert measured.originals[0]["loss"] == pytest.approx(float(loss), abs=1e-5)
    assert measured.originals[0]["loss"] < 0.7 * math.log(1024)  # of tokens by chance


def test_an_answer_counts_where_each_of_its_tokens_is_the_most_probable(measured):
    """On logits that are made up: right all through, but for a token of the second answer."""
    record = torch.load(f"{measured.question['folder']}/0.pt", weights_only=False)
    whole, passage = record["whole"], record["passage"]
    logits = 20.0 * F.one_hot(torch.tensor([*whole[1:], 0]), 1024)
    wrong = passage.answers[1][1] - 1
    logits[wrong - 1] = logits[wrong - 1].roll(1)
    logits[passage.continuation[0] + 9] = 0.0
    got = lm_worker.outcome(logits, passage, whole, None)
    assert got["found"] == [True, False, True, True] and got["same"] == 10
    assert got["loss"] == pytest.approx(math.log1p(1023 * math.exp(-20)), abs=1e-6)
    flat = torch.zeros(lm_worker.PLACES, 1024).log_softmax(-1)[: len(record["reference"])]
    kl = lm_worker.outcome(logits, passage, whole, flat)["kl"]
    assert kl == pytest.approx(20 * 1023 / 1024 - math.log(1024), rel=1e-4)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("leaves", "by its own definition the relative error of layer 0's output"),
        ("peeks", "it computes softmax by its row, and"),
        ("prompt", "it computes softmax by its row, and"),
    ],
)
def test_a_variant_that_is_not_what_its_row_says_is_found_in_the_model(measured, name, words):
    row = measured(name)
    assert row["status"] == "wrong" and row["reason"].startswith(words)
    assert not row["passages"]


def test_a_model_whose_layers_do_not_call_it_is_no_measurement_of_it(measured, monkeypatch):
    monkeypatch.setattr(lm_worker.SwappableModel, "use", lambda *_, **__: None)
    assert "it was called by 0 of 3 layers" in measured("linear.elu")["reason"]
    swappable, _ = lm_worker.load(SMALL, "float32", "cpu")
    with pytest.raises(CantBeDone, match="by code of their own: 0 of 3 called a variant"):
        lm_worker.check_layers(lm_worker.TimedModel(swappable))


def test_an_exact_variant_that_drifts_is_wrong_by_its_perplexity(measured, monkeypatch):
    monkeypatch.setattr(lm_worker.JudgedVariant, "_judge", lambda *_, **__: None)
    row = measured("peeks")
    assert row["status"] == "wrong" and "its perplexity on 240 tokens is off" in row["reason"]
    assert len(row["passages"]) == PASSAGES


def test_a_loss_that_is_no_number_is_wrong_and_says_where(measured, monkeypatch):
    whole = lm_worker.outcome
    monkeypatch.setattr(lm_worker, "outcome", lambda *words: {**whole(*words), "loss": None})
    row = measured("linear.elu")
    assert row["status"] == "wrong" and "passage 0 of 240 tokens has a loss" in row["reason"]


@pytest.mark.slow
def test_a_variant_and_itself_under_another_name_have_one_rank(measured):
    rows = [measured(name) for name in ("linear.elu", "again", "topk?k=64", "linear.identity")]
    likely, found = lm.results(evidence_of(measured, *rows))
    by_name = {result.variant: result for result in likely.results}
    ranks = {name: result.more["rank"] for name, result in by_name.items()}
    assert ranks["topk?k=64"] == 1 and ranks["linear.elu"] == ranks["again"] == 2
    assert ranks["linear.identity"] == 4 and not by_name["again"].faster
    losses = [passage["loss"] for passage in rows[0]["passages"]]
    base = [passage["loss"] for passage in measured.originals]
    ratio = math.exp((sum(base) - sum(losses)) / PASSAGES)
    assert by_name["linear.elu"].scores["likelihood"].value == pytest.approx(ratio)
    assert {*found.results[0].scores} == {"found", "at 5%", "at 35%", "at 65%", "at 90%"}


@pytest.mark.slow
def test_a_hybrid_is_the_model_with_the_last_of_so_many_layers_exact(measured):
    row = measured("linear.elu", hybrid=(3,))
    name, folder = "attnbench:linear.elu", Path(measured.question["folder"])
    how = {"attn_implementation": name, "dtype": torch.float32}
    model = AutoModelForCausalLM.from_pretrained(SMALL.folder, **how)
    exact = copy.deepcopy(model.config)
    exact._attn_implementation = "eager"
    model.model.layers[2].self_attn.config = exact
    for passage in row["passages"]:
        record = torch.load(folder / f"{passage['passage']}.pt", weights_only=False)
        with torch.no_grad():
            logits = model(torch.tensor([record["whole"]])).logits[0]
        expected = lm_worker.outcome(logits, record["passage"], record["whole"], None)
        assert passage["hybrids"]["3"]["loss"] == pytest.approx(expected["loss"], rel=1e-5)
        assert passage["loss"] != pytest.approx(expected["loss"], rel=1e-3)
    assert measured("sdpa", hybrid=(3,))["passages"][0]["hybrids"] == {}


@pytest.mark.slow
def test_no_layer_of_a_hybrid_writes_its_mask_out(measured, monkeypatch):
    """Or an exact layer takes the time of a kernel with a mask, which the original has not."""
    monkeypatch.setattr(EagerMask, "numbers", lambda mask: pytest.fail("it was written"))
    row = measured("linear.elu", hybrid=(2,))
    assert row["status"] == "measured" and row["passages"][0]["hybrids"]["2"]["step_s"]


@pytest.mark.slow
def test_layers_are_tried_one_by_one(measured):
    row = measured("linear.elu", layers=(0, 2))
    for passage, base in zip(row["passages"], measured.originals, strict=True):
        alone = passage["layers"]
        assert {*alone} == {"0", "2"} and alone["0"] != alone["2"]
        assert all(base["loss"] < loss < passage["loss"] for loss in alone.values())


@pytest.mark.slow
def test_after_a_distillation_more_is_kept_and_the_model_is_as_it_was(measured, monkeypatch):
    monkeypatch.setattr(distil, "perf_counter", count().__next__)  # a step a second
    row = measured("linear.elu", distil_s=25.0)
    (likely, _) = lm.results(evidence_of(measured, row))
    scores = likely.results[1].scores
    assert scores["distilled"].value > scores["likelihood"].value + 0.01
    assert row["distilled"]["tokens"] == 24 * distil.TOGETHER * distil.BLOCK
    assert measured("sdpa")["status"] == "measured"


def test_a_distillation_of_no_time_is_one_step(measured):
    row = measured("linear.elu", distil_s=1e-9)
    assert row["distilled"]["tokens"] == distil.TOGETHER * distil.BLOCK


def test_a_distillation_that_a_variant_refuses_leaves_the_model_as_it_was(measured, monkeypatch):
    def refuse(*_):
        raise lm_worker.NotServed("no gradient")

    monkeypatch.setattr(distil.Distillation, "_predictions", refuse)
    row = measured("linear.elu", distil_s=25.0)
    assert "no distillation" in row["amiss"][0]
    swappable, _ = lm_worker.load(SMALL, "float32", "cpu")
    assert not any(weight.requires_grad for weight in swappable.model.parameters())


def test_what_is_distilled_on_is_in_no_passage():
    blocks = distil.blocks_between(range(2000), [(600, 840), (0, 240)])
    seen = {*blocks.flatten().tolist()}
    assert len(blocks) == 1 + 4 and not seen & {*range(240), *range(600, 840)}


def test_a_rerun_falls_into_the_interval_and_wilsons_is_the_books():
    chance = random.Random(0)
    draw = lambda: [chance.gauss(3.0, 0.5) for _ in range(5)]  # noqa: E731
    figures = [(mean_figure(draw(), rerun=True), mean_figure(draw()).value) for _ in range(600)]
    share = sum(figure.low <= again <= figure.high for figure, again in figures) / 600
    assert 0.92 < share < 0.98
    assert share_interval(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert share_interval(20, 20)[1] == 1.0


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "is no model: it has no config.json"),
        ({"config.json": "{"}, "its config.json can't be read"),
        ({"config.json": "[]"}, "its config.json names no model_type"),
        ({"config.json": '{"model_type": "llama"}'}, "has no tokenizer"),
        (
            {"config.json": '{"model_type": "bert", "architectures": ["BertModel"]}',
             "tokenizer.json": "{}"},
            "is no causal language model, but BertModel",
        ),
    ],
)  # fmt: skip
def test_a_folder_that_is_no_model_is_refused(tmp_path, files, words):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(CantBeDone, match=words):
        causal.find_model(str(tmp_path))
    assert json.loads((causal.Path(SMALL.folder) / "config.json").read_text())["model_type"]
