"""Caches in few bits against codes written out number by number, and against closed forms."""

from __future__ import annotations

import itertools
from bisect import bisect_left

import numpy as np
import pytest
import torch
from torch import Tensor

from impls import codes
from impls.operators import KV_DTYPES, KV_SCALES

ALL = list(itertools.product(KV_DTYPES, KV_SCALES))
BLOCK = codes.BLOCK
E4M3 = sorted(
    {m * 2.0**-9 for m in range(8)}
    | {(8 + m) * 2.0 ** (e - 10) for e in range(1, 16) for m in range(8) if (e, m) != (15, 7)}
)
"""Every number of eight bits with four for the exponent, of its definition: 448 is the largest."""


def tokens(*shape: int, seed: int = 0) -> Tensor:
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return x * torch.linspace(0.1, 10.0, shape[2])[:, None]


def written_out(x_md: np.ndarray, kv_dtype: str, kv_scale: str, first: int) -> np.ndarray:
    """What a head of a cache reads as, where ``first`` tokens came in one and the rest after."""
    largest = {"int8": 127, "int4": 7, "fp8": 448}[kv_dtype]
    out = x_md.copy()
    for m, row in enumerate(x_md):
        if kv_scale == "block" and m >= first // 64 * 64:
            continue
        covered = {"token": slice(m, m + 1), "head": slice(0, first)}.get(
            kv_scale, slice(m // 64 * 64, m // 64 * 64 + 64)
        )
        top = np.abs(x_md[covered]).max()
        scale = np.float32(top / np.float32(largest)) if top else np.float32(1)
        for d, value in enumerate(row):
            number = np.clip(value / scale, -largest, largest)
            if kv_dtype == "fp8":
                above = bisect_left(E4M3, abs(number))
                sides = {max(above - 1, 0), min(above, len(E4M3) - 1)}
                near = min(sides, key=lambda i: (abs(abs(number) - E4M3[i]), i % 2))
                out[m, d] = np.float32(np.sign(number) * E4M3[near]) * scale
            else:
                out[m, d] = np.float32(np.rint(number)) * scale
    return out


@pytest.mark.parametrize("kv_dtype, kv_scale", ALL)
def test_a_cache_reads_as_written_out(kv_dtype: str, kv_scale: str) -> None:
    """For widths that fill their bytes and that don't, and a token of zeros."""
    for d in (6, 7):
        x = tokens(2, 3, 70, d)
        x[0, 1, 5] = 0.0
        cache = codes.quantise(x[:, :, :66], kv_dtype, kv_scale)
        cache = codes.append(cache, x[:, :, 66:])
        read = codes.dequantise(cache).numpy()
        for b, c in np.ndindex(2, 3):
            expected = written_out(x[b, c].numpy(), kv_dtype, kv_scale, 66)
            assert np.array_equal(read[b, c], expected)


@pytest.mark.parametrize("kv_dtype, kv_scale", ALL)
def test_the_error_keeps_its_bound(kv_dtype: str, kv_scale: str) -> None:
    """Half a step of what a scale covers; of fp8 a sixteenth of a number that isn't tiny."""
    x = tokens(2, 2, 3 * BLOCK, 16)
    error = (codes.dequantise(codes.quantise(x, kv_dtype, kv_scale)) - x).abs()
    covered = {"token": x, "head": x.flatten(2)[:, :, None]}.get(
        kv_scale, x.unflatten(2, (-1, BLOCK)).flatten(3).repeat_interleave(BLOCK, 2)
    )
    top = covered.abs().amax(-1, keepdim=True)
    steps = {"int8": top / 254, "int4": top / 14}
    bound = steps.get(kv_dtype, x.abs() / 16 + top / 448 * 2.0**-10)
    assert (error <= bound * 1.0001).all()
    assert (error.amax(-1) > bound.amax(-1) * 0.2).float().mean() > 0.5  # no better than it can be


@pytest.mark.parametrize("kv_dtype, kv_scale", ALL)
def test_growth_token_by_token_is_growth_at_once(kv_dtype: str, kv_scale: str) -> None:
    """In room and beyond it, and old caches stay as they are."""
    x = tokens(1, 2, 150, 8)
    for room in (0, 150):
        grown = [codes.quantise(x[:, :, :10], kv_dtype, kv_scale, room)]
        before = [codes.dequantise(grown[0]).clone()]
        for m in range(10, 150):
            grown.append(codes.append(grown[-1], x[:, :, m : m + 1]))
            before.append(codes.dequantise(grown[-1]).clone())
        assert all(torch.equal(codes.dequantise(g), b) for g, b in zip(grown, before, strict=True))
        assert grown[-1].tokens == 150
        first = 149 if kv_scale == "block" else 10
        for c in range(2):
            expected = written_out(x[0, c].numpy(), kv_dtype, kv_scale, first)
            assert np.array_equal(before[-1][0, c].numpy(), expected)


@pytest.mark.parametrize("kv_dtype, kv_scale", ALL)
def test_some_keys_are_those_of_all(kv_dtype: str, kv_scale: str) -> None:
    x = tokens(1, 2, 150, 6)
    cache = codes.quantise(x, kv_dtype, kv_scale, 200)
    whole = codes.dequantise(cache)
    for start, stop in ((0, 64), (3, 90), (64, 200), (120, 150), (128, 140), (149, 150)):
        assert torch.equal(codes.dequantise(cache, slice(start, stop)), whole[:, :, start:stop])


def test_a_cache_takes_the_bytes_that_it_must() -> None:
    """By hand for 130 tokens of two heads of 7: codes, scales, and the tail that is in full."""
    x = tokens(1, 2, 130, 7)
    held = {pair: codes.quantise(x, *pair, room=500).bytes // 2 for pair in ALL}
    for kv_dtype, width in (("int8", 7), ("fp8", 7), ("int4", 4)):
        assert held[kv_dtype, "token"] == 130 * (width + 4)
        assert held[kv_dtype, "head"] == 130 * width + 4
        assert held[kv_dtype, "block"] == 128 * width + 2 * 4 + 2 * 7 * 4


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_come_back_as_they_came(dtype: torch.dtype) -> None:
    x = tokens(1, 2, 70, 6).to(dtype)
    for pair in ALL:
        read = codes.dequantise(codes.quantise(x, *pair))
        assert read.dtype == dtype
        exact = codes.dequantise(codes.quantise(x.float(), *pair)).to(dtype)
        torch.testing.assert_close(read, exact, rtol=1e-2 if dtype == torch.bfloat16 else 1e-6,
                                   atol=0)  # fmt: skip
