"""Softmax attention over the k largest scores of each row.

    T_i   = the k largest s_ij among the keys that row i may see; of equal scores, the lower j
    out_i = sum over j in T_i of softmax( s_iT )_j v_j        s = q k^T d^-1/2 + what the mask adds

Gupta et al., arXiv:2106.06899. The selection is made from scores in the problem's own precision,
so in half precisions many scores are equal and the rule for ties counts. Gradients flow through
the chosen scores and nothing else: to the selection there is none. With k at or above the number of
keys in sight it is exact softmax attention. Each row chooses only among the keys that it may see,
so every mask holds.

Which keys are largest is not known before every score is: the work is quadratic, and only the
second product and the backward pass are sparse. A block of queries at a time, so that no more than
8 million scores are ever held, 268 million on a GPU; what stays for the backward pass is k numbers
and places a row.

Cost: 2 n m d FLOPs a head for the scores and 2 n k e for the output; backward 4 n k (d + e).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag, pad

from impls.heads import grouped, to_query_heads, widened
from impls.masks import alibi_slopes
from impls.problem import Problem
from impls.score_mask import added_to, visible_pairs
from impls.sparse.picks import largest
from impls.sparse.selected import Defined
from impls.spec import Unsupported

SCORES, SCORES_ON_GPU = 1 << 23, 1 << 28
"""Scores of one block of queries, over the batch and the heads: few blocks are few launches."""


class Block(NamedTuple):
    """Some rows, the keys that any of them may see, and where each may look."""

    rows: slice
    keys: slice
    first_brx: Tensor | None
    """First and past-the-last key of each row, [b|1, 1, r, 1]; None where all see all the keys."""
    past_brx: Tensor | None


class Selector:
    """Chooses the keys of each row: what the variant and its definition share.

    Legend in :mod:`impls.heads`; r some rows of queries, t the keys chosen for a row.
    """

    def __init__(self, problem: Problem, k: int) -> None:
        if k < 1:
            raise Unsupported(f"k={k} must be 1 or more: each row attends its k largest scores")
        self.problem, self.wanted = problem, k
        self.count = min(k, problem.kv_len)
        room = SCORES if problem.device == "cpu" else SCORES_ON_GPU
        step = max(1, room // (problem.batch * problem.heads * problem.kv_len))
        first, past = (torch.from_numpy(x.copy()) for x in problem.mask.spans(problem.shape))
        self.blocks: list[Block] = []
        for start in range(0, problem.q_len, step):
            rows = slice(start, min(start + step, problem.q_len))
            low, high = first[:, rows], past[:, rows]
            keys = slice(int(low.min()), max(int(low.min()) + 1, int(high.max())))
            if keys.start >= problem.kv_len:
                keys = slice(0, 1)  # rows that may see nothing still need a place to look
            whole = bool((low <= keys.start).all() and (high >= keys.stop).all())
            limits: list[Tensor | None] = [None, None]
            if not whole:
                limits = [x[:, None, :, None].to(problem.device) for x in (low, high)]
            self.blocks.append(Block(rows, keys, *limits))

    def chosen(self, q_bhnd: Tensor, k_bcmd: Tensor, block: Block) -> tuple[Tensor, Tensor]:
        """The scores and the places of the chosen keys of a block: [b, h, r, t] each.

        A row that has fewer keys in sight fills up with scores of -inf.
        """
        some = q_bhnd.detach()[:, :, block.rows]
        keys_bcmd = k_bcmd.detach()[:, :, block.keys]
        grid = (*some.shape[:3], keys_bcmd.shape[2])
        scores = (grouped(some, self.problem) @ keys_bcmd.mT).view(grid).mul_(self.problem.scale)
        self._mask_(scores, block)
        count = min(self.count, scores.shape[-1])
        where = largest(scores, count)
        best, short = scores.gather(-1, where), self.count - count
        where = pad(where + block.keys.start, (0, short))
        return pad(best, (0, short), value=-torch.inf), where

    def all_chosen(self, q_bhnd: Tensor, k_bcmd: Tensor) -> tuple[Tensor, Tensor]:
        """The same of all rows."""
        every = [self.chosen(q_bhnd, k_bcmd, block) for block in self.blocks]
        values, places = (torch.cat(parts, 2) for parts in zip(*every, strict=True))
        return values, places

    def select(self, q_bhnd: Tensor, k_bcmd: Tensor) -> Tensor:
        """The picks of all rows, [b, h, n, t]: -1 where a row has fewer keys in sight."""
        values, places = self.all_chosen(q_bhnd, k_bcmd)
        return places.masked_fill(values == -torch.inf, -1)

    def _mask_(self, scores_bhrm: Tensor, block: Block) -> None:
        mask, shape = self.problem.mask, self.problem.shape
        start, stop = block.keys.start, block.keys.stop
        key = torch.arange(start, stop, device=scores_bhrm.device)
        if {"dense", "bias"} & {*mask.kinds}:
            rows = torch.arange(shape.q_len)[block.rows].numpy()
            files = mask.only("dense", "bias")
            visible = torch.from_numpy(files.visible(shape, rows)[..., start:stop])
            if (added := files.bias(shape, rows)) is not None:
                table = torch.from_numpy(added[..., start:stop]).nan_to_num(neginf=0.0)
                scores_bhrm.add_(table.to(scores_bhrm))
            scores_bhrm.masked_fill_(~visible.to(scores_bhrm.device), -torch.inf)
        if "alibi" in mask.kinds:
            offset = 0 if mask.upper_left else shape.kv_len - shape.q_len
            rows_r = torch.arange(block.rows.start, block.rows.stop, device=scores_bhrm.device)
            away_rm = (rows_r[:, None] + offset - key).abs()
            slopes = torch.from_numpy(alibi_slopes(shape.heads)).to(scores_bhrm)
            scores_bhrm.sub_(slopes[:, None, None] * away_rm)
        if block.first_brx is not None and block.past_brx is not None:
            hidden = (key < block.first_brx) | (key >= block.past_brx)
            scores_bhrm.masked_fill_(hidden, -torch.inf)


def weigh(weights_bhnt: Tensor, places_bhnt: Tensor, table_bcmx: Tensor, group: int) -> Tensor:
    """Rows of a table at those places, weighted and added: [b, h, n, x]. Sums in its dtype."""
    b, h, n, t = places_bhnt.shape
    c, m = table_bcmx.shape[1:3]
    head = torch.arange(b * h, device=places_bhnt.device) // group  # b c heads in order: h = c g
    places = (places_bhnt + (head * m).view(b, h, 1, 1)).view(-1, t)
    table = table_bcmx.reshape(b * c * m, -1)
    weights = weights_bhnt.reshape(-1, t)
    return embedding_bag(places, table, per_sample_weights=weights, mode="sum").view(b, h, n, -1)


class Scores(torch.autograd.Function):
    """The chosen scores, already computed, with the gradient that only those pairs have."""

    @staticmethod
    def forward(ctx: Any, q_bhnd: Tensor, k_bcmd: Tensor, places: Tensor, scores: Tensor,
                scale: float, group: int) -> Tensor:  # fmt: skip
        """The scores as they are."""
        ctx.save_for_backward(q_bhnd, k_bcmd, places)
        ctx.scale, ctx.group = scale, group
        return scores.to(torch.promote_types(scores.dtype, torch.float32), copy=True)

    @staticmethod
    def backward(ctx: Any, *above: Tensor) -> Any:
        """dq = ds k and dk = ds^T q: one sparse product, and its own backward."""
        q_bhnd, k_bcmd, places = ctx.saved_tensors
        with torch.enable_grad():
            table = widened(k_bcmd.detach()).requires_grad_()
            dq_bhnd = weigh(above[0] * ctx.scale, places, table, ctx.group)
        (dk_bcmd,) = torch.autograd.grad(dq_bhnd, table, widened(q_bhnd))
        return dq_bhnd.detach().to(q_bhnd.dtype), dk_bcmd.to(k_bcmd.dtype), None, None, None, None


class TopK(Selector):
    """Attention over the k largest scores of each row."""

    def __call__(self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Tensor:
        """One call."""
        problem, (values, places) = self.problem, self.all_chosen(q_bhnd, k_bcmd)
        inputs = q_bhnd, k_bcmd, places, values, problem.scale, problem.group
        scores: Tensor = Scores.apply(*inputs)  # type: ignore[no-untyped-call]
        blind = values.amax(-1, keepdim=True) == -torch.inf
        weights = scores.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)
        out = weigh(weights, places, v_bcme.to(weights.dtype), problem.group)
        return out.to(v_bcme.dtype)

    def note(self) -> str:
        """The number of keys that a row attends."""
        all_ = " (all there are)" if self.wanted >= self.problem.kv_len else ""
        return f"{self.count} of {self.problem.kv_len} keys a row{all_}"


class Definition(Defined):
    """The plain form: all the scores of some rows, those that were not picked at -inf."""

    def __init__(self, problem: Problem, k: int) -> None:
        super().__init__(problem, 1, k)
        self.selector = Selector(problem, self.count)

    def scores(self, q_bhnd: Tensor, k_bcmd: Tensor, rows: Tensor, **more: Tensor) -> Tensor:
        """The scores of some rows, -inf where the mask hides a key: [b, h, r, m]."""
        scores = (q_bhnd[:, :, rows] @ to_query_heads(k_bcmd, self.problem).mT) * self.problem.scale
        scores = added_to(scores, self.problem, rows)
        return scores.masked_fill(~visible_pairs(self.problem, rows), -torch.inf)

    def picks(self, q_bhnd: Tensor, k_bcmd: Tensor, rows: Tensor, **more: Tensor) -> Tensor:
        """Those of the selector."""
        own = getattr(torch, self.problem.dtype)
        q, k = (x.detach().to(own).contiguous() for x in (q_bhnd, k_bcmd))
        return self.selector.select(q, k)[:, :, rows]


build, definition = TopK, Definition
