"""The ruler's own gate, for every variant that factorises a sum over keys."""

import pytest
import torch

import impls.linear.common as common
from impls.masks import Mask
from impls.problem import Problem

NAMES = ["linear.identity", "linear.elu", "cosformer", "linear.taylor", "hedgehog", "cosine"]
OPTIONS = [
    "linear.identity?normalise=true&chunk=16",
    "linear.taylor?features=0&chunk=16",
    "linear.taylor?features=5&chunk=16",
    "hedgehog?init=random&chunk=16",
]


def problem(mask="causal", **changes):
    ordinary = {
        "batch": 2,
        "heads": 4,
        "kv_heads": 2,
        "q_len": 77,
        "kv_len": 77,
        "head_dim": 8,
        "v_head_dim": 6,
    }
    return Problem(mask=Mask.parse(mask), **{**ordinary, **changes})


SHAPES = {
    "square": {"phase": "train"},
    "odd": {"phase": "train", "q_len": 131, "kv_len": 131, "head_dim": 16},
    "one-token": {"phase": "train", "q_len": 1, "kv_len": 1},
    "one-head": {"phase": "train", "batch": 1, "heads": 1, "kv_heads": 1},
    "short-q": {"phase": "train", "q_len": 21, "kv_len": 90},
    "long-q": {"phase": "train", "q_len": 90, "kv_len": 21},
    "forward": {"q_len": 200, "kv_len": 200},
    "decode": {"phase": "decode", "q_len": 1, "kv_len": 90},
    "decode-few": {"phase": "decode", "q_len": 3, "kv_len": 90},
    "decode-first": {"phase": "decode", "q_len": 1, "kv_len": 1},
}


@pytest.mark.parametrize("mask", ["none", "causal"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", NAMES)
def test_the_gate_holds_for_every_shape(verdict, name, shape, mask):
    p = problem(mask, dtype="float32", **SHAPES[shape])
    assert verdict(f"{name}?chunk=16", p).reason is None


@pytest.mark.parametrize("inputs", ["normal", "peaky", "outliers", "equal_keys"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", NAMES)
def test_the_gate_holds_for_every_dtype_and_input(verdict, name, dtype, inputs):
    p = problem("causal", dtype=dtype, inputs=inputs, phase="train", head_dim=16)
    assert verdict(f"{name}?chunk=16", p).reason is None


@pytest.mark.parametrize("inputs", ["normal", "outliers"])
@pytest.mark.parametrize("mask", ["none", "causal"])
@pytest.mark.parametrize("name", NAMES)
def test_products_in_bfloat16_as_on_a_gpu_hold_too(verdict, monkeypatch, name, mask, inputs):
    monkeypatch.setattr(common, "work_dtype", lambda problem: torch.bfloat16)
    p = problem(mask, dtype="bfloat16", phase="train", inputs=inputs, q_len=150, kv_len=150)
    assert verdict(f"{name}?chunk=32", p.with_(head_dim=32, v_head_dim=32)).reason is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("mask", ["none", "causal"])
@pytest.mark.parametrize("name", OPTIONS)
def test_the_gate_holds_with_other_options(verdict, name, mask, dtype):
    p = problem(mask, dtype=dtype, phase="train")
    assert verdict(name, p).reason is None
    assert verdict(name, p.with_(phase="decode", q_len=2)).reason is None


@pytest.mark.parametrize("inputs", ["normal", "peaky", "outliers", "equal_keys"])
@pytest.mark.parametrize("name", NAMES)
def test_the_gate_holds_for_a_step_in_bfloat16(verdict, name, inputs):
    p = problem("causal", dtype="bfloat16", inputs=inputs, phase="decode", q_len=1)
    assert verdict(name, p).reason is None
