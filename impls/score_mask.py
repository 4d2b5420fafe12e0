"""The problem's mask as a tensor that is added to whole matrices of scores, or as torch takes it.

Legend in :mod:`impls.heads`; r = g n rows.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from impls.heads import ungrouped, widened
from impls.problem import Problem


def grouped_mask(bias: Tensor, problem: Problem) -> Tensor:
    """The bias of scores, [b|1, h|1, n, m], as grouped ones need it: [b|1, c|1, g n, m]."""
    if problem.group == 1:
        return bias
    b, heads, n, m = bias.shape
    if heads == 1:
        return bias[:, :, None].expand(b, 1, problem.group, n, m).reshape(b, 1, -1, m)
    return bias.reshape(b, problem.kv_heads, -1, m)


class ScoreMask:
    """The problem's mask as a tensor to add to the scores, made once.

    ``bias`` is None, or 0 and -inf (and whatever the mask adds) in the shape of the grouped
    scores. Rows that may see nothing are left open, since a softmax of nothing is NaN and its
    gradient spreads; :meth:`close` sets them to zero at the end.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.bias: Tensor | None = None
        self.blind: Tensor | None = None
        mask, shape = problem.mask, problem.shape
        if mask.plain:
            return
        blind = blind_rows(problem)
        visible = torch.from_numpy(mask.visible(shape)).to(problem.device)
        if blind is not None:
            self.blind, visible = blind, visible | blind
        added = mask.bias(shape)
        base = torch.zeros(()) if added is None else torch.from_numpy(added)
        base = base.to(problem.device, getattr(torch, problem.dtype))
        base = torch.where(visible, base.nan_to_num(neginf=0.0), -torch.inf)
        self.bias = grouped_mask(base, problem)

    def add_(self, scores_bcrm: Tensor) -> Tensor:
        """The scores under the soft cap, with the mask added, in place."""
        scores_bcrm = cap_(scores_bcrm, self.problem)
        return scores_bcrm if self.bias is None else scores_bcrm.add_(self.bias)

    def close(self, out_bcre: Tensor) -> Tensor:
        """The output by query heads, zero where a row may see nothing."""
        out = ungrouped(out_bcre, self.problem)
        return out if self.blind is None else out.masked_fill(self.blind, 0.0)

    def log_sums(self, scores_bcrm: Tensor, sinks_h: Tensor | None) -> Tensor | None:
        """The log-sum-exp of each row, [b, h, n]; None where the problem doesn't ask for it."""
        if not self.problem.lse:
            return None
        return closed_log_sums(log_sums(scores_bcrm, self.problem), sinks_h, self.blind)


def cap_(scores: Tensor, problem: Problem) -> Tensor:
    """Scaled scores under the problem's soft cap, in place where no gradient flows."""
    if problem.softcap is None:
        return scores
    scores = scores.div_(problem.softcap).tanh_()
    return scores * problem.softcap if scores.requires_grad else scores.mul_(problem.softcap)


def weights(scores: Tensor, sinks_h: Tensor | None, problem: Problem) -> Tensor:
    """The softmax of grouped scores [b, c, ..., g n, m]; of each head's sink, if any, nothing but
    what it takes from the others.
    """
    if sinks_h is None:
        return scores.softmax(-1)
    c, rows = problem.kv_heads, scores.shape[-2]
    column = sinks_h.view(c, -1, 1).expand(-1, -1, rows // problem.group).reshape(c, rows, 1)
    column = column.view(1, c, *[1] * (scores.dim() - 4), rows, 1).expand(*scores.shape[:-1], 1)
    return torch.cat([scores, column], -1).softmax(-1)[..., :-1]


def log_sums(scores_bcrm: Tensor, problem: Problem) -> Tensor:
    """The log-sum-exp of grouped scores by query heads, [b, h, n], in float32 or wider."""
    return ungrouped(widened(scores_bcrm).logsumexp(-1, keepdim=True), problem)[..., 0]


def closed_log_sums(
    log_sums_bhn: Tensor, sinks_h: Tensor | None, blind_bhn1: Tensor | None
) -> Tensor:
    """The log-sum-exp of rows with their sinks counted in; -inf where a row may see nothing."""
    if blind_bhn1 is not None:
        log_sums_bhn = log_sums_bhn.masked_fill(blind_bhn1[..., 0], -torch.inf)
    if sinks_h is None:
        return log_sums_bhn
    return torch.logaddexp(log_sums_bhn, sinks_h[:, None].to(log_sums_bhn.dtype))


def with_log_sums(out_bhne: Tensor, log_sums_bhn: Tensor | None) -> Any:
    """What ``attend`` gives: the output, or (out, lse) where there is one."""
    return out_bhne if log_sums_bhn is None else (out_bhne, log_sums_bhn)


def beside_sinks(out_bhne: Tensor, log_sums_bhn: Tensor, sinks_h: Tensor) -> Tensor:
    """The output of rows whose softmax left the sinks out, from the log-sums of their scores."""
    above = sinks_h[:, None].to(log_sums_bhn.dtype) - log_sums_bhn
    share = F.softplus(above).neg().exp()  # a sigmoid's own gradient loses what is near one
    return out_bhne * share[..., None].to(out_bhne.dtype)


def blind_rows(problem: Problem) -> Tensor | None:
    """True for rows that may see nothing, [b|1, h|1, n, 1]; None where there are none."""
    blind = torch.from_numpy(problem.mask.blind_rows(problem.shape).copy())
    return blind[..., None].to(problem.device) if bool(blind.any()) else None


def visible_pairs(problem: Problem, rows: Tensor) -> Tensor:
    """True where a row may see a key: [b|1, h|1, rows, m]."""
    visible = problem.mask.visible(problem.shape, rows.cpu().numpy())
    return torch.from_numpy(visible).to(rows.device)


def added_to(scores_bhrm: Tensor, problem: Problem, rows: Tensor) -> Tensor:
    """The scores of some rows with what the mask adds; -inf, which hides, is left out."""
    added = problem.mask.bias(problem.shape, rows.cpu().numpy())
    if added is None:
        return scores_bhrm
    return scores_bhrm + torch.from_numpy(added).to(scores_bhrm).nan_to_num(neginf=0.0)


def masked_softmax(
    scores_bhrm: Tensor, problem: Problem, rows: Tensor, chosen_bhrm: Tensor | None = None
) -> Tensor:
    """The weights of some rows under the mask, of the chosen pairs alone: zeros where nothing may
    be seen.
    """
    visible = visible_pairs(problem, rows)
    visible = visible if chosen_bhrm is None else visible & chosen_bhrm
    blind = ~visible.any(-1, keepdim=True)
    scores_bhrm = added_to(scores_bhrm, problem, rows).masked_fill(~(visible | blind), -torch.inf)
    return scores_bhrm.softmax(-1).masked_fill(blind, 0.0)


def sdpa_arguments(problem: Problem) -> dict[str, Any]:
    """The problem's mask, and a scale that it sets, as scaled_dot_product_attention wants them."""
    mask, shape = problem.mask, problem.shape
    scale = {"scale": problem.scale} if "scale" in problem.parameters else {}
    if mask.plain:
        return scale
    if mask.is_causal(shape):
        return {"is_causal": True, **scale}
    visible = torch.from_numpy(mask.visible(shape)).to(problem.device)
    added = mask.bias(shape)
    if added is None:
        return scale if bool(visible.all()) else {"attn_mask": visible, **scale}
    bias = torch.from_numpy(added).to(problem.device, getattr(torch, problem.dtype))
    return {"attn_mask": bias.masked_fill(~visible, -torch.inf), **scale}
