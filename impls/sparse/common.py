"""Shared by the sparse variants: softmax attention on a pattern, defined, and decoded.

Legend in :mod:`impls.heads`; r some rows of queries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from impls.heads import Define, Noted, grouped, to_query_heads, ungrouped
from impls.problem import Problem
from impls.score_mask import masked_softmax
from impls.sparse.blocks import hide
from impls.spec import Unsupported

Pattern = Callable[[Tensor], Tensor]
"""The pairs that count, for some places in the sequence: bool [b|1, h|1, r, m]."""


def softmax_on(problem: Problem, pattern: Pattern) -> Define:
    """Softmax over the pairs that both the pattern and the problem's mask allow, row by row."""

    before = problem.kv_len - problem.q_len

    def define(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, rows: Tensor) -> Tensor:
        return softmax_rows(problem, q_bhnd, k_bcmd, v_bcme, rows, pattern(rows + before))

    return define


def defined_on(pattern_of: Callable[..., Pattern]) -> Callable[..., Define]:
    """The ``definition`` of a variant whose pattern follows from the problem and its options."""

    def definition(problem: Problem, **options: Any) -> Define:
        return softmax_on(problem, pattern_of(problem, **options))

    return definition


def global_rows(
    problem: Problem, count: int, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor
) -> Tensor:
    """The first rows, which see every key."""
    scores_bcrm = grouped(q_bhnd[:, :, :count], problem) @ k_bcmd.mT
    return ungrouped(scores_bcrm.mul_(problem.scale).softmax(-1) @ v_bcme, problem)


def need_one_sequence(problem: Problem, name: str) -> None:
    """Raise Unsupported unless queries are the tokens themselves, in decode the last of them."""
    if problem.q_len == problem.kv_len:
        return
    if problem.phase != "decode":
        raise Unsupported(
            f"{name} has a pattern of places in one sequence: it needs q_len equal to kv_len, "
            "but in decode"
        )
    if problem.q_len > problem.kv_len:
        raise Unsupported(
            f"{name} decodes tokens that are among the keys: q_len={problem.q_len} must be at "
            f"most kv_len={problem.kv_len}"
        )
    if problem.mask.upper_left:
        raise Unsupported(
            f"{name} decodes the last tokens of a sequence; {problem.mask} would have them first"
        )


def decoder(problem: Problem, pattern: Pattern) -> Noted:
    """Few new queries on a cache: of its keys only those are read that one of them may see."""
    place = torch.arange(problem.kv_len - problem.q_len, problem.kv_len)
    visible = pattern(place)[0, 0]
    if "causal" in problem.mask.kinds:
        visible = visible & (torch.arange(problem.kv_len) <= place[:, None])
    keys = visible.any(0).nonzero()[:, 0]
    bias = None if bool(visible[:, keys].all()) else hide(visible[:, keys], problem)
    picks = keys.to(problem.device)

    def attend(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Tensor:
        k_bcsd, v_bcse = k_bcmd.index_select(2, picks), v_bcme.index_select(2, picks)
        scores_bcrs = (grouped(q_bhnd, problem) @ k_bcsd.mT).mul_(problem.scale)
        if bias is not None:
            scores_bcrs = scores_bcrs.add_(bias)
        return ungrouped(scores_bcrs.softmax(-1) @ v_bcse, problem)

    return Noted(attend, f"{len(keys)} of {problem.kv_len} keys are read")


def softmax_rows(problem: Problem, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, rows: Tensor,
                 chosen_bhrm: Tensor) -> Tensor:  # fmt: skip
    """The output of some rows; zeros where a row may see nothing."""
    scores = (q_bhnd[:, :, rows] @ to_query_heads(k_bcmd, problem).mT) * problem.scale
    weights = masked_softmax(scores, problem, rows, chosen_bhrm)
    return weights @ to_query_heads(v_bcme, problem)
