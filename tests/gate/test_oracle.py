"""The oracle against dense float64 NumPy, row by row, and the rows it is asked for."""

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnbench.gate import oracle
from attnbench.gate.inputs import make
from attnbench.gate.oracle import exact, sample_rows

SLOPES = {2: [2**-4, 2**-8], 4: [2**-2, 2**-4, 2**-6, 2**-8]}
EDGES = np.cumsum([0, 5, 12, 7])
PAIRS = {
    "none": lambda b, h, i, j: True,
    "causal": lambda b, h, i, j: j <= i,
    "window:3,2": lambda b, h, i, j: i - 3 <= j <= i + 2,
    "prefix:9": lambda b, h, i, j: j < 9 or j <= i,
    "document:5,12,7": lambda b, h, i, j: any(
        EDGES[d] <= i < EDGES[d + 1] and EDGES[d] <= j < EDGES[d + 1] for d in range(3)
    ),
    "padding:0,11": lambda b, h, i, j: j < (0, 11)[b],
    "alibi": lambda b, h, i, j: True,
    "causal+alibi": lambda b, h, i, j: j <= i,
    "causal+padding:20,3": lambda b, h, i, j: j <= i and j < (20, 3)[b],
}
WIDTHS = {
    "plain": {},
    "grouped": {"heads": 4, "kv_heads": 2},
    "one-kv-head-wide-v": {"heads": 4, "kv_heads": 1, "v_head_dim": 5},
}


def slope_table(problem, corner=None):
    offset = problem.kv_len - problem.q_len if corner is None else corner
    return lambda b, h, i, j: -SLOPES[problem.heads][h] * abs(i + offset - j)


def agrees(truth, problem, seen, added=None, seed=0):
    """The oracle on all rows equals the dense form: output, gradients, entropy."""
    inputs = make(problem, seed)
    generator = torch.Generator().manual_seed(7)
    dout = torch.randn(
        problem.batch, problem.heads, problem.q_len, problem.v_head_dim, generator=generator
    )
    got = exact(problem, *inputs, torch.arange(problem.q_len), dout)
    want = truth.dense(problem, inputs, dout, *truth.tables(problem, seen, added))
    for name, a, b in zip(("out", "dq", "dk", "dv"), got, want, strict=False):
        np.testing.assert_allclose(a.numpy(), b, rtol=1e-10, atol=1e-12, err_msg=name)
    assert got.entropy == pytest.approx(want[4], abs=1e-12)
    assert got.out.dtype == torch.float64


@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("mask", PAIRS)
def test_output_gradients_and_entropy_are_those_of_dense_numpy(truth, mask, widths):
    problem = truth.problem(mask, **WIDTHS[widths])
    agrees(truth, problem, PAIRS[mask], slope_table(problem) if "alibi" in mask else None)


@pytest.mark.parametrize(("q_len", "kv_len"), [(7, 24), (24, 7), (1, 24), (24, 1)])
@pytest.mark.parametrize("upper_left", [False, True])
@pytest.mark.parametrize("mask", ["causal", "window:3,1", "causal+alibi"])
def test_unequal_lengths_stand_at_the_corner_that_is_asked_for(
    truth, mask, upper_left, q_len, kv_len
):
    problem = truth.problem(mask + "@upper-left" * upper_left, q_len=q_len, kv_len=kv_len)
    offset = 0 if upper_left else kv_len - q_len
    pair = PAIRS["window:3,2"] if "window" in mask else PAIRS["causal"]
    if mask == "window:3,1":

        def pair(b, h, i, j):
            return i - 3 <= j <= i + 1

    agrees(
        truth,
        problem,
        lambda b, h, i, j: pair(b, h, i + offset, j),
        slope_table(problem, offset) if "alibi" in mask else None,
    )


@pytest.mark.parametrize("extent", [(24, 24), (2, 1, 24, 24), (1, 2, 1, 24), (2, 2, 24, 24)])
def test_a_bias_file_is_added_and_its_infinities_hide(truth, tmp_path, extent):
    table = np.random.default_rng(3).choice([-np.inf, 0.25, -1.5, 3.0], extent)
    if extent[-2] > 1:
        table[..., 4, :] = -np.inf
    np.save(tmp_path / "bias.npy", table)
    problem = truth.problem(f"bias:{tmp_path / 'bias.npy'}")
    full = np.broadcast_to(table, (2, 2, 24, 24))
    agrees(
        truth,
        problem,
        lambda *at: full[at] > -np.inf,
        lambda *at: full[at] if full[at] > -np.inf else 0.0,
    )


def test_a_dense_file_hides_where_it_is_false(truth, tmp_path):
    table = np.random.default_rng(4).random((2, 1, 24, 24)) < 0.3
    table[0, 0, 6] = False
    np.save(tmp_path / "dense.npy", table)
    problem = truth.problem(f"causal+dense:{tmp_path / 'dense.npy'}", heads=4, kv_heads=2)
    agrees(truth, problem, lambda b, h, i, j: table[b, 0, i, j] and j <= i)


@pytest.mark.parametrize("inputs", ["peaky", "outliers", "equal_keys"])
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_every_kind_of_inputs_and_dtype_is_computed_in_float64(truth, inputs, dtype):
    agrees(truth, truth.problem("causal", inputs=inputs, dtype=dtype), PAIRS["causal"])


def test_one_row_agrees_with_forty_digits(truth):
    problem = truth.problem("causal", inputs="peaky", batch=1)
    q, k, v = make(problem, 5)
    got = exact(problem, q, k, v, torch.tensor([19])).out[0, 1, 0]
    with mpmath.workdps(40):
        scores = [
            mpmath.fdot(zip(q[0, 1, 19].tolist(), k[0, 1, j].tolist(), strict=True))
            / mpmath.sqrt(problem.head_dim)
            for j in range(20)
        ]
        powers = [mpmath.exp(s - max(scores)) for s in scores]
        for column in range(problem.v_head_dim):
            sums = mpmath.fdot(zip(powers, v[0, 1, :20, column].tolist(), strict=True))
            want = float(sums / mpmath.fsum(powers))
            assert float(got[column]) == pytest.approx(want, rel=1e-11, abs=1e-13)


@pytest.mark.parametrize("block_bytes", [1, 3 * 8 * 2 * 24, 7 * 8 * 4 * 24])
@pytest.mark.parametrize("mask", ["window:3,2", "padding:0,11", "causal+alibi", "prefix:9"])
def test_blocks_of_any_size_give_the_same(truth, monkeypatch, mask, block_bytes):
    problem = truth.problem(mask, heads=4, kv_heads=2)
    inputs, rows = make(problem, 1), torch.arange(24)
    dout = torch.randn(2, 4, 24, 8, generator=torch.Generator().manual_seed(1))
    whole = exact(problem, *inputs, rows, dout)
    blocks = list(oracle._blocks(problem, rows, plain=False))
    monkeypatch.setattr(oracle, "BLOCK_BYTES", block_bytes)
    assert len(blocks) == 1 < len(list(oracle._blocks(problem, rows, plain=False)))
    cut = exact(problem, *inputs, rows, dout)
    for a, b in zip(whole[:4], cut[:4], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)
    assert whole.entropy == pytest.approx(cut.entropy, rel=1e-12)


@pytest.mark.parametrize("mask", ["none", "causal", "window:3,2", "padding:5,24", "alibi"])
def test_sampled_rows_give_whole_gradients_where_the_others_have_none(truth, mask):
    problem = truth.problem(mask, heads=4, kv_heads=2)
    rows = torch.tensor([0, 3, 4, 17, 23])
    inputs = make(problem, 2)
    dout = torch.zeros(2, 4, 24, 8)
    dout[:, :, rows] = torch.randn(2, 4, 5, 8, generator=torch.Generator().manual_seed(2))
    got = exact(problem, *inputs, rows, dout[:, :, rows])
    added = slope_table(problem) if mask == "alibi" else None
    pair = {"padding:5,24": lambda b, h, i, j: j < (5, 24)[b]}.get(mask) or PAIRS[mask]
    out, dq, dk, dv, _ = truth.dense(problem, inputs, dout, *truth.tables(problem, pair, added))
    np.testing.assert_allclose(got.out.numpy(), out[:, :, rows], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(got.dq.numpy(), dq[:, :, rows], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(got.dk.numpy(), dk, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(got.dv.numpy(), dv, rtol=1e-10, atol=1e-12)


def test_no_gradients_without_an_upstream_one(truth):
    problem = truth.problem("causal")
    got = exact(problem, *make(problem, 0), torch.arange(24))
    assert (got.dq, got.dk, got.dv) == (None, None, None)


@pytest.mark.parametrize("mask", ["none", "window:3,2", "padding:0,11", "alibi"])
def test_uniform_gives_the_mean_of_the_values_in_sight(truth, mask):
    problem = truth.problem(mask, heads=4, kv_heads=2, inputs="peaky")
    q, k, v = make(problem, 3)
    got = exact(problem, q, k, v, torch.arange(24), uniform=True)
    visible, _ = truth.tables(problem, PAIRS[mask])
    for b, h, i in np.ndindex(2, 4, 24):
        values = v[b, h // 2].double().numpy()[visible[b, h, i]]
        want = values.mean(0) if len(values) else np.zeros(8)
        np.testing.assert_allclose(got.out[b, h, i].numpy(), want, rtol=1e-12, atol=1e-14)


def test_entropy_is_one_for_equal_weights_and_zero_where_each_row_sees_one_key(truth):
    problem = truth.problem()
    q, k, v = make(problem, 0)
    assert exact(problem, q * 0, k, v, torch.arange(24)).entropy == pytest.approx(1.0)
    alone = truth.problem("window:0,0")
    assert exact(alone, q, k, v, torch.arange(24)).entropy == 0.0


# ---- which rows ----------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 5000), st.integers(8, 400), st.integers(0, 10))
def test_sampled_rows_are_sorted_unique_within_and_no_more_than_asked(q_len, count, seed):
    rows = sample_rows(q_len, count, seed).tolist()
    assert rows == sorted(set(rows))
    assert rows[0] >= 0 and rows[-1] < q_len
    assert len(rows) <= max(count, 1)
    if q_len <= count:
        assert rows == list(range(q_len))
    else:
        assert len(rows) > count / 2
        assert {0, 1, q_len - 2, q_len - 1} <= set(rows)


def test_the_rows_where_blocks_of_128_meet_are_sampled():
    for seed in range(5):
        assert {0, 1, 127, 128, 998, 999} <= set(sample_rows(1000, 64, seed).tolist())


def test_the_seed_decides_which_rows():
    assert torch.equal(sample_rows(10_000, 64, 1), sample_rows(10_000, 64, 1))
    assert not torch.equal(sample_rows(10_000, 64, 1), sample_rows(10_000, 64, 2))


def test_the_sample_spreads_over_the_sequence():
    rows = sample_rows(100_000, 256, 0)
    quarters = torch.bincount(rows // 25_000, minlength=4)
    assert int(quarters.min()) > 30
