"""A call made again: with the cap, the sinks and the scale of its problem, by the formula."""

import pytest
import torch
from msgspec.structs import replace

from attnbench.core.call import CallForm, TensorForm
from attnbench.models.replay import Replay, Taking, apart, further, values
from impls.masks import Mask
from impls.problem import Problem
from tests.impls.small import softmax

X = TensorForm((2, 4, 24, 16), (1536, 384, 16, 1), "float32")
SEEN = TensorForm((24, 24), (24, 1), "bool")
SETTINGS = {
    "products": {"scale": 0.3, "softcap": 2.0, "sinks": True},
    "eager": {"softcap": 2.0, "sinks": True},
    "flex": {"scale": 0.3, "softcap": 2.0, "sinks": True},
    "sdpa": {"scale": 0.3},
}
CALLS = [
    *SETTINGS.items(),
    ("sdpa", {"scale": 0.3, "lse": True}),
    ("flex", {"sinks": True, "lse": True}),
]


def call(api, phase="train", taking=None, **settings):
    x, mask = replace(X, gradient=phase == "train"), None if api == "flex" else SEEN
    if "lse" in settings and mask:  # the kernel takes no other
        mask = replace(mask, dtype="float32")
    form = CallForm(api, x, x, x, mask=mask, gradient=x.gradient, kernel="flash")
    p = Problem(2, 4, 4, 24, 24, 16, 16, mask=Mask.parse("causal"), phase=phase, **settings)
    return Replay(form, p, taking and Taking(taking))


def log_sums(p, q, k, v, sinks=None):
    """Of a causal call, by the formula."""
    scores = (q @ k.mT * p.scale).masked_fill(torch.ones(24, 24).triu(1).bool(), -torch.inf)
    scores = (
        scores
        if sinks is None
        else torch.cat([scores, sinks.view(4, 1, 1).expand(2, -1, 24, -1)], -1)
    )
    return scores.logsumexp(-1)


@pytest.mark.parametrize(("api", "settings"), CALLS)
def test_it_computes_what_its_problem_says(api, settings):
    phase = "forward" if api == "flex" else "train"  # not compiled, it has no backward on a CPU
    replay = call(api, phase, **settings)
    p, (q, k, v, dout) = replay.problem, values(replay.problem, 0)
    leaves = [x.double().requires_grad_() for x in (q, k, v, *further(p, 0).values())]
    want = softmax(p, *leaves)
    wants = [want, *([log_sums(p, *leaves)] if p.lse else [])]
    if phase == "train":
        wants += torch.autograd.grad(want, leaves, dout.double())
    got = replay.results()
    assert len(got) == len(wants)
    for one, other in zip(got, wants, strict=True):
        torch.testing.assert_close(one.double(), other.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("variant", ["chunked", "online"])
def test_a_variant_in_its_place_is_called_with_them_and_one_without_is_found_out(variant):
    settings = SETTINGS["products"]
    now = call("products", **settings)
    assert apart(now, call("products", taking=variant, **settings)) < 1e-5
    for name in settings:
        without = {n: x for n, x in settings.items() if n != name}
        other = call("products", "forward", taking=variant, **without)
        assert apart(call("products", "forward", **settings), other) > 1e-2


def test_a_variant_in_the_place_of_a_kernel_gives_the_log_sum_exp_too():
    now, then = call("sdpa", "forward", lse=True), call("sdpa", "forward", "chunked", lse=True)
    assert apart(now, then) < 1e-5
    assert len(then.results()) == 2
