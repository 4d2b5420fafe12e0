"""A layer's memory in few bits, or with a budget, against the papers' rules in plain loops."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from attnbench.features.quality import memories
from attnbench.features.quality.caches import DEFAULT, KEEPS, LEAST, cache_table, find_cache
from impls.errors import CantBeDone
from impls.loading import load_function
from impls.problem import Problem

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


@pytest.mark.parametrize("name", KEEPS)
def test_with_room_for_all_it_is_attention_and_holds_all(name):
    q, k, v = drawn()
    out, places, memory = decode(f"{name}?budget=400", (q, k, v))
    assert torch.allclose(out.double(), whole(q, k, v), atol=1e-5)
    assert places[-1] == [[*range(PROMPT + STEPS)]] * KV_HEADS
    assert memory.bytes >= 2 * k.nbytes


def weights(q, k, head, n, places):
    """Of one query head at place n, over some places, in numpy."""
    scores = k[0, head // GROUP, places].double().numpy() @ q[0, head, n].double().numpy()
    scores = np.exp(scores / math.sqrt(WIDTH) - (scores / math.sqrt(WIDTH)).max())
    return scores / scores.sum()


def heavy_hitters(q, k, head, budget):
    """H2O's rule: after each token, the lightest that is not among the latest half is dropped."""
    mass, held, steps = np.zeros(q.shape[2]), [], []
    for n in range(q.shape[2]):
        held.append(n)
        if n == PROMPT:  # the prompt attended to all of itself
            best = sorted(range(PROMPT - budget // 2), key=lambda m: -mass[m])
            held = [*best[: budget - budget // 2], *range(PROMPT - budget // 2, PROMPT)]
        if n >= PROMPT:
            if n > PROMPT:
                held.remove(n)
            late = n - budget // 2
            held.remove(min((m for m in held if m < late), key=lambda m: mass[m]))
            held.append(n)
            steps.append(sorted(held))
        for h in range(head * GROUP, (head + 1) * GROUP):
            mass[held] += weights(q, k, h, n, held)
    return steps


def snapkv(q, k, head, budget):
    """SnapKV's rule: weights of the last queries, the mean of neighbours, the best kept."""
    window, mass = memories.WINDOW, np.zeros(PROMPT)
    for n in range(PROMPT - window, PROMPT):
        for h in range(head * GROUP, (head + 1) * GROUP):
            mass[: n + 1] += weights(q, k, h, n, [*range(n + 1)])
    before, reach = PROMPT - window, memories.POOL // 2
    pooled = [sum(mass[max(0, m - reach) : min(before, m + reach + 1)]) for m in range(before)]
    best = sorted(range(before), key=lambda m: -pooled[m])[: budget - window]
    kept = {*best, *range(before, PROMPT)}
    return [sorted(kept | {*range(PROMPT, n + 1)}) for n in range(PROMPT, q.shape[2])]


def quest(q, k, head, budget):
    """Quest's rule: pages by the largest score that a key within their bounds could have."""
    page, steps = memories.PAGE, []
    for n in range(PROMPT, q.shape[2]):
        own = n // page * page
        bounds = []
        for first in range(0, own, page):
            keys = k[0, head, first : first + page].numpy()
            low, high = keys.min(0), keys.max(0)
            heads = (q[0, h, n].numpy() for h in range(head * GROUP, (head + 1) * GROUP))
            bounds.append(max(np.where(x > 0, x * high, x * low).sum() for x in heads))
        best = np.argsort(bounds)[::-1][: budget // page - 1]
        read = {m for first in best for m in range(first * page, (first + 1) * page)}
        steps.append(sorted(read | {*range(own, n + 1)}))
    return steps


def sinks(q, k, head, budget):
    """The first four, and the latest."""
    latest = budget - 4
    return [[*range(4), *range(n + 1 - latest, n + 1)] for n in range(PROMPT, q.shape[2])]


@pytest.mark.parametrize(
    ("name", "rule"),
    [("sinks", sinks), ("h2o", heavy_hitters), ("snapkv", snapkv), ("quest", quest)],
)
@pytest.mark.parametrize("seed", range(3))
def test_it_holds_what_the_papers_rule_says_and_attends_to_that(name, rule, seed):
    q, k, v = drawn(seed=seed)
    out, places, _ = decode(f"{name}?budget=64", (q, k, v))
    for head in range(KV_HEADS):
        for n, held in enumerate(rule(q, k, head, 64)):
            assert places[n][head] == held, (head, n)
            for h in range(head * GROUP, (head + 1) * GROUP):
                want = weights(q, k, h, PROMPT + n, held) @ v[0, head, held].double().numpy()
                assert np.allclose(out[0, h, n], want, atol=1e-5)


def test_chance_keeps_the_latest_half_and_forgets_every_other_token_alike():
    q, k, v = drawn()
    _, places, _ = decode("random?budget=60", (q, k, v))
    for n, heads in enumerate(places, PROMPT):
        assert all(len(held) == 60 and {*range(n - 29, n + 1)} <= {*held} for held in heads)
    seen = [held for heads in places for held in heads]
    assert len({*seen[0]} & {*seen[-2]} - {*range(PROMPT - 30, 400)}) < 30


@pytest.mark.parametrize("name", ["sinks", "h2o", "random"])
def test_the_memory_of_what_forgets_is_the_same_after_twice_the_tokens(name):
    sizes = [decode(f"{name}?budget=40", drawn(n + 5), n)[2].bytes for n in (100, 200)]
    assert sizes[0] == sizes[1] < 40 * 4 * KV_HEADS * (2 * WIDTH + 4)


CODED = [name for name in DEFAULT if name.partition("?")[0] not in KEEPS]
STEP = {"int8": 1 / 254, "int4": 1 / 14, "fp8": 1 / 28}
"""Half the distance of two codes, as a share of the scale's largest number, at the most."""


@pytest.mark.parametrize("name", CODED)
def test_codes_are_within_half_a_step_and_agree_with_the_plain_form(name):
    q, k, v = drawn()
    row = cache_table().find(name)
    out, _, memory = decode(name, (q, k, v))
    scale = row.chosen["scale"]
    recall = load_function(row.definition)(problem(), scale)
    assert torch.allclose(memory.k.decoded().double(), recall(k), atol=1e-6)
    spans = {"token": 1, "head": PROMPT, "block": memories.BLOCK}[scale]
    for start in range(0, PROMPT, spans):
        some = slice(start, min(start + spans, PROMPT if scale == "head" else PROMPT + STEPS))
        most = k[:, :, some].abs().amax((2, 3), keepdim=True)
        assert bool(
            ((memory.k.decoded() - k)[:, :, some].abs() <= STEP[row.name] * most + 1e-6).all()
        )
    assert torch.allclose(
        out[:, :, -1:].double(), whole(q, recall(k), recall(v))[:, :, -1:], atol=1e-5
    )
    numbers, each = k.numel(), {"int8": 1, "int4": 0.5, "fp8": 1}[row.name]
    scales = {"token": PROMPT + STEPS, "head": 1, "block": 3}[scale] * KV_HEADS * 4
    left = (PROMPT + STEPS) % memories.BLOCK * KV_HEADS * WIDTH
    rest = left * (4 - each) if scale == "block" else 0
    assert memory.bytes == 2 * (numbers * each + scales + rest)


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
