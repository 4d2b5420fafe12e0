"""Clusters of queries and keys, against a loop over centroids and against routing-transformer."""

import numpy as np
import pytest
import torch

from impls.sparse import cost as costs
from impls.sparse.routing import build, centroids, definition
from tests.impls.small import inputs
from tests.impls.small import problem as problem_of


def nearest(x, mean, count):
    near = x @ mean / np.linalg.norm(x, axis=-1)
    return sorted(range(len(x)), key=lambda i: (-near[i], i))[:count]


def cluster_loop(problem, q, k, v, clusters, ask, give, seed):
    """Centroid by centroid: who is nearest, and the softmax among them."""
    means = centroids(problem, clusters, seed).double().numpy()
    q, k, v = (x.double().numpy() for x in (q, k, v))
    out, times = np.zeros((*q.shape[:3], v.shape[-1])), np.zeros(q.shape[:3])
    for b, h, u in np.ndindex(*q.shape[:2], clusters):
        c = h // problem.group

        mine, its = nearest(q[b, h], means[c, u], ask), nearest(k[b, c], means[c, u], give)
        for i in mine:
            weights = np.exp(k[b, c, its] @ q[b, h, i] * problem.scale)
            out[b, h, i] += weights @ v[b, c, its] / weights.sum()
            times[b, h, i] += 1
    return out / np.maximum(times, 1)[..., None], times


@pytest.mark.parametrize(
    ("changes", "clusters", "window", "ask", "give"),
    [
        ({}, 5, 20, 20, 20),
        ({}, 0, 0, 9, 9),
        ({"q_len": 13, "v_head_dim": 6}, 4, 0, 4, 20),
        ({"kv_len": 7}, 3, 50, 50, 7),
        ({"q_len": 1, "kv_len": 1}, 0, 0, 1, 1),
    ],
    ids=str,
)
def test_it_is_the_mean_of_softmaxes_inside_clusters(changes, clusters, window, ask, give):
    problem = problem_of(**{"length": 77, **changes})
    given = inputs(problem)
    many = clusters or costs.root(problem.kv_len)
    want, times = cluster_loop(problem, *given, many, ask, give, 1)
    choice = {"clusters": clusters, "window": window, "seed": 1}
    got = build(problem, **choice)(*given)
    assert np.abs(got.numpy() - want).max() < 1e-12
    assert not got.numpy()[times == 0].any(), "a query that no cluster takes gets zeros"
    rows = torch.tensor([problem.q_len - 1, 0])
    plain = definition(problem, **choice)(*given, rows)
    assert np.abs(plain.numpy() - want[:, :, rows]).max() < 1e-12


def test_the_cost_is_ranking_and_attention_inside_the_clusters():
    problem = problem_of(length=77, v_head_dim=16)
    ranking = 2 * 2 * (4 + 2) * 77 * 16 * 7
    inside = 2 * 4 * 7 * 11 * 11 * 2 * (16 + 16)
    assert costs.routing(problem, 7, 11, 0).flops == ranking + inside
    assert costs.routing(problem.with_(phase="train"), 7, 11, 0).flops == ranking + 3 * inside
