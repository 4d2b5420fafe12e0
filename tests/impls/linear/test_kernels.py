"""Variants that weigh each pair by a product of features, against the sum over pairs in NumPy."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from impls.linear import common, cosformer, cosine, elu, hedgehog, taylor
from impls.problem import Problem
from tests.brute import visible
from tests.impls import small
from tests.impls.small import both_forms, both_give, cost, inputs, problem, verdict

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


def test_no_weight_of_cosformer_is_lost_at_the_far_end():
    p = Problem(1, 1, 1, 4096, 4096, 2, 1)
    q, k, v = (torch.zeros(1, 1, 4096, width) for width in (2, 2, 1))
    q[0, 0, -1] = k[0, 0, 0] = torch.tensor([1.0, 0.0])  # the one pair with a weight
    v[0, 0, 0] = 7.0
    out = cosformer.build(p, 128)(q, k, v)
    assert out[0, 0, -1].item() == pytest.approx(7.0, rel=1e-6)
    assert not out[0, 0, :-1].any()


def test_features_of_taylor_are_counted_once_and_a_projection_is_of_unit_size():
    assert taylor.Taylor(Problem(), 16).width == 1 + 16 + 16 * 17 // 2 == 153
    down = taylor.projection(Problem(head_dim=256), 64, torch.float64)
    assert (down @ down.T).diagonal().mean().item() == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("mask", ["none", "causal", "window:3,1"])
def test_cosines_know_no_lengths_and_zeros_have_none_and_no_gradient(mask):
    p = problem(mask, phase="train")
    q, k, v = inputs(p)
    for normalise in ("none", "softmax"):
        attend = cosine.build(p, normalise, 0.1, 4)
        torch.testing.assert_close(attend(q * 1e3, k * 1e-3, v), attend(q, k, v))
    q[:, :, 4], k[:, :, 6] = 0.0, 0.0
    leaves, rows = [x.requires_grad_() for x in (q, k, v)], torch.arange(45)
    define = cosine.definition(p, "none", 0.1, 4)
    for function in (cosine.build(p, "none", 0.1, 4), lambda *x: define(*x, rows)):
        out = function(*leaves)
        dq, dk, dv = torch.autograd.grad(out.square().sum(), leaves)
        assert not out[:, :, 4].any() and not dq[:, :, 4].any() and not dk[:, :, 6].any()
        assert not dv[:, :, 6].any() and all(x.isfinite().all() for x in (dq, dk, dv))


NAMES = ["linear.identity", "linear.elu", "cosformer", "linear.taylor", "hedgehog", "cosine"]


@pytest.mark.parametrize("name", [*NAMES, "gla?chunk=50"])
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


def test_products_in_bfloat16_as_on_a_gpu_pass_the_gate(monkeypatch):
    monkeypatch.setattr(common, "work_dtype", lambda problem: torch.bfloat16)
    for name, phase, kind in (
        *product(("linear.elu", "hedgehog", "cosine"), ("forward", "train"), ("outliers",)),
        *product(("linear.elu", "cosformer"), ("train",), ("equal_keys",)),
    ):
        p = problem("causal", 300, dtype="bfloat16", phase=phase, inputs=kind)
        p = p.with_(head_dim=64, v_head_dim=64)
        assert verdict(f"{name}?chunk=32", p).reason is None, (name, p)


class Largest(TorchDispatchMode):
    """The most bytes in one tensor that was made."""

    most = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else [out]:
            if isinstance(x, torch.Tensor) and x._base is None:
                self.most = max(self.most, x.untyped_storage().nbytes())
        return out


@pytest.mark.parametrize(
    ("name", "mask"), [("linear.elu", "none"), *((n, "causal") for n in NAMES)]
)
def test_memory_grows_with_the_length_forward_and_backward(name, mask):
    sizes = []
    for length in (512, 2048):
        p = problem(mask, length, dtype="float32", batch=1, phase="train")
        attend, _ = both_forms(name, p)
        with Largest() as largest:
            saved = small.kept_bytes(attend, inputs(p))
            small.differentiated(attend, inputs(p))
        sizes.append((largest.most, saved))
    (most, saved), (more, kept_more) = sizes
    assert more <= 4.01 * most and kept_more <= 4.1 * saved


@pytest.mark.parametrize("name", [*NAMES, "hedgehog?init=random"])
def test_the_cost_is_what_is_counted(name):
    p = problem("none", 2048, dtype="float32", head_dim=32, v_head_dim=32)
    with FlopCounterMode(display=False) as counter:
        both_forms(name, p)[0](*inputs(p))
    flops = cost(name, p).flops
    assert flops <= counter.get_total_flops() <= 1.05 * flops
