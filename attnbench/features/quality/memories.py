"""The memories of ``quality caches``: a layer's keys and values in few bits, or only some of them,
as :mod:`impls.codes` and :mod:`impls.eviction` have them, and plain forms of the former.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

from attnbench.features.quality.caches import LEAST
from impls import eviction
from impls.codes import BLOCK, Codes, append, dequantise, quantise
from impls.problem import Problem
from impls.spec import Unsupported

ROOM = 256
"""Tokens after the prompt for which codes have room from the first."""


class CodedMemory:
    """All keys and values, in codes: each step decodes them and attends."""

    positions = None
    k: Codes
    v: Codes

    def __init__(self, dtype: str, problem: Problem, scale: str) -> None:
        self._how = dtype, scale, problem.kv_len + ROOM
        try:
            dequantise(quantise(torch.ones(1, 1, 1, 2, device=problem.device), dtype, scale))
        except (RuntimeError, NotImplementedError) as why:
            first = str(why).partition("\n")[0]
            raise Unsupported(f"{problem.device} lacks {dtype}: {first}") from None

    def prefill(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        """Take the prompt."""
        self.k, self.v = quantise(k, *self._how), quantise(v, *self._how)

    def step(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """A token's output."""
        self.k, self.v = append(self.k, k), append(self.v, v)
        return sdpa(q, dequantise(self.k), dequantise(self.v), enable_gqa=True)

    @property
    def bytes(self) -> int:
        """What it holds, room for more included."""
        return sum(x.nbytes for codes in (self.k, self.v) for x in codes if isinstance(x, Tensor))


int8, int4, fp8 = (partial(CodedMemory, dtype) for dtype in ("int8", "int4", "fp8"))


class ForgettingMemory(eviction.Memory):
    """A policy at a budget; a quarter of the prompt where that is 0."""

    def __init__(self, policy: str, problem: Problem, budget: int) -> None:
        budget = budget or max(problem.kv_len // 4, LEAST[policy])
        super().__init__(policy, problem, budget)

    @property
    def positions(self) -> Tensor:
        """The tokens that the last step attended to, [kv_heads, n]."""
        return super().positions[0]


class PageReader(ForgettingMemory):
    """Quest, which holds all tokens and reads some."""

    def step(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """A token's output."""
        nothing = k[:, :, :0]
        self._last = q, self.state._replace(k_bcsd=nothing, v_bcse=nothing)
        return super().step(q, k, v)

    @property
    def positions(self) -> Tensor:
        """The tokens that the last step read, [kv_heads, n]."""
        q, before = self._last
        page, tokens = self.policy.page, before.tokens
        first = self.policy.picks(q, before)[0, :, 0, :, None] * page
        read = (first + torch.arange(page, device=q.device)).flatten(1)
        rest = torch.arange(tokens - tokens % page, tokens + 1, device=q.device)
        return torch.cat([read, rest.expand(len(read), -1)], 1)


sinks, h2o, snapkv, random = (
    partial(ForgettingMemory, policy) for policy in ("sinks", "h2o", "snapkv", "random")
)
quest = partial(PageReader, "quest")


# ---- definitions ---------------------------------------------------------------------------------

Recall = Callable[[Tensor], Tensor]
"""From all keys, or values, to what a memory has of them."""


def as_they_are(problem: Problem, budget: int) -> Recall:
    """Of a memory that holds some, unchanged."""
    return lambda x: x


def _whole(most_code: int, problem: Problem, scale: str) -> Recall:
    """Each number as a whole multiple of its span's largest over ``most_code``."""

    def rounded(x: Tensor, most: Tensor) -> Tensor:
        return (most_code * x / most).round() * most / most_code

    return _in_spans(problem, scale, rounded)


plain_int8, plain_int4 = partial(_whole, 127), partial(_whole, 7)


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
            older = count - (count > prompt)  # the latest token stays as it came
            spans = [(n, n + BLOCK) for n in range(0, older - BLOCK + 1, BLOCK)]
        x = x.double()
        parts = []
        for start, end in spans:
            some = x[:, :, start:end]
            most = some[:, :, :prompt].abs().amax((2, 3), keepdim=True)
            parts.append(rounded(some.clamp(-most, most), most))
        return torch.cat([*parts, x[:, :, spans[-1][1] if spans else 0 :]], 2)

    return recall
