"""A layer's memory in few bits or with a budget, against plain forms."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from attnbench.features.quality import memories
from attnbench.features.quality.caches import DEFAULT, KEEPS, LEAST, cache_table, find_cache
from impls.codes import BLOCK, dequantise
from impls.errors import CantBeDone
from impls.loading import load_function
from impls.problem import Problem
from impls.spec import Unsupported

HEADS, KV_HEADS, WIDTH, PROMPT, STEPS = 4, 2, 8, 150, 45
GROUP = HEADS // KV_HEADS


def drawn(tokens=PROMPT + STEPS, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((1, n, tokens, WIDTH) for n in (HEADS, KV_HEADS, KV_HEADS))
    q, k, v = (torch.randn(shape, generator=generator) for shape in shapes)
    return 2 * q, k, v


def problem(tokens=PROMPT):
    return Problem(1, HEADS, KV_HEADS, 1, tokens, WIDTH, WIDTH, phase="decode")


def decode(name, qkv, prompt=PROMPT):
    """Each step's output, the tokens it attended to, and the memory at the end."""
    row = cache_table().find(name)
    memory = load_function(row.build)(problem(prompt), **row.chosen)
    memory.prefill(*(x[:, :, :prompt] for x in qkv))
    outs, places = [], []
    for n in range(prompt, qkv[0].shape[2]):
        outs.append(memory.step(*(x[:, :, n : n + 1] for x in qkv)))
        held = memory.positions
        places.append(None if held is None else [sorted(head.tolist()) for head in held])
    return torch.cat(outs, 2), places, memory


def whole(q, k, v, prompt=PROMPT):
    """Causal attention of the tokens after the prompt, in float64."""
    q, k, v = (x.double() for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return out[:, :, prompt:]


def weights(q, k, head, n, places):
    """Of one query head at place n, over some places, in numpy."""
    scores = k[0, head // GROUP, places].double().numpy() @ q[0, head, n].double().numpy()
    scores = np.exp(scores / math.sqrt(WIDTH) - (scores / math.sqrt(WIDTH)).max())
    return scores / scores.sum()


def quest(q, k, head, budget):
    """Quest's rule: pages by the largest score that a key within their bounds could have."""
    page, steps = 16, []
    for n in range(PROMPT, q.shape[2]):
        own = n // page * page
        bounds = []
        for first in range(0, own, page):
            keys = k[0, head, first : first + page].numpy()
            low, high = keys.min(0), keys.max(0)
            heads = (q[0, h, n].numpy() for h in range(head * GROUP, (head + 1) * GROUP))
            bounds.append(max(np.where(x > 0, x * high, x * low).sum() for x in heads))
        best = np.argsort(bounds)[::-1][: (budget - n % page) // page]
        read = {m for first in best for m in range(first * page, (first + 1) * page)}
        steps.append(sorted(read | {*range(own, n + 1)}))
    return steps


@pytest.mark.parametrize("seed", range(3))
def test_the_pages_that_quest_says_it_read_are_those_of_its_rule(seed):
    q, k, v = drawn(seed=seed)
    out, places, _ = decode("quest?budget=64", (q, k, v))
    for head in range(KV_HEADS):
        for n, held in enumerate(quest(q, k, head, 64)):
            assert places[n][head] == held, (head, n)
            for h in range(head * GROUP, (head + 1) * GROUP):
                want = weights(q, k, h, PROMPT + n, held) @ v[0, head, held].double().numpy()
                assert np.allclose(out[0, h, n], want, atol=1e-5)


CODED = [name for name in DEFAULT if name.partition("?")[0] not in KEEPS]
STEP = {"int8": 1 / 254, "int4": 1 / 14, "fp8": 1 / 28}
"""Half the distance of two codes, as a share of the scale's largest number, at the most."""


@pytest.mark.parametrize("name", CODED)
@pytest.mark.parametrize("tokens", [PROMPT + STEPS, 3 * BLOCK])
def test_codes_are_within_half_a_step_and_agree_with_the_plain_form(name, tokens):
    q, k, v = drawn(tokens)
    row = cache_table().find(name)
    out, _, memory = decode(name, (q, k, v))
    scale = row.chosen["scale"]
    recall = load_function(row.definition)(problem(), scale)
    assert torch.allclose(dequantise(memory.k).double(), recall(k), atol=1e-6)
    spans = {"token": 1, "head": PROMPT, "block": BLOCK}[scale]
    for start in range(0, PROMPT, spans):
        some = slice(start, min(start + spans, PROMPT if scale == "head" else tokens))
        most = k[:, :, some].abs().amax((2, 3), keepdim=True)
        assert bool(
            ((dequantise(memory.k) - k)[:, :, some].abs() <= STEP[row.name] * most + 1e-6).all()
        )
    assert torch.allclose(
        out[:, :, -1:].double(), whole(q, recall(k), recall(v))[:, :, -1:], atol=1e-5
    )
    assert 2 * memory.k.bytes <= memory.bytes < 2 * k.nbytes


def test_the_plain_form_of_fp8_rounds_as_torchs_own_dtype_does():
    x = torch.cat([torch.randn(1, 1, 5000, 1), torch.full((1, 1, 1, 1), 448.0)], 2)
    x[0, 0, :1000] *= 1e-2
    plain = memories.plain_fp8(problem(5001), "head")(x)
    assert torch.equal(plain.float(), x.to(torch.float8_e4m3fn).float())


@pytest.mark.parametrize(("name", "least"), LEAST.items())
def test_the_smallest_budget_works_and_one_less_is_refused_with_a_sentence(name, least):
    assert decode(f"{name}?budget={least}", drawn())[0].isfinite().all()
    with pytest.raises(CantBeDone, match=f"too small: {name} takes {least} or more"):
        find_cache(cache_table(), f"{name}?budget={least - 1}")


def test_a_dtype_that_the_device_lacks_is_refused_with_a_sentence(monkeypatch):
    def lacks(*_):
        raise RuntimeError('"copy_" not implemented for Float8_e4m3fn\nand a stack')

    monkeypatch.setattr(memories, "quantise", lacks)
    with pytest.raises(
        Unsupported, match=r"^cpu lacks fp8: .copy_. not implemented for Float8_e4m3"
    ):
        decode("fp8", drawn())
