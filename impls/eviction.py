"""Decoding with a memory that forgets: which keys and values each policy holds.

Every key/value head holds ``budget`` of the tokens before a step; the step's queries see these and
each other's tokens, and when room is needed the tokens of the least worth go.

    sinks   the first tokens and the latest (StreamingLLM, arXiv:2309.17453)
    h2o     half the budget is the latest tokens; the rest have the most weight, summed over all
            queries so far, those of the prompt too (arXiv:2306.14048)
    snapkv  chosen once, at the end of the prompt: its last queries, and the keys with the most of
            their weight, averaged over 5 neighbours; later tokens all stay (arXiv:2404.14469)
    quest   nothing goes, and memory does not fall: a query reads the pages of keys whose least and
            largest channels allow the largest score (arXiv:2406.10774)
    random  the control: half the budget is the latest tokens, the rest a uniform sample

Weights are summed over the query heads of a key/value head; Quest's bound is the largest of them.
Keys carry their positions, so that a new token may take the place of one that went. A step writes
there, without a copy of the memory: the state before it can take another step, older ones can't.

Legend in :mod:`impls.heads`; s places in the memory, n tokens of a step, u pages.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from impls.heads import grouped, ungrouped, widened
from impls.problem import Problem
from impls.spec import Unsupported

POOL = 5
"""Neighbours over which SnapKV averages."""
GROWTH = 64
"""Places that are added at once where a memory grows."""
SCORES = 1 << 22
"""Scores of the prompt that are made at once."""


class State(NamedTuple):
    """What a policy holds; the first ``filled`` places hold something."""

    k_bcsd: Tensor
    v_bcse: Tensor
    positions_bcs: Tensor
    score_bcs: Tensor
    """What a token's worth depends on besides its position, in float32 or wider."""
    tokens: int
    """How many there have been."""
    filled: int


class Policy:
    """Holds what is worth most; this one the first tokens and the latest."""

    grows = False

    def __init__(self, problem: Problem, budget: int, sinks: int = 4) -> None:
        self.problem, self.budget, self.sinks = problem, budget, sinks
        self.need(sinks + 1, "its first tokens and one more")
        self.new = problem.q_len if problem.phase == "decode" else 1

    def need(self, least: int, what: str) -> None:
        """Raise Unsupported for a budget that has no room."""
        if self.budget < least:
            raise Unsupported(f"budget={self.budget} must be {least} or more: room for {what}")

    def worth(self, positions: Tensor, score: Tensor, tokens: int) -> Tensor:
        """Of tokens at these positions, the most for what stays."""
        return positions.masked_fill(positions < self.sinks, tokens)

    def prompt_score(self, q_bhmd: Tensor | None, k_bcmd: Tensor) -> Tensor:
        """The score of each token of the prompt: [b, c, m]."""
        return k_bcmd.new_zeros(k_bcmd.shape[:3], dtype=torch.float32)

    def new_score(self, positions_bcn: Tensor) -> Tensor:
        """The score of new tokens."""
        return torch.zeros_like(positions_bcn, dtype=torch.float32)

    def after(self, score_bcs: Tensor, weights_bcrs: Tensor) -> Tensor:
        """The scores once a step's queries have had these weights."""
        return score_bcs

    def positions(self, q_bhmd: Tensor | None, k_bcmd: Tensor) -> tuple[Tensor, Tensor]:
        """Which tokens of a prompt stay, in order, and the scores of all."""
        tokens, score = k_bcmd.shape[2], self.prompt_score(q_bhmd, k_bcmd)
        every = torch.arange(tokens, device=k_bcmd.device).expand(score.shape)
        if tokens <= self.budget:
            return every, score
        return self.worth(every, score, tokens).topk(self.budget).indices.sort().values, score

    @torch.no_grad()
    def remember(self, q_bhmd: Tensor | None, k_bcmd: Tensor, v_bcme: Tensor) -> State:
        """The prompt's, with room for a step; ``q`` is for the policies that look at queries."""
        positions, score = self.positions(q_bhmd, k_bcmd)
        at, count = positions[..., None], positions.shape[2]
        room = (self.budget if not self.grows else count) + self.new
        k, v = (F.pad(x.gather(2, at.expand(-1, -1, -1, x.shape[3])), (0, 0, 0, room - count))
                for x in (k_bcmd, v_bcme))  # fmt: skip
        positions, score = (
            F.pad(x, (0, room - count)) for x in (positions, score.gather(2, positions))
        )
        return State(k, v, positions, score, k_bcmd.shape[2], count)

    @torch.no_grad()
    def step(self, q_bhnd: Tensor, k_bcnd: Tensor, v_bcne: Tensor,
             state: State) -> tuple[Tensor, State]:  # fmt: skip
        """The output of new tokens, and the state after them."""
        state, n = self._with_room(state, k_bcnd.shape[2]), k_bcnd.shape[2]
        at = self._places(state, n)
        new = torch.arange(state.tokens, state.tokens + n, device=at.device).expand(at.shape)
        for there, x in ((state.k_bcsd, k_bcnd), (state.v_bcse, v_bcne)):
            there.scatter_(2, at[..., None].expand(x.shape), x)
        positions = state.positions_bcs.scatter(2, at, new)
        score = state.score_bcs.scatter(2, at, self.new_score(new).to(state.score_bcs.dtype))
        filled = min(state.filled + n, positions.shape[2])
        k, v = state.k_bcsd[:, :, :filled], state.v_bcse[:, :, :filled]
        scores_bcrs = grouped(q_bhnd, self.problem) @ k.mT * self.problem.scale
        if n > 1:
            later = positions[:, :, None, :filled] > new[:, :1, :, None]
            scores_bcrs.masked_fill_(later.repeat(1, 1, self.problem.group, 1), -torch.inf)
        weights = widened(scores_bcrs).softmax(-1)
        score = self.after(score, F.pad(weights, (0, positions.shape[2] - filled)))
        out = ungrouped(weights.to(v.dtype) @ v, self.problem)
        state = state._replace(positions_bcs=positions, score_bcs=score)
        return out, state._replace(tokens=state.tokens + n, filled=filled)

    def _with_room(self, state: State, new: int) -> State:
        """A state that grows, with places for new tokens."""
        if not self.grows or state.filled + new <= state.positions_bcs.shape[2]:
            return state
        k, v = (F.pad(x, (0, 0, 0, max(new, GROWTH))) for x in state[:2])
        positions, score = (F.pad(x, (0, max(new, GROWTH))) for x in state[2:4])
        return State(k, v, positions, score, *state[4:])

    def _places(self, state: State, new: int) -> Tensor:
        """Where new tokens go: into empty places, then into those of the least worth."""
        filled, form = state.filled, state.positions_bcs.shape
        empty = torch.arange(filled, min(filled + new, form[2]), device=state.k_bcsd.device)
        empty = empty.expand(*form[:2], -1)
        if empty.shape[2] == new:
            return empty
        positions, score = (x[..., :filled] for x in state[2:4])
        least = (
            self.worth(positions, score, state.tokens)
            .topk(new - empty.shape[2], largest=False)
            .indices
        )
        return torch.cat([least, empty], -1)


class Half(Policy):
    """Half of the budget is the latest tokens; of the rest those with the largest score stay."""

    def __init__(self, problem: Problem, budget: int) -> None:
        super().__init__(problem, budget, 0)
        self.need(2, "the latest token and one more")

    def worth(self, positions: Tensor, score: Tensor, tokens: int) -> Tensor:
        """The score; the latest stay."""
        return score.masked_fill(positions >= tokens - self.budget // 2, torch.inf)


class H2o(Half):
    """The score is the weight in all queries so far."""

    def prompt_score(self, q_bhmd: Tensor | None, k_bcmd: Tensor) -> Tensor:
        """The weight of each key in the prompt's queries."""
        assert q_bhmd is not None
        return weight_of_keys(self.problem, q_bhmd, k_bcmd)

    def after(self, score_bcs: Tensor, weights_bcrs: Tensor) -> Tensor:
        """With the weights of a step's queries."""
        return score_bcs + weights_bcrs.sum(2)


class Random(Half):
    """The score is a number that each token of each key/value head draws once."""

    def prompt_score(self, q_bhmd: Tensor | None, k_bcmd: Tensor) -> Tensor:
        """The draws of the prompt."""
        tokens = torch.arange(k_bcmd.shape[2], device=k_bcmd.device)
        return self.new_score(tokens.expand(k_bcmd.shape[:3]))

    def new_score(self, positions_bcn: Tensor) -> Tensor:
        """The draws of some positions."""
        return draws(positions_bcn)


def draws(positions_bcn: Tensor) -> Tensor:
    """Numbers from 0 to 1, by hashing each position with its head."""
    head = torch.arange(positions_bcn.shape[1], device=positions_bcn.device)[:, None]
    x = positions_bcn * 0x9E3779B1 + head * 0x85EBCA77 & 0xFFFFFFFF
    for _ in range(2):
        x = (x ^ x >> 16) * 0x45D9F3B & 0xFFFFFFFF
    return (x ^ x >> 16).float() / 2**32


class SnapKv(Policy):
    """The score is the weight in the last queries of the prompt; what comes later stays."""

    grows = True

    def __init__(self, problem: Problem, budget: int, window: int = 32) -> None:
        super().__init__(problem, budget, 0)
        if window < 1:
            raise Unsupported(f"window={window} must be 1 or more: the queries that choose")
        self.window = window
        self.need(window + 1, "the window and one more")

    def worth(self, positions: Tensor, score: Tensor, tokens: int) -> Tensor:
        """The score; the window stays."""
        return score.masked_fill(positions >= tokens - self.window, torch.inf)

    def prompt_score(self, q_bhmd: Tensor | None, k_bcmd: Tensor) -> Tensor:
        """The window's weight of each key before it, averaged over neighbours."""
        assert q_bhmd is not None
        tokens = k_bcmd.shape[2]
        if tokens <= self.budget:
            return super().prompt_score(q_bhmd, k_bcmd)
        score = weight_of_keys(self.problem, q_bhmd[:, :, -self.window :], k_bcmd)
        older = F.avg_pool1d(score[..., : -self.window], POOL, 1, POOL // 2)
        return F.pad(older, (0, self.window))


def weight_of_keys(problem: Problem, q_bhnd: Tensor, k_bcmd: Tensor) -> Tensor:
    """The weight of each key, summed over queries, which are the last, and the heads that share it:
    [b, c, m] in float32 or wider.
    """
    n, m, g = q_bhnd.shape[2], k_bcmd.shape[2], problem.group
    total = widened(k_bcmd.new_zeros(k_bcmd.shape[:3]))
    step = max(1, SCORES // max(1, q_bhnd.shape[0] * q_bhnd.shape[1] * m))
    for start in range(0, n, step):
        some = q_bhnd[:, :, start : start + step]
        rows = some.shape[2]
        seen = m - n + start + rows
        scores = grouped(some, problem) @ k_bcmd[:, :, :seen].mT * problem.scale
        later = torch.ones(rows, seen, dtype=torch.bool, device=some.device)
        later = later.triu(seen - rows + 1).repeat(g, 1)
        weights = widened(scores.masked_fill_(later, -torch.inf)).softmax(-1)
        total[..., :seen] += weights.sum(2)
    return total


class Pages(NamedTuple):
    """All keys and values, and the least and the largest channels of each full page."""

    k_bcsd: Tensor
    v_bcse: Tensor
    low_bcud: Tensor
    high_bcud: Tensor
    picks_bcnu: Tensor
    """The pages that the queries of the last step read; none before a step."""
    tokens: int


class Quest:
    """Holds all, and reads the tokens after the last full page, and pages up to the budget."""

    def __init__(self, problem: Problem, budget: int, page: int = 16) -> None:
        if page < 1:
            raise Unsupported(f"page={page} must be 1 or more: the keys of a page")
        if budget < 2 * page:
            raise Unsupported(f"budget={budget} must be {2 * page} or more: room for two pages")
        self.problem, self.budget, self.page = problem, budget, page
        self.new = problem.q_len if problem.phase == "decode" else 1

    @torch.no_grad()
    def remember(self, q_bhmd: Tensor | None, k_bcmd: Tensor, v_bcme: Tensor) -> Pages:
        """The prompt, with room for a step."""
        tokens = k_bcmd.shape[2]
        more = self.new + -(tokens + self.new) % self.page
        k, v = (F.pad(x, (0, 0, 0, more)) for x in (k_bcmd, v_bcme))
        bounds = k.new_zeros((2, *k.shape[:2], k.shape[2] // self.page, k.shape[3]))
        picks = bounds.new_zeros((*k.shape[:2], 0, 0), dtype=torch.int64)
        return self._bounded(Pages(k, v, bounds[0], bounds[1], picks, tokens), 0)

    def _bounded(self, state: Pages, since: int) -> Pages:
        """With the bounds of the pages that are full now and weren't at so many tokens."""
        first, end = since // self.page, state.tokens // self.page
        if first < end:
            some = state.k_bcsd[:, :, first * self.page : end * self.page]
            pages = some.unflatten(2, (-1, self.page))
            state.low_bcud[:, :, first:end] = pages.amin(3)
            state.high_bcud[:, :, first:end] = pages.amax(3)
        return state

    def count(self, tokens: int) -> int:
        """How many pages are read, of so many tokens before a step."""
        return min(tokens // self.page, max(self.budget - tokens % self.page, 0) // self.page)

    def picks(self, q_bhnd: Tensor, state: Pages) -> Tensor:
        """The pages that each query reads: [b, c, n, u]."""
        full = state.tokens // self.page
        q_bcrd = grouped(q_bhnd, self.problem)
        low, high = state.low_bcud[:, :, :full], state.high_bcud[:, :, :full]
        bound = q_bcrd.clamp(min=0) @ high.mT + q_bcrd.clamp(max=0) @ low.mT
        bound_bcnu = bound.unflatten(2, (self.problem.group, -1)).amax(2)
        return bound_bcnu.topk(self.count(state.tokens), sorted=False).indices

    @torch.no_grad()
    def step(self, q_bhnd: Tensor, k_bcnd: Tensor, v_bcne: Tensor,
             state: Pages) -> tuple[Tensor, Pages]:  # fmt: skip
        """The output of new tokens, and the state after them."""
        p, n, tokens = self.problem, k_bcnd.shape[2], state.tokens
        if (room := tokens + n - state.k_bcsd.shape[2]) > 0:
            pages = -(-max(room, GROWTH) // self.page)
            k, v = (F.pad(x, (0, 0, 0, pages * self.page)) for x in state[:2])
            low, high = (F.pad(x, (0, 0, 0, pages)) for x in state[2:4])
            state = Pages(k, v, low, high, state.picks_bcnu, tokens)
        state.k_bcsd[:, :, tokens : tokens + n] = k_bcnd
        state.v_bcse[:, :, tokens : tokens + n] = v_bcne
        picks_bcnu = self.picks(q_bhnd, state)
        start = tokens - tokens % self.page
        q_bcngd = q_bhnd.unflatten(1, (-1, p.group)).transpose(2, 3) * p.scale
        tables = [self._read(x, picks_bcnu) for x in state[:2]]
        rest_k, rest_v = (x[:, :, None, start : tokens + n] for x in state[:2])
        rest = q_bcngd @ rest_k.mT
        later = torch.ones(n, tokens + n - start, dtype=torch.bool, device=rest.device)
        rest.masked_fill_(later.triu(tokens - start + 1)[:, None], -torch.inf)
        scores = torch.cat([q_bcngd @ tables[0].mT, rest], -1)
        weights = widened(scores).softmax(-1).to(rest_v.dtype)
        read = tables[1].shape[-2]
        out = weights[..., :read] @ tables[1] + weights[..., read:] @ rest_v
        after = self._bounded(state._replace(picks_bcnu=picks_bcnu, tokens=tokens + n), tokens)
        return out.transpose(2, 3).flatten(1, 2), after

    def _read(self, x_bcsd: Tensor, picks_bcnu: Tensor) -> Tensor:
        """The tokens of some pages: [b, c, n, u page, d]."""
        b, c, s, d = x_bcsd.shape
        each = torch.arange(b * c, device=x_bcsd.device).view(b, c, 1, 1) * (s // self.page)
        table = x_bcsd.view(-1, self.page * d)
        return F.embedding(picks_bcnu + each, table).unflatten(-1, (self.page, d)).flatten(3, 4)


POLICIES: dict[str, Any] = {
    "sinks": Policy, "h2o": H2o, "snapkv": SnapKv, "quest": Quest, "random": Random,
}  # fmt: skip


class Memory:
    """A policy with its state, for a decoder that keeps nothing else."""

    def __init__(self, policy: str, problem: Problem, budget: int, **options: int) -> None:
        self.policy = POLICIES[policy](problem, budget, **options)
        self.state: Any = None

    def prefill(self, q_bhmd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> None:
        """Take the prompt."""
        self.state = self.policy.remember(q_bhmd, k_bcmd, v_bcme)

    def step(self, q_bhnd: Tensor, k_bcnd: Tensor, v_bcne: Tensor) -> Tensor:
        """The output of new tokens."""
        out, self.state = self.policy.step(q_bhnd, k_bcnd, v_bcne, self.state)
        return out

    @property
    def bytes(self) -> int:
        """What it holds."""
        return sum(x.nbytes for x in self.state if isinstance(x, Tensor))

    @property
    def positions(self) -> Tensor:
        """The tokens that the last query saw, by key/value head, [b, c, s]; before, all that are
        held.
        """
        state = self.state
        if isinstance(state, State):
            return state.positions_bcs[..., : state.filled]
        form, n, page = state.picks_bcnu.shape, state.picks_bcnu.shape[2], self.policy.page
        every = torch.arange(state.tokens, device=state.k_bcsd.device).expand(*form[:2], -1)
        if n == 0:
            return every
        pages = state.picks_bcnu[:, :, -1, :, None] * page + every[0, 0, :page]
        return torch.cat([pages.flatten(2), every[..., (state.tokens - n) // page * page :]], -1)
