"""Keys picked by what tokens hold: the largest scores, hashed chunks, clusters; against loops."""

import numpy as np
import pytest
import torch

from impls.cost import softmax
from impls.sparse import cost as costs
from impls.sparse.lsh import Lsh, rotations
from impls.sparse.routing import centroids
from tests.brute import bias, saved, visible
from tests.impls.small import both_forms, both_give, inputs
from tests.impls.small import problem as problem_of

CLOSE = {"rtol": 0, "atol": 1e-12}


def sorted_loop(q, k, v, sight, bias, scale, count):
    """Row by row: sort by score, then by place; softmax over the first ones."""
    q, k, v = (x.double().numpy() for x in (q, k, v))
    out = np.zeros((*q.shape[:3], v.shape[-1]))
    group = q.shape[1] // k.shape[1]
    for b, h, i in np.ndindex(q.shape[:3]):
        scores = k[b, h // group] @ q[b, h, i] * scale + bias[b, h, i]
        order = sorted(np.flatnonzero(sight[b, h, i]), key=lambda j: (-scores[j], j))[:count]
        if order:
            weights = np.exp(scores[order] - scores[order].max())
            out[b, h, i] = weights @ v[b, h // group, order] / weights.sum()
    return out


@pytest.mark.parametrize("count", [1, 4])
def test_it_is_the_softmax_over_the_first_when_sorted_by_score_then_place(count):
    # scale 1/2 and halves in the bias: every score is exact, so equal ones are truly equal
    dice = np.random.default_rng(0)
    dense = saved("dense", dice.random((4, 37, 37)) < 0.2)
    halves = saved("bias", dice.choice([-np.inf, 0.5, -2.0], (37, 37)))
    for mask in ("none", "causal", "padding:0,25", "causal+alibi", dense, halves):
        bare = problem_of(mask, 37, head_dim=4)
        tensors = [x.round() for x in inputs(bare)]
        sight, added = (see(mask, (2, 4, 37, 37)) for see in (visible, bias))
        want = sorted_loop(*tensors, sight, np.where(sight, added, 0.0), bare.scale, count)
        both_give(f"topk?k={count}", bare, tensors, want, **CLOSE)


def test_blocks_of_queries_do_not_change_what_is_chosen(monkeypatch):
    problem = problem_of("causal+document:20,17", 37)
    tensors = inputs(problem)
    whole = both_forms("topk?k=5", problem)[0](*tensors)
    monkeypatch.setattr("impls.sparse.topk.SCORES", 2 * 4 * 37 * 3)  # three rows
    torch.testing.assert_close(both_forms("topk?k=5", problem)[0](*tensors), whole, **CLOSE)


def test_the_cost_is_that_of_softmax_forward_with_all_keys_and_less_with_few():
    problem = problem_of("causal", 37, head_dim=8, v_head_dim=8, dtype="float32")
    assert costs.topk(problem, 37) == softmax(problem)
    assert costs.topk(problem, 4).bytes == softmax(problem).bytes
    step = problem.with_(q_len=1, phase="decode")
    ends, keys, values = 2 * 4 * 16, 2 * 2 * 37 * 8, 2 * 2 * 4 * 8
    assert costs.topk(step, 4).bytes == 4 * (ends + keys + values)
    pairs = 37 * 38 // 2 * 8
    few = sum(min(i + 1, 4) for i in range(37)) * 8
    assert costs.topk(problem, 4).flops == 2 * 8 * (pairs + few)
    assert costs.topk(problem.with_(phase="train"), 4).flops == 2 * 8 * (pairs + few) + 64 * few


def chunks_of(x, rotation, length):
    """Which chunk each token falls into: sort by bucket, then by place, and cut."""
    turned = x @ rotation
    bucket, place = np.concatenate([turned, -turned], -1).argmax(-1), np.arange(len(x))
    return place[np.lexsort((place, bucket)).argsort()] // length


def met_loop(problem, q, k, v, rounds, bucket, seed, shared):
    """Row by row: how often each key was met, and the softmax with those weights."""
    turns = rotations(problem, rounds, bucket, seed).double().numpy()
    q, k, v = (x.double().numpy() for x in (q, k, v))
    n, group = problem.kv_len, problem.group
    count = -(-n // bucket)
    out = np.zeros((*q.shape[:3], v.shape[-1]))
    for b, h in np.ndindex(q.shape[:2]):
        keys = q[b, h] / np.linalg.norm(q[b, h], axis=-1, keepdims=True)
        keys = keys if shared else k[b, h // group]
        met = np.zeros((n, n))
        for turn in turns:
            mine = chunks_of(q[b, h], turn, bucket)
            its = mine if shared else chunks_of(keys, turn, bucket)
            met += (its == mine[:, None]) | (its == (mine[:, None] - 1) % count)
        if shared and n > 1:
            np.fill_diagonal(met, 0.0)
        scores = q[b, h] @ keys.T * problem.scale
        weights = met * np.exp(scores - scores.max(-1, keepdims=True))
        out[b, h] = weights @ v[b, h // group] / weights.sum(-1, keepdims=True)
    return out


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("length", "bucket"), [(77, 8), (64, 8), (77, 500), (2, 8), (1, 8)])
def test_it_is_the_softmax_weighted_by_how_often_a_key_was_met(length, bucket, shared):
    problem = problem_of(length=length)
    q, k, v = inputs(problem)
    want = met_loop(problem, q, k, v, 3, bucket, 0, shared)
    label = f"lsh?rounds=3&bucket={bucket}&shared={shared}"
    both_give(label, problem, (q, k, v), want, **CLOSE)


def test_two_smaller_hashes_stand_in_for_one_of_many_buckets():
    problem = problem_of(length=600, batch=1, heads=1, kv_heads=1, v_head_dim=16)
    q, k, _ = inputs(problem)
    assert costs.hash_widths(600, 4) == (12, 14)
    turn = rotations(problem, 1, 4, 0)[0]
    turned = [q[0, 0] @ part for part in (turn[:, :6], turn[:, 6:])]
    first, second = (torch.cat([x, -x], -1).argmax(-1).tolist() for x in turned)
    order = sorted(range(600), key=lambda i: (first[i], second[i], i))
    plan = Lsh(problem, 1, 4, 0, True)
    assert plan.places(q, k, plan.rotations[0]).queries.tolist() == order


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


def test_it_is_the_mean_of_softmaxes_inside_clusters():
    for changes, clusters, window, ask, give in (
        ({}, 5, 20, 20, 20),
        ({}, 0, 0, 9, 9),
        ({"q_len": 13, "v_head_dim": 6}, 4, 0, 4, 20),
        ({"kv_len": 7}, 3, 50, 50, 7),
        ({"q_len": 1, "kv_len": 1}, 0, 0, 1, 1),
    ):
        problem = problem_of(**{"length": 77, **changes})
        tensors = inputs(problem)
        many = clusters or costs.root(problem.kv_len)
        want, times = cluster_loop(problem, *tensors, many, ask, give, 1)
        label = f"routing?clusters={clusters}&window={window}&seed=1"
        assert not both_forms(label, problem)[0](*tensors).numpy()[times == 0].any(), (
            "no cluster takes it"
        )
        both_give(label, problem, tensors, want, **CLOSE)
