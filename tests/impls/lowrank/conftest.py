"""What the tests of the low-rank variants share: small problems, their code, and inputs."""

import itertools

import pytest
import torch

import impls
from impls.loading import load_function
from impls.masks import Mask
from impls.problem import Problem

SMALL = {
    "batch": 2, "heads": 4, "kv_heads": 4, "q_len": 45, "kv_len": 45, "head_dim": 16,
    "v_head_dim": 16,
}  # fmt: skip
SHAPES = (
    {"q_len": 1, "kv_len": 1},
    {"batch": 1, "heads": 1, "kv_heads": 1},
    {"kv_heads": 2, "v_head_dim": 24},
    {"q_len": 13, "kv_len": 45},
    {"q_len": 45, "kv_len": 13, "kv_heads": 1},
)
DECODED = ({"q_len": 1}, {"q_len": 1, "kv_heads": 2}, {"q_len": 3}, {"q_len": 1, "kv_len": 1})


def _problem(mask="none", **changes):
    return Problem(**{**SMALL, **changes}, mask=Mask.parse(mask))


@pytest.fixture
def problem():
    """A small problem, with some fields changed."""
    return _problem


@pytest.fixture
def built():
    """``(attend, define)`` of a variant and a problem."""

    def made(variant, problem):
        row = impls.table().find(variant)
        functions = (load_function(path) for path in (row.build, row.definition))
        return tuple(function(problem, **row.chosen) for function in functions)

    return made


@pytest.fixture
def inputs():
    """q, k, v of a problem, standard normal times a factor."""

    def drawn(problem, factor=1.0, seed=0):
        torch.manual_seed(seed)
        p, dtype = problem, getattr(torch, problem.dtype)
        q = torch.randn(p.batch, p.heads, p.q_len, p.head_dim, dtype=dtype)
        k = torch.randn(p.batch, p.kv_heads, p.kv_len, p.head_dim, dtype=dtype)
        v = torch.randn(p.batch, p.kv_heads, p.kv_len, p.v_head_dim, dtype=dtype)
        return q * factor, k * factor, v

    return drawn


@pytest.fixture
def softmax():
    """Exact attention, no mask."""

    def attention(problem, q, k, v):
        k, v = (x.repeat_interleave(problem.group, 1) for x in (k, v))
        return (q @ k.mT * problem.scale).softmax(-1) @ v

    return attention


@pytest.fixture
def gate_everywhere(verdict):
    """Puts a variant through the gate: dtypes, inputs, shapes, phases."""

    def through(variant, masks=("none",)):
        problems = [
            _problem(mask, dtype=dtype, inputs=kind, phase="train")
            for mask in masks
            for dtype in ("float32", "bfloat16", "float16")
            for kind in ("normal", "peaky", "outliers")
        ]
        problems += [
            _problem(mask, phase=phase, **shape)
            for mask, phase, shape in itertools.product(masks, ("forward", "train"), SHAPES)
        ]
        problems += [
            _problem(mask, phase="decode", dtype=dtype, **shape)
            for mask, dtype, shape in itertools.product(masks, ("float32", "bfloat16"), DECODED)
        ]
        for each in problems:
            assert verdict(variant, each).reason is None, (variant, str(each))

    return through
