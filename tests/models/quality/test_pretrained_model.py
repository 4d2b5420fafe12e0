"""The trained model itself: exact variants agree with it, wrong ones don't, its layers are read."""

import importlib.util
import json
import os

import numpy as np
import pytest
import torch

import impls
from attnbench import cli
from attnbench.features.quality import pretrained
from attnbench.features.quality import pretrained_worker as worker
from attnbench.features.quality.pretrained import built_in_texts
from attnbench.models.transformers import register_row

pytestmark = pytest.mark.slow
FEW = (0, 1, 2, 3, 24, 72, 96)
"""Sentences of built-in pairs, and a passage."""


@pytest.fixture(scope="module", autouse=True)
def _installed():
    if importlib.util.find_spec(pretrained.PACKAGE) is None:
        assert "CI" not in os.environ, f"{pretrained.DISTRIBUTION} is not installed"
        pytest.skip(pretrained.WEIGHTS)


@pytest.fixture(scope="module")
def ids():
    texts = built_in_texts().texts
    return worker.tokenize([texts[n] for n in FEW])


@pytest.fixture(scope="module")
def want(ids):
    return worker.embed(
        worker.load_model("float64", "cpu", "eager"), ids, together=False
    ).vectors_tw


@pytest.mark.parametrize("label", ["chunked", "exp.naive"])
def test_what_computes_softmax_gives_its_embeddings(ids, want, label):
    swappable = worker.SwappableModel(worker.load_model("float32", "cpu", "sdpa"))
    made = worker.embed(swappable.model, ids, together=True)
    plain, row = worker.embedding_error(made.vectors_tw, want), impls.table().find(label)
    swappable.use(register_row(row))
    made = worker.embed_variant(swappable, row, ids, "float32")
    found = worker.judge_embeddings(made, row, want, plain, [(0, 1)], "float32")
    assert found["wrong"] == "" and found["error"]["relative"] < 2e-6
    # and of the model itself, paraphrases are more alike than unrelated sentences
    assert float(want[0] @ want[1]) > 0.8 > float(want[0] @ want[5])


def test_what_its_layers_hand_to_attention_is_what_makes_their_output():
    texts = built_in_texts().texts[96:98]
    ids = worker.fill_rows(worker.tokenize(texts), 64, 2)
    model = worker.load_model("float64", "cpu", "sdpa")
    found = worker.capture_layers(model, ids)
    assert len(found) == 6 and found[0][0].shape == (2, 12, 64, 32)
    seen = {}
    attention = model.encoder.layer[3].attention.self
    attention.register_forward_hook(lambda module, given, out: seen.update(out=out[0]))
    worker.SwappableModel(model).use("sdpa")
    with torch.no_grad():
        model(input_ids=ids)
    q, k, v = (x.numpy() for x in found[3])
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(32)
    weights_bhnm = np.exp(scores - scores.max(-1, keepdims=True))
    weights_bhnm /= weights_bhnm.sum(-1, keepdims=True)
    out = (weights_bhnm @ v).swapaxes(1, 2).reshape(2, 64, 384)
    np.testing.assert_allclose(out, seen["out"].numpy(), atol=1e-10)


def test_a_whole_call_ranks_approximations_and_finds_a_planted_wrong_head(tmp_path, capsys):
    rows = tmp_path / "rows.py"
    rows.write_text(
        "import torch\nfrom impls.spec import Variant\n"
        "def build(problem):\n"
        "    def attend(q, k, v):\n"
        "        out = torch.nn.functional.scaled_dot_product_attention(q, k, v)\n"
        "        return torch.cat([out[:, :-1], v[:, -1:]], 1)\n"
        "    return attend\n"
        "ROWS = [Variant(name='wrong', title='w', family='mine', computes='softmax',\n"
        "                build=':build', masks=('none',))]\n"
    )
    words = f"sdpa wrong topk mean_v --json --seq 64 --budget 0.1 --distil 2 --table {rows}".split()
    assert cli.main(["quality", "model", *words, "--out", str(tmp_path / "out")]) == 1
    rows_by = {row["variant"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert rows_by["wrong"]["status"] == "wrong" and not rows_by["wrong"]["steps"]
    assert rows_by["sdpa"]["status"] == "measured"
    assert (rows_by["topk"]["rank"], rows_by["mean_v"]["rank"]) == (1, 2)
    assert rows_by["topk"]["together"] and len(rows_by["topk"]["by_layer"]) == 6
    assert len(rows_by["mean_v"]["distilled"]["losses"]) == 2


def test_real_inputs_are_judged_by_the_gate_beside_made_up_ones(tmp_path, capsys):
    words = f"quality real mean_v topk retention --json --seq 64 --batch 2 --out {tmp_path}".split()
    assert cli.main(words) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    sources = {row["source"] for row in rows}
    assert sources == {"normal", "peaky", "outliers", *(f"layer {n}" for n in range(6))}
    for row in rows:
        if row["variant"] == "mean_v":
            assert abs(row["skill"]) < 1e-5
        if row["variant"] == "retention":
            assert row["status"] == "refused"
    topk = {row["source"]: row["skill"] for row in rows if row["variant"] == "topk"}
    assert topk["peaky"] > 0.9
