"""The inputs of a problem: reproducible, and of the kind they say."""

import numpy as np
import pytest
import torch

from attnbench.gate.inputs import RUN, make
from attnbench.gate.oracle import exact


def test_the_seed_decides_values_and_the_problem_their_shapes_and_dtype(truth):
    for kind in ("normal", "peaky", "outliers", "equal_keys"):
        problem = truth.problem(inputs=kind)
        first, again, other = (make(problem, seed) for seed in (3, 3, 4))
        for a, b, c in zip(first, again, other, strict=True):
            assert torch.equal(a, b) and not torch.equal(a, c)
    problem = truth.problem(heads=4, kv_heads=2, q_len=5, kv_len=9, v_head_dim=3)
    for dtype in ("float64", "bfloat16"):
        wide, cast = make(problem, 0), make(problem.with_(dtype=dtype), 0)
        assert [tuple(x.shape) for x in cast] == [(2, 4, 5, 8), (2, 2, 9, 8), (2, 2, 9, 3)]
        for a, b in zip(wide, cast, strict=True):
            assert b.dtype == getattr(torch, dtype) and b.is_contiguous()
            assert torch.equal(b, a.to(b.dtype))


def test_normal_is_standard_and_spread_and_peaky_has_a_saturated_softmax(truth):
    problem, rows = truth.problem(q_len=256, kv_len=256, head_dim=64), torch.arange(256)
    for x in make(problem, 0):
        assert float(x.mean()) == pytest.approx(0.0, abs=0.03)
        assert float(x.std()) == pytest.approx(1.0, abs=0.03)
    assert exact(problem, *make(problem, 0), rows).entropy > 0.8
    q, k, v = make(problem.with_(inputs="peaky"), 0)
    logits = q @ k.mT * problem.scale
    assert 200 < float(logits.abs().max()) < 1000
    assert float(logits.std()) == pytest.approx(64, rel=0.1)
    assert exact(problem, q, k, v, rows).entropy < 0.05


def test_outliers_are_a_few_loud_channels_of_keys_and_values(truth):
    problem = truth.problem(q_len=256, kv_len=256, head_dim=64, v_head_dim=32, inputs="outliers")
    q, k, v = make(problem, 0)
    for x, count in ((k, 2), (v, 1)):
        spread = x.flatten(0, 2).std(0)
        loud = spread > 10
        assert int(loud.sum()) == count
        assert float(spread[loud].mean()) == pytest.approx(20, rel=0.1)
        assert float(spread[~loud].max()) < 1.2
    assert float(q.flatten(0, 2).std(0).max()) < 1.2


def test_equal_keys_come_in_runs_while_queries_and_values_differ(truth):
    problem = truth.problem(q_len=150, kv_len=150, inputs="equal_keys")
    q, k, v = make(problem, 0)
    for start in range(0, 150, RUN):
        run = k[:, :, start : start + RUN]
        assert torch.equal(run, run[:, :, :1].expand_as(run))
    assert RUN == 64
    assert not torch.equal(k[:, :, RUN - 1], k[:, :, RUN])
    for x in (q, v):
        assert len(x[0, 0].unique(dim=0)) == 150


def test_captured_arrays_are_read_and_cast(truth, tmp_path):
    file = tmp_path / "captured.npz"
    rng = np.random.default_rng(0)
    given = {name: rng.standard_normal((2, 2, 24, 8)) for name in "qkv"}
    np.savez(file, **given)
    problem = truth.problem(inputs=f"captured:{file}", dtype="bfloat16")
    for seed in (0, 1):
        for name, x in make(problem, seed)._asdict().items():
            assert x.dtype == torch.bfloat16
            assert torch.equal(x, torch.from_numpy(given[name]).bfloat16())


@pytest.mark.parametrize("level", ["core", "layer"])
def test_values_are_drawn_on_the_device_that_needs_them(truth, monkeypatch, level):
    monkeypatch.setattr(torch, "Generator", lambda device: pytest.fail(f"drawn on {device}"))
    asked = truth.problem().with_(level=level)
    for device in ("cpu", "cuda:1"):
        with pytest.raises(pytest.fail.Exception, match=f"drawn on {device}"):
            make(asked.with_(device=device), 0)
