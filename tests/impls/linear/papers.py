"""Recurrences of the papers, token by token in NumPy, and the problem that their tests ask about.

S = … S + … and o = s q S, with the gates of the variants' own parameters.
"""

import itertools

import numpy as np

from impls.linear import delta, gla, ssd
from tests.impls import small


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
