"""Softmax attention to r mixtures of the keys and values instead of to all of them (Linformer).

    out = softmax( d^-1/2 q (E k)^T ) F v               E, F of r x m

Wang et al., arXiv:2006.04768. In a trained model E and F are learned, so what is measured here is
the form: its speed, and what it makes of keys that it was not trained on.

    projection=mean     E = F = means of r segments of neighbours, the first m mod r one longer
    projection=random   E = F = R, Gaussian with variance 1/r: the paper's proof (Johnson and
                        Lindenstrauss) takes multiples of one R, its layers may share it too

Every mixture holds keys from everywhere, also later ones, so there is no causal form. r = m with
segments is softmax attention itself; a random R stays random whatever r. All heads share R.

Cost: 2 r m (d + e) FLOPs a key/value head to mix (segments: m (d + e) additions), 2 n r (d + e) a
query head.
"""

import torch
from torch import Tensor

from impls.heads import Define, grouped, to_query_heads, ungrouped
from impls.lowrank.common import by_blocks, segment_means
from impls.problem import Problem
from impls.spec import Unsupported, at_least

PROJECTIONS = ("mean", "random")


def random_projection(rank: int, kv_len: int, seed: int) -> Tensor:
    """R: [r, m], float32, on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rank, kv_len, generator=generator) * rank**-0.5


class Linformer:
    """Legend in :mod:`impls.heads`; r mixtures, x = g n rows."""

    def __init__(self, problem: Problem, rank: int, projection: str, seed: int) -> None:
        at_least("rank", rank, 1)
        if projection not in PROJECTIONS:
            raise Unsupported(f"projection={projection!r} is not one of {', '.join(PROJECTIONS)}")
        self.problem, self.rank = problem, min(rank, problem.kv_len)
        self.asked = rank
        self.r_rm: Tensor | None = None
        if projection == "random":
            r_rm = random_projection(self.rank, problem.kv_len, seed)
            self.r_rm = r_rm.to(problem.device, getattr(torch, problem.dtype))

    def __call__(self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Tensor:
        """The output."""
        keys_bcrd, values_bcre = self._mixed(k_bcmd), self._mixed(v_bcme)
        keys_bcrd = keys_bcrd * self.problem.scale  # the small factor, not the scores

        def rows(q_bcxd: Tensor) -> Tensor:
            return (q_bcxd @ keys_bcrd.mT).softmax(-1) @ values_bcre

        return ungrouped(by_blocks(rows, grouped(q_bhnd, self.problem), self.rank), self.problem)

    def _mixed(self, x_bcmd: Tensor) -> Tensor:
        return segment_means(x_bcmd, self.rank) if self.r_rm is None else self.r_rm @ x_bcmd

    def note(self) -> str:
        """The number of mixtures, where fewer than were asked for."""
        if self.rank == self.asked:
            return ""
        return f"rank {self.rank}: there are no more keys ({self.asked} asked for)"


build = Linformer


def definition(problem: Problem, rank: int, projection: str, seed: int) -> Define:
    """The plain form, with E as a whole matrix."""
    rank = max(1, min(rank, problem.kv_len))
    if projection == "random":
        e_rm = random_projection(rank, problem.kv_len, seed).to(getattr(torch, problem.dtype))
    else:
        segments = torch.arange(problem.kv_len).tensor_split(rank)
        e_rm = torch.zeros(rank, problem.kv_len, dtype=torch.float64)
        for row, members in zip(e_rm, segments, strict=True):
            row[members] = 1.0 / len(members)

    def define(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, rows: Tensor) -> Tensor:
        e = e_rm.to(q_bhnd.device, q_bhnd.dtype)
        keys, values = (to_query_heads(e @ x, problem) for x in (k_bcmd, v_bcme))
        scores = q_bhnd[:, :, rows] @ keys.mT * problem.scale
        return scores.softmax(-1) @ values

    return define
