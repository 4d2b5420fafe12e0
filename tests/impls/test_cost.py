"""Cost of attention: the FLOPs and bytes of impls/cost.py, by torch's count and by hand."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from impls import cost as costs
from impls.masks import Mask
from impls.problem import Problem
from tests.impls.small import TABLE, both_forms, cost, inputs, layer, problem

SMALL = {"q_len": 5, "kv_len": 9, "head_dim": 4, "v_head_dim": 3}


@pytest.mark.parametrize("changes", [{}, {"kv_heads": 1, "q_len": 5}, {"v_head_dim": 24}], ids=str)
def test_flops_are_those_that_torch_counts_for_its_own_plain_form(changes):
    p = problem(phase="train", **changes)
    leaves = [x.requires_grad_() for x in inputs(p)]
    with FlopCounterMode(display=False) as counter:
        out = both_forms("sdpa.math", p)[0](*leaves)
        forward = counter.get_total_flops()
        out.sum().backward()
    both = counter.get_total_flops()
    assert forward > 0
    assert costs.softmax(p).flops == both == 3 * forward
    assert costs.softmax(p.with_(phase="backward")).flops == both - forward
    for phase in ("forward", "decode"):
        assert costs.softmax(p.with_(phase=phase)).flops == forward


LAYERS = ("mha?core=matmul", "mha.einsum", "mha.native?need_weights=true", "mla?latent=5&rope=6",
          "mla?absorbed=true", "block?core=matmul&ff=3", "mixed?edges=3")  # fmt: skip
LINEAR = ("linear.identity", "linear.elu", "cosformer", "linear.taylor", "hedgehog?init=random",
          "cosine")  # fmt: skip


@pytest.mark.parametrize("label", [*LAYERS, *LINEAR])
def test_the_work_is_what_runs(label):
    """FLOPs as torch counts them; the bytes of a layer are tokens, weights, edges and output."""
    level = TABLE.find(label).level
    if level == "core":
        p = problem("none", 2048, dtype="float32", head_dim=32, v_head_dim=32)
        tensors, most = inputs(p), 1.05
    else:
        p, most = layer(level=level, length=32, batch=3), 1.0
        tensors = [torch.randn(3, 32, 32)]
    attend, counter = both_forms(label, p)[0], FlopCounterMode(display=False)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter as counted:
        attend(*tensors)
    work, padding = cost(label, p), 0
    if label.startswith("mla"):  # values as wide as keys: products with zeros
        padding = 2 * 3 * 4 * 32**2 * attend.rope
    assert work.flops <= counted.get_total_flops() - padding <= most * work.flops
    if level != "core":
        weights = sum(w.numel() for w in attend.weights.values())
        edges = 32 * 32 * 3 if label.startswith("mixed") else 0
        assert work.bytes == (2 * 3 * 32 * 32 + weights + edges) * 4


def test_bytes_are_every_end_that_is_seen_once_and_a_causal_square_is_counted_by_hand():
    ends, out = 20 + 16 + 12, 15
    numbers = {"forward": ends + out, "train": 2 * (ends + out), "backward": 2 * ends + out}
    for phase, many in numbers.items():
        for dtype, size in (("float64", 8), ("bfloat16", 2)):
            p = Problem(1, 1, 1, 5, 4, 4, 3, phase=phase, dtype=dtype)
            assert costs.softmax(p).bytes == many * size
    p = Problem(batch=2, heads=4, kv_heads=2, **SMALL, mask=Mask.parse("padding:0,6"))
    ends = 2 * 4 * 5 * (4 + 3)
    assert costs.softmax(p).bytes == 4 * (ends + 6 * 2 * (4 + 3))
    p = Problem(batch=2, heads=3, kv_heads=3, q_len=4, kv_len=4, mask=Mask.parse("causal"))
    assert costs.softmax(p).flops == 2 * 3 * (1 + 2 + 3 + 4) * 4 * 64


def test_every_exact_row_is_charged_the_work_of_the_mathematics(monkeypatch):
    """However its threads are spelled: OpenMP takes a count for each level of nesting."""
    exact = [row.name for row in TABLE.rows.values() if row.family == "dense" and row.exact]
    for phase, threads in (("forward", "4,2"), ("train", "")):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        p = Problem(q_len=33, mask=Mask.parse("causal"), phase=phase)
        for name in exact:
            assert cost(name, p)[:2] == costs.softmax(p)[:2], name
