"""Each claim of the documents: true code reproduces it, a wrong implementation does not."""

import numpy as np
import pytest
import torch

from attnbench.features.claims import biases, layers, one_head, word_vectors
from attnbench.features.claims import claim as claims
from attnbench.features.claims.claim import (
    ClaimOutcome,
    ClaimRequest,
    ClaimVerdict,
    PointStanding,
    held,
)
from impls.asked import CantBeDone
from impls.layers import attention
from impls.loading import load_function


@pytest.fixture(autouse=True)
def few_draws(monkeypatch):
    monkeypatch.setattr(biases, "DRAWS", 2)
    monkeypatch.setattr(biases, "CONVERSIONS", 2)
    monkeypatch.setattr(layers, "CLOUD_DRAWS", 5)
    monkeypatch.setattr(layers, "DRAWS", 5)
    monkeypatch.setattr(one_head, "GRADIENT_DRAWS", 3)
    monkeypatch.setattr(one_head, "DRAWS", {"uniform": 200, "gaussian": 3, "begun": 3})


def tried(name, **asked):
    (claim,) = claims.find([name])
    return ClaimOutcome.of(claim, load_function(claim.how)(ClaimRequest(**asked)))


def failed(one):
    return [p.name for p in one.claim.points if held(p, one.figure(p.name)) is PointStanding.FAILS]


TRUE = ("key-bias", "no-key-bias", "one-head-saturated", "one-head-gradients",
        "einsum-from-scratch", "numpy-attention", "numpy-batched", "numpy-heads", "numpy-block",
        "words-small", "words-identity", "words-tables")  # fmt: skip


@pytest.mark.parametrize("name", TRUE)
def test_what_is_true_is_reproduced(name):
    one = tried(name)
    assert (one.verdict, one.reason) == (ClaimVerdict.REPRODUCED, "")


def test_eight_heads_are_not_one_though_the_code_prints_true():
    one = tried("one-head")
    assert one.verdict is ClaimVerdict.NOT_REPRODUCED
    assert set(failed(one)) == {"uniform equal", "gaussian equal", "begun equal"}
    assert 0 < one.figure("uniform equal").value < 1  # some draws print what the source shows
    assert one.figure("gaussian equal").value == 0


# ---- wrong implementations -----------------------------------------------------------------------


def test_a_key_bias_that_counts_is_found_out(monkeypatch):
    """A layer that adds the key's bias to the values, too."""
    true = biases.layer

    def wrong(*words):
        module, inputs, chance = true(*words)
        plain = module.forward

        def forward(q, k, v, **more):
            out, weights = plain(q, k, v, **more)
            return out + module.in_proj_bias.chunk(3)[1], weights

        module.forward = forward
        return module, inputs, chance

    monkeypatch.setattr(biases, "layer", wrong)
    one = tried("key-bias")
    assert one.verdict is ClaimVerdict.NOT_REPRODUCED
    assert {"key", "key float64", "rounding", "gradient float64 at 10"} <= set(failed(one))
    assert "query" not in failed(one)


def test_a_bias_that_nobody_uses_is_found_out(monkeypatch):
    """Nothing moves with any bias: then the other two should have."""
    monkeypatch.setattr(biases, "_moved", lambda *_: dict.fromkeys(biases.BIASES, 0.0))
    assert {"query", "value"} <= set(failed(tried("key-bias")))


@pytest.mark.parametrize("name", ["q_bias", "v_bias", "out_weight"])
def test_a_conversion_that_loses_a_parameter_is_found_out(monkeypatch, name):
    true = attention.from_torch

    def wrong(module, **more):
        ours = true(module, **more)
        with torch.no_grad():
            getattr(ours, name).zero_()
        return ours

    monkeypatch.setattr(attention, "from_torch", wrong)
    assert tried("no-key-bias").verdict is ClaimVerdict.NOT_REPRODUCED


def test_a_gradient_that_is_off_is_found_out(monkeypatch):
    true = attention.from_torch

    def wrong(module, **more):
        ours = true(module, **more)
        ours.v_bias.register_hook(lambda gradient: gradient * 1.001)
        return ours

    monkeypatch.setattr(attention, "from_torch", wrong)
    one = tried("no-key-bias")
    assert set(failed(one)) == {"backward float64", "backward float64 kdim"}


def test_a_softmax_that_is_not_saturated_is_found_out(monkeypatch):
    """Uniform weights so small that the softmax is soft: heads differ, though none is saturated."""
    true = one_head.draw

    def soft(seed, kind):
        x, weights, chance = true(seed, kind)
        return x, [w / 512 for w in weights] if kind == "uniform" else weights, chance

    monkeypatch.setattr(one_head, "draw", soft)
    assert tried("one-head-saturated").verdict is not ClaimVerdict.REPRODUCED
    assert tried("one-head").verdict is ClaimVerdict.NOT_REPRODUCED


def test_heads_that_share_their_scores_are_found_out(monkeypatch):
    """Eight heads with the attention of one: equal everywhere, and not learning apart."""
    true = one_head.attend

    def wrong(x, weights, heads):
        return true(x, weights, 1)

    monkeypatch.setattr(one_head, "attend", wrong)
    assert tried("one-head-saturated").verdict is ClaimVerdict.NOT_REPRODUCED
    assert {"begun q", "begun k", "begun v"} <= set(failed(tried("one-head-gradients")))


def test_a_scale_of_the_whole_width_is_found_out(monkeypatch):
    true = layers.by_einsum
    monkeypatch.setattr(layers, "by_einsum", lambda x, q, *rest: true(x, q * 0.7, *rest))
    assert set(failed(tried("einsum-from-scratch"))) == {"output", "output float64"}


@pytest.mark.parametrize("name", ["numpy-attention", "numpy-batched", "numpy-heads", "numpy-block"])
def test_numpy_without_its_mask_is_found_out(monkeypatch, name):
    true = layers.attention
    monkeypatch.setattr(
        layers,
        "attention",
        lambda x, i, o, mask, heads: true(x, i, o, np.zeros_like(mask), heads),
    )
    one = tried(name)
    assert one.verdict is ClaimVerdict.NOT_REPRODUCED
    assert {"output float64", "block float64"} & set(failed(one))


def test_weights_that_are_not_averaged_over_heads_are_found_out(monkeypatch):
    true = layers.attention

    def first(*words):
        out, weights = true(*words)
        return out, weights[:, :1]

    monkeypatch.setattr(layers, "attention", first)
    assert failed(tried("numpy-heads")) == ["weights", "weights float64"]


def test_self_attention_without_its_scale_is_found_out(monkeypatch):
    def unscaled(x):
        powers = np.exp(x @ x.T)
        weights = powers / powers.sum(-1, keepdims=True)
        return weights @ x, weights

    monkeypatch.setattr(word_vectors, "plain", unscaled)
    assert failed(tried("words-small")) == ["weights", "output"]
    assert {"float32", "float64"} <= set(failed(tried("words-identity")))


def test_projections_that_are_not_the_identity_are_found_out(monkeypatch):
    true = word_vectors.by_torch
    monkeypatch.setattr(word_vectors, "by_torch", lambda x, t, **_: true(x, t, identity=False))
    assert {"weights", "output", "float32"} <= set(failed(tried("words-identity")))


def test_one_wrong_digit_in_what_is_printed_is_found_out(monkeypatch):
    """The sign of one of the fifty numbers of 'ship'."""
    vector = [*word_vectors.PRINTED["vector"]]
    vector[8] = -vector[8]
    monkeypatch.setitem(word_vectors.PRINTED, "vector", vector)
    assert set(failed(tried("words-tables"))) == {"output odyssey", "output amazon", "by cosines"}


# ---- word vectors from a file --------------------------------------------------------------------


def glove(path, tokens, chance=None, width=50):
    chance = chance or np.random.default_rng(0)
    lines = (f"{word} {' '.join(f'{x:.4f}' for x in chance.normal(size=width))}" for word in tokens)
    path.write_text("\n".join(lines) + "\n")
    return str(path)


SENTENCES = [word_vectors.PRINTED[name]["sentence"] for name in word_vectors.SENTENCES]
WORDS = sorted(set(" ".join(SENTENCES).lower().split()))


def test_other_vectors_than_gloves_do_not_give_its_figures(tmp_path):
    one = tried("words-glove", embeddings=glove(tmp_path / "other.txt", WORDS))
    assert one.verdict is ClaimVerdict.NOT_REPRODUCED
    assert "vector" in failed(one)


def test_vectors_of_a_file_are_used_for_the_identity_too(tmp_path):
    one = tried("words-identity", embeddings=glove(tmp_path / "some.txt", WORDS))
    assert one.verdict is ClaimVerdict.REPRODUCED
    assert one.findings.maps[0].title == "vectors of the file given"


def test_vectors_of_another_width_are_refused_in_a_sentence(tmp_path):
    with pytest.raises(CantBeDone, match=r"has 8: give glove\.6B\.50d"):
        tried("words-glove", embeddings=glove(tmp_path / "short.txt", WORDS, width=8))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xff\xfe\x00word 1 2\n", "is not UTF-8 text"),
        (b"ship 1 2 3\ncrew 1 2\n", "line 2: 2 numbers"),
        (b"ship 1 2\n", "has no vector for i"),
        (None, "can't read"),
    ],
)
def test_a_bad_file_of_vectors_is_refused_in_a_sentence(tmp_path, content, said):
    file = tmp_path / "vectors.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(CantBeDone, match=said):
        tried("words-glove", embeddings=str(file))
