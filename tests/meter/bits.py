"""Rows planted for their bits, and what becomes of them."""

import itertools

import pytest
import torch

from attnbench.gate.inputs import make
from attnbench.meter.determinism import try_determinism
from attnbench.meter.timed import Values
from impls.loading import load_function
from impls.problem import Problem
from impls.spec import Variant

KEYS = 64


def problem(**changes):
    some = {
        "heads": 2,
        "kv_heads": 2,
        "q_len": KEYS,
        "kv_len": KEYS,
        "head_dim": 8,
        "v_head_dim": 8,
        "dtype": "float32",
    }
    return Problem(**{**some, **changes})


def tried(row, given, **more):
    """Determinism of a row on a problem, with inputs and upstream gradient from seeds."""
    generator = torch.Generator().manual_seed(1)
    dout = torch.randn(given.output_shape, generator=generator) if given.gradients else None
    values = Values(make(given, 0), dout)
    attend = load_function(row.build)(given, **row.chosen)
    return try_determinism(given, row, attend, values, **more)


@pytest.fixture
def planted(tmp_path):
    """A row whose ``build`` stands in the text given; ``of(order)`` there is softmax attention
    with the values added up in blocks of keys, in that order."""
    numbers = itertools.count()

    def row(code, **more):
        file = tmp_path / f"planted{next(numbers)}.py"
        file.write_text(
            "import itertools, torch\n"
            f"BLOCKS = [slice(i, i + 8) for i in range(0, {KEYS}, 8)]\n"
            "def added(q, k, v, order):\n"
            "    weights = (q @ k.mT).softmax(-1)\n"
            "    return sum(weights[..., s] @ v[..., s, :] for s in order)\n" + code
        )
        return Variant(
            name="planted",
            title="",
            family="dense",
            computes="softmax",
            build=f"{file}:build",
            **more,
        )

    return row


HONEST = "def build(problem): return lambda q, k, v: added(q, k, v, BLOCKS)\n"
