"""A layer's memory in few bits or with a budget, against plain forms."""

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
CAUSAL = {"is_causal": True, "enable_gqa": True}


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


@pytest.mark.parametrize("name", KEEPS)
def test_a_step_is_attention_over_the_tokens_that_it_says(name):
    """Whose choice is that of :mod:`impls.eviction`, which has tests of its own."""
    q, k, v = drawn()
    out, places, _ = decode(f"{name}?budget=64", (q, k, v))
    for n, heads in enumerate(places):
        for head, held in enumerate(heads):
            assert PROMPT + n in held and len(held) <= 64 + 1 + n
            own = slice(head * GROUP, (head + 1) * GROUP)
            args = q[:, own, PROMPT + n, None], k[:, head, None, held], v[:, head, None, held]
            want = F.scaled_dot_product_attention(*args, enable_gqa=True)
            torch.testing.assert_close(out[:, own, n, None], want, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in DEFAULT if name not in KEEPS])
@pytest.mark.parametrize("tokens", [PROMPT + STEPS, 3 * BLOCK])
def test_codes_agree_with_the_plain_form(name, tokens):
    q, k, v = drawn(tokens)
    row = cache_table().find(name)
    out, _, memory = decode(name, (q, k, v))
    recall = load_function(row.definition)(problem(), row.chosen["scale"])
    assert torch.allclose(dequantise(memory.k).double(), recall(k), atol=1e-6)
    want = F.scaled_dot_product_attention(q.double(), recall(k), recall(v), **CAUSAL)
    assert torch.allclose(out[:, :, -1:].double(), want[:, :, -1:], atol=1e-5)
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
