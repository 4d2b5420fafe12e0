"""Attention inside clusters of queries and keys (Routing Transformer, arXiv:2003.05997).

    S_x = the `window` largest of  x_i . mu / |x_i|  over the tokens, for queries and keys apart
    out_i = mean over the centroids mu whose S_q has i of  softmax_j in S_k( s_ij ) v_j
    s = q k^T d^-1/2                   of equal tokens, the earlier is taken

A query that no centroid takes gets zeros; one that several take gets the mean. With one cluster it
is exact softmax attention. In the paper the centroids are learned while the model trains, as a
moving mean of normalised queries and keys, the same for both; an operator alone has no training
behind it, so here they are drawn from a seed, on the unit sphere, and fixed: what is measured is
the cost of the form and the error of routing that knows nothing of the data.

A token is taken by its rank among all the tokens, the later ones too: only the empty mask is
strictly kept, so only that is taken. (Public causal forms hide later keys inside a cluster, but a
later token still decides who is in it.) `clusters=0` means the root of kv_len, `window=0` the
length over the clusters.

Cost: 2 (n + m) d clusters a head to rank, 2 clusters window^2 (d + e) to attend: N^1.5 d where
both are the root of N.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from impls.heads import Define, to_query_heads
from impls.problem import Problem
from impls.sparse.cost import routes
from impls.sparse.picks import largest
from impls.spec import Unsupported


def centroids(problem: Problem, clusters: int, seed: int) -> Tensor:
    """Unit vectors for each key/value head, in the problem's dtype: [c, clusters, d]."""
    generator = torch.Generator().manual_seed(seed)
    shape = (problem.kv_heads, clusters, problem.head_dim)
    vectors = normalize(torch.randn(shape, generator=generator, dtype=torch.float64), dim=-1)
    return vectors.to(problem.device, getattr(torch, problem.dtype))


def members(x_bhnd: Tensor, centroids_cud: Tensor, window: int) -> Tensor:
    """The tokens that each centroid takes: [b, h, clusters, window]."""
    group = x_bhnd.shape[1] // centroids_cud.shape[0]
    unit = normalize(x_bhnd.detach(), dim=-1).contiguous().unflatten(1, (-1, group))
    near_bcgun = centroids_cud[:, None] @ unit.mT
    return largest(near_bcgun, window).flatten(1, 2)


class Routing:
    """Attention inside the clusters. Legend in :mod:`impls.heads`; u clusters, w taken by each."""

    def __init__(self, problem: Problem, clusters: int, window: int, seed: int) -> None:
        if clusters < 0 or window < 0:
            raise Unsupported(
                f"clusters={clusters} and window={window} must be 1 or more, or 0 for the default"
            )
        self._problem = problem
        self._clusters, self._asks, self._gives = routes(problem, clusters, window)
        self._centroids = centroids(problem, self._clusters, seed)

    def __call__(self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Tensor:
        """One call."""
        problem, clusters = self._problem, self._clusters
        b, h, c, g = problem.batch, problem.heads, problem.kv_heads, problem.group
        asks = self._rows(members(q_bhnd, self._centroids, self._asks), problem.q_len)
        gives = self._rows(members(k_bcmd, self._centroids, self._gives), problem.kv_len)
        # the queries of a group meet the keys of their head together: [b c, u, g w, d]
        asks = asks.view(b, c, g, clusters, -1).transpose(2, 3).reshape(b * c, clusters, -1)
        gives = gives.view(b * c, clusters, -1)
        q, k, v = (
            x.reshape(-1, x.shape[-1]).index_select(0, at.flatten()).view(*at.shape, x.shape[-1])
            for x, at in ((q_bhnd, asks), (k_bcmd, gives), (v_bcme, gives))
        )
        # written out: torch's fused kernel keeps the log-sum alone, and its backward rounds more
        out = (q @ k.mT).mul_(problem.scale).softmax(-1) @ v
        wide = torch.promote_types(out.dtype, torch.float32)
        total = torch.zeros(b * h * problem.q_len, out.shape[-1], dtype=wide, device=out.device)
        total = total.index_add(0, asks.flatten(), out.reshape(-1, out.shape[-1]).to(wide))
        times = torch.bincount(asks.flatten(), minlength=len(total)).clamp(min=1)
        return (total / times[:, None]).to(out.dtype).view(b, h, problem.q_len, -1)

    def _rows(self, taken_bhuw: Tensor, length: int) -> Tensor:
        heads = taken_bhuw.shape[0] * taken_bhuw.shape[1]
        start = torch.arange(heads, device=taken_bhuw.device) * length
        return taken_bhuw + start.view(*taken_bhuw.shape[:2], 1, 1)

    def note(self) -> str:
        """The number of tokens in each cluster."""
        problem = self._problem
        return (
            f"{self._clusters} clusters, each takes {self._asks} of {problem.q_len} queries "
            f"and {self._gives} of {problem.kv_len} keys"
        )


build = Routing


def definition(problem: Problem, clusters: int, window: int, seed: int) -> Define:
    """The plain form: for each centroid the softmax over its keys, for the queries it takes."""
    clusters, asks, gives = routes(problem, clusters, window)
    means = centroids(problem, clusters, seed)
    own = getattr(torch, problem.dtype)

    def define(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, rows: Tensor) -> Tensor:
        def member(x: Tensor, window: int, length: int) -> Tensor:
            places = members(x.to(own), means, window)
            empty = torch.zeros(*places.shape[:3], length, dtype=torch.bool, device=x.device)
            return empty.scatter(-1, places, True)

        queries = member(q_bhnd, asks, problem.q_len)[..., rows]
        keys_of = to_query_heads(member(k_bcmd, gives, problem.kv_len), problem)
        keys, values = (to_query_heads(x, problem) for x in (k_bcmd, v_bcme))
        scores = (q_bhnd[:, :, rows] @ keys.mT) * problem.scale
        total = torch.zeros_like(q_bhnd[:, :, rows, :1] * values[:, :, :1])
        for u in range(clusters):
            weights = scores.masked_fill(~keys_of[:, :, u, None], -torch.inf).softmax(-1)
            total = total + (weights @ values).masked_fill(~queries[:, :, u, :, None], 0.0)
        return total / queries.sum(2)[..., None].clamp(min=1)

    return define
