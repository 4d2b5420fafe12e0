"""A memory that forgets, in decode: softmax attention to what a policy holds of the tokens before.

    out_i = softmax over j in S, or new and at most i, of ( q_i k_j d^-1/2 ) v_j

S is what :mod:`impls.eviction` says for each policy, ``budget`` tokens of each key/value head; for
``evict.quest``, which holds all tokens, what a query reads. ``evict.h2o`` and ``evict.snapkv``
look at the queries of the tokens before, ``past_q``; of the new tokens its numbers count for
nothing. What H2O and SnapKV hold depends on where the prompt ended, so two steps are not as one.
With a budget of kv_len or more all are exact softmax attention.

Cost: 2 (budget + n) n (d + e) a head to attend, and for Quest 4 n m d / page for the bounds. H2O's
prompt costs 2 m^2 d a head, and SnapKV's 2 window m d, which no time counts. The memory is
(budget + n) (d + e) a key/value head; Quest's is all m tokens and 2 / page of the keys besides.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from impls.eviction import H2o, Pages, Policy, Quest, Random, SnapKv, State, draws
from impls.heads import to_query_heads, widened
from impls.problem import Problem
from impls.sparse.common import need_one_sequence
from impls.sparse.selected import Defined
from impls.spec import Unsupported

MOST = {"cpu": 1 << 32, "cuda": 1 << 35}
"""Scores of a prompt that H2O makes, by device."""
ROWS = 64
"""Queries of the prompt that a definition looks at together."""


class Evict:
    """The attend of a policy."""

    def __init__(self, problem: Problem, policy: Policy | Quest) -> None:
        need_one_sequence(problem, "eviction")
        self.problem, self.policy = problem, policy
        self.before = problem.kv_len - problem.q_len

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, past_q: Tensor | None = None) -> Tensor:
        """A step from a memory that is made first."""
        past = None if past_q is None else past_q[:, :, : self.before]
        memory = self.remember(k[:, :, : self.before], v[:, :, : self.before], past)
        return self.step(q, k[:, :, self.before :], v[:, :, self.before :], memory)[0]

    def remember(self, k: Tensor, v: Tensor, past_q: Tensor | None = None) -> State | Pages:
        """What is held of the tokens before."""
        return self.policy.remember(past_q, k, v)

    def step(self, q: Tensor, k: Tensor, v: Tensor, memory: Any,
             past_q: Tensor | None = None) -> tuple[Tensor, State | Pages]:  # fmt: skip
        """The output of new tokens, and the memory after them."""
        return self.policy.step(q, k, v, memory)

    def select(self, q: Tensor, k: Tensor, past_q: Tensor | None = None) -> Tensor:
        """The tokens before, or pages of them, that each query sees: [b, c, n, t]."""
        k = k[:, :, : self.before]
        if isinstance(self.policy, Quest):
            return self.policy.picks(q, self.policy.remember(None, k, k))
        past = None if past_q is None else past_q[:, :, : self.before]
        places, _ = self.policy.positions(past, k)
        return places[:, :, None].expand(-1, -1, q.shape[2], -1)

    def note(self) -> str:
        """How much is seen."""
        seen, verb = min(self.policy.budget, self.before), "held"
        if isinstance(self.policy, Quest):
            page, verb = self.policy.page, "read"
            seen = self.policy.count(self.before) * page + self.before % page
        return f"{seen} of {self.before} tokens before are {verb}"


class PromptBound(Evict):
    """What is held depends on where the prompt ended."""

    forgets = True


def sinks(problem: Problem, budget: int, sinks: int) -> Evict:
    """The first tokens and the latest."""
    if sinks < 0:
        raise Unsupported(f"sinks={sinks} must be 0 or more: the first tokens that stay")
    return Evict(problem, Policy(problem, budget, sinks))


def h2o(problem: Problem, budget: int) -> Evict:
    """The latest tokens and the heaviest."""
    most = MOST[problem.device.split(":")[0]]
    if (count := problem.batch * problem.heads * (problem.kv_len - problem.q_len) ** 2) > most:
        raise Unsupported(
            f"evict.h2o weighs every token before by every query: {count:,} scores, and {most:,} "
            f"is the most on {problem.device}"
        )
    return PromptBound(problem, H2o(problem, budget))


def snapkv(problem: Problem, budget: int, window: int) -> Evict:
    """What the last queries of the prompt choose."""
    return PromptBound(problem, SnapKv(problem, budget, window))


def quest(problem: Problem, budget: int, page: int) -> Evict:
    """The pages that could have the largest scores."""
    return Evict(problem, Quest(problem, budget, page))


def random(problem: Problem, budget: int) -> Evict:
    """The latest tokens and a sample."""
    return Evict(problem, Random(problem, budget))


# ---- definitions ----


class Definition(Defined):
    """Full attention, but to what is not held; this one of the first tokens and the latest."""

    def __init__(self, problem: Problem, budget: int, sinks: int = 0) -> None:
        super().__init__(problem, 1, budget)
        self.budget, self.sinks = budget, sinks
        self.before = self.since = problem.kv_len - problem.q_len
        self.count = min(self.budget, self.before)
        self.tokens = torch.arange(problem.kv_len, device=problem.device)

    def picks(self, q_bhnd: Tensor, k_bcmd: Tensor, rows: Tensor, **more: Tensor) -> Tensor:
        """Its own picks for some rows."""
        if self.count < 1:
            return rows.new_zeros(q_bhnd.shape[0], self.problem.kv_heads, len(rows), 0)
        return super().picks(q_bhnd, k_bcmd, rows, **more)

    def pairs(self, picks_bxrt: Tensor) -> Tensor:
        """With the tokens that every query sees."""
        return super().pairs(picks_bxrt) | (self.tokens >= self.since)

    def scores(self, q_bhnd: Tensor, k_bcmd: Tensor, rows: Tensor, **more: Tensor) -> Tensor:
        """The worth of every token before; inf for what always stays."""
        worth, late = self.worth(q_bhnd, k_bcmd, **more)
        worth = worth.masked_fill(self.tokens >= self.before - late, torch.inf)
        worth = worth.masked_fill(self.tokens >= self.before, -torch.inf)
        return worth[:, :, None].expand(-1, -1, len(rows), -1)

    def worth(self, q_bhnd: Tensor, k_bcmd: Tensor, **more: Tensor) -> tuple[Tensor, int]:
        """Of all tokens, [b, c, m], and how many of the latest always stay."""
        first = torch.where(self.tokens < self.sinks, torch.inf, -torch.inf)
        worth = first.to(q_bhnd.dtype).expand(k_bcmd.shape[:3])
        return worth, self.count - min(self.sinks, self.count)

    def mass(self, q_bhmd: Tensor, k_bcmd: Tensor, first: int) -> Tensor:
        """The weight of every token in the queries before from ``first`` on, a head at a time."""
        total = widened(k_bcmd.new_zeros(*q_bhmd.shape[:2], k_bcmd.shape[2]))
        k_bhmd = to_query_heads(k_bcmd, self.problem)
        for start in range(first, self.before, ROWS):
            end = min(start + ROWS, self.before)
            row = self.tokens[start:end]
            scores = q_bhmd[:, :, row] @ k_bhmd[:, :, :end].mT * self.problem.scale
            scores = scores.masked_fill(self.tokens[:end] > row[:, None], -torch.inf)
            total[..., :end] += widened(scores).softmax(-1).sum(2)
        return total.unflatten(1, (self.problem.kv_heads, -1)).sum(2)


class H2oDefinition(Definition):
    """The weight in all queries, and the latest half."""

    def worth(self, q_bhnd: Tensor, k_bcmd: Tensor, **more: Tensor) -> tuple[Tensor, int]:
        """Of all tokens, and how many of the latest always stay."""
        return self.mass(more["past_q"], k_bcmd, 0), self.budget // 2


class RandomDefinition(Definition):
    """The draw of each token, and the latest half."""

    def worth(self, q_bhnd: Tensor, k_bcmd: Tensor, **more: Tensor) -> tuple[Tensor, int]:
        """Of all tokens, and how many of the latest always stay."""
        return draws(self.tokens.expand(k_bcmd.shape[:3])).double(), self.budget // 2


class SnapKvDefinition(Definition):
    """The weight in the window's queries, averaged over five neighbours, and the window."""

    def __init__(self, problem: Problem, budget: int, window: int) -> None:
        super().__init__(problem, budget)
        self.window = window

    def worth(self, q_bhnd: Tensor, k_bcmd: Tensor, **more: Tensor) -> tuple[Tensor, int]:
        """Of all tokens, and how many of the latest always stay."""
        older = max(self.before - self.window, 0)
        mass = self.mass(more["past_q"], k_bcmd, older)
        worth = torch.zeros_like(mass)
        for j in range(older):
            worth[..., j] = mass[..., max(j - 2, 0) : min(j + 3, older)].sum(-1) / 5
        return worth, self.window


class QuestDefinition(Definition):
    """The largest score that a page's least and largest channels allow a query head of a group."""

    def __init__(self, problem: Problem, budget: int, page: int) -> None:
        super().__init__(problem, budget)
        self.block, rest = max(page, 1), self.before % max(page, 1)
        self.items, self.since = -(-problem.kv_len // self.block), self.before - rest
        self.count = min(self.since // self.block, max(budget - rest, 0) // self.block)

    def scores(self, q_bhnd: Tensor, k_bcmd: Tensor, rows: Tensor, **more: Tensor) -> Tensor:
        """The bound of every full page, page by page."""
        q = q_bhnd[:, :, rows].unflatten(1, (self.problem.kv_heads, -1))
        every = []
        for page in k_bcmd[:, :, : self.since].split(self.block, 2) if self.since else ():
            low, high = (x[:, :, None, None] for x in (page.amin(2), page.amax(2)))
            every.append(torch.maximum(q * low, q * high).sum(-1).amax(2))
        none = q.new_full((*q.shape[:2], len(rows)), -torch.inf)
        return torch.stack([*every, *[none] * (self.items - len(every))], -1)
