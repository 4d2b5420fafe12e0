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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from attnbench.gate.findings import Wrong, place
from attnbench.gate.hygiene import (
    Pages,
    check_finite,
    check_inputs_kept,
    check_no_input,
    values_of,
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
    if "q" in inputs:  # if a key's change of values is one of its scores too, those stay flat
        inputs["q"] *= 0.1 / (_shove(problem) if inputs.views else 1.0)
    return inputs


def _shove(problem: Problem) -> float:
    """How far a value is moved, for each row that sees it to show it."""
    return 4.0 * math.sqrt(problem.kv_len) + 8.0


def probe(call: Call, out: Tensor, inputs: Inputs, seed: int, pages: Pages, *, exact: bool) -> None:
    """Raise :class:`Wrong` with the row and the key that betray the mask.

    ``out``: what the call made of these inputs, which lie on ``pages``; the first of many.
    """
    problem, outputs = call.problem, values_of(call, out)
    check_no_input(call, out)
    check_finite("the output on mild inputs", out.detach())
    base = {name: x.detach().clone() for name, x in outputs.items()}
    check_inputs_kept(call, inputs)
    draw = np.random.default_rng(seed)
    units = (
        problem.batch if _apart(call.leaves, "batch") else 1,
        problem.kv_heads if _apart(call.leaves, "heads", "kv_heads") else 1,
    )
    keys = [int(draw.integers(problem.kv_len)), 0, problem.kv_len - 1]
    rows = [int(draw.integers(problem.q_len)), problem.q_len - 1]
    gradients: list[tuple[Deal, Tensors]] = []
    for deal in _deals(problem, rows, units, draw) if problem.gradients else []:
        ready = call.forward() if gradients else out
        gradients.append((deal, _gradients(call, ready, deal, pages)))
    for deal in _deals(problem, keys, units, draw):
        _check_keys(call, base, inputs, deal, exact=exact)
    for deal, tensors in gradients:
        _check_rows(problem, tensors, deal, exact=exact)


def _apart(inputs: Inputs, *units: str) -> bool:
    """Whether each head, or each batch element, has keys of its own in every input."""
    of_keys = (spec.axes for spec in inputs.specs.values() if {*KEY_TOKENS} & {*spec.axes})
    return all({*units} & {*axes} for axes in of_keys)


@dataclass(frozen=True)
class Deal:
    """Keys or rows, dealt out to units, so that one call tries several: a unit is a batch element
    and key/value head, or a batch element of a layer.
    """

    problem: Problem
    places: list[int]
    of_units: np.ndarray
    """[batch, key/value heads]: which of the places is the unit's."""

    def at(self, heads: int) -> tuple[np.ndarray, ...]:
        """Batch, head and place of every head, as an index."""
        of_heads = np.take(self.places, self.of_units)
        of_heads = of_heads.repeat(heads // of_heads.shape[1], 1)
        return (*np.indices(of_heads.shape), of_heads)

    def table(self, tables: list[np.ndarray], like: Tensor) -> Tensor:
        """The [batch|1, heads|1, length] table of each unit's place, in the shape of ``like``.

        A layer's output and a key/value head have what any of their heads has.
        """
        b, units = self.of_units.shape
        visible = np.zeros((b, self.problem.heads, like.shape[2]), bool)
        for number, table in enumerate(tables):
            here = (self.of_units == number).repeat(self.problem.heads // units, 1)
            visible |= here[..., None] & table
        by_axis = visible.reshape(b, like.shape[1], -1, like.shape[2]).any(2)
        return torch.from_numpy(by_axis).to(like.device)

    def refuse(self, wrong: Tensor, what: str, kind: str = "row") -> None:
        """Raise where anything is wrong. ``what`` names the place, and the mask, in braces."""
        if bool(wrong.any()):
            batch, head, row = (int(i) for i in wrong.nonzero()[0])
            of_heads = np.take(self.places, self.of_units)
            number = of_heads[batch, head * of_heads.shape[1] // wrong.shape[1]]
            mask = self.problem.mask
            mask_text = "the empty mask" if mask.plain else f"the mask {mask}"
            where = place(batch, head, row).replace("row", kind, 1)
            raise Wrong(f"{where} {what.format(place=number, mask=mask_text)}")


def _deals(
    problem: Problem, places: list[int], units: Sequence[int], draw: np.random.Generator
) -> list[Deal]:
    """As many deals as it takes for every place to have its turn, the same in all of a batch that
    shares an input.
    """
    numbers = draw.permutation(math.prod(units)).reshape(units)
    rounds = range(math.ceil(len(places) / numbers.size))
    dealt = [(numbers + r * numbers.size) % len(places) for r in rounds]
    return [Deal(problem, places, x.repeat(problem.batch // len(x), 0)) for x in dealt]


def _check_keys(call: Call, base: Tensors, inputs: Inputs, deal: Deal, *, exact: bool) -> None:
    """Change one key of each unit and see which rows move."""
    problem, changed = call.problem, deal.at(deal.of_units.shape[1])
    _change(call, deal)
    outputs = {n: x.detach() for n, x in values_of(call, call.forward()).items()}
    call.load(inputs)
    moved = _differ(outputs["forward"], base["forward"]).any(-1)
    sees = deal.table([problem.mask.sees(problem.shape, key) for key in deal.places], moved)
    if problem.level != "core" and not problem.crosses:  # its query is of the changed token
        for batch, _, key in zip(*map(np.ravel, changed), strict=True):
            if key >= problem.kv_len - problem.q_len:
                sees[batch, :, key - (problem.kv_len - problem.q_len)] = True
    hides = "moved when key {place} changed, which {mask} hides from it"
    deal.refuse(moved & ~sees, hides)
    for name, x in outputs.items():
        if name != "forward":
            deal.refuse(_differ(x, base[name]) & ~sees, f"of its {name} {hides}")
    if exact:
        near = _near_top(problem)
        must = sees & deal.table([near[..., key] for key in deal.places], moved)
        what = "did not move when key {place} changed, which it may see under {mask}"
        deal.refuse(must & ~moved, what)


def _change(call: Call, deal: Deal) -> None:
    """Put other values in the keys that are dealt out."""
    problem, changed = call.problem, deal.at(deal.of_units.shape[1])
    *_, last = (n for n in call.leaves if not call.leaves.specs[n].keyword)
    with torch.no_grad():
        for name, leaf in call.leaves.items():
            axes = call.leaves.specs[name].axes
            at: tuple[np.ndarray, ...] = (changed[0], changed[2])
            if "heads" in axes or "kv_heads" in axes:
                at = deal.at(call.leaves.size("heads" if "heads" in axes else "kv_heads"))
            if "batch" not in axes:
                at = at[1:]
            if name == last:  # the values, or a layer's tokens
                leaf[at] += _shove(problem)
            elif "kv_len" in axes:
                leaf[at] = CHANGED[call.leaves.specs[name].draw](leaf[at])
    call.remember()


def _differ(one: Tensor, other: Tensor) -> Tensor:
    return (one != other) & ~(one.isnan() & other.isnan())


def _gradients(call: Call, out: Tensor, deal: Deal, pages: Pages) -> Tensors:
    """The gradients where one row of each unit's output alone has one."""
    dout = torch.zeros_like(out)
    dout[deal.at(out.shape[1])] = min(1024.0, 1.0 + call.problem.kv_len / 16)
    dout = pages.place(dout)
    with pages.protected():
        return dict(zip(call.names, call.backward(out, dout), strict=True))


def _check_rows(problem: Problem, gradients: Tensors, deal: Deal, *, exact: bool) -> None:
    """See which keys the gradient of one row of each unit has reached."""
    rows = [np.array([row]) for row in deal.places]
    seen = [problem.mask.visible(problem.shape, row)[:, :, 0] for row in rows]
    hides = "from row {place}, from which {mask} hides it"
    if problem.level != "core":
        name = "dcontext" if problem.crosses else "dx"
        reached = (as_rows(gradients[name], CROSSED[name[1:]].axes) != 0).any(-1)
        sees = deal.table(seen, reached)
        if not problem.crosses:
            batch, head, row = deal.at(1)
            sees[batch, head, row + problem.kv_len - problem.q_len] = True
        deal.refuse(reached & ~sees, f"has a {name} {hides}", "token")
        return
    near = [_near_top(problem, row)[:, :, 0] for row in rows]
    names = [name for name in ("dk", "dv") if name in gradients]
    for name in names:
        reached = (gradients[name] != 0).any(-1)
        deal.refuse(reached & ~deal.table(seen, reached), f"has a {name} {hides}", "key")
        if exact and name == names[-1]:
            must = deal.table([a & b for a, b in zip(seen, near, strict=True)], reached)
            what = f"has no {name} from row {{place}}, which may see it under {{mask}}"
            deal.refuse(must & ~reached, what, "key")
    if exact:
        elsewhere = (gradients["dq"] != 0).any(-1)
        elsewhere[deal.at(problem.heads)] = False
        what = "has a dq though only row {place} of the output had a gradient, under {mask}"
        deal.refuse(elsewhere, what)


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
