"""Hashed chunks, against a loop over sets of keys and against reformer-pytorch."""

import numpy as np
import pytest
import torch

from impls.sparse import cost as costs
from impls.sparse.lsh import Plan, build, definition, rotations
from tests.impls.small import inputs
from tests.impls.small import problem as problem_of


def one(length, **changes):
    return problem_of(length=length, batch=1, heads=1, kv_heads=1, **{"v_head_dim": 16, **changes})


CHOICE = {"rounds": 3, "bucket": 8, "seed": 0}


def chunks_of(x, rotation, length):
    """Which chunk each token falls into: sort by bucket, then by place, and cut."""
    turned = x @ rotation
    bucket = np.concatenate([turned, -turned], -1).argmax(-1)
    order = sorted(range(len(x)), key=lambda i: (bucket[i], i))
    return {token: place // length for place, token in enumerate(order)}


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
            for i in range(n):
                near = {mine[i], (mine[i] - 1) % count}
                met[i] += [its[j] in near for j in range(n)]
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
    choice = {**CHOICE, "bucket": bucket, "shared": shared}
    assert np.abs(build(problem, **choice)(q, k, v).numpy() - want).max() < 1e-12
    rows = torch.tensor([length - 1, 0])
    plain = definition(problem, **choice)(q, k, v, rows)
    assert np.abs(plain.numpy() - want[:, :, rows]).max() < 1e-12


def test_two_smaller_hashes_stand_in_for_one_of_many_buckets():
    assert costs.hash_widths(128 * 64, 64) == (128,)
    for length in (129 * 64, 1 << 15, 1 << 20, 12345):
        widths = costs.hash_widths(length, 64)
        chunks = -(-length // 64)
        assert all(w % 2 == 0 for w in widths)
        assert chunks <= np.prod(widths) <= 1.3 * chunks + 8
    problem = one(600)
    q, k, _ = inputs(problem)
    assert costs.hash_widths(600, 4) == (12, 14)
    turn = rotations(problem, 1, 4, 0)[0]
    turned = [q[0, 0] @ part for part in (turn[:, :6], turn[:, 6:])]
    first, second = (torch.cat([x, -x], -1).argmax(-1).tolist() for x in turned)
    order = sorted(range(600), key=lambda i: (first[i], second[i], i))
    plan = Plan(problem, 1, 4, 0, True)
    assert plan.places(q, k, plan.rotations[0]).queries.tolist() == order


def test_the_cost_counts_hashing_and_two_chunks_a_token():
    problem = one(64, dtype="float32")
    attend = 4 * 3 * 64 * 16 * 16
    hashing = 3 * 2 * 2 * 64 * 16 * 4
    assert costs.lsh(problem, **CHOICE, shared=False).flops == attend + hashing
    assert costs.lsh(problem, **CHOICE, shared=True).flops == attend + hashing // 2
    train = problem.with_(phase="train")
    assert costs.lsh(train, **CHOICE, shared=False).flops == 3 * attend + hashing
