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

import numpy as np
import torch
from torch import Tensor

from attnbench.gate.findings import Wrong, place
from attnbench.gate.hygiene import check_finite, check_form, check_inputs_kept, check_no_input
from attnbench.gate.inputs import Call, Ends, Inputs, make
from attnbench.gate.oracle import sample_rows
from attnbench.gate.reference import Tensors
from impls.problem import Problem

SLOPE_ROWS = 64
NEAR_TOP = 3.0
"""A pair is asked to move where its added bias is within this of the row's largest."""


def mild(problem: Problem, seed: int) -> Ends:
    """The probe's inputs."""
    inputs = make(problem.with_(inputs="normal"), seed + 2)
    return inputs._replace(q=inputs.q * 0.1) if isinstance(inputs, Inputs) else inputs


def probe(call: Call, out: Tensor, inputs: Ends, seed: int, *, exact: bool) -> None:
    """Raise :class:`Wrong` with the row and the key that betray the mask.

    ``out``: what the call made of these inputs, the first of many.
    """
    problem, out = call.problem, check_form(call.problem, out)
    check_no_input(call, inputs, out)
    base = out.detach().clone()
    check_inputs_kept(call, inputs)
    last = problem.q_len - 1
    made = _of_row(call, out, last) if problem.gradients else {}
    middle = int(np.random.default_rng(seed).integers(problem.kv_len))
    for key in dict.fromkeys((middle, 0, problem.kv_len - 1)):
        _one_key(call, base, inputs, key, exact=exact)
    if problem.gradients:
        _one_row(call, made, last, exact=exact)
        row = int(np.random.default_rng(seed + 1).integers(problem.q_len))
        if row != last:
            _one_row(call, _of_row(call, call.forward(), row), row, exact=exact)


def _one_key(call: Call, base: Tensor, inputs: Ends, key: int, *, exact: bool) -> None:
    problem = call.problem
    with torch.no_grad():
        call.leaves[-1][:, :, key] += 4.0 * math.sqrt(problem.kv_len) + 8.0
        if problem.level == "core":
            call.leaves[1][:, :, key].neg_()
    call.remember()
    out = call.forward().detach()
    call.load(inputs)
    moved = ((out != base) & ~(out.isnan() & base.isnan())).any(-1)
    sees = _spread(problem, problem.mask.sees(problem.shape, key), moved)
    row = key - (problem.kv_len - problem.q_len)
    if row >= 0 and problem.level != "core" and not problem.crosses:  # its query is of this token
        sees[:, :, row] = True
    _refuse(moved & ~sees, problem, f"moved when key {key} changed, which {{}} hides from it")
    check_finite("the output on mild inputs", base)
    if exact:
        must = sees & _spread(problem, _near_top(problem)[..., key], moved)
        what = f"did not move when key {key} changed, which it may see under {{}}"
        _refuse(must & ~moved, problem, what)


def _of_row(call: Call, out: Tensor, row: int) -> Tensors:
    """The gradients where that row of the output alone has one."""
    dout = torch.zeros_like(out)
    dout[:, :, row] = min(1024.0, 1.0 + call.problem.kv_len / 16)
    return dict(zip(call.names, call.backward(out, dout), strict=True))


def _one_row(call: Call, gradients: Tensors, row: int, *, exact: bool) -> None:
    problem = call.problem
    rows = np.array([row])
    seen = problem.mask.visible(problem.shape, rows)[:, :, 0]
    hides = f"from row {row}, from which {{}} hides it"
    if problem.level != "core":
        name = "dcontext" if problem.crosses else "dx"
        reached = (gradients[name] != 0).any(-1)
        sees = _spread(problem, seen, reached)
        if not problem.crosses:
            sees[:, :, row + problem.kv_len - problem.q_len] = True
        _refuse(reached & ~sees, problem, f"has a {name} {hides}", "token")
        return
    near = _near_top(problem, rows)[:, :, 0]
    by_head = (problem.batch, problem.heads, problem.kv_len)
    by_group = (problem.batch, problem.kv_heads, problem.group, problem.kv_len)
    for name in ("dk", "dv"):
        reached = (gradients[name] != 0).any(-1)
        sees, must = (  # a key of a group, where any of its query heads does
            torch.from_numpy(np.broadcast_to(x, by_head).reshape(by_group).any(2)).to(
                reached.device
            )
            for x in (seen, seen & near)
        )
        _refuse(reached & ~sees, problem, f"has a {name} {hides}", "key")
        if exact and name == "dv":
            what = f"has no {name} from row {row}, which may see it under {{}}"
            _refuse(must & ~reached, problem, what, "key")
    if exact:
        elsewhere = (gradients["dq"] != 0).any(-1)
        elsewhere[:, :, row] = False
        what = f"has a dq though only row {row} of the output had a gradient, under {{}}"
        _refuse(elsewhere, problem, what)


def _refuse(wrong: Tensor, problem: Problem, what: str, kind: str = "row") -> None:
    if bool(wrong.any()):
        where = place(*(int(i) for i in wrong.nonzero()[0])).replace("row", kind, 1)
        mask = "the empty mask" if problem.mask.plain else f"the mask {problem.mask}"
        raise Wrong(f"{where} {what.format(mask)}")


def _spread(problem: Problem, table: np.ndarray, like: Tensor) -> Tensor:
    """A [b|1, h|1, rows] table over all batch elements and heads; of a layer, if any head sees."""
    seen = np.array(table if problem.level == "core" else table.any(1, keepdims=True))
    return torch.from_numpy(seen).to(like.device).expand(like.shape).clone()


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
