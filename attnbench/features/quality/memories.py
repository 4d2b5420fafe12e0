"""The memories of ``quality caches``: a layer's keys and values in few bits, or only some of them.

Shapes: q [1, heads, n, d], k and v [1, kv_heads, n, d]. Keys carry their positions, so a memory may
hold them in any order, and a new token may take the place of one that is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import avg_pool1d
from torch.nn.functional import scaled_dot_product_attention as sdpa

from attnbench.features.quality.caches import LEAST
from impls.problem import Problem
from impls.spec import Unsupported

BLOCK = 64
"""Tokens that share a scale under ``scale=block``."""
MOST = {"int8": 127.0, "int4": 7.0, "fp8": 448.0}
"""The largest code of each dtype."""
SINKS, WINDOW, POOL, PAGE = 4, 32, 5, 16
"""First tokens that ``sinks`` keeps; queries that SnapKV looks at, and neighbours that it pools;
tokens of a page of Quest."""
CHUNK = 256
"""Queries whose weights are summed at once."""


# ---- few bits ------------------------------------------------------------------------------------


class Codes:
    """A tensor [1, kv_heads, n, d] in codes, with a scale for each token, head or block of tokens.

    Under ``head`` the first tokens set the scale and later ones are cut to it; under ``block`` the
    tokens of a block that isn't full yet stay as they are.
    """

    def __init__(self, x: Tensor, dtype: str, scale: str) -> None:
        self.dtype, self.scale = dtype, scale
        heads, width = x.shape[1], x.shape[3]
        self.rest, self.scales = x.new_empty(1, heads, 0, width), x.new_empty(1, heads, 0, 1)
        self._head = x.abs().amax((2, 3), keepdim=True) / MOST[dtype] if scale == "head" else None
        self.codes = self._encode(self.rest, self.scales)
        self.append(x)

    def append(self, x: Tensor) -> None:
        """Take further tokens."""
        if self.scale == "block":
            x = torch.cat([self.rest, x], 2)
            whole = x.shape[2] // BLOCK * BLOCK
            self.rest, x = x[:, :, whole:].clone(), x[:, :, :whole]
            blocks = x.unflatten(2, (-1, BLOCK)) if whole else x.new_zeros(*x.shape[:2], 0, 1, 1)
            scales = blocks.abs().amax((3, 4))[..., None] / MOST[self.dtype]
            each = scales.repeat_interleave(BLOCK, 2)
        elif self._head is not None:
            each = scales = self._head
        else:
            each = scales = x.abs().amax(3, keepdim=True) / MOST[self.dtype]
        if x.shape[2]:
            self.codes = torch.cat([self.codes, self._encode(x, each)], 2)
            news = [scales] if self._head is not None else [self.scales, scales]
            self.scales = torch.cat(news, 2)

    def _encode(self, x: Tensor, scales: Tensor) -> Tensor:
        """Codes of x, two to a byte where they have 4 bits."""
        most = MOST[self.dtype]
        x = (x / scales.clamp_min(1e-30)).clamp(-most, most)
        if self.dtype == "fp8":
            return x.to(torch.float8_e4m3fn).view(torch.uint8)
        codes = x.round().to(torch.int8)
        if self.dtype == "int8":
            return codes
        low, high = ((codes + 8).view(torch.uint8)[..., n::2] for n in (0, 1))
        return low | high << 4

    def decoded(self) -> Tensor:
        """The tensor, as the codes have it."""
        if self.dtype == "fp8":
            x = self.codes.view(torch.float8_e4m3fn)
        elif self.dtype == "int8":
            x = self.codes
        else:
            x = torch.stack([self.codes & 15, self.codes >> 4], -1).flatten(-2).view(torch.int8) - 8
        scales = self.scales
        scales = scales.repeat_interleave(BLOCK, 2) if self.scale == "block" else scales
        x = x.to(self.scales.dtype).mul_(scales)
        return torch.cat([x, self.rest], 2) if self.scale == "block" else x

    @property
    def bytes(self) -> int:
        """What it holds."""
        return sum(x.nbytes for x in (self.codes, self.scales, self.rest))


class CodedMemory:
    """All keys and values, in codes: each step decodes them and attends."""

    positions = None

    def __init__(self, problem: Problem, dtype: str, scale: str) -> None:
        if dtype == "int4" and problem.head_dim % 2:
            raise Unsupported("int4 takes two channels a byte, and the heads have an odd number")
        self._how = dtype, scale

    def prefill(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        """Take the prompt."""
        self.k, self.v = Codes(k, *self._how), Codes(v, *self._how)

    def step(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """A token's output."""
        self.k.append(k)
        self.v.append(v)
        return sdpa(q, self.k.decoded(), self.v.decoded(), enable_gqa=True)

    @property
    def bytes(self) -> int:
        """What it holds."""
        return self.k.bytes + self.v.bytes


def int8(problem: Problem, scale: str) -> CodedMemory:
    """Signed bytes."""
    return CodedMemory(problem, "int8", scale)


def int4(problem: Problem, scale: str) -> CodedMemory:
    """Two codes a byte."""
    return CodedMemory(problem, "int4", scale)


def fp8(problem: Problem, scale: str) -> CodedMemory:
    """Four bits of exponent and three of fraction."""
    return CodedMemory(problem, "fp8", scale)


# ---- eviction ------------------------------------------------------------------------------------


class ForgettingMemory:
    """As many keys and values as a budget has room for; what is chosen differs by kv head.

    This one forgets all but the first tokens and the latest (StreamingLLM, arXiv:2309.17453).
    """

    least = LEAST["sinks"]

    def __init__(self, problem: Problem, budget: int) -> None:
        self.budget = budget or max(problem.kv_len // 4, self.least)
        self.count = 0

    def prefill(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        """Take the prompt, and forget what there is no room for."""
        self.count, heads = k.shape[2], k.shape[1]
        if self.count > self.budget:
            self.positions = self.chosen(q, k).sort(-1).values
        else:
            self.positions = torch.arange(self.count, device=k.device).expand(heads, -1).clone()
        places = self.positions[None, :, :, None].expand(-1, -1, -1, k.shape[3])
        self.k, self.v = k.gather(2, places), v.gather(2, places)

    def chosen(self, q: Tensor, k: Tensor) -> Tensor:
        """The tokens of the prompt that are kept, [kv_heads, budget]."""
        places = torch.arange(self.count, device=k.device)
        kept = torch.cat([places[:SINKS], places[SINKS - self.budget :]])
        return kept.expand(k.shape[1], -1).clone()

    def forgotten(self) -> Tensor:
        """The place of the token that makes room for a new one, [kv_heads]."""
        return self.positions.masked_fill(self.positions < SINKS, self.count).argmin(-1)

    def step(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """A token's output."""
        self.add(k, v)
        return sdpa(q, self.k, self.v, enable_gqa=True)

    def add(self, k: Tensor, v: Tensor) -> Tensor | None:
        """Take a token, in the place of a forgotten one if there is no room; returns that place."""
        place = None
        if self.positions.shape[1] < self.budget:
            self._grow(k, v)
        else:
            place = self.forgotten()
            heads = torch.arange(len(place), device=k.device)
            self.k[0, heads, place], self.v[0, heads, place] = k[0, :, 0], v[0, :, 0]
            self.positions[heads, place] = self.count
        self.count += 1
        return place

    def _grow(self, k: Tensor, v: Tensor) -> None:
        self.k, self.v = torch.cat([self.k, k], 2), torch.cat([self.v, v], 2)
        new = self.positions.new_full((k.shape[1], 1), self.count)
        self.positions = torch.cat([self.positions, new], 1)

    @property
    def bytes(self) -> int:
        """What it holds."""
        return sum(x.nbytes for x in vars(self).values() if isinstance(x, Tensor))


class HalfForChance(ForgettingMemory):
    """The control: half of the budget are the latest tokens, the rest is left to chance."""

    least = LEAST["random"]

    def __init__(self, problem: Problem, budget: int) -> None:
        super().__init__(problem, budget)
        self._chance, self.latest = torch.Generator(problem.device).manual_seed(0), self.budget // 2

    def chosen(self, q: Tensor, k: Tensor) -> Tensor:
        """The latest, and those of the rest that are worth the most."""
        worth = self.worth(q, k)
        late = torch.arange(self.count, device=k.device) >= self.count - self.latest
        worth = worth.masked_fill(late, torch.inf)
        return worth.topk(self.budget, -1).indices

    def worth(self, q: Tensor, k: Tensor) -> Tensor:
        """Of each token of the prompt, [kv_heads, tokens]."""
        return self._draw(k)

    def _draw(self, k: Tensor) -> Tensor:
        return torch.rand(k.shape[1:3], generator=self._chance, device=k.device)

    def forgotten(self) -> Tensor:
        """The place of the token that makes room for a new one, [kv_heads]."""
        return self._least(self._draw(self.k))

    def _least(self, worth: Tensor) -> Tensor:
        protected = self.positions >= self.count - self.latest
        return worth.masked_fill(protected, torch.inf).argmin(-1)


class HeavyHitters(HalfForChance):
    """H2O (arXiv:2306.14048): half are the latest tokens, the rest those with the most weight in
    all queries so far.
    """

    def prefill(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        """Take the prompt, and forget what there is no room for."""
        mass = weight_of_keys(q, k)
        self._prompt = mass
        super().prefill(q, k, v)
        self.mass = mass.gather(1, self.positions)
        del self._prompt

    def worth(self, q: Tensor, k: Tensor) -> Tensor:
        """Of each token of the prompt, [kv_heads, tokens]."""
        return self._prompt

    def forgotten(self) -> Tensor:
        """The place of the token that makes room for a new one, [kv_heads]."""
        return self._least(self.mass)

    def step(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """A token's output."""
        place = self.add(k, v)
        if place is None:
            self.mass = torch.cat([self.mass, self.mass.new_zeros(k.shape[1], 1)], 1)
        else:
            self.mass.scatter_(1, place[:, None], 0.0)
        q = q.unflatten(1, (k.shape[1], -1))[:, :, :, 0]  # [1, kv_heads, group, d]
        weights = (q @ self.k.mT * k.shape[3] ** -0.5).softmax(-1)
        self.mass += weights[0].sum(1)
        return (weights @ self.v).flatten(1, 2)[:, :, None]


class WindowsChoice(ForgettingMemory):
    """SnapKV (arXiv:2404.14469): the last queries of the prompt choose once, by their weights,
    pooled over neighbours; all that comes later is kept.
    """

    least = LEAST["snapkv"]

    def chosen(self, q: Tensor, k: Tensor) -> Tensor:
        """The window, and what it attends to the most."""
        window = min(WINDOW, self.count)
        mass = weight_of_keys(q[:, :, -window:], k)[:, : self.count - window]
        mass = avg_pool1d(mass, POOL, 1, POOL // 2)
        best = mass.topk(self.budget - window, -1).indices
        latest = torch.arange(self.count - window, self.count, device=k.device)
        return torch.cat([best, latest.expand(len(best), -1)], 1)

    def add(self, k: Tensor, v: Tensor) -> None:
        """Take a token."""
        self._grow(k, v)
        self.count += 1


class PageReader(ForgettingMemory):
    """Quest (arXiv:2406.10774): nothing is forgotten, and each step reads its own page and those
    whose keys could have the largest scores, as many as the budget has room for.
    """

    least = LEAST["quest"]

    def prefill(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        """Take the prompt."""
        self.count, self.k, self.v = k.shape[2], k.clone(), v.clone()
        pages = self.k[0, :, : self.count // PAGE * PAGE].unflatten(1, (-1, PAGE))
        self.low, self.high = pages.amin(2), pages.amax(2)  # [kv_heads, full pages, d]

    def step(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """A token's output."""
        if self.count // PAGE > self.low.shape[1]:
            page = self.k[0, :, -PAGE:]
            self.low = torch.cat([self.low, page.amin(1, keepdim=True)], 1)
            self.high = torch.cat([self.high, page.amax(1, keepdim=True)], 1)
        self.k, self.v = torch.cat([self.k, k], 2), torch.cat([self.v, v], 2)
        self.count += 1
        self.positions = self._read(q)
        places = self.positions[None, :, :, None].expand(-1, -1, -1, k.shape[3])
        return sdpa(q, self.k.gather(2, places), self.v.gather(2, places), enable_gqa=True)

    def _read(self, q: Tensor) -> Tensor:
        """The tokens of the pages that are read, its own page last."""
        heads, pages = self.low.shape[:2]
        own = torch.arange(pages * PAGE, self.count, device=q.device).expand(heads, -1)
        q = q[0, :, 0].unflatten(0, (heads, 1, -1))  # [kv_heads, 1, group, d]
        bound = torch.maximum(q * self.low[:, :, None], q * self.high[:, :, None]).sum(-1)
        best = bound.amax(-1).topk(min(pages, self.budget // PAGE - 1), -1).indices
        inside = best[..., None] * PAGE + torch.arange(PAGE, device=q.device)
        return torch.cat([inside.flatten(1), own], 1)


def weight_of_keys(q: Tensor, k: Tensor) -> Tensor:
    """The weight of each key summed over queries, which are the last, and over the heads that share
    it, [kv_heads, tokens].
    """
    tokens, queries, heads = k.shape[2], q.shape[2], k.shape[1]
    total = k.new_zeros(heads, tokens)
    for start in range(0, queries, CHUNK):
        some = q[0, :, start : start + CHUNK].unflatten(0, (heads, -1))
        past = tokens - queries + start + some.shape[2]
        scores = some @ k[0, :, None, :past].mT * k.shape[3] ** -0.5
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=k.device)
        later = later.triu(past - some.shape[2] + 1)
        total[:, :past] += scores.masked_fill(later, -torch.inf).softmax(-1).sum((1, 2))
    return total


# ---- definitions ---------------------------------------------------------------------------------

Recall = Callable[[Tensor], Tensor]
"""From all keys, or values, to what a memory has of them."""


def as_they_are(problem: Problem, budget: int) -> Recall:
    """Of a memory that holds some, unchanged."""
    return lambda x: x


def plain_int8(problem: Problem, scale: str) -> Recall:
    """Whole numbers up to 127 of the scale."""
    return _in_spans(problem, scale, lambda x, most: (127 * x / most).round() * most / 127)


def plain_int4(problem: Problem, scale: str) -> Recall:
    """Whole numbers up to 7 of the scale."""
    return _in_spans(problem, scale, lambda x, most: (7 * x / most).round() * most / 7)


def plain_fp8(problem: Problem, scale: str) -> Recall:
    """Numbers of three bits of fraction up to 448 of the scale, the least 2^-9."""

    def rounded(x: Tensor, most: Tensor) -> Tensor:
        x = 448 * x / most
        spacing = 2.0 ** (x.abs().clamp_min(2.0**-6).log2().floor() - 3)
        return (x / spacing).round() * spacing * most / 448

    return _in_spans(problem, scale, rounded)


def _in_spans(problem: Problem, scale: str, rounded: Callable[[Tensor, Tensor], Tensor]) -> Recall:
    """Every token, block or head by itself, in float64."""

    def recall(x: Tensor) -> Tensor:
        count, prompt = x.shape[2], problem.kv_len
        spans = [(0, count)] if scale == "head" else [(n, n + 1) for n in range(count)]
        if scale == "block":
            spans = [(n, n + BLOCK) for n in range(0, count - BLOCK + 1, BLOCK)]
        x = x.double()
        parts = []
        for start, end in spans:
            some = x[:, :, start:end]
            most = some[:, :, :prompt].abs().amax((2, 3), keepdim=True)
            parts.append(rounded(some.clamp(-most, most), most))
        return torch.cat([*parts, x[:, :, spans[-1][1] if spans else 0 :]], 2)

    return recall
