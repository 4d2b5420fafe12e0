"""Attention in code that torch.compile made, and operators that a program calls by their names."""

import tempfile

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.utils import counters
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint

import attnbench
from tests.models.build import only, qkv, said

aten = torch.ops.aten
FLASH = "_scaled_dot_product_flash_attention_for_cpu"


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.qkv = nn.Linear(16, 48)

    def forward(self, x, mask=None, dropout=0.0):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, mask, dropout, mask is None).relu()


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def trained(lengths, **more):
    """The outputs and gradients of a compiled model."""
    model = Model()
    compiled = torch.compile(model, fullgraph=True, **more)
    outs = [compiled(torch.ones(2, n, 16)) for n in lengths]
    sum(out.sum() for out in outs).backward()
    return [*(out.detach() for out in outs), model.qkv.weight.grad]


SPLIT = pytest.mark.skipif(
    " " in tempfile.gettempdir(), reason="torch hands its C++ compiler paths that split at spaces"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "backend", ["aot_eager", pytest.param("inductor", marks=[SPLIT, pytest.mark.slow])]
)
def test_its_calls_are_counted_and_timed_forward_and_backward(backend):
    plain = trained([12] * 3, backend=backend)
    torch._dynamo.reset()
    with attnbench.capture() as calls:
        watched = trained([12] * 3, backend=backend)
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
    assert said(calls) == [("b2 h2/2 n12 d8 f32 causal train", "sdpa, compiled", 3)]
    site = only(calls)
    assert site.seconds > 0 and site.backward_s > 0 and site.share > 0 and not site.note
    assert site.site.startswith("test_compiled_calls.py:") and "Model.forward" in site.site
    assert not any("how often they ran" in line for line in calls.unseen)


@pytest.mark.slow
def test_lengths_stay_free_and_a_mask_has_its_values():
    def graphs():
        before = counters["stats"]["unique_graphs"]
        trained([12, 13, 14, 15], backend="aot_eager", dynamic=True)
        return counters["stats"]["unique_graphs"] - before

    plain = graphs()
    torch._dynamo.reset()
    seen = torch.ones(2, 1, 1, 12, dtype=torch.bool)
    seen[1, ..., 7:] = False
    with attnbench.capture() as calls:
        assert graphs() == plain
        with torch.no_grad():
            torch.compile(Model(), backend="aot_eager")(torch.ones(2, 12, 16), seen)
    assert [slug for slug, _, _ in said(calls)] == [
        "b2 h2/2 n12 d8 f32 causal train",
        "b2 h2/2 n12 d8 f32 padding:12,7 forward",
        *(f"b2 h2/2 n{n} d8 f32 causal train" for n in (13, 14, 15)),
    ]


def flex(q, k, v, mask):
    return flex_attention(q, k, v, block_mask=mask) + 1


def dropping():
    torch.compile(Model(), backend="aot_eager")(torch.ones(2, 12, 16), dropout=0.5).sum().backward()


def flexible():
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 128, 128, device="cpu")
    torch.compile(flex, backend="eager", fullgraph=True)(*qkv(n=128, width=16), mask)


@pytest.mark.slow
@pytest.mark.parametrize(("program", "name"), [(dropping, "Model.forward"), (flexible, "flex")])
def test_a_call_that_becomes_part_of_larger_code_is_met_and_not_counted(program, name):
    with attnbench.capture() as calls:
        program()
    assert calls.sites == [] and calls.header["met"] == 1
    (line,) = (line for line in calls.unseen if "larger code: 1" in line)
    assert "test_compiled_calls.py:" in line and f" {name})" in line


OPERATOR = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


@pytest.mark.slow
@pytest.mark.parametrize(
    "attend", [lambda *x: F.scaled_dot_product_attention(*x), lambda *x: OPERATOR(*x)[0]]
)
def test_what_a_checkpoint_stops_as_soon_as_it_is_computed_is_counted(attend):
    q, _, _ = qkv(grad=True)
    with attnbench.capture() as calls:
        checkpoint(attend, q, q, q, use_reentrant=False).relu().sum().backward()
    assert sum(s.calls for s in calls.sites) == 2


@pytest.mark.slow
def test_what_a_checkpoint_computes_again_is_counted_again():
    def model(x):
        return checkpoint(F.scaled_dot_product_attention, x, x, x, use_reentrant=False).relu()

    q, _, _ = qkv(grad=True)
    with attnbench.capture() as calls:
        torch.compile(model, backend="aot_eager")(q).sum().backward()
    assert sum(s.calls for s in calls.sites) in (1, 2)  # the compiler may keep it
    assert any(s.problem.phase == "train" and s.backward_s > 0 for s in calls.sites)


def by_packet(q):
    return aten.scaled_dot_product_attention(q, q, q, is_causal=True)


def by_overload(q):
    return getattr(aten, FLASH).default(q, q, q, 0.0, True)[0]


def by_binding(q):
    return torch._C._nn.scaled_dot_product_attention(q, q, q, is_causal=True)


@pytest.mark.parametrize("call", [by_packet, by_overload, by_binding])
def test_an_operator_that_is_called_by_its_name_is_seen_once(call):
    q, _, _ = qkv(grad=True)
    plain = call(q)
    with attnbench.capture() as calls:
        out = call(q)
        out.sum().backward()
    assert torch.equal(plain, out)
    site = only(calls)
    assert str(site.problem) == "b2 h4/4 n16 d8 f32 causal train" and site.calls == 1
    assert site.backward_s > 0 and call.__name__ in site.site
    assert site.via == "sdpa" if call is by_binding else site.via.startswith("aten ")


SLOW = pytest.mark.slow  # it compiles


def both(q):
    out, log_sums = OPERATOR(q, q, q, 0.0, True)
    return out, log_sums


def both_by_binding(q):
    out, log_sums = getattr(torch, FLASH)(q, q, q, 0.0, True)
    return out, log_sums


def one_of_two(q):
    out, _ = OPERATOR(q, q, q, 0.0, True)
    return (out,)


def one_by_binding_compiled(q):
    return torch.compile(lambda x: (getattr(torch, FLASH)(x, x, x, 0.0, True)[0] * 2,))(q)


@pytest.mark.slow
@pytest.mark.parametrize(
    "call",
    [both, both_by_binding, one_of_two, pytest.param(one_by_binding_compiled, marks=SLOW)],
)
def test_the_log_sum_exp_of_an_operator_is_asked_for_where_it_is_read(call):
    q, _, _ = qkv()
    plain = call(q)
    with attnbench.capture() as calls:
        again = call(q)
    assert all(map(torch.equal, plain, again)) and len(plain) == 1 + ("both" in call.__name__)
    site = only(calls)
    asked = " lse" * ("both" in call.__name__)
    assert str(site.problem) == f"b2 h4/4 n16 d8 f32 causal forward{asked}" and site.faithful
    assert (site.call.returns, site.calls) == (asked.strip(), 1)
