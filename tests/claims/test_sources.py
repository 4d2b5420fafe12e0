"""Each claim of the documents: true code reproduces it, a wrong implementation does not."""

import numpy as np
import pytest

from attnbench.features.claims import biases, layers, one_head, word_vectors
from attnbench.features.claims import claim as claims
from impls.errors import CantBeDone
from impls.layers import attention
from impls.loading import load_function


@pytest.fixture(autouse=True)
def few_draws(monkeypatch):
    fewer = {"DRAWS": 2, "CONVERSIONS": 2, "BATCH": 8}
    of_heads = {"GRADIENT_DRAWS": 3, "DRAWS": {"uniform": 200, "gaussian": 3, "begun": 3}}
    of_layers = {"CLOUD_DRAWS": 3, "DRAWS": 3}
    for module, some in ((biases, fewer), (layers, of_layers), (one_head, of_heads)):
        for name, value in some.items():
            monkeypatch.setattr(module, name, value)


def tried(*names, **asked):
    """Claims of one measurement."""
    found = claims.find(names)
    findings = load_function(found[0].measure)(claims.ClaimRequest(**asked))
    return [claims.ClaimOutcome.of(claim, findings) for claim in found]


def failed(one):
    held_by = {
        p.name: claims.standing(p, one.findings.figures.get(p.name)) for p in one.claim.points
    }
    return [name for name, state in held_by.items() if state is claims.PointStanding.FAILS]


TRUE = ("key-bias", "no-key-bias", "one-head-gradients",
        "einsum-from-scratch", "numpy-attention", "numpy-batched", "numpy-heads", "numpy-block",
        "words-small", "words-identity", "words-tables")  # fmt: skip


@pytest.mark.parametrize("name", TRUE)
def test_what_is_true_is_reproduced(name):
    (one,) = tried(name)
    assert (one.verdict, one.reason) == (claims.ClaimVerdict.REPRODUCED, "")


def test_eight_heads_are_not_one_though_the_code_prints_true():
    one, saturated = tried("one-head", "one-head-saturated")
    assert (saturated.verdict, saturated.reason) == (claims.ClaimVerdict.REPRODUCED, "")
    assert one.verdict is claims.ClaimVerdict.NOT_REPRODUCED
    assert set(failed(one)) == {"uniform equal", "gaussian equal", "begun equal"}
    # some draws print what the source shows
    assert 0 < one.findings.figures["uniform equal"].value < 1
    assert one.findings.figures["gaussian equal"].value == 0


def counting_key(true):
    """A layer that adds the key's bias to the values, too."""

    def wrong(*words):
        module, inputs, chance = true(*words)
        plain = module.forward

        def forward(q, k, v, **more):
            out, weights = plain(q, k, v, **more)
            return out + module.in_proj_bias.chunk(3)[1], weights

        module.forward = forward
        return module, inputs, chance

    return wrong


def odd_gradient(true):
    def wrong(module, **more):
        ours = true(module, **more)
        ours.v_bias.register_hook(lambda gradient: gradient * 1.001)
        return ours

    return wrong


def one_sign(printed):
    """The sign of one of the fifty numbers of 'ship'."""
    vector = printed["vector"]
    return {**printed, "vector": [*vector[:8], -vector[8], *vector[9:]]}


@pytest.mark.parametrize(
    ("place", "name", "wrong", "claim", "fails"),
    [
        (biases, "layer", counting_key, "key-bias", "key|key float64|rounding"),
        (attention, "from_torch", odd_gradient, "no-key-bias", "backward float64"),
        # eight heads with the attention of one: equal everywhere, and not learning apart
        (one_head, "attend", lambda true: lambda x, w, heads: true(x, w, 1),
         "one-head-gradients", "begun q|begun k|begun v"),
        (layers, "by_einsum", lambda true: lambda x, q, *rest: true(x, q * 0.7, *rest),
         "einsum-from-scratch", "output|output float64"),
        (layers, "attention",
         lambda true: lambda x, i, o, mask, heads: true(x, i, o, np.zeros_like(mask), heads),
         "numpy-block", ""),
        (word_vectors, "plain", lambda true: lambda x: true(1.5 * x),
         "words-small", "weights|output"),
        (word_vectors, "by_torch", lambda true: lambda x, t, **_: true(x, t, identity=False),
         "words-identity", "weights|output|float32"),
        (word_vectors, "PRINTED", one_sign, "words-tables",
         "output odyssey|output amazon|by cosines"),
    ],
)  # fmt: skip
def test_a_wrong_implementation_is_found_out(monkeypatch, place, name, wrong, claim, fails):
    monkeypatch.setattr(place, name, wrong(getattr(place, name)))
    (one,) = tried(claim)
    assert one.verdict is not claims.ClaimVerdict.REPRODUCED
    assert set(fails.split("|") if fails else ()) <= set(failed(one))


def glove(path, width):
    chance = np.random.default_rng(0)
    sentences = [word_vectors.PRINTED[name]["sentence"] for name in word_vectors.SENTENCES]
    words = sorted(set(" ".join(sentences).lower().split()))
    rows = [[word, *(f"{x:.4f}" for x in chance.normal(size=width))] for word in words]
    path.write_text("\n".join(map(" ".join, rows)) + "\n")
    return str(path)


def test_other_vectors_than_gloves_do_not_give_its_figures(tmp_path):
    (one,) = tried("words-glove", embeddings=glove(tmp_path / "other.txt", 50))
    assert one.verdict is claims.ClaimVerdict.NOT_REPRODUCED
    assert "vector" in failed(one)


def test_vectors_of_another_width_are_refused_in_a_sentence(tmp_path):
    with pytest.raises(CantBeDone, match=r"has 8: give glove\.6B\.50d"):
        tried("words-glove", embeddings=glove(tmp_path / "short.txt", 8))
