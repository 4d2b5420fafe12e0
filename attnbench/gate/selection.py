"""What a variant selects by the data, judged apart from what it makes of that.

Such a variant says what it picked: ``attend.select(q, k, **more)`` gives the numbers of items,
[batch, x, q_len, t], -1 for none, where an item is a key or a block of keys and x heads select. Its
definition has the scores of all items (``scores(q, k, rows, **more)``, [batch, x, rows, items]; inf
for what is always picked, -inf for what never is), how many are picked (``count``), the pairs that
picks stand for (``pairs(picks)``), and takes ``picks`` by name.

The picks are held against scores in float64: what was left out may be above what was picked by no
more than rounding, so that either of two that tie is right. The output is then held against the
definition on these picks.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from attnbench.gate import budget
from attnbench.gate.findings import Wrong, place
from attnbench.gate.inputs import Attend, Inputs, cast
from attnbench.gate.oracle import softmax_weights
from attnbench.gate.reference import IN_FLOAT64, Defines, row_blocks
from impls.operators import TensorSpec
from impls.problem import Problem


def judged_by(
    problem: Problem, define: Defines | None, attend: Attend, specs: Mapping[str, TensorSpec]
) -> Defines | None:
    """The definition, on the variant's own picks if it says what it selects."""
    if define is None or not hasattr(attend, "select") or not hasattr(define, "scores"):
        return define
    return OnPicks(problem, define, attend.select, specs)


class OnPicks:
    """A definition on a variant's own picks, which are checked wherever inputs are in float64."""

    def __init__(
        self, problem: Problem, define: Any, select: Attend, specs: Mapping[str, TensorSpec]
    ) -> None:
        self._problem, self._define, self._select, self._specs = problem, define, select, specs
        self._last: tuple[weakref.ref[Tensor] | None, Tensor] = None, torch.empty(0)
        """The picks of the last queries: rows of one call come in blocks."""
        self._what = "key" if getattr(define, "block", 1) == 1 else "block"

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, rows: Tensor, **more: Tensor) -> Tensor:
        """The output of some rows; raises :class:`Wrong` for picks that are wrong."""
        picks = self.picks(q, k, rows, more)
        if q.dtype == torch.float64:
            self._check(q.detach(), k.detach(), rows, picks, more)
        out: Tensor = self._define(q, k, v, rows, picks=picks, **more)
        return out

    def picks(self, q: Tensor, k: Tensor, rows: Tensor, more: Mapping[str, Tensor]) -> Tensor:
        """What the variant picks for some rows, given inputs in its dtype."""
        made_of, whole = self._last
        if made_of is None or made_of() is not q:
            whole = self._all(q, k, more)
            self._last = weakref.ref(q), whole
        return whole[:, :, rows]

    def _all(self, q: Tensor, k: Tensor, more: Mapping[str, Tensor]) -> Tensor:
        first, named = self._cast({"q": q, "k": k}), self._cast(more)
        with torch.no_grad():
            picks = self._select(first["q"], first["k"], **named)
        form = (self._problem.batch, self._problem.q_len)
        whole = isinstance(picks, Tensor) and not picks.is_floating_point() and picks.dim() == 4
        if not whole or (picks.shape[0], picks.shape[2]) != form:
            raise Wrong(
                "its select gives something else than whole numbers [batch, heads that select, "
                "q_len, items]"
            )
        return picks.long()

    def kept(self, inputs: Inputs, rows: Tensor) -> float:
        """The share of exact softmax's weight on the keys that are picked: the mean over rows."""
        q, k, _ = inputs.map(Tensor.double).qkv
        total, count = 0.0, 0
        for some in row_blocks(self._problem, rows, 8):
            picks = self.picks(q, k, some, inputs.arguments[1])
            weights, blind = softmax_weights(self._problem, q, k, some)
            shares = (weights * self._define.pairs(picks)).sum(-1)
            sees = (~blind[..., 0]).expand_as(shares)
            total, count = total + float(shares[sees].sum()), count + int(sees.sum())
        return total / max(count, 1)

    def _cast(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """As the variant gets them."""
        return {n: cast(x.detach(), self._problem, self._specs[n]) for n, x in tensors.items()}

    def _check(
        self, q: Tensor, k: Tensor, rows: Tensor, picks: Tensor, more: Mapping[str, Tensor]
    ) -> None:
        """Hold picks against exact scores."""
        scores = self._define.scores(q, k, rows, **{n: x.detach() for n, x in more.items()})
        items = scores.shape[-1]
        if picks.shape[1] != scores.shape[1] or not bool(((picks >= -1) & (picks < items)).all()):
            raise Wrong(
                f"its select gives picks of {picks.shape[1]} heads from {int(picks.min())} to "
                f"{int(picks.max())}; {scores.shape[1]} select from {items} {self._what}s"
            )
        taken = torch.zeros_like(scores).scatter_add_(
            -1, picks.clamp(min=0), (picks >= 0).to(scores.dtype)
        )
        allowed = scores > -torch.inf
        count = allowed.sum(-1).clamp(max=self._define.count)
        self._refuse((taken > 1).any(-1), rows, f"picks a {self._what} twice")
        self._refuse(
            ((taken > 0) & ~allowed).any(-1), rows, f"picks a {self._what} that it may not"
        )
        self._refuse(
            taken.sum(-1) != count, rows, f"picks another number of {self._what}s than it should"
        )
        slack = self._slack(scores, q, k, rows, more)
        low, worst = scores.masked_fill(taken == 0, torch.inf).min(-1)
        high, missed = scores.masked_fill((taken > 0) | ~allowed, -torch.inf).max(-1)
        for at in (high - low > slack).nonzero()[:1].tolist():
            b, x, r = at
            text = f"{self._what} {{}}, whose score is {{:.4g}}"
            raise Wrong(
                f"{place(b, x, int(rows[r]))} picks "
                f"{text.format(int(worst[b, x, r]), float(low[b, x, r]))}, and leaves out "
                f"{text.format(int(missed[b, x, r]), float(high[b, x, r]))}"
            )

    def _refuse(self, wrong_bxr: Tensor, rows: Tensor, what: str) -> None:
        for b, x, r in wrong_bxr.nonzero()[:1].tolist():
            raise Wrong(f"{place(b, x, int(rows[r]))} {what}")

    def _slack(
        self, exact: Tensor, q: Tensor, k: Tensor, rows: Tensor, more: Mapping[str, Tensor]
    ) -> Tensor:
        """By how much two scores of a row may differ and tie: some times what the plain form in
        the problem's dtype is off there, or in its head on the mean.
        """
        dtype, factor = self._problem.dtype, 1.0
        first, named = self._cast({"q": q, "k": k}), self._cast(more)
        if dtype == "float64":  # there the plain form is exact; it is what float32 makes of it
            first, named = ({n: x.float() for n, x in some.items()} for some in (first, named))
            factor = IN_FLOAT64
        own = self._define.scores(first["q"], first["k"], rows, **named).double()
        finite = exact.isfinite()
        off = (own - exact).abs().masked_fill(~finite, 0.0).amax(-1)
        size = exact.abs().masked_fill(~finite, 0.0).amax(-1)
        off = torch.maximum(off, off.mean(-1, keepdim=True)) * factor
        least = budget.FLOOR_EPSILONS[dtype] * budget.EPSILON[dtype]
        return budget.WORST_ROW_FACTOR * off + least * size
