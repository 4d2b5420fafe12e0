"""What layers cost, against the operators that torch's own counter sees."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import impls
from tests.impls.small import cost, layer, made


def asked(name, phase="forward", **more):
    return layer(phase=phase, length=32, level=impls.table().find(name).level, **more)


@pytest.mark.parametrize(
    "name",
    ["mha?core=matmul", "mha.einsum", "mha.native?need_weights=true", "mla?latent=5&rope=6",
     "mla?absorbed=true", "block?core=matmul&ff=3", "mixed?edges=3"],
)  # fmt: skip
def test_the_flops_are_those_that_run(name):
    for problem in (asked(name), asked(name, q_len=16, kv_len=16, batch=3)):
        attend, x = made(name, problem)[0], torch.randn(problem.batch, problem.q_len, 32)
        counter = FlopCounterMode(display=False)
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter as counted:
            attend(x)
        padding = 0
        if name.startswith("mla"):  # values as wide as keys: products with zeros
            padding = 2 * problem.batch * 4 * problem.q_len**2 * attend.rope
        assert cost(name, problem).flops == counted.get_total_flops() - padding


@pytest.mark.parametrize(
    "name",
    ["mha?bias=false", "mha.einsum", "mha.native", "mla", "mixed", "mixed?form=full",
     "mixed?form=matnet", "block?norm=post&ff=1", "block.native"],
)  # fmt: skip
def test_the_bytes_are_those_of_tokens_weights_and_output(name):
    problem = asked(name, batch=2)
    weights = sum(w.numel() for w in made(name, problem)[0].weights.values())
    edges = 32 * 32 * 8 if name.startswith("mixed") else 0
    assert cost(name, problem).bytes == (2 * 2 * 32 * 32 + weights + edges) * 4


def test_a_decoder_projects_new_tokens_alone_and_reads_its_cache():
    short, long = (cost("mha", asked("mha", "decode", q_len=1, kv_len=n)) for n in (1001, 2001))
    assert long.flops - short.flops == 1000 * 4 * 32
    assert long.bytes - short.bytes == 1000 * 2 * 32 * 4
