"""Clusters of queries and keys, against a loop over centroids and against routing-transformer."""

import numpy as np
import pytest
import torch

from impls.problem import Problem
from impls.sparse import cost as costs
from impls.sparse.routing import build, centroids, definition, taken
from impls.spec import Unsupported

SMALL = {
    "batch": 2, "heads": 4, "kv_heads": 2, "q_len": 77, "kv_len": 77, "head_dim": 16,
    "v_head_dim": 16,
}  # fmt: skip


def inputs(problem, seed=0):
    made = torch.Generator().manual_seed(seed)
    b, h, c, d = problem.batch, problem.heads, problem.kv_heads, problem.head_dim
    extents = (b, h, problem.q_len, d), (b, c, problem.kv_len, d)
    extents += ((b, c, problem.kv_len, problem.v_head_dim),)
    dtype = getattr(torch, problem.dtype)
    return [torch.randn(e, generator=made, dtype=torch.float64).to(dtype) for e in extents]


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
    problem = Problem(**{**SMALL, **changes}, dtype="float64")
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


def test_some_queries_are_in_no_cluster_and_some_in_several():
    problem = Problem(**SMALL, dtype="float64")
    times = cluster_loop(problem, *inputs(problem), 9, 9, 9, 0)[1]
    assert times.min() == 0
    assert times.max() > 1


def test_with_one_cluster_it_is_softmax_attention():
    problem = Problem(**{**SMALL, "kv_heads": 4}, dtype="float64")
    q, k, v = inputs(problem)
    exact = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    assert torch.allclose(build(problem, clusters=1, window=0, seed=0)(q, k, v), exact)


@pytest.mark.filterwarnings("ignore")
def test_it_is_kmeans_attention_of_routing_transformer_but_for_its_epsilon():
    library = pytest.importorskip("routing_transformer.routing_transformer")
    problem = Problem(**{**SMALL, "kv_heads": 4, "q_len": 80, "kv_len": 80})
    q, k, v = inputs(problem)
    theirs = library.KmeansAttention(5, 16, 4, 16).eval()
    means = centroids(problem, 5, 0)
    theirs.kmeans.means.copy_(means)
    theirs.kmeans.initted.fill_(True)
    with torch.no_grad():
        out = theirs(q, k, v)[0]
    ours = build(problem, clusters=5, window=16, seed=0)(q, k, v)
    # it divides the sum by how many clusters took the query plus 1e-5
    times = torch.zeros(2, 4, 80).scatter_add(
        2, taken(q, means, 16).flatten(2), torch.ones(2, 4, 80)
    )
    assert (ours - out).abs().max() < 1e-4
    assert (ours - out * ((times + 1e-5) / times.clamp(min=1))[..., None]).abs().max() < 2e-6


@pytest.mark.parametrize("inputs", ["normal", "peaky", "outliers", "equal_keys"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("options", ["", "?clusters=4&window=30&seed=2"])
def test_the_gate_lets_it_through(verdict, dtype, inputs, options):
    problem = Problem(**SMALL, dtype=dtype, inputs=inputs, phase="train")
    assert verdict(f"routing{options}", problem).reason is None


@pytest.mark.parametrize(
    "changes",
    [
        {"q_len": 1, "kv_len": 1},
        {"q_len": 13, "v_head_dim": 5},
        {"kv_len": 13, "phase": "forward"},
        {"batch": 1, "heads": 1, "kv_heads": 1},
        {"heads": 3, "kv_heads": 1, "dtype": "bfloat16"},
        {"dtype": "float64"},
    ],
    ids=str,
)
def test_the_gate_lets_other_shapes_through(verdict, changes):
    problem = Problem(**{**SMALL, "phase": "train", **changes})
    assert verdict("routing", problem).reason is None


@pytest.mark.parametrize(("clusters", "window"), [(-1, 0), (4, -5)])
def test_less_than_nothing_is_unsupported_with_a_sentence(clusters, window):
    problem = Problem(**SMALL)
    says = rf"clusters={clusters} and window={window} must be 1 or more, or 0"
    with pytest.raises(Unsupported, match=says):
        build(problem, clusters=clusters, window=window, seed=0)
    assert costs.routing(problem, clusters, window, 0).flops > 0
    definition(problem, clusters=clusters, window=window, seed=0)


def test_it_says_how_many_each_cluster_takes():
    note = build(Problem(**{**SMALL, "q_len": 10}), clusters=4, window=15, seed=0).note()
    assert note == "4 clusters, each takes 10 of 10 queries and 15 of 77 keys"


def test_the_cost_is_ranking_and_attention_inside_the_clusters():
    problem = Problem(**SMALL)
    ranking = 2 * 2 * (4 + 2) * 77 * 16 * 7
    inside = 2 * 4 * 7 * 11 * 11 * 2 * (16 + 16)
    assert costs.routing(problem, 7, 11, 0).flops == ranking + inside
    assert costs.routing(problem.with_(phase="train"), 7, 11, 0).flops == ranking + 3 * inside
