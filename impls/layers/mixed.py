"""Scores that mix what the tokens are with what lies between them: an edge for every pair.

Each pair of a query n and a key m has a vector z_nm of R numbers (a relation, a distance, …), the
same for all batch elements and heads. It enters the score of head h in one of three forms:

    graph    s_nm = ( q_n . k_m + q_n . U_h z_nm + k_m . V_h z_nm ) d^-1/2
    full     s_nm = ( (q_n + V_h z_nm) . (k_m + U_h z_nm) ) d^-1/2       with an edge-edge term
    matnet   s_nm = sum over j of a_hj relu( w_hj q_n . k_m d^-1/2 + B_hj . z_nm + c_hj )    J terms

and out = W_o [ softmax(s + mask) v ]_h + b_o. ``graph`` is Henderson and others, 2023 (Transformers
as Graph-to-Graph Models, arXiv:2310.17936), scores only: the term that the same authors add to the
values is left out. ``full`` is its complete product. ``matnet`` is the mixing of Kwon and others,
2021 (arXiv:2106.11113); a bias after its second layer would move all scores of a row alike, which
no softmax feels, so there is none. Keys have a bias: with edges it is felt.

U z is never written out for the pairs, d numbers each: q . U z = (U^T q) . z needs R to a query.
The edge-edge term is z^T V^T U z, read off the products of z's numbers, R (R + 1) / 2 a pair, made
once; matnet's hidden units are added up one at a time, and computed again backward.

Cost: pairs of 4 d + 4 R FLOPs forward (full R (R + 1) more a pair without the batch; matnet, in
place of 4 R, 5 J, and (2 R + 1) J without the batch), besides the projections. The edges are
parameters of the problem, drawn once from a seed; ``edges`` is R, ``hidden`` J.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from impls.heads import grouped, to_query_heads
from impls.layers.common import Layer, around, by_heads, side_by_side
from impls.layers.plain import LayerDefine
from impls.layers.weights import Weights, attention_shapes, draw_weights
from impls.problem import Problem
from impls.score_mask import ScoreMask, masked_softmax
from impls.spec import Unsupported

FORMS = ("graph", "full", "matnet")


def _shapes(problem: Problem, form: str, edges: int, hidden: int) -> dict[str, tuple[int, ...]]:
    h, c, d = problem.heads, problem.kv_heads, problem.head_dim
    shapes = attention_shapes(problem, bias=True, key_bias=True)
    if form == "matnet":
        return {**shapes, "score_weight": (h, hidden), "edge_weight": (h, hidden, edges),
                "mix1_bias": (h, hidden), "mix_weight": (h, hidden)}  # fmt: skip
    return {**shapes, "edge_key_weight": (c, d, edges), "edge_query_weight": (h, d, edges)}


def _edges(problem: Problem, edges: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (problem.q_len, problem.kv_len, edges)
    z = torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")
    return z.to(problem.device, getattr(torch, problem.dtype))


class _MatNet(torch.autograd.Function):
    """Scores and edges to scores, one hidden unit at a time, in float32 at the least."""

    @staticmethod
    def forward(ctx: Any, s_bhnm: Tensor, z_Rp: Tensor, w_hj: Tensor, b_hjR: Tensor,
                a_hj: Tensor) -> Tensor:  # fmt: skip
        ctx.save_for_backward(s_bhnm, z_Rp, w_hj, b_hjR, a_hj)
        s = s_bhnm.to(z_Rp.dtype)
        mixed = torch.zeros_like(s)
        for j in range(w_hj.shape[1]):
            a = a_hj[:, j, None, None].to(s.dtype)
            mixed.addcmul_(_unit(s, z_Rp, w_hj, b_hjR, j).relu_(), a)
        return mixed

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        s_bhnm, z_Rp, w_hj, b_hjR, a_hj = ctx.saved_tensors
        s, g = s_bhnm.to(z_Rp.dtype), upstream[0]
        ds = torch.zeros_like(s)
        dw, db, da = [], [], []
        for j in range(w_hj.shape[1]):
            unit = _unit(s, z_Rp, w_hj, b_hjR, j)
            through = torch.ops.aten.threshold_backward(g, unit, 0)  # g where the relu is open
            da.append(_dot(g, unit.relu_()))
            w, a = (x[:, j, None, None].to(s.dtype) for x in (w_hj, a_hj))
            dw.append(_dot(through, s) * a.flatten())
            db.append(through.sum(0).flatten(1) @ z_Rp.mT * a[:, 0])
            ds.addcmul_(through, w * a)
        gradients = (torch.stack(parts, 1) for parts in (dw, db, da))
        weights = (x.to(w.dtype) for x, w in zip(gradients, (w_hj, b_hjR, a_hj), strict=True))
        return (ds.to(s_bhnm.dtype), None, *weights)


def _dot(x_bhnm: Tensor, y_bhnm: Tensor) -> Tensor:
    """The sum of products for each head, with no matrix of them."""
    x, y = (t.flatten(2).flatten(0, 1) for t in (x_bhnm, y_bhnm))
    return (x[:, None] @ y[..., None]).view(x_bhnm.shape[:2]).sum(0)


def _unit(s_bhnm: Tensor, z_Rp: Tensor, w_hj: Tensor, b_hjR: Tensor, j: int) -> Tensor:
    """Before the relu. p = n m pairs."""
    of_edges = (b_hjR[:, j].to(s_bhnm.dtype) @ z_Rp).view(-1, *s_bhnm.shape[2:])
    return torch.addcmul(of_edges, s_bhnm, w_hj[:, j, None, None].to(s_bhnm.dtype))


class _Scores:
    """``mix`` of a layer: R edge numbers, P products of two of them."""

    def __init__(self, problem: Problem, weights: Weights, form: str, z_nmR: Tensor) -> None:
        self.problem, self.weights, self.form = problem, weights, form
        self.mask, self.z_nmR = ScoreMask(problem), z_nmR
        if form == "matnet":
            wide = torch.promote_types(z_nmR.dtype, torch.float32)
            # a number of one beside the edge's own: its weight is the bias
            self.z_Rp = F.pad(z_nmR.flatten(0, 1).to(wide), (0, 1), value=1.0).mT.contiguous()
        if form == "full":
            self.one, self.other = torch.triu_indices(
                z_nmR.shape[2], z_nmR.shape[2], device=z_nmR.device
            )
            flat = z_nmR.flatten(0, 1).mT
            self.products_Pp = flat[self.one] * flat[self.other]

    def __call__(self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcmd: Tensor) -> Tensor:
        """Softmax of the mixed scores, times the values."""
        problem = self.problem
        b, h, n, m = *q_bhnd.shape[:3], k_bcmd.shape[2]
        scores_bhnm = (grouped(q_bhnd, problem) @ k_bcmd.mT).view(b, h, n, m)
        if self.form == "matnet":
            scores_bhnm = self._matnet(scores_bhnm)
        else:
            scores_bhnm = self._with_edges(scores_bhnm, q_bhnd, k_bcmd) * problem.scale
        masked = self.mask.add_(scores_bhnm.reshape(b, problem.kv_heads, -1, m))
        return self.mask.close(masked.softmax(-1) @ v_bcmd)

    def _matnet(self, scores_bhnm: Tensor) -> Tensor:
        """The hidden units' sum, for the unscaled scores."""
        weights, wide = self.weights, self.z_Rp.dtype
        own_hj = weights["score_weight"].to(wide) * self.problem.scale
        edge_hjR = torch.cat((weights["edge_weight"], weights["mix1_bias"][..., None]), -1)
        arguments = scores_bhnm, self.z_Rp, own_hj, edge_hjR, weights["mix_weight"]
        mixed: Tensor = _MatNet.apply(*arguments)  # type: ignore[no-untyped-call]
        return mixed.to(scores_bhnm.dtype)

    def _with_edges(self, scores_bhnm: Tensor, q_bhnd: Tensor, k_bcmd: Tensor) -> Tensor:
        """The terms of the edges added, each a product over R numbers."""
        u_hdR = self.weights["edge_key_weight"].repeat_interleave(self.problem.group, 0)
        v_hdR = self.weights["edge_query_weight"]
        of_q = torch.einsum("bhnR,nmR->bhnm", q_bhnd @ u_hdR, self.z_nmR)
        k_bhmd = to_query_heads(k_bcmd, self.problem)
        of_k = torch.einsum("bhmR,nmR->bhnm", k_bhmd @ v_hdR, self.z_nmR)
        scores_bhnm = scores_bhnm + of_q
        scores_bhnm += of_k
        if self.form == "full":
            g_hRR = v_hdR.mT @ u_hdR
            twice = g_hRR + g_hRR.mT
            g_hP = torch.where(self.one == self.other, 0.5, 1.0) * twice[:, self.one, self.other]
            between = g_hP.to(q_bhnd.dtype) @ self.products_Pp
            scores_bhnm += between.view(-1, *scores_bhnm.shape[2:])
        return scores_bhnm


def build(problem: Problem, form: str, edges: int, hidden: int, seed: int) -> Layer:
    """Legend in :mod:`impls.layers.common`."""
    if form not in FORMS:
        raise Unsupported(f"form={form!r} is not one of {', '.join(FORMS)}")
    if edges < 1 or hidden < 1:
        raise Unsupported(f"edges={edges} and hidden={hidden} must both be 1 or more")
    weights = draw_weights(_shapes(problem, form, edges, hidden), problem)

    scores = _Scores(problem, weights, form, _edges(problem, edges, seed))
    return around(problem, weights, scores)


def definition(problem: Problem, form: str, edges: int, hidden: int, seed: int) -> LayerDefine:
    """A head at a time, with a vector of d (or J) numbers for every pair written out."""
    z_nmR = _edges(problem, max(edges, 1), seed)
    d, group = problem.head_dim, problem.group

    def head(q_bnd: Tensor, k_bmd: Tensor, z: Tensor, i: int, weights: Weights) -> Tensor:
        q, k = q_bnd[:, :, None], k_bmd[:, None]
        if form == "matnet":
            score = (q * k).sum(-1, keepdim=True) * d**-0.5
            unit = score * weights["score_weight"][i] + z @ weights["edge_weight"][i].T
            unit = unit + weights["mix1_bias"][i]
            return (unit.relu() * weights["mix_weight"][i]).sum(-1)
        u, v = weights["edge_key_weight"][i // group], weights["edge_query_weight"][i]
        if form == "full":
            return ((q + z @ v.T) * (k + z @ u.T)).sum(-1) * d**-0.5
        return (q * k + q * (z @ u.T) + k * (z @ v.T)).sum(-1) * d**-0.5

    def of_rows(x: Tensor, y: Tensor, rows: Tensor, weights: Weights) -> Tensor:
        widths = (problem.width, *[problem.kv_heads * d] * 2)
        inputs = zip("qkv", (x, y, y), weights["in_weight"].split(widths), strict=True)
        q, k, v = (by_heads(t @ w.T + weights[f"{name}_bias"], d) for name, t, w in inputs)
        z = z_nmR[rows].to(x)
        scores = [
            checkpoint(head, q[:, i, rows], k[:, i // group], z, i, weights, use_reentrant=False)
            for i in range(problem.heads)
        ]
        p_bhrm = masked_softmax(torch.stack(scores, 1), problem, rows)
        out = side_by_side(p_bhrm @ to_query_heads(v, problem))
        return out @ weights["out_weight"].T + weights["out_bias"]

    shapes = _shapes(problem, form, max(edges, 1), max(hidden, 1))
    return LayerDefine(problem, draw_weights(shapes, problem), of_rows)
