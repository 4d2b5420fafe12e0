"""The oracle against dense float64 NumPy, its rows, and the measures of an error."""

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnbench.core.record import Error
from attnbench.gate import oracle
from attnbench.gate.inputs import make
from attnbench.gate.oracle import compare, exact, sample_rows, worse

SLOPES = {2: [2**-4, 2**-8], 4: [2**-2, 2**-4, 2**-6, 2**-8]}
EDGES = np.cumsum([0, 5, 12, 7])
PAIRS = {  # queries counted from the corner that is asked for
    "none": lambda b, i, j: True,
    "causal": lambda b, i, j: j <= i,
    "window:3,2": lambda b, i, j: i - 3 <= j <= i + 2,
    "prefix:9": lambda b, i, j: j < 9 or j <= i,
    "document:5,12,7": lambda b, i, j: any(
        EDGES[d] <= i < EDGES[d + 1] and EDGES[d] <= j < EDGES[d + 1] for d in range(3)
    ),
    "padding:0,11": lambda b, i, j: j < (0, 11)[b],
    "alibi": lambda b, i, j: True,
    "causal+alibi": lambda b, i, j: j <= i,
    "causal+padding:20,3": lambda b, i, j: j <= i and j < (20, 3)[b],
}
GROUPED = {"heads": 4, "kv_heads": 2}
WIDE = {"heads": 4, "kv_heads": 1, "v_head_dim": 5}
CASES = [
    *((mask, more) for mask in PAIRS for more in ({}, GROUPED)),
    *((mask, WIDE) for mask in ("none", "causal+alibi")),
    *(
        (mask + corner, {"q_len": q_len, "kv_len": kv_len})
        for mask in ("causal", "window:3,2", "causal+alibi")
        for corner in ("", "@upper-left")
        for q_len, kv_len in ((7, 24), (24, 7))
    ),
    ("causal", {"q_len": 1}),
    ("causal", {"kv_len": 1}),
    ("causal", {"inputs": "peaky", "dtype": "bfloat16"}),
    ("causal", {"inputs": "outliers", "dtype": "float64"}),
    ("causal", {"inputs": "equal_keys"}),
]


def wanted(truth, problem, inputs, dout):
    """The dense form under the mask by its name, spelled out pair by pair."""
    mask = str(problem.mask)
    offset = 0 if "upper-left" in mask else problem.kv_len - problem.q_len
    pair = PAIRS[mask.removesuffix("@upper-left")]
    slopes = SLOPES[problem.heads] if "alibi" in mask else [0.0] * problem.heads
    tables = truth.tables(
        problem,
        lambda b, h, i, j: pair(b, i + offset, j),
        lambda b, h, i, j: -slopes[h] * abs(i + offset - j),
    )
    return truth.dense(problem, inputs, dout, *tables)


def agrees(problem, want, inputs, dout):
    """The oracle on all rows equals the dense form: output, gradients, entropy."""
    got = exact(problem, *inputs, torch.arange(problem.q_len), dout)
    for name, a, b in zip(("out", "dq", "dk", "dv"), got, want, strict=False):
        np.testing.assert_allclose(a.numpy(), b, rtol=1e-10, atol=1e-12, err_msg=name)
    assert got.entropy == pytest.approx(want[4], abs=1e-12)
    assert got.out.dtype == torch.float64


def upstream(problem):
    return torch.randn(problem.output_shape, generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize(("mask", "more"), CASES)
def test_output_gradients_and_entropy_are_those_of_dense_numpy(truth, mask, more):
    problem = truth.problem(mask, **more)
    inputs, dout = make(problem, 0), upstream(problem)
    agrees(problem, wanted(truth, problem, inputs, dout), inputs, dout)


@pytest.mark.parametrize("extent", [(24, 24), (1, 2, 1, 24), (2, 2, 24, 24)])
def test_a_bias_file_is_added_and_its_infinities_hide(truth, tmp_path, extent):
    table = np.random.default_rng(3).choice([-np.inf, 0.25, -1.5, 3.0], extent)
    if extent[-2] > 1:
        table[..., 4, :] = -np.inf
    np.save(tmp_path / "bias.npy", table)
    problem = truth.problem(f"bias:{tmp_path / 'bias.npy'}")
    full = np.broadcast_to(table, (2, 2, 24, 24))
    inputs, dout = make(problem, 0), upstream(problem)
    seen = full > -np.inf
    agrees(problem, truth.dense(problem, inputs, dout, seen, np.where(seen, full, 0)), inputs, dout)


def test_a_dense_file_hides_where_it_is_false(truth, tmp_path):
    table = np.random.default_rng(4).random((2, 1, 24, 24)) < 0.3
    table[0, 0, 6] = False
    np.save(tmp_path / "dense.npy", table)
    problem = truth.problem(f"causal+dense:{tmp_path / 'dense.npy'}", **GROUPED)
    inputs, dout = make(problem, 0), upstream(problem)
    seen = np.broadcast_to(table & np.tri(24, dtype=bool), (2, 4, 24, 24))
    agrees(problem, truth.dense(problem, inputs, dout, seen, seen * 0.0), inputs, dout)


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


@pytest.mark.parametrize("block_bytes", [1, 7 * 8 * 4 * 24])
@pytest.mark.parametrize("mask", ["window:3,2", "padding:0,11", "causal+alibi"])
def test_blocks_of_any_size_give_the_same(truth, monkeypatch, mask, block_bytes):
    problem = truth.problem(mask, **GROUPED)
    inputs, rows, dout = make(problem, 1), torch.arange(24), upstream(problem)
    whole = exact(problem, *inputs, rows, dout)
    assert len(list(oracle._blocks(problem, rows, plain=False))) == 1
    monkeypatch.setattr(oracle, "BLOCK_BYTES", block_bytes)
    assert len(list(oracle._blocks(problem, rows, plain=False))) > 1
    cut = exact(problem, *inputs, rows, dout)
    for a, b in zip(whole[:4], cut[:4], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)
    assert whole.entropy == pytest.approx(cut.entropy, rel=1e-12)


@pytest.mark.parametrize("mask", ["none", "window:3,2", "padding:0,11", "alibi"])
def test_sampled_rows_give_whole_gradients_where_the_others_have_none(truth, mask):
    problem = truth.problem(mask, **GROUPED)
    rows, inputs = torch.tensor([0, 3, 4, 17, 23]), make(problem, 2)
    dout = torch.zeros(2, 4, 24, 8)
    dout[:, :, rows] = upstream(problem)[:, :, rows]
    got = exact(problem, *inputs, rows, dout[:, :, rows])
    out, dq, *rest = wanted(truth, problem, inputs, dout)
    for a, b in zip(got, (out[:, :, rows], dq[:, :, rows], *rest[:2]), strict=False):
        np.testing.assert_allclose(a.numpy(), b, rtol=1e-10, atol=1e-12)
    assert exact(problem, *inputs, rows)[1:4] == (None, None, None)


@pytest.mark.parametrize("mask", ["none", "window:3,2", "padding:0,11", "alibi"])
def test_uniform_gives_the_mean_of_the_values_in_sight(truth, mask):
    problem = truth.problem(mask, **GROUPED, inputs="peaky")
    q, k, v = make(problem, 3)
    got = exact(problem, q, k, v, torch.arange(24), uniform=True)
    for b, h, i in np.ndindex(2, 4, 24):
        values = v[b, h // 2].double().numpy()[[PAIRS[mask](b, i, j) for j in range(24)]]
        want = values.mean(0) if len(values) else np.zeros(8)
        np.testing.assert_allclose(got.out[b, h, i].numpy(), want, rtol=1e-12, atol=1e-14)


def test_entropy_is_one_for_equal_weights_and_zero_where_each_row_sees_one_key(truth):
    problem = truth.problem()
    q, k, v = make(problem, 0)
    assert exact(problem, q * 0, k, v, torch.arange(24)).entropy == pytest.approx(1.0)
    assert exact(truth.problem("window:0,0"), q, k, v, torch.arange(24)).entropy == 0.0


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 5000), st.integers(8, 400), st.integers(0, 10))
def test_sampled_rows_are_sorted_unique_within_and_no_more_than_asked(q_len, count, seed):
    rows = sample_rows(q_len, count, seed).tolist()
    assert rows == sorted(set(rows)) == sample_rows(q_len, count, seed).tolist()
    assert rows[0] >= 0 and rows[-1] < q_len
    assert len(rows) <= max(count, 1)
    if q_len <= count:
        assert rows == list(range(q_len))
    else:
        assert len(rows) > count / 2
        assert {e for e in (0, 1, 127, 128, q_len - 2, q_len - 1) if e < q_len} <= set(rows)


def test_the_sample_spreads_over_the_sequence_by_its_seed():
    rows = sample_rows(100_000, 256, 0)
    assert int(torch.bincount(rows // 25_000, minlength=4).min()) > 30
    assert not torch.equal(rows, sample_rows(100_000, 256, 1))


# ---- the measures of an error --------------------------------------------------------------------


def pair(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    want, noise = (torch.randn(2, 3, 5, 4, generator=generator, dtype=torch.float64) for _ in "ab")
    return (want + 0.01 * noise).to(dtype), want


@pytest.mark.parametrize("slice_numbers", [1, 45, 1 << 24])
def test_every_measure_is_its_formula(monkeypatch, slice_numbers):
    monkeypatch.setattr(oracle, "SLICE_NUMBERS", slice_numbers)
    for dtype in (torch.float32, torch.bfloat16):
        got, want = pair(dtype)
        a, b = got.double().numpy(), want.numpy()
        error = compare(got, want)
        rows = np.linalg.norm(a - b, axis=-1)
        root_mean_square = np.sqrt((np.linalg.norm(b, axis=-1) ** 2).mean())
        assert error.relative == pytest.approx(np.linalg.norm(a - b) / np.linalg.norm(b))
        assert error.max == pytest.approx(np.abs(a - b).max())
        assert error.worst_row == pytest.approx(rows.max() / root_mean_square)
        assert tuple(error.worst_at) == np.unravel_index(rows.argmax(), rows.shape)
        cosine = (a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b)
        assert error.cosine == pytest.approx(cosine)


@pytest.mark.parametrize("slice_numbers", [1, 1 << 24])
@pytest.mark.parametrize("value", [3.0, math.nan, math.inf, -math.inf])
def test_the_worst_row_is_where_the_fault_is_a_number_or_none(monkeypatch, value, slice_numbers):
    monkeypatch.setattr(oracle, "SLICE_NUMBERS", slice_numbers)
    got, want = pair()
    got[1, 1, 2, 0] += value
    error = compare(got, want)
    assert error.worst_at == [1, 1, 2]
    measures = (error.relative, error.max, error.worst_row)
    assert {math.isfinite(x) for x in measures} == {math.isfinite(value)}


def test_nothing_wanted_and_something_given_is_an_infinite_relative_error():
    nothing = torch.zeros(1, 2, 3, 4, dtype=torch.float64)
    for given_, want, measures in (
        (nothing.float(), nothing, (0.0, 0.0, 0.0)),
        (nothing.float() + 0.5, nothing, (math.inf, 0.5, math.inf)),
        (nothing, nothing + 1, (1.0, 1.0, 1.0)),
        (nothing + 1, nothing + 1, (0.0, 0.0, 0.0)),
    ):
        error = compare(given_, want)
        assert (error.relative, error.max, error.worst_row) == pytest.approx(measures)


@pytest.mark.parametrize(("lost", "as_if"), [(1.0, 3.0), (None, math.inf), (math.nan, math.inf)])
def test_worse_takes_the_larger_of_each_and_what_is_not_finite_for_infinite(lost, as_if):
    a = Error(relative=lost, max=5.0, worst_row=2.0, cosine=0.9)
    b = Error(relative=3.0, max=4.0, worst_row=2.5, cosine=0.95)
    for one in (worse(a, b), worse(b, a)):
        assert (one.relative, one.max, one.worst_row, one.cosine) == (as_if, 5.0, 2.5, 0.9)
