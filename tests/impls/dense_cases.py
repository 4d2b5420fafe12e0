"""The dense rows and the mean, and the masks and shapes that their tests ask of them.

A module of its own, since the tests are parametrized by it: what they compute and what they cost.
"""

from dataclasses import dataclass, field
from functools import cache

import numpy as np
import torch

import impls
from impls.loading import load_function
from impls.masks import Mask
from impls.problem import Problem

TABLE = impls.table()

# The rows, and the blocked ones again with blocks that cut the problems below.
ROWS = [row for row in TABLE.rows.values() if row.family == "dense" or row.name == "mean_v"]
NAMES = [row.name for row in ROWS if "cpu" in row.devices and row.name != "compiled"]
NAMES += ["chunked?block=5", "online?q_block=4&k_block=3"]
EXACT = [name for name in NAMES if TABLE.find(name).exact]
TRAINED = [name for name in NAMES if "train" in TABLE.find(name).on("cpu", "phases")]


def _bias(*extent, blind=False):
    table = np.random.default_rng(1).choice([-np.inf, 0.5, -1.25, 2.0], extent)
    if blind:
        table[..., 3, :] = -np.inf
    return table


def _dense(*extent):
    table = np.random.default_rng(2).random(extent) < 0.4
    table[..., 5, :] = False
    return table


@dataclass(frozen=True)
class Case:
    """The conditions of a mask, and where the problem differs from the ordinary one below."""

    conditions: tuple = ()
    upper_left: bool = False
    changes: dict = field(default_factory=dict)


ORDINARY = {
    "batch": 2, "heads": 4, "kv_heads": 4, "q_len": 17, "kv_len": 17, "head_dim": 8,
    "v_head_dim": 8,
}  # fmt: skip

CAUSAL, ALIBI, WINDOW, PREFIX = ("causal", ()), ("alibi", ()), ("window", (5, 2)), ("prefix", (9,))
BLIND = ("padding", (0, 11))
GROUPS = {"grouped": {"kv_heads": 2}, "one-kv-head": {"kv_heads": 1}}
LENGTHS = {"short-q": {"q_len": 5, "kv_len": 13}, "long-q": {"q_len": 13, "kv_len": 5}}

MASKS = {
    "none": Case(),
    "causal": Case((CAUSAL,)),
    "window": Case((WINDOW,)),
    "prefix": Case((PREFIX,)),
    "document": Case((("document", (5, 1, 11)),)),
    "padding": Case((BLIND,)),
    "alibi": Case((ALIBI,)),
    "causal+alibi": Case((CAUSAL, ALIBI)),
    "bias": Case((("bias", _bias(2, 4, 17, 17, blind=True)),)),
}
SHAPES = {
    "dense": Case((("dense", _dense(2, 1, 17, 17)),)),
    "dense-by-head": Case((("dense", _dense(4, 17, 17)),)),
    "bias-of-all": Case((("bias", _bias(17, 17, blind=True)),)),
    "bias-without-hiding": Case((("bias", np.linspace(-3, 3, 17)),)),
    "padding+window": Case((BLIND, WINDOW)),
    "causal+document+alibi": Case((CAUSAL, ("document", (6, 11)), ALIBI)),
    "causal+bias+alibi": Case((CAUSAL, ("bias", _bias(1, 4, 17, 17)), ALIBI)),
    **{
        f"{name}-{group}": Case(conditions, changes=changes)
        for group, changes in GROUPS.items()
        for name, conditions in {
            "none": (),
            "causal": (CAUSAL,),
            "padding": (BLIND,),
            "causal+alibi": (CAUSAL, ALIBI),
            "bias": (("bias", _bias(2, 4, 17, 17, blind=True)),),
            "dense": (("dense", _dense(2, 1, 17, 17)),),
        }.items()
    },
    **{
        f"{name}-{lengths}": Case(conditions, changes=changes)
        for lengths, changes in LENGTHS.items()
        for name, conditions in {
            "none": (),
            "causal": (CAUSAL,),
            "window": (("window", (2, 1)),),
            "prefix": (("prefix", (3,)),),
            "alibi": (ALIBI,),
            "causal+alibi": (CAUSAL, ALIBI),
        }.items()
    },
    "causal-upper-left-short-q": Case((CAUSAL,), True, LENGTHS["short-q"]),
    "causal-upper-left-long-q": Case((CAUSAL,), True, LENGTHS["long-q"]),
    "window-upper-left-long-q": Case((("window", (2, 1)), ALIBI), True, LENGTHS["long-q"]),
    "causal-long-q-grouped": Case((CAUSAL,), False, {**LENGTHS["long-q"], "kv_heads": 2}),
    "one-token": Case(changes={"q_len": 1, "kv_len": 1}),
    "one-token-causal-alibi": Case((CAUSAL, ALIBI), changes={"q_len": 1, "kv_len": 1}),
    "one-query": Case((CAUSAL,), changes={"q_len": 1, "kv_len": 29, "kv_heads": 2}),
    "one-element": Case((CAUSAL,), changes={"batch": 1}),
    "one-head": Case((ALIBI,), changes={"heads": 1, "kv_heads": 1}),
    "six-heads": Case((ALIBI,), changes={"heads": 6, "kv_heads": 3}),
    "odd-width": Case((CAUSAL,), changes={"head_dim": 7, "v_head_dim": 7}),
    "odd-length": Case((CAUSAL, ALIBI), changes={"q_len": 31, "kv_len": 31}),
    "narrow-values": Case((CAUSAL,), changes={"v_head_dim": 5}),
    "wide-values": Case((BLIND, ALIBI), changes={"v_head_dim": 11, "kv_heads": 2}),
    "every-row-blind": Case((("padding", (0,)),)),
}  # fmt: skip
CASES = {**MASKS, **SHAPES}


def problem_of(brute, case, dtype="float64", phase="forward"):
    mask = Mask.parse(_text(brute, case))
    return Problem(**{**ORDINARY, **CASES[case].changes}, dtype=dtype, mask=mask, phase=phase)


@cache
def _text(brute, case):
    return brute.text(CASES[case].conditions, CASES[case].upper_left)


@cache
def tensors(case, dtype="float64", spread=1.0):
    """q, k, v and the gradient from above, drawn once and rounded to the dtype."""
    extent = {**ORDINARY, **CASES[case].changes}
    batch, heads, kv_heads, q_len, kv_len, head_dim, v_head_dim = extent.values()
    generator = torch.Generator().manual_seed(sum(map(ord, case)))

    def draw(*shape):
        drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
        return drawn.to(getattr(torch, dtype))

    q = draw(batch, heads, q_len, head_dim) * spread
    k = draw(batch, kv_heads, kv_len, head_dim) * spread
    v = draw(batch, kv_heads, kv_len, v_head_dim)
    return q, k, v, draw(batch, heads, q_len, v_head_dim)


@cache
def seen_and_bias(brute, case):
    extent = {**ORDINARY, **CASES[case].changes}
    shape = tuple(extent[n] for n in ("batch", "heads", "q_len", "kv_len"))
    world = CASES[case].conditions, shape, CASES[case].upper_left
    return brute.visible(*world), brute.bias(*world)


def built(name, problem):
    row = TABLE.find(name)
    assert row.supports(problem) is None
    return load_function(row.build)(problem, **row.chosen)
