"""strided, fixed, dilated, longformer, bigbird: patterns from the papers' sets, and their work."""

import numpy as np
import pytest
import torch

from attnbench.gate.inputs import make
from impls.masks import Mask
from impls.problem import Problem
from tests.impls.small import both_forms, cost


def problem(length, mask="none", **more):
    shape = {"heads": 2, "kv_heads": 2, "head_dim": 16, "v_head_dim": 16, "batch": 1}
    shape |= {"q_len": length, "kv_len": length, "mask": Mask.parse(mask)}
    return Problem(**{**shape, **more})


def seen_by(variant, p):
    """The pairs that the definition lets meet: bool [n, n], read off the gradient of the values."""
    define, n = both_forms(variant, p)[1], p.q_len
    q = torch.zeros(1, p.heads, n, p.head_dim, dtype=torch.float64)
    v = torch.eye(n, dtype=torch.float64).expand(1, p.heads, n, n)
    return (define(q, q, v, torch.arange(n))[0, 0] > 0).numpy()


SMALL = {
    "strided": "strided?stride=7", "fixed": "fixed?stride=9&summary=2",
    "dilated": "dilated?dilation=3&width=5", "longformer": "longformer?window=6&globals=3",
    "bigbird": "bigbird?block=8&globals=1&random=2",
}  # fmt: skip
ROWS = list(SMALL)


def test_a_few_blocks_at_a_time_give_what_all_at_once_give():
    for name, mask, length in (
        *((name, mask, 2101) for name, mask in zip(ROWS, ("none", "causal") * 3, strict=False)),
        ("window.blocked", "window:40,17", 4200),
    ):
        p = problem(length, mask, heads=8, kv_heads=4, phase="train")
        inputs = make(p, 0).qkv
        few = both_forms(name, p.with_(phase="forward"))[0]
        assert name != "window.blocked" or len(few.slabs) > 2
        torch.testing.assert_close(few(*inputs), both_forms(name, p)[0](*inputs))


def strided_set(i, l):  # noqa: E741
    """arXiv:1904.10509, eq. 6: A1 = {t..i} with t = max(0, i - l), A2 = {j: (i - j) mod l = 0}."""
    return set(range(max(0, i - l), i + 1)) | {j for j in range(i + 1) if (i - j) % l == 0}


def fixed_set(i, l, c):  # noqa: E741
    """arXiv:1904.10509: floor(j/l) = floor(i/l), and j mod l in {t, t+1, ..., l} with t = l - c."""
    own = {j for j in range(i + 1) if j // l == i // l}
    return own | {j for j in range(i + 1) if j % l in range(l - c, l + 1)}


def dilated_set(i, d, w):
    return {i - u * d for u in range(w + 1) if i - u * d >= 0}


def longformer_set(i, w, g):
    return {j for j in range(i + 1) if i - j <= w or j < g or i < g}


def test_a_row_sees_the_keys_of_the_papers_set():
    for variant, keys, numbers in (
        ("strided?stride=7", strided_set, (7,)),
        ("strided", strided_set, (7,)),  # 0: the root of 50
        ("strided?stride=50", strided_set, (50,)),
        ("fixed?stride=9&summary=2", fixed_set, (9, 2)),
        ("fixed?stride=5&summary=5", fixed_set, (5, 5)),
        ("fixed?stride=8&summary=0", fixed_set, (8, 0)),
        ("dilated?dilation=3&width=5", dilated_set, (3, 5)),
        ("longformer?window=6&globals=3", longformer_set, (6, 3)),
        ("longformer?window=0&globals=0", longformer_set, (0, 0)),
    ):
        n = 50
        want = np.zeros((n, n), bool)
        for i in range(n):
            want[i, sorted(keys(i, *numbers))] = True
        np.testing.assert_array_equal(seen_by(variant, problem(n, "causal")), want, variant)


WORK = [("none", 1, 0), ("none", 64, 0), ("causal", 64, 0), ("none", 301, 1), ("causal", 301, 5)]


@pytest.mark.parametrize("name", ROWS)
def test_the_work_is_counted_on_the_pairs_and_a_step_reads_the_keys_it_needs(name):
    for mask, length, new in WORK:
        visible = seen_by(SMALL[name], problem(length, mask))[-new:]
        p = problem(length, mask, heads=4, kv_heads=2)
        step = p.with_(q_len=new, phase="decode") if new else p
        work = cost(SMALL[name], step)
        assert work.flops == 2 * int(visible.sum()) * 4 * (16 + 16)
        if new:
            read = int(visible.any(0).sum())
            assert both_forms(SMALL[name], step)[0].note().startswith(f"{read} of 301 keys")
            assert work.bytes == 4 * (4 * new + 2 * read) * (16 + 16)
