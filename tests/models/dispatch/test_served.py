"""``attnbench.dispatch``: who gets which call, and what comes of it."""

import pytest
import torch
import torch.nn.functional as F

import attnbench
import impls
from attnbench.answer.dispatch_table import Range
from attnbench.core.machine import this_machine, why_not
from attnbench.models.dispatch import DispatchWarning
from tests.models.build import qkv
from tests.models.dispatch.made import by_hand, entry, silently, table

EXACT = [
    row
    for row in impls.table().rows.values()
    if row.level == "core" and row.exact and not (row.ranks or row.untried)
    if not row.name.startswith("window.") and why_not(row, this_machine()) is None
]


@pytest.mark.parametrize(
    "row",
    [pytest.param(r, id=r.label, marks=[pytest.mark.slow] * ("c++" in r.requires)) for r in EXACT],
)
@pytest.mark.parametrize("mask", ["none", "causal"])
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # torch's compiler hides it
def test_every_exact_variant_gives_what_torch_gives_and_its_gradients(row, mask):
    kv_heads, how = 2 if row.gqa else 4, {"is_causal": mask == "causal", "enable_gqa": True}
    phases = [phase for phase in ("forward", "train") if phase in row.on("cpu", "phases")]
    assert phases and mask in row.on("cpu", "masks")
    for phase in phases:
        sizes = {"kv_heads": kv_heads, "head_dim": 16, "v_head_dim": 16}
        attend = attnbench.dispatch(table(entry(row.label, phase=phase, mask=mask, **sizes)))
        # as models have them: heads and tokens change places in memory
        given = [x.transpose(1, 2).contiguous() for x in qkv(32, kv_heads=kv_heads, width=16)]
        q, k, v = (x.transpose(1, 2).requires_grad_(phase == "train") for x in given)
        out, theirs = (
            silently(attend, q, k, v, **how),
            F.scaled_dot_product_attention(q, k, v, **how),
        )
        assert attend.said == {} and out.stride() == theirs.stride()
        wanted = by_hand(q, k, v, causal=mask == "causal")
        torch.testing.assert_close(out.double(), wanted, rtol=1e-4, atol=1e-5)
        if phase == "train":
            weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
            mine = torch.autograd.grad((out * weight).sum(), (q, k, v))
            right = torch.autograd.grad((wanted * weight.double()).sum(), (q, k, v))
            for a, b in zip(mine, right, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_lengths_decide_who_gets_a_call(spy, called):
    ranges = (Range(8, 16, "same", "spy"), Range(17, 32, "same", "matmul"))
    attend = attnbench.dispatch(table(entry(ranges=ranges)), tables=[spy])
    for length, mine in ((8, True), (16, True), (17, False), (32, False)):
        called.clear()
        q, k, v = qkv(length)
        torch.testing.assert_close(
            silently(attend, q, k, v).double(), by_hand(q, k, v), rtol=1e-4, atol=1e-5
        )
        assert [p.kv_len for p in called] == [length] * mine


@pytest.mark.parametrize(
    ("grad", "mode", "phase"),
    [
        (True, torch.enable_grad, "train"),
        (False, torch.enable_grad, "forward"),
        (True, torch.no_grad, "forward"),
        (True, torch.inference_mode, "forward"),
    ],
)
def test_training_is_where_a_gradient_will_be_asked_for(spy, called, grad, mode, phase):
    attend = attnbench.dispatch(table(entry(), entry(phase="train")), tables=[spy])
    with mode():
        silently(attend, *qkv(grad=grad))
    assert [p.phase for p in called] == [phase]


def test_is_causal_over_unequal_lengths_is_from_the_upper_left_as_in_torch(spy, called):
    q, k, v = qkv(8, 24)
    theirs = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    lower = attnbench.dispatch(table(entry(mask="causal", queries=8)), tables=[spy])
    with pytest.warns(DispatchWarning, match="mask causal@upper-left is not in the table"):
        torch.testing.assert_close(lower(q, k, v, is_causal=True), theirs)
    assert not called
    upper = attnbench.dispatch(table(entry(mask="causal@upper-left", queries=8)), tables=[spy])
    torch.testing.assert_close(silently(upper, q, k, v, is_causal=True), theirs)
    assert len(called) == 1
