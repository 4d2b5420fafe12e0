"""Decoding from a cache in few bits: codes with scales in place of keys and values.

    x' = scale round(x / scale), of k and of v        softmax( q k'^T d^-1/2 + mask ) v'

in int8, int4 or fp8 (e4m3), a scale a token, a head or a block of 64 tokens (:mod:`impls.codes`).
The tokens before are rounded by ``remember``, which no time counts, the new ones by the step; a
head's scale is set by the first half of all tokens, as by a prompt. What it computes is softmax
attention over the rounded keys and values: that is its definition.

``cache.sdpa`` widens the whole cache at each step and attends by torch's
scaled_dot_product_attention; ``cache.online`` widens ``k_block`` tokens at a time, under a running
maximum and sum, so that no more than these are ever wide.

Cost: 4 n m d FLOPs a head; the bytes of codes and scales. ``cache.sdpa`` writes and reads
the wide cache besides.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from impls.codes import BLOCK, LARGEST, STORED, Codes, append, dequantise, quantise
from impls.dense.common import Tiles, attend_online, over
from impls.heads import Attend, Define
from impls.problem import Problem
from impls.score_mask import sdpa_arguments
from impls.spec import Unsupported


class Memory(NamedTuple):
    """The cache of both."""

    k: Codes
    v: Codes


class Cached:
    """A decoder that keeps codes; ``attend`` makes an ``attend(q, memory)`` for some tokens."""

    def __init__(self, problem: Problem, attend: Callable[[Problem], Attend]) -> None:
        if problem.kv_dtype is None:
            raise Unsupported("a cache in few bits needs a dtype, --kv-dtype, which a core has")
        if problem.q_len > problem.kv_len:
            raise Unsupported(f"q_len={problem.q_len} new tokens need kv_len to be as many or more")
        hides = {*problem.mask.kinds} - {"none", "causal"} or problem.mask.upper_left
        if problem.kv_scale and hides:
            raise Unsupported(
                f"a scale a {problem.kv_scale} depends on tokens that {problem.mask} hides; "
                "--kv-scale token does not"
            )
        if problem.kv_scale == "head" and 4 * problem.q_len > problem.kv_len:
            raise Unsupported(
                "a scale a head is set by the first half of the tokens: new ones must be a quarter "
                f"of kv_len={problem.kv_len} or fewer, not {problem.q_len}"
            )
        self.problem = problem
        self.attend = lru_cache(2)(lambda tokens: attend(problem.with_(kv_len=tokens)))
        self.attend(problem.kv_len)

    def __call__(self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Tensor:
        """From a cache that is made first."""
        past = self.problem.kv_len - self.problem.q_len
        memory = self.remember(k_bcmd[:, :, :past], v_bcme[:, :, :past])
        return self.step(q_bhnd, k_bcmd[:, :, past:], v_bcme[:, :, past:], memory)[0]

    @torch.no_grad()
    def remember(self, k_bcmd: Tensor, v_bcme: Tensor) -> Memory:
        """These tokens in codes, with room for all."""
        return Memory(self._codes(k_bcmd), self._codes(v_bcme))

    def _codes(self, x_bcmd: Tensor) -> Codes:
        p = self.problem
        kind = p.kv_dtype or "", p.kv_scale or "token", p.kv_len
        if p.kv_scale != "head":
            return quantise(x_bcmd, *kind)
        return append(quantise(x_bcmd[:, :, : p.kv_len // 2], *kind), x_bcmd[:, :, p.kv_len // 2 :])

    @torch.no_grad()
    def step(self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor,
             memory: Memory) -> tuple[Tensor, Memory]:  # fmt: skip
        """Put the new tokens into the cache's room, and attend."""
        after = Memory(append(memory.k, k_bcmd), append(memory.v, v_bcme))
        return self.attend(after.k.tokens)(q_bhnd, *after), after


def build_sdpa(problem: Problem) -> Cached:
    """The whole cache is widened."""

    def attend(problem: Problem) -> Attend:
        arguments = {**sdpa_arguments(problem), "enable_gqa": problem.group > 1}
        return lambda q_bhnd, k, v: F.scaled_dot_product_attention(
            q_bhnd, dequantise(k), dequantise(v), **arguments
        )

    return Cached(problem, attend)


def build_online(problem: Problem, k_block: int) -> Cached:
    """A block of the cache at a time is widened."""
    if k_block < 1:
        raise Unsupported(f"k_block={k_block} must be 1 or more")

    def attend(problem: Problem) -> Attend:
        tiles = Tiles(problem, problem.q_len, k_block)
        return lambda q_bhnd, k, v: attend_online(
            tiles, q_bhnd, lambda keys: dequantise(k, keys), lambda keys: dequantise(v, keys)
        )

    return Cached(problem, attend)


def definition(problem: Problem, k_block: int = 0) -> Define:
    """Softmax attention over keys and values that were rounded and widened again."""
    dtype, past = problem.kv_dtype or "", problem.kv_len - problem.q_len
    coded = past // BLOCK * BLOCK if problem.kv_scale == "block" else problem.kv_len

    def rounded(x_bcmd: Tensor) -> Tensor:
        x = x_bcmd[:, :, :coded].float()
        largest = x.abs().amax(-1, keepdim=True)
        if problem.kv_scale == "head":
            largest = largest[:, :, : problem.kv_len // 2].amax(2, keepdim=True)
        if problem.kv_scale == "block":
            largest = largest.unflatten(2, (-1, BLOCK)).amax(3).repeat_interleave(BLOCK, 2)
        scale = torch.where(largest == 0, 1.0, largest / LARGEST[dtype])
        x = (x / scale).clamp(-LARGEST[dtype], LARGEST[dtype])
        x = x.to(STORED["fp8"]).float() if dtype == "fp8" else x.round()
        coded_bcmd = (x.double() * scale.double()).to(x_bcmd.dtype)
        return torch.cat([coded_bcmd, x_bcmd[:, :, coded:]], 2)

    return over(problem, rounded)
