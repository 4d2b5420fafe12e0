"""Each claim of the documents: true code reproduces it, a wrong implementation does not."""

import numpy as np
import pytest

from attnbench.features.claims import biases, layers, one_head
from attnbench.features.claims import claim as claims
from attnbench.features.claims.trial import findings_of
from impls.layers import attention


@pytest.fixture(autouse=True)
def few_draws(monkeypatch):
    monkeypatch.setattr(biases, "BATCH", 8)
    monkeypatch.setattr(one_head, "DRAWS", {"uniform": 20, "gaussian": 3, "begun": 3})


def tried(name):
    """The outcome of a claim, by two draws where it draws."""
    (claim,) = claims.find([name])
    findings = findings_of(claim.measure, claims.ClaimRequest(), min(2, claim.draws))
    return claims.ClaimOutcome.of(claim, findings)


def failed(one):
    held_by = {
        p.name: claims.standing(p, one.findings.figures.get(p.name)) for p in one.claim.points
    }
    return {name for name, state in held_by.items() if state is claims.PointStanding.FAILS}


TRUE = ("key-bias", "no-key-bias", "einsum-from-scratch", "numpy-attention", "numpy-batched",
        "numpy-heads", "numpy-block", "words-small", "words-identity")  # fmt: skip


@pytest.mark.parametrize("name", TRUE)
def test_what_is_true_is_reproduced(name):
    one = tried(name)
    assert (one.verdict, one.reason) == (claims.ClaimVerdict.REPRODUCED, "")


def test_eight_heads_are_not_one_though_the_code_prints_true():
    one = tried("one-head")
    assert failed(one) == {"uniform equal", "gaussian equal", "begun equal"}
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


@pytest.mark.parametrize(
    ("place", "name", "wrong", "claim", "fails"),
    [
        (biases, "layer", counting_key, "key-bias", "key|key float64"),
        (attention, "from_torch", odd_gradient, "no-key-bias", "backward float64"),
        (layers, "by_einsum", lambda true: lambda x, q, *rest: true(x, q * 0.7, *rest),
         "einsum-from-scratch", "output|output float64"),
        (layers, "attention",
         lambda true: lambda x, i, o, mask, heads: true(x, i, o, np.zeros_like(mask), heads),
         "numpy-block", ""),
        (layers, "attention", lambda true: lambda x, *rest: true(1.5 * x, *rest),
         "words-small", "weights|output"),
        (layers, "by_torch", lambda true: lambda x, t, identity=True: true(x, t, False),
         "words-identity", "weights|output|formula"),
    ],
)  # fmt: skip
def test_a_wrong_implementation_is_found_out(monkeypatch, place, name, wrong, claim, fails):
    monkeypatch.setattr(place, name, wrong(getattr(place, name)))
    one = tried(claim)
    assert one.verdict is not claims.ClaimVerdict.REPRODUCED
    assert set(fails.split("|") if fails else ()) <= failed(one)
