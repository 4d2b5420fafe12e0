"""Retention, gated linear attention, the delta rule, state spaces: their papers' recurrences."""

import functools

import numpy as np
import pytest
import torch

import attnbench
from attnbench.gate.inputs import make
from impls import operators, table
from impls.errors import CantBeDone
from impls.linear import delta, gla, ssd, unrolled
from impls.spec import InvalidRow
from tests.impls import small
from tests.impls.small import both_forms, cost, differentiated


def problem(mask="causal", length=75, **changes):
    return small.problem(mask, length, **{"phase": "train", **changes})


def walked(q, k, v, p, step):
    """o of every token; ``step(state, t)`` is the state of each key's head after it."""
    (b, c, _, d), (h, n, e) = k.shape, (q.shape[1], q.shape[2], v.shape[3])
    state, out, q = np.zeros((b, c, d, e)), [], q.reshape(b, c, -1, n, d)
    for t in range(n):
        state = step(state, t)
        out.append(p.scale * q[:, :, :, t] @ state)
    return np.stack(out, 3).reshape(b, h, n, e)


def outer(x, y, t):
    return x[:, :, t, :, None] * y[:, :, t, None]


def faded(q, k, v, p, g):
    """S = exp(g) S + k v^T, g a number a token."""
    alpha = np.exp(g)[..., None, None]
    return walked(q, k, v, p, lambda state, t: alpha[:, :, t] * state + outer(k, v, t))


def of_retention(q, k, v, p):
    """S = g S + k v^T (arXiv:2307.08621)."""
    rates = np.log(1 - 2.0 ** (-5 - np.arange(k.shape[1])))
    return faded(q, k, v, p, np.broadcast_to(rates[:, None], k.shape[:3]))


def log_alphas(k, p):
    """log sigmoid(k W1 W2 + bias) / 16 of every token, from the same parameters."""
    first, second, bias = (x.double().numpy() for x in gla.parameters(p, 0))
    return -np.logaddexp(0, -((k @ first) @ second + bias[:, None])) / 16


def of_gla(q, k, v, p):
    """The same of gates that keys make."""
    return faded_by_channel(q, k, v, p, log_alphas(k, p))


def faded_by_channel(q, k, v, p, g):
    """S = diag(exp g) S + k v^T (arXiv:2312.06635)."""
    alpha = np.exp(g)[..., None]
    return walked(q, k, v, p, lambda state, t: alpha[:, :, t] * state + outer(k, v, t))


def of_delta(q, k, v, p):
    """S = (I - b k k^T) S + b k v^T, of keys and queries of length one (arXiv:2406.06484), with
    b = sigmoid(k . w) from the same parameters."""
    w = delta.parameters(p, 0).double().numpy()
    share = np.exp(-np.logaddexp(0, -(k * w[:, None]).sum(-1)))
    q, k = (x / np.sqrt(np.sum(x**2, -1, keepdims=True) + 1e-6) for x in (q, k))
    return corrected(q, k, v, p, share)


def corrected(q, k, v, p, beta):
    """S = (I - b k k^T) S + b k v^T."""
    share = beta[..., None]

    def step(state, t):
        transition = np.eye(k.shape[-1]) - outer(share * k, k, t)
        return transition @ state + outer(share * k, v, t)

    return walked(q, k, v, p, step)


def steps(k, p):
    """dt = softplus(k . w + bias) of every token, and a of every head, from the parameters."""
    w, bias, a = (x.double().numpy() for x in ssd.parameters(p, 0))
    return np.logaddexp(0, (k * w[:, None]).sum(-1) + bias[:, None]), a


def of_ssd(q, k, v, p):
    """S = exp(dt a) S + k (dt v)^T (arXiv:2405.21060)."""
    dt, a = steps(k, p)
    return faded(q, k, dt[..., None] * v, p, dt * a[:, None])


def of_keys(name):
    """The row whose gates come of the keys, or are fixed."""
    return f"{name}?gates={'fixed' if name == 'retention' else 'key'}"


PAPERS = {"retention": of_retention, "gla": of_gla, "delta": of_delta, "ssd": of_ssd}
GATED = {
    "retention": faded,
    "gla": faded_by_channel,
    "delta": corrected,
    "ssd": lambda q, k, v, p, g, dt: faded(q, k, dt[..., None] * v, p, g),
}


@pytest.mark.parametrize("name", GATED)
@pytest.mark.parametrize("chunk", [7, 64])
@pytest.mark.parametrize("new", [0, 3])
def test_gates_that_are_inputs_are_those_of_the_recurrence(name, chunk, new):
    phase = {"phase": "decode", "q_len": new} if new else {"phase": "train"}
    p = problem(length=75).with_(**phase)
    inputs = make(p, 0, operators.inputs(name, p))
    attend, define = both_forms(f"{name}?chunk={chunk}", p)
    leaves = inputs.map(lambda x: x.requires_grad_(not new))
    by_place, gates = leaves.arguments
    rows = torch.arange(p.q_len)
    arrays = [x.detach().numpy() for x in by_place]
    missing = [(0, 0), (0, 0), (75 - p.q_len, 0), (0, 0)]
    arrays[0] = np.pad(arrays[0], missing)
    want = GATED[name](*arrays, p, **{n: x.detach().numpy() for n, x in gates.items()})
    got, plain = attend(*by_place, **gates), define(*by_place, rows, **gates)
    for out in (got, plain):
        np.testing.assert_allclose(out.detach().numpy(), want[:, :, -p.q_len :], **CLOSE)
    if not new:
        upstream = torch.randn(got.shape, dtype=got.dtype)
        both = (torch.autograd.grad(out, leaves.values(), upstream) for out in (got, plain))
        for mine, right in zip(*both, strict=True):
            torch.testing.assert_close(mine, right, **CLOSE)


@pytest.mark.parametrize("name", GATED)
def test_a_layer_has_no_gates_to_give_and_a_call_must(name):
    with pytest.raises(InvalidRow, match="takes q, k and v alone"):
        table().find(f"mha?core={name}")
    with pytest.raises(CantBeDone, match=r"it takes (g|beta).* too, by name"):
        attnbench.attention(name)(*torch.randn(3, 1, 2, 9, 4))


CLOSE = {"rtol": 1e-10, "atol": 1e-11}


def by_hand(name, leaves, p):
    return PAPERS[name](*(x.detach().double().numpy() for x in leaves), p)


SIZES = [(1, "peaky", 1 << 20), (7, "normal", 300), (64, "equal_keys", 5000), (1000, "normal", 0)]


@pytest.mark.parametrize("name", PAPERS)
def test_chunks_of_any_size_and_the_definition_give_the_recurrence_of_the_paper(monkeypatch, name):
    """However many states of its loop the definition keeps for its gradient."""
    for chunk, inputs, fits in SIZES:
        monkeypatch.setattr(unrolled, "CACHE_BYTES", fits)
        p = problem(inputs=inputs)
        leaves, rows = make(p, 0).qkv, torch.tensor([74, 0, 31, 31])
        attend, define = both_forms(f"{of_keys(name)}&chunk={chunk}", p)
        want = by_hand(name, leaves, p)
        np.testing.assert_allclose(attend(*leaves).numpy(), want, **CLOSE)
        np.testing.assert_allclose(define(*leaves, rows).numpy(), want[:, :, rows], **CLOSE)
        of_all = differentiated(lambda *qkv, define=define: define(*qkv, torch.arange(75)), leaves)
        for got, right in zip(differentiated(attend, leaves), of_all, strict=True):
            torch.testing.assert_close(got, right, **CLOSE)


@pytest.mark.parametrize("inputs", ["peaky", "equal_keys"])
@pytest.mark.parametrize("name", PAPERS)
def test_the_direct_form_is_the_walk_token_by_token(monkeypatch, name, inputs):
    p = problem(inputs=inputs, length=260)
    rows, results = torch.tensor([259, 0, 63, 64, 127, 128, 31, 31]), []
    monkeypatch.setattr(unrolled, "STRETCH", 2)
    for walked_to in (260, 0):
        monkeypatch.setattr(unrolled, "WALKED", walked_to)
        define = both_forms(of_keys(name), p)[1]
        of_rows = functools.partial(lambda define, *qkv: define(*qkv, rows), define)
        leaves = make(p, 0).qkv
        results.append((define(*leaves, rows), *differentiated(of_rows, leaves)))
    for walked_one, direct in zip(*results, strict=True):
        torch.testing.assert_close(direct, walked_one, **CLOSE)


@pytest.mark.parametrize("name", PAPERS)
def test_the_cost_is_that_of_the_recurrence(name):
    keys, queries, numbers = 2 * 2 * 75, 2 * 4 * 75, 16 * 12  # batch, heads, tokens; d e
    operations = {"delta": 4}.get(name, 2)
    gate = {"retention": 0, "gla": 64 * 16}.get(name, 2 * 16)
    forward = keys * (operations * numbers + gate) + queries * 2 * numbers
    assert cost(of_keys(name), problem(phase="forward")).flops == forward
    assert cost(of_keys(name), problem(phase="train")).flops == 3 * forward
    step = problem(phase="decode", q_len=1)
    assert cost(of_keys(name), step).flops * 75 == forward
    assert cost(of_keys(name), step) == cost(of_keys(name), step.with_(kv_len=5000))


def test_gates_that_close_to_nothing_overflow_nowhere():
    p = problem(dtype="float32", length=130)
    q, k, v = make(p, 0).values()
    leaves = [x.requires_grad_() for x in (q, k * 1e4, v)]
    out = gla.build(p, chunk=64, seed=0, gates="key")(*leaves)
    gradients = torch.autograd.grad(out.sum(), leaves)
    assert all(x.isfinite().all() for x in (out, *gradients))
    want = by_hand("gla", leaves, p)
    assert log_alphas(leaves[1].detach().double().numpy(), p).min() < -140
    np.testing.assert_allclose(out.detach().numpy(), want, rtol=1e-4, atol=1e-5 * abs(want).max())


def test_a_short_sum_after_long_ones_keeps_its_digits():
    """Decays of e^-70 a token, then gentle ones: a difference of running sums would be off."""
    p = problem(batch=1, heads=1, kv_heads=1, length=64, dtype="float32")
    w, _, a = ssd.parameters(p, 0)
    q, k, v = make(p, 0).values()
    direction = (w[0] / (w[0] @ w[0]))[None, None, None]
    k -= (k @ w[0])[..., None] * direction
    k[:, :, :32] += (90 / -a[0]) * direction  # k . w makes dt there
    dt, rate = steps(k.double().numpy(), p)
    assert (dt * rate)[0, 0, :32].sum() < -2000
    want = by_hand("ssd", (q, k, v), p)
    got = ssd.build(p, chunk=64, seed=0, gates="key")(q, k, v).double().numpy()
    assert np.linalg.norm((got - want)[:, :, 33:]) < 1e-6 * np.linalg.norm(want[:, :, 33:])
