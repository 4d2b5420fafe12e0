"""Retention, gated linear attention, the delta rule and state spaces: the papers' recurrences.

S = … S + … and o = s q S, token by token in NumPy, with the gates of the variants' own parameters.
"""

import itertools

import numpy as np
import pytest
import torch

from attnbench.gate.inputs import make
from impls.linear import decay, delta, gla, retention, ssd, unrolled
from tests.impls import small
from tests.impls.small import cost, differentiated, made, verdict


def problem(mask="causal", length=75, **changes):
    return small.problem(mask, length, **{"phase": "train", **changes})


def walked(q, k, v, asked, step):
    """o of every token; ``step(state, where)`` is the state after it."""
    out = np.zeros((*q.shape[:3], v.shape[-1]))
    for b, h in itertools.product(range(q.shape[0]), range(q.shape[1])):
        c = h // (q.shape[1] // k.shape[1])
        state = np.zeros((k.shape[-1], v.shape[-1]))
        for t in range(q.shape[2]):
            state = step(state, (b, c, t))
            out[b, h, t] = asked.scale * q[b, h, t] @ state
    return out


def of_retention(q, k, v, asked):
    """S = g S + k v^T (arXiv:2307.08621)."""

    def step(state, at):
        return (1 - 2.0 ** (-5 - at[1])) * state + np.outer(k[at], v[at])

    return walked(q, k, v, asked, step)


def alphas(k, asked, seed=0):
    """sigmoid(k W1 W2 + bias) ^ (1/16) of every token, from the same parameters."""
    first, second, bias = (x.double().numpy() for x in gla.parameters(asked, seed))
    out = np.zeros_like(k)
    for b, c, t in itertools.product(*map(range, k.shape[:3])):
        raw = (k[b, c, t] @ first[c]) @ second[c] + bias[c]
        out[b, c, t] = np.exp(-np.logaddexp(0, -raw) / 16)
    return out


def of_gla(q, k, v, asked):
    """S = diag(alpha) S + k v^T (arXiv:2312.06635)."""
    alpha = alphas(k, asked)

    def step(state, at):
        return np.diag(alpha[at]) @ state + np.outer(k[at], v[at])

    return walked(q, k, v, asked, step)


def shares(k, asked, seed=0):
    """b = sigmoid(k . w) of every token, from the same parameters."""
    w = delta.parameters(asked, seed).double().numpy()
    out = np.zeros(k.shape[:3])
    for b, c, t in itertools.product(*map(range, k.shape[:3])):
        out[b, c, t] = np.exp(-np.logaddexp(0, -k[b, c, t] @ w[c]))
    return out


def of_delta(q, k, v, asked):
    """S = (I - b k k^T) S + b k v^T, of keys and queries of length one (arXiv:2406.06484)."""
    share = shares(k, asked)
    q, k = (x / np.sqrt(np.sum(x**2, -1, keepdims=True) + 1e-6) for x in (q, k))

    def step(state, at):
        kept = np.eye(k.shape[-1]) - share[at] * np.outer(k[at], k[at])
        return kept @ state + share[at] * np.outer(k[at], v[at])

    return walked(q, k, v, asked, step)


def steps(k, asked, seed=0):
    """dt = softplus(k . w + bias) of every token, and a of every head, from the parameters."""
    w, bias, a = (x.double().numpy() for x in ssd.parameters(asked, seed))
    dt = np.zeros(k.shape[:3])
    for b, c, t in itertools.product(*map(range, k.shape[:3])):
        dt[b, c, t] = np.logaddexp(0, k[b, c, t] @ w[c] + bias[c])
    return dt, a


def of_ssd(q, k, v, asked):
    """S = exp(dt a) S + k (dt v)^T (arXiv:2405.21060)."""
    dt, a = steps(k, asked)

    def step(state, at):
        return np.exp(dt[at] * a[at[1]]) * state + np.outer(k[at], dt[at] * v[at])

    return walked(q, k, v, asked, step)


PAPERS = {"retention": of_retention, "gla": of_gla, "delta": of_delta, "ssd": of_ssd}


CLOSE = {"rtol": 1e-10, "atol": 1e-11}
each = pytest.mark.parametrize("name", PAPERS)


def by_hand(name, leaves, asked):
    return PAPERS[name](*(x.detach().double().numpy() for x in leaves), asked)


@pytest.mark.parametrize(
    ("chunk", "inputs", "fits"),
    [(1, "peaky", 1 << 20), (7, "normal", 300), (64, "equal_keys", 5000), (1000, "normal", 0)],
)
@each
def test_chunks_of_any_size_and_the_definition_give_the_recurrence_of_the_paper(
    monkeypatch, name, chunk, inputs, fits
):
    """However many states of its loop the definition keeps for its gradient."""
    monkeypatch.setattr(unrolled, "CACHE_BYTES", fits)
    asked = problem(inputs=inputs)
    leaves, rows = make(asked, 0), torch.tensor([74, 0, 31, 31])
    attend, define = made(f"{name}?chunk={chunk}", asked)
    want = by_hand(name, leaves, asked)
    np.testing.assert_allclose(attend(*leaves).numpy(), want, **CLOSE)
    np.testing.assert_allclose(define(*leaves, rows).numpy(), want[:, :, rows], **CLOSE)
    of_all = differentiated(lambda *qkv: define(*qkv, torch.arange(75)), leaves)
    for got, right in zip(differentiated(attend, leaves), of_all, strict=True):
        torch.testing.assert_close(got, right, **CLOSE)


@pytest.mark.parametrize(
    ("name", "written", "gate"),
    [("retention", 2, 0), ("gla", 2, 64 * 16), ("ssd", 2, 2 * 16), ("delta", 4, 2 * 16)],
)
def test_the_cost_is_that_of_the_recurrence(name, written, gate):
    keys, queries, numbers = 2 * 2 * 75, 2 * 4 * 75, 16 * 12  # batch, heads, tokens; d e
    forward = keys * (written * numbers + gate) + queries * 2 * numbers
    assert cost(name, problem(phase="forward")).flops == forward
    assert cost(name, problem(phase="train")).flops == 3 * forward
    step = problem(phase="decode", q_len=1)
    assert cost(name, step).flops * 75 == forward
    assert cost(name, step) == cost(name, step.with_(kv_len=5000))


def test_gates_start_in_the_ranges_of_their_papers():
    np.testing.assert_allclose(retention.log_rates(3).exp(), [31 / 32, 63 / 64, 127 / 128])
    asked = problem(head_dim=64, heads=8, kv_heads=8)
    first, second, bias = gla.parameters(asked, 0)
    assert first.shape == (8, 64, 16) and second.shape == (8, 16, 64) and bias.shape == (8, 64)
    for x, most in ((first, 1 / 8), (second, 1 / 4), (bias, 1 / 4)):
        assert 0.95 * most < float(x.abs().max()) <= most
        assert abs(float(x.std()) - most / 3**0.5) < 0.05 * most
    asked = problem(heads=512, kv_heads=512)
    w, bias, a = ssd.parameters(asked, 0)
    dt = np.log1p(np.exp(bias.double().numpy()))
    assert dt.min() > 0.99e-3 and dt.max() < 0.101
    assert abs(np.log(dt).mean() - np.log(0.01)) < 0.2  # the middle of log-uniform
    assert -16 <= a.min() < -15.5 and -1.5 < a.max() <= -1
    for drawn in (w, delta.parameters(asked, 0)):
        assert drawn.shape == (512, 16) and 0.24 < float(drawn.abs().max()) <= 0.25


# ---- retention, and the scan that it and others share --------------------------------------------


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(("chunks", "rates"), [(64, (1, 1)), (65, (5, 1))])
def test_the_scan_in_two_steps_is_the_scan(backward, chunks, rates):
    generator = torch.Generator().manual_seed(0)
    added = torch.randn(2, 3, chunks, 5, 4, generator=generator, dtype=torch.float64)
    kept = torch.rand(2, 3, chunks, *rates, generator=generator, dtype=torch.float64)
    want = torch.zeros_like(added)
    order = list(range(chunks))[:: -1 if backward else 1]
    for here, after in itertools.pairwise(order):
        want[:, :, after] = kept[:, :, here] * want[:, :, here] + added[:, :, here]
    turned = (lambda x: x.flip(2)) if backward else (lambda x: x)
    two = turned(decay._two_steps(turned(added), turned(kept)))
    torch.testing.assert_close(two, want, rtol=1e-12, atol=1e-13)
    one = decay._scan(added, kept, backward=backward)
    torch.testing.assert_close(one, want, rtol=1e-12, atol=1e-13)


# ---- gated linear attention, the delta rule, state spaces ----------------------------------------


def test_gates_that_close_to_nothing_overflow_nowhere():
    asked = problem(dtype="float32", length=130)
    q, k, v = make(asked, 0)
    leaves = [x.requires_grad_() for x in (q, k * 1e4, v)]
    out = gla.build(asked, chunk=64, seed=0)(*leaves)
    gradients = torch.autograd.grad(out.sum(), leaves)
    assert all(x.isfinite().all() for x in (out, *gradients))
    want = by_hand("gla", leaves, asked)
    assert alphas(leaves[1].detach().double().numpy(), asked).min() < 1e-60
    np.testing.assert_allclose(out.detach().numpy(), want, rtol=1e-4, atol=1e-5 * abs(want).max())


@pytest.mark.parametrize(("width", "inputs"), [(1, "normal"), (4, "equal_keys")])
def test_chunks_end_where_their_rounding_would_be_more_than_the_recurrence_s(width, inputs):
    asked = problem(head_dim=width, dtype="float32", inputs=inputs, length=300)
    note = made("delta?chunk=1000", asked)[0].note()
    assert note.startswith(f"chunks of {16 * width} tokens: the")
    assert verdict("delta?chunk=1000", asked).reason is None


def test_a_short_sum_after_long_ones_keeps_its_digits():
    """Decays of e^-70 a token, then gentle ones: a difference of running sums would be off."""
    asked = problem(batch=1, heads=1, kv_heads=1, length=64, dtype="float32")
    w, _, a = ssd.parameters(asked, 0)
    q, k, v = make(asked, 0)
    direction = (w[0] / (w[0] @ w[0]))[None, None, None]
    k -= (k @ w[0])[..., None] * direction
    k[:, :, :32] += (90 / -a[0]) * direction  # k . w makes dt there
    dt, rate = steps(k.double().numpy(), asked)
    assert (dt * rate)[0, 0, :32].sum() < -2000
    want = by_hand("ssd", (q, k, v), asked)
    got = ssd.build(asked, chunk=64, seed=0)(q, k, v).double().numpy()
    assert np.linalg.norm((got - want)[:, :, 33:]) < 1e-6 * np.linalg.norm(want[:, :, 33:])
