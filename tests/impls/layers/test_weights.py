"""How large the layers' weights are drawn."""

import pytest

from impls.layers.mixed import _shapes as mixed
from impls.layers.weights import attention_shapes, block_shapes, made
from impls.problem import Problem

WIDE = Problem(level="layer", heads=8, kv_heads=4, head_dim=32, v_head_dim=32)


def limits(weights, name):
    """The largest and the spread over the limit, as of a uniform draw: about 1 and 3^-1/2."""
    return float(weights[name].abs().max()), float(weights[name].std())


def test_matrices_are_xavier_uniform_and_scales_of_a_norm_lie_around_one():
    weights = made(block_shapes(WIDE, 4), WIDE)
    for name, rows in (("in_weight", 256 + 2 * 128), ("ff1_weight", 1024), ("out_weight", 256)):
        most = (6 / (rows + 256)) ** 0.5
        largest, spread = limits(weights, name)
        assert 0.99 * most < largest <= most
        assert spread == pytest.approx(most / 3**0.5, rel=0.02)
    for name in ("norm1", "norm2"):
        scale = weights[f"{name}_weight"]
        assert 0.75 <= float(scale.min()) < 0.8 < 1.2 < float(scale.max()) <= 1.25
        assert float(weights[f"{name}_bias"].abs().max()) <= 1 / 16


def test_biases_lie_within_the_root_of_the_width():
    shapes = {**attention_shapes(WIDE, bias=True, key_bias=True), **mixed(WIDE, "matnet", 8, 16)}
    weights = made(shapes, WIDE)
    for name in ("q_bias", "k_bias", "v_bias", "out_bias", "mix1_bias"):
        largest, spread = limits(weights, name)
        assert 0.9 / 16 < largest <= 1 / 16
        assert spread == pytest.approx(1 / 16 / 3**0.5, rel=0.15)
