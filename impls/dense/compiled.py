"""torch.compile of the plain chain.

    softmax( (q k^T) d^-1/2 + mask ) v

Inductor knows this chain: where its pattern matcher recognises it, the whole is rewritten into
fused attention and no matrix of scores is ever made; where it does not, the elementwise steps are
fused and the products stay. Which of the two ran is said beside every number.

Cost: 4 n m d FLOPs a head forward; memory according to what was recognised.
"""

from functools import partial

import torch
from torch import Tensor
from torch._dynamo.utils import counters

from impls.graph import Graph
from impls.heads import grouped
from impls.problem import Problem
from impls.score_mask import ScoreMask


def _chain(q_bcrd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, bias: Tensor | None,
           scale: float) -> Tensor:  # fmt: skip
    scores_bcrm = torch.matmul(q_bcrd, k_bcmd.transpose(-2, -1)) * scale
    if bias is not None:
        scores_bcrm = scores_bcrm + bias
    return torch.matmul(scores_bcrm.softmax(-1), v_bcme)


class Compiled:
    """The compiled chain, and what the compiler made of it.

    ``alike(problem)`` is this for a problem of other lengths: all those share one graph.
    """

    def __init__(self, problem: Problem, graph: Graph | None = None) -> None:
        self._problem, self._mask = problem, ScoreMask(problem)
        self._graph = graph.another() if graph else Graph(_chain)
        self.alike = partial(Compiled, graph=Graph(_chain, lengths=True))
        self._fused = 0

    def __call__(self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Tensor:
        """One call; the first compiles."""
        q_bcrd, before = grouped(q_bhnd, self._problem), _fused()
        out: Tensor = self._graph(q_bcrd, k_bcmd, v_bcme, self._mask.bias, self._problem.scale)
        self._fused += _fused() - before
        return self._mask.close(out)

    def note(self) -> str:
        """Tells if inductor rewrote the chain into fused attention."""
        if self._fused:
            return f"inductor rewrote it into fused attention (fuse_attention={self._fused})"
        return "inductor did not recognise it: the scores are materialised"


def _fused() -> int:
    """The number of chains that inductor has rewritten in this process."""
    return counters["inductor"]["fuse_attention"]


build = Compiled
