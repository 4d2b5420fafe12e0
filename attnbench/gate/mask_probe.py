"""Mask truth: change one key, and see which rows move.

Rows that may not see the key must stay equal to the last bit, rows that may see it must move.
Backward, the upstream gradient of one row must reach exactly the keys that this row sees. This
catches inverted masks, a causal mask ignored, the corner mixed up, a window that is off by one,
a last key dropped, and results remembered from the call before.

Of a layer the row at the changed token itself, its query changed with it, may move as it likes.

The probe uses inputs of its own, with nearly flat logits, so that every key in sight has a weight
that shows; where the mask adds a slope, only pairs near the top of it are asked to move.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from attnbench.gate.findings import Wrong, place
from attnbench.gate.hygiene import (
    Pages,
    check_finite,
    check_form,
    check_inputs_kept,
    check_no_input,
)
from attnbench.gate.inputs import CHANGED, KEY_TOKENS, Call, Inputs, as_rows, make
from attnbench.gate.oracle import sample_rows
from attnbench.gate.reference import Tensors
from impls.operators import CROSSED, TensorSpec
from impls.problem import Problem

SLOPE_ROWS = 64
NEAR_TOP = 3.0
"""A pair is asked to move where its added bias is within this of the row's largest."""


def mild(problem: Problem, seed: int, specs: Mapping[str, TensorSpec]) -> Inputs:
    """The probe's inputs."""
    inputs = make(problem.with_(inputs="normal"), seed + 2, specs)
    if "q" in inputs:
        inputs["q"] *= 0.1
    return inputs


def probe(call: Call, out: Tensor, inputs: Inputs, seed: int, pages: Pages, *, exact: bool) -> None:
    """Raise :class:`Wrong` with the row and the key that betray the mask.

    ``out``: what the call made of these inputs, which lie on ``pages``; the first of many.
    """
    problem, out = call.problem, check_form(call.problem, out)
    check_no_input(call, inputs, out)
    check_finite("the output on mild inputs", out.detach())
    base = out.detach().clone()
    check_inputs_kept(call, inputs)
    draw = np.random.default_rng(seed)
    keys = [int(draw.integers(problem.kv_len)), 0, problem.kv_len - 1]
    rows = [int(draw.integers(problem.q_len)), problem.q_len - 1]
    gradients: dict[int, Tensors] = {}
    for row in dict.fromkeys(rows) if problem.gradients else ():
        ready = call.forward() if gradients else out
        gradients[row] = _gradients(call, ready, row, pages)
    for key in dict.fromkeys(keys):
        _check_key(call, base, inputs, key, exact=exact)
    for row, tensors in gradients.items():
        _check_row(problem, tensors, row, exact=exact)


def _table(problem: Problem, table: np.ndarray, like: Tensor) -> Tensor:
    """A [batch|1, heads|1, length] table in the shape of ``like``: a head that stands for several
    has what any of them has.
    """
    whole = np.broadcast_to(table, (problem.batch, problem.heads, like.shape[2]))
    by_head = whole.reshape(problem.batch, like.shape[1], -1, like.shape[2]).any(2)
    return torch.from_numpy(by_head).to(like.device)


def _refuse(wrong: Tensor, what: str, kind: str = "row") -> None:
    """Raise where anything is wrong."""
    if bool(wrong.any()):
        where = place(*(int(i) for i in wrong.nonzero()[0]))
        raise Wrong(f"{where.replace('row', kind, 1)} {what}")


def _named(problem: Problem) -> str:
    return "the empty mask" if problem.mask.plain else f"the mask {problem.mask}"


def _check_key(call: Call, base: Tensor, inputs: Inputs, key: int, *, exact: bool) -> None:
    """Change one key and see which rows move."""
    problem, leaves = call.problem, call.leaves
    *_, last = (name for name in leaves if not leaves.specs[name].keyword)
    with torch.no_grad():
        for name, leaf in leaves.items():
            spec, at = leaves.specs[name], leaves.axis(name, *KEY_TOKENS)
            if at is not None and (name == last or "kv_len" in spec.axes):
                token = leaf.select(at, key)
                more = 4.0 * math.sqrt(problem.kv_len) + 8.0  # of the values, or a layer's tokens
                token.copy_(token + more if name == last else CHANGED[spec.draw](token))
    call.remember()
    out = call.forward().detach()
    call.load(inputs)
    moved = ((out != base) & ~(out.isnan() & base.isnan())).any(-1)
    sees = _table(problem, problem.mask.sees(problem.shape, key), moved)
    own = key - (problem.kv_len - problem.q_len)
    if problem.level != "core" and not problem.crosses and own >= 0:
        sees[:, :, own] = True  # its query is of the changed token
    when, mask = f"when key {key} changed", _named(problem)
    _refuse(moved & ~sees, f"moved {when}, which {mask} hides from it")
    if exact:
        must = sees & _table(problem, _near_top(problem)[..., key], moved)
        _refuse(must & ~moved, f"did not move {when}, which it may see under {mask}")


def _gradients(call: Call, out: Tensor, row: int, pages: Pages) -> Tensors:
    """The gradients where one row of the output alone has one."""
    dout = torch.zeros_like(out)
    dout[:, :, row] = min(1024.0, 1.0 + call.problem.kv_len / 16)
    dout = pages.place(dout)
    with pages.protected():
        return dict(zip(call.names, call.backward(out, dout), strict=True))


def _check_row(problem: Problem, gradients: Tensors, row: int, *, exact: bool) -> None:
    """See which keys the gradient of one row has reached."""
    seen = problem.mask.visible(problem.shape, np.array([row]))[:, :, 0]
    mask = _named(problem)
    hides = f"from row {row}, from which {mask} hides it"
    if problem.level != "core":
        name = "dcontext" if problem.crosses else "dx"
        reached = (as_rows(gradients[name], CROSSED[name[1:]].axes) != 0).any(-1)
        sees = _table(problem, seen, reached)
        if not problem.crosses:
            sees[:, :, row + problem.kv_len - problem.q_len] = True
        _refuse(reached & ~sees, f"has a {name} {hides}", "token")
        return
    for name in ("dk", "dv"):
        reached = (gradients[name] != 0).any(-1)
        _refuse(reached & ~_table(problem, seen, reached), f"has a {name} {hides}", "key")
        if exact and name == "dv":
            near = _near_top(problem, np.array([row]))[:, :, 0]
            must = _table(problem, seen & near, reached) & ~reached
            _refuse(must, f"has no dv from row {row}, which may see it under {mask}", "key")
    if exact:
        elsewhere = (gradients["dq"] != 0).any(-1)
        elsewhere[:, :, row] = False
        only = f"though only row {row} of the output had a gradient, under {mask}"
        _refuse(elsewhere, f"has a dq {only}")


def _near_top(problem: Problem, rows: np.ndarray | None = None) -> np.ndarray:
    """Pairs whose weight shows. Without a bias all; with one, near the top, for some rows."""
    shape, mask = problem.shape, problem.mask
    picked = sample_rows(shape.q_len, SLOPE_ROWS, 0).numpy() if rows is None else rows
    bias = mask.bias(shape, picked)
    if bias is None:
        return np.ones((1, 1, 1, problem.kv_len), bool)
    added = np.where(mask.visible(shape, picked), bias, -np.inf)
    near = added >= added.max(-1, keepdims=True) - NEAR_TOP
    if rows is not None:
        return near
    table = np.zeros((*near.shape[:2], shape.q_len, shape.kv_len), bool)
    table[:, :, picked] = near
    return table
