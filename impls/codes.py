"""Caches in few bits: keys or values as codes with scales, x = code * scale.

Legend: b batch, c heads of keys and values, m tokens, d channels. A scale is one float32: that of
what it covers whose largest number becomes the largest code,

    token   one token of one head
    head    one head; set by the tokens that come first, and later ones are clamped to it
    block   BLOCK tokens of one head, as KIVI does (https://arxiv.org/abs/2402.02750): tokens after
            the last whole block stay as they came, and so do those of the latest append, so that
            no new token changes what an earlier one is read as
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from impls.operators import KV_DTYPES, KV_SCALES

LARGEST = {"int8": 127.0, "int4": 7.0, "fp8": 448.0}
"""The largest code; the smallest is its negative."""
STORED = {"int8": torch.int8, "int4": torch.uint8, "fp8": torch.float8_e4m3fn}
"""What holds codes; a byte holds two of int4: a channel of the first half of all,
below, and one of the second."""
BLOCK = 64


class Codes(NamedTuple):
    """A cache of ``tokens`` tokens; what lies beyond them in its tensors is room for more."""

    codes_bcmw: Tensor
    scales_bcs1: Tensor
    tail_bctd: Tensor
    """The last tokens, in full, where blocks have scales."""
    coded: int
    """How many tokens are in codes; the others are the tail."""
    kv_dtype: str
    kv_scale: str

    @property
    def tokens(self) -> int:
        """All tokens that it holds."""
        return self.coded + self.tail_bctd.shape[2]

    @property
    def bytes(self) -> int:
        """What its tokens take, scales included; room for more is not counted."""
        scales = _scales_of(self.kv_scale, self.coded)
        held = (self.codes_bcmw[:, :, : self.coded], self.scales_bcs1[:, :, :scales])
        return sum(x.nbytes for x in (*held, self.tail_bctd))


def quantise(x_bcmd: Tensor, kv_dtype: str, kv_scale: str, room: int = 0) -> Codes:
    """Tokens as codes, with room for ``room`` tokens in all."""
    if kv_dtype not in KV_DTYPES or kv_scale not in KV_SCALES:
        raise ValueError(f"no cache of {kv_dtype} with a scale a {kv_scale}")
    b, c, _, d = x_bcmd.shape
    room = max(room, x_bcmd.shape[2])
    width = -(-d // 2) if kv_dtype == "int4" else d
    codes = torch.zeros(b, c, room, width, dtype=STORED[kv_dtype], device=x_bcmd.device)
    scales = torch.ones(b, c, _scales_of(kv_scale, room), 1, device=x_bcmd.device)
    if kv_scale == "head" and x_bcmd.shape[2]:
        scales = _scales(x_bcmd, kv_dtype, (2, 3))
    tail = x_bcmd.new_empty(b, c, 0, d)  # a slice would hold all of x
    return append(Codes(codes, scales, tail, 0, kv_dtype, kv_scale), x_bcmd, close=True)


def append(cache: Codes, x_bcmd: Tensor, close: bool = False) -> Codes:
    """The cache with more tokens. It shares memory with the old one, which stays as it is as long
    as nothing else is appended to it. ``close``: whole blocks of what is appended become codes too.
    """
    if cache.kv_scale != "block":
        return _encode(cache, x_bcmd)
    tail = torch.cat([cache.tail_bctd, x_bcmd], 2)
    whole = (tail if close else cache.tail_bctd).shape[2] // BLOCK * BLOCK
    cache = _encode(cache, tail[:, :, :whole])
    return cache._replace(tail_bctd=tail[:, :, whole:].clone())


def dequantise(cache: Codes, keys: slice = slice(None)) -> Tensor:
    """Tokens as numbers, in the dtype that they came in: all, or those of ``keys``."""
    start, stop, _ = keys.indices(cache.tokens)
    dtype, d = cache.tail_bctd.dtype, cache.tail_bctd.shape[3]
    last = min(stop, cache.coded)
    tail = cache.tail_bctd[:, :, max(start - cache.coded, 0) : max(stop - cache.coded, 0)]
    if start >= last:
        return tail
    codes, scales = cache.codes_bcmw[:, :, start:last], cache.scales_bcs1
    if cache.kv_scale == "token":
        scales = scales[:, :, start:last]
    elif cache.kv_scale == "block":
        scales = scales[:, :, torch.arange(start, last, device=scales.device) // BLOCK]
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    if cache.kv_dtype == "int4":
        signed = codes.view(torch.int8)
        codes = torch.cat([(signed << 4) >> 4, signed >> 4], -1)[..., :d]
    if cache.kv_dtype == "fp8" and codes.device.type == "cpu":  # torch's own cast is far slower
        bits = codes.view(torch.int8).to(torch.int16).mul_(128).bitwise_and_(-16385)
        codes, scales = bits.view(torch.float16), scales * 256  # 2**8 too small in float16
    x_bcmd = (codes.to(wide) * scales.to(wide)).to(dtype)
    return torch.cat([x_bcmd, tail], 2) if tail.shape[2] else x_bcmd


def _scales_of(kv_scale: str, tokens: int) -> int:
    return {"token": tokens, "head": 1, "block": tokens // BLOCK}[kv_scale]


def _scales(x: Tensor, kv_dtype: str, over: tuple[int, ...]) -> Tensor:
    """The scales of what lies along some axes; 1 where all of it is zero."""
    scales = x.float().abs().amax(over, keepdim=True) / LARGEST[kv_dtype]
    return torch.where(scales == 0, 1.0, scales).flatten(3)


def _encode(cache: Codes, x_bcmd: Tensor) -> Codes:
    """The cache with these tokens in codes, in its room or in twice as much."""
    first, more = cache.coded, x_bcmd.shape[2]
    if not more:
        return cache
    if first + more > cache.codes_bcmw.shape[2]:
        cache = _larger(cache, 2 * (first + more))
    scales = cache.scales_bcs1
    if cache.kv_scale == "token":
        scales = scales[:, :, first : first + more].copy_(_scales(x_bcmd, cache.kv_dtype, (3,)))
    elif cache.kv_scale == "block":
        own = _scales(x_bcmd.unflatten(2, (-1, BLOCK)), cache.kv_dtype, (3, 4))
        scales[:, :, first // BLOCK : (first + more) // BLOCK] = own
        scales = own.repeat_interleave(BLOCK, 2)
    largest = LARGEST[cache.kv_dtype]
    numbers = (x_bcmd.float() / scales).clamp_(-largest, largest)
    if cache.kv_dtype != "fp8":
        numbers = numbers.round_()
    if cache.kv_dtype == "int4":
        pairs = torch.nn.functional.pad(numbers, (0, numbers.shape[3] % 2)).to(torch.int8)
        low, high = pairs.view(torch.uint8).chunk(2, -1)
        numbers = low & 15 | high << 4
    cache.codes_bcmw[:, :, first : first + more] = numbers.to(cache.codes_bcmw.dtype)
    return cache._replace(coded=first + more)


def _larger(cache: Codes, room: int) -> Codes:
    b, c, _, width = cache.codes_bcmw.shape
    codes = cache.codes_bcmw.new_zeros(b, c, room, width)
    codes[:, :, : cache.coded] = cache.codes_bcmw[:, :, : cache.coded]
    scales = cache.scales_bcs1.new_ones(b, c, _scales_of(cache.kv_scale, room), 1)
    held = _scales_of(cache.kv_scale, cache.coded)
    scales[:, :, :held] = cache.scales_bcs1[:, :, :held]
    return cache._replace(codes_bcmw=codes, scales_bcs1=scales)
