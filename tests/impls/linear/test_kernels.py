"""Variants that weigh each pair by a product of features, against the sum over pairs in NumPy."""

import math

import numpy as np
import pytest
import torch

from impls.linear import common, elu, hedgehog, taylor
from tests.brute import visible
from tests.impls.small import both_forms, both_give, differentiated, inputs, problem, verdict

EYE = np.eye(5)


def of_identity(q, k, **_):
    return q @ k.T / math.sqrt(5)


def of_elu(q, k, **_):
    q, k = (np.where(x > 0, x, np.exp(x) - 1) + 1 for x in (q, k))
    return q @ k.T


def of_cosformer(q, k, *, at, longest, **_):
    angle = math.pi / 2 * (at - np.arange(len(k))) / longest
    return np.maximum(q, 0) @ np.maximum(k, 0).T * np.cos(angle)


def of_taylor(q, k, *, down=EYE, **_):
    x = (q @ down) @ (k @ down).T / math.sqrt(5)
    return 1 + x + x**2 / 2


def of_hedgehog(q, k, *, maps=(EYE, EYE), **_):
    def features(x):
        halves = [np.exp(s * x - (s * x).max(-1, keepdims=True)) for s in (1, -1)]
        return np.concatenate([half / half.sum(-1, keepdims=True) for half in halves], -1)

    return features(q @ maps[0]) @ features(k @ maps[1]).T


def of_cosine(q, k, *, temperature=None, **_):
    q, k = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
    return q @ k.T if temperature is None else np.exp(q @ k.T / temperature)


SUM, MEAN, COUNT = "sum", "mean", "count"
"""Divided by nothing, by the sum of the weights, or by how many there are."""
FORMS = {
    "linear.identity": (of_identity, SUM),
    "linear.identity?normalise=true": (of_identity, COUNT),
    "linear.elu": (of_elu, MEAN),
    "cosformer": (of_cosformer, MEAN),
    "linear.taylor?features=0": (of_taylor, MEAN),
    "linear.taylor?features=3": (of_taylor, MEAN),
    "hedgehog": (of_hedgehog, MEAN),
    "hedgehog?init=random": (of_hedgehog, MEAN),
    "cosine": (of_cosine, SUM),
    "cosine?normalise=softmax&temperature=0.3": (of_cosine, MEAN),
}
CASES = [
    (label, mask, (n, m))
    for label in FORMS
    for mask, n, m in (("none", 6, 19), ("causal", 6, 19), ("causal", 19, 6))
]
HIDING = ("window:3,1", "causal+document:5,6,8", "padding:0,11", "prefix:4")
CASES += [(label, m, (19, 19)) for label in FORMS if "cosine" in label for m in HIDING]


def own(label, p, h):
    """The variant's own parameters, which the weights of a head need too."""
    if label == "linear.taylor?features=3":
        return {"down": taylor.projection(p, 3, torch.float64).numpy()}
    if label == "hedgehog?init=random":
        q, k = hedgehog.maps(p, "random", torch.float64)
        return {"maps": (q[h].numpy(), k[h // p.group].numpy())}
    return {"temperature": 0.3} if "softmax" in label else {}


@pytest.mark.parametrize(("label", "mask", "lengths"), CASES)
def test_chunks_and_definition_are_the_sum_over_pairs(label, mask, lengths):
    p = problem(mask, q_len=lengths[0], kv_len=lengths[1], head_dim=5, v_head_dim=3)
    tensors = inputs(p)
    q, k, v = (x.numpy() for x in tensors)
    sight = visible(mask, (2, 4, *lengths))
    (weight, divided), want = FORMS[label], np.zeros((2, 4, lengths[0], 3))
    place = {"at": np.arange(-lengths[0], 0)[:, None] + lengths[1], "longest": max(lengths)}
    for b, h in np.ndindex(2, 4):
        w = weight(q[b, h], k[b, h // 2], **place, **own(label, p, h)) * sight[b, h]
        total = {SUM: 1, MEAN: w, COUNT: sight[b, h]}[divided]
        total = total if divided == SUM else total.sum(-1, keepdims=True)
        want[b, h] = w @ v[b, h // 2] / np.where(total == 0, 1, total)
    both_give(f"{label}{'&' if '?' in label else '?'}chunk=4", p, tensors, want)


def test_features_of_elu_keep_their_digits_and_their_gradient_far_below_zero():
    x = torch.linspace(-6, 6, 97, dtype=torch.float64, requires_grad=True)
    want, up = torch.nn.functional.elu(x) + 1.0, torch.cos(x.detach())
    torch.testing.assert_close(elu.elu_plus_one(x), want)
    grads = [torch.autograd.grad(y, x, up)[0] for y in (elu.elu_plus_one(x), want)]
    torch.testing.assert_close(*grads)
    low = torch.tensor([-30.0])
    assert torch.nn.functional.elu(low) + 1.0 == 0.0
    assert elu.elu_plus_one(low).item() == pytest.approx(math.exp(-30.0), rel=1e-6)
    # so one key is returned however small its weight
    one = problem("causal", 1, batch=1, heads=1, kv_heads=1, head_dim=2, v_head_dim=2)
    low, v = torch.full((1, 1, 1, 2), -20.0), torch.tensor([[[[3.0, -5.0]]]])
    torch.testing.assert_close(elu.build(one, 128)(low, low, v), v)


def test_a_cosine_with_zeros_is_none_and_has_no_gradient():
    p = problem("causal", phase="train")
    q, k, v = inputs(p)
    q[:, :, 4], k[:, :, 6] = 0.0, 0.0
    define, rows = both_forms("cosine", p)[1], torch.arange(45)
    for function in (both_forms("cosine?chunk=4", p)[0], lambda *x: define(*x, rows)):
        out, dq, dk, dv = differentiated(function, (q, k, v))
        assert not out[:, :, 4].any() and not dq[:, :, 4].any() and not dk[:, :, 6].any()
        assert all(x.isfinite().all() for x in (out, dq, dk, dv))


NAMES = ["linear.identity", "linear.elu", "cosformer", "linear.taylor", "hedgehog", "cosine"]


@pytest.mark.parametrize("name", [*NAMES, "gla?chunk=50&gates=key"])
def test_long_sequences_are_done_a_stretch_at_a_time_where_nothing_is_kept(name):
    unequal = [(2500, 3100), (2600, 2100)] if name in ("linear.elu", "cosformer") else []
    for n, m in [(2049, 2049), *unequal]:
        assert min(n, m) > common.STRETCH
        p = problem("causal", batch=1, q_len=n, kv_len=m, head_dim=8)
        attend, _ = both_forms(name, p)
        q, k, v = inputs(p)
        with torch.no_grad():
            cut = attend(q, k, v).clone()
        whole = attend(*(x.clone().requires_grad_() for x in (q, k, v)))
        torch.testing.assert_close(cut, whole.detach(), rtol=1e-9, atol=1e-11)
        with torch.no_grad():  # and no bit of a later stretch comes into an earlier one
            k[:, :, 2048], v[:, :, 2048], first = -7.0, 100.0, 2048 - (m - n)
            again = attend(q, k, v)
        assert torch.equal(cut[:, :, :first], again[:, :, :first])
        assert not torch.equal(cut[:, :, first:], again[:, :, first:])


@pytest.mark.parametrize(
    ("name", "kind"),
    [("linear.elu", "equal_keys"), ("cosformer", "equal_keys"), ("hedgehog", "outliers")],
)
def test_products_in_bfloat16_as_on_a_gpu_pass_the_gate(name, kind, monkeypatch):
    monkeypatch.setattr(common, "work_dtype", lambda problem: torch.bfloat16)
    p = problem("causal", 130, dtype="bfloat16", phase="train", inputs=kind)
    p = p.with_(head_dim=64, v_head_dim=64)
    assert verdict(f"{name}?chunk=32", p).reason is None
