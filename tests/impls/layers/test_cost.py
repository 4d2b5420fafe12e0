"""What layers cost, against the operators that torch's own counter sees."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import impls
from impls.masks import Mask
from impls.outside import load_function
from impls.problem import Problem


def problem(level="layer", mask="none", phase="forward", **more):
    given = {"heads": 4, "kv_heads": 4, "q_len": 32, "kv_len": 32, "head_dim": 8, **more}
    return Problem(
        level=level, mask=Mask.parse(mask), phase=phase, v_head_dim=given["head_dim"], **given
    )


def counter():
    return FlopCounterMode(display=False)


def cost(row, asked):
    return load_function(row.cost)(asked, **row.chosen)


@pytest.mark.parametrize(
    "name",
    [
        "mha?core=matmul",
        "mha.einsum",
        "mha.native?need_weights=true",
        "mla",
        "mla?absorbed=true",
        "mla?latent=5&rope=6",
        "block?core=matmul&ff=3",
        "mixed",
        "mixed?edges=3",
    ],
)
def test_the_flops_are_those_that_run(name):
    row = impls.table().find(name)
    for asked in (problem(row.level), problem(row.level, q_len=16, kv_len=16, batch=3)):
        attend = load_function(row.build)(asked, **row.chosen)
        x = torch.randn(asked.batch, asked.q_len, 32)
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter() as counted:
            attend(x)
        padding = 0
        if name.startswith("mla"):  # values as wide as keys: products with zeros
            padding = 2 * asked.batch * 4 * asked.q_len**2 * attend.rope
        assert cost(row, asked).flops == counted.get_total_flops() - padding


@pytest.mark.parametrize(
    "name",
    [
        "mha",
        "mha?bias=false",
        "mha?key_bias=false",
        "mha.einsum",
        "mha.native",
        "mla",
        "mixed",
        "mixed?form=full",
        "mixed?form=matnet",
        "block",
        "block?norm=post&ff=1",
        "block.native",
    ],
)
def test_the_bytes_are_those_of_tokens_weights_and_output(name):
    row = impls.table().find(name)
    asked = problem(row.level, batch=2)
    attend = load_function(row.build)(asked, **row.chosen)
    numbers = 2 * 2 * 32 * 32 + sum(w.numel() for w in attend.weights.values())
    edges = 32 * 32 * 8 if name.startswith("mixed") else 0
    assert cost(row, asked).bytes == (numbers + edges) * 4


@pytest.mark.parametrize("core", ["sdpa", "linear.elu", "chunked?block=8"])
def test_the_core_costs_what_its_row_says(core):
    row, inside = impls.table().find(f"mha?core={core}"), impls.table().find(core)
    for phase in ("forward", "train"):
        asked = problem(phase=phase)
        own = cost(inside, asked.with_(level="core")).flops
        times = 3 if phase == "train" else 1
        assert cost(row, asked).flops == own + times * 8 * 32 * 32 * 32


def test_a_decoder_projects_new_tokens_alone_and_reads_its_cache():
    row = impls.table().find("mha")
    short = cost(row, problem(phase="decode", q_len=1, kv_len=1001))
    long = cost(row, problem(phase="decode", q_len=1, kv_len=2001))
    assert long.flops - short.flops == 1000 * 4 * 32
    assert long.bytes - short.bytes == 1000 * 2 * 32 * 4


@pytest.mark.parametrize("mask", ["causal", "window:40,0", "padding:600"])
def test_a_decoder_moves_the_same_whoever_writes_its_softmax(mask):
    rows = [impls.table().find(name) for name in ("mha", "mha?core=matmul", "mha.einsum")]
    asked = problem(phase="decode", mask=mask, q_len=2, kv_len=601, kv_heads=2, batch=3)
    assert len({cost(row, asked) for row in rows}) == 1


@pytest.mark.parametrize("core", ["performer", "rfa", "linear.elu"])
def test_around_a_core_with_a_state_a_decoder_costs_the_same_after_any_number_of_tokens(core):
    row = impls.table().find(f"mha?core={core}")
    lengths = (100, 100_000)
    short, long = (cost(row, problem(phase="decode", q_len=1, kv_len=n)) for n in lengths)
    assert short == long
    softmax = cost(impls.table().find("mha"), problem(phase="decode", q_len=1, kv_len=100_000))
    assert long.flops < softmax.flops
    assert long.bytes < softmax.bytes


def test_grouped_heads_have_thinner_projections():
    row = impls.table().find("mha?bias=false")
    full, grouped = (cost(row, problem(kv_heads=c)) for c in (4, 1))
    assert full.flops - grouped.flops == 2 * 32 * 32 * 2 * 24
    assert full.bytes - grouped.bytes == 2 * 32 * 24 * 4
