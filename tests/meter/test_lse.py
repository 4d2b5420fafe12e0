"""The log-sum-exp as a second output: rows, the gate's judgement of it, and what Python gives."""

import math
import re

import pytest
import torch

import impls
from attnbench.core.record import Status
from attnbench.core.wire import Job
from attnbench.gate.gate import gate
from attnbench.gate.inputs import make
from attnbench.gate.reference import judge
from attnbench.meter.probe import probe
from impls.loading import load_function
from impls.masks import Mask
from impls.problem import Problem
from impls.sparse import flex_kernel
from tests.impls.small import softmax

ROWS = ("einsum", "matmul", "matmul.prescale", "chunked?block=16", "online?q_block=16&k_block=16",
        "window.blocked", "sdpa.flash")  # fmt: skip
MASKS = {
    "none": {}, "causal": {"q_len": 48}, "causal+window:9,0": {"sinks": True, "q_len": 48},
    "window:9,0": {"q_len": 48},
    "causal+alibi": {"softcap": 3.0}, "padding:20,37": {}, "document:20,17": {"scale": 0.4},
}  # fmt: skip
"""Of 48 rows 11 see nothing."""


def problem(mask="causal", **changes):
    """Grouped heads on a length that no block divides."""
    extents = {"batch": 2, "heads": 4, "kv_heads": 2, "q_len": 37, "kv_len": 37, "lse": True}
    return Problem(
        **{**extents, "head_dim": 16, "v_head_dim": 16, "mask": Mask.parse(mask), **changes}
    )


def closed(p, q, k, v, sinks=None):
    """Output and log-sum-exp by torch's own ``logsumexp``."""
    k_bhmd = k.repeat_interleave(p.group, 1)
    scores = q @ k_bhmd.mT * p.scale
    scores = p.softcap * (scores / p.softcap).tanh() if p.softcap else scores
    bias = p.mask.bias(p.shape)
    scores = scores if bias is None else scores + torch.from_numpy(bias).to(q.dtype)
    hidden = ~torch.from_numpy(p.mask.visible(p.shape))
    scores = torch.where(hidden, torch.full((), -1e30, dtype=q.dtype), scores)
    if sinks is not None:
        scores = torch.cat([scores, sinks[:, None, None].expand(*scores.shape[:3], 1)], -1)
    lse = scores.logsumexp(-1)
    return softmax(p, q, k, v, sinks), lse.masked_fill(lse < -1e29, -torch.inf)


def rows_and_problems():
    for name in ROWS:
        for mask, settings in MASKS.items():
            for phase in ("forward", "train"):
                p, row = problem(mask, phase=phase, **settings), impls.table().find(name)
                unfit = name == "window.blocked" and "window" not in mask
                unfit |= name == "sdpa.flash" and phase == "train"
                if row.supports(p) is None and not unfit:
                    yield pytest.param(row, p, id=f"{name}-{p}")


@pytest.mark.parametrize(("row", "p"), list(rows_and_problems()))
def test_a_row_gives_the_log_sums_of_torch_and_their_gradient(row, p):
    p = p.with_(dtype="float64")
    inputs = make(p, 5)
    leaves = {n: x.requires_grad_(p.gradients) for n, x in inputs.items()}
    attend = load_function(row.build)(p, **row.chosen)
    tensors, by_name = inputs.arguments
    out, lse = attend(*tensors, **by_name)
    want, want_lse = closed(p, *leaves.values())
    torch.testing.assert_close(out, want)
    torch.testing.assert_close(lse, want_lse)
    assert (lse == -torch.inf).any() == (p.q_len == 48 and not p.sinks)
    if p.gradients:
        finite = want_lse > -torch.inf
        weight = torch.randn(lse.shape, generator=torch.Generator().manual_seed(2)).double()
        got, wanted = (
            torch.autograd.grad((x * weight)[finite].sum(), [*leaves.values()], allow_unused=True)
            for x in (lse, want_lse)
        )
        for one, other in zip(got, wanted, strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name",
    [
        n if n in ("einsum", "chunked?block=16") else pytest.param(n, marks=pytest.mark.slow)
        for n in ROWS
        if n != "sdpa.flash"
    ],
)
def test_a_row_that_serves_it_is_measured_and_both_outputs_are_judged(cells, name, dtype):
    p = problem("causal+window:9,0", phase="train", dtype=dtype, sinks=True)
    record = cells.measure(impls.table().find(name), p, bits_s=1.0)
    assert (record.status, record.reason, record.wrong_on) == (Status.MEASURED, "", "")
    assert sorted(record.error) == ["dk", "dq", "dsinks", "dv", "forward", "lse"]
    assert record.determinism.repeats and record.determinism.why == ""
    assert probe(Job(impls.table().find(name), p), 10.0).status is Status.MEASURED


@pytest.mark.slow
@pytest.mark.parametrize("sinks", [None, True])
def test_flex_closes_the_log_sums_that_torch_gives_on_another_device(sinks):
    """As it runs on CUDA, by torch's own formula in place of a compiled kernel."""
    p = problem("causal+alibi", q_len=48, sinks=sinks, softcap=3.0)
    inputs = make(p, 5)
    may_see = p.mask.flex_mask(p.shape, p.device)
    plan = flex_kernel._plan(p, *flex_kernel.mask_blocks(p, 128), 128, may_see, p.kv_len)
    out, lse = flex_kernel._flex_attention(
        *inputs.qkv, flex_kernel.score_mod(p), plan, p.scale, True, None, inputs.get("sinks"), True
    )
    want, want_lse = closed(p, *inputs.values())
    torch.testing.assert_close(out, want)
    torch.testing.assert_close(lse, want_lse)


def test_rows_that_do_not_give_it_say_so():
    rows = impls.table().rows
    assert rows["sdpa"].supports(problem()) == "sdpa takes no lse"
    assert rows["gla"].supports(problem()) == "gla takes no lse"
    for name, p in (("sdpa.flash", problem(phase="train")), ("flex", problem())):
        with pytest.raises(impls.spec.Unsupported, match="log-sum-exp"):
            load_function(rows[name].build)(p)


def with_lse(change, gradient=True):
    """Softmax attention with another log-sum-exp."""

    def build(p):
        def attend(q, k, v):
            with torch.set_grad_enabled(gradient and torch.is_grad_enabled()):
                _, lse = closed(p, q, k, v)
                lse = change(p, q, k, lse)
            return softmax(p, q, k, v), lse.to(torch.promote_types(q.dtype, torch.float32))

        return attend

    return build


def late(p):
    """The right log-sum-exp, in memory that every call has again."""
    buffer = torch.empty(p.batch, p.heads, p.q_len)
    return lambda q, k, v: (softmax(p, q, k, v), buffer.copy_(closed(p, q, k, v)[1].detach()))


FAULTS = {
    "none": (with_lse(lambda p, q, k, lse: lse), {}, None),
    "base 2": (with_lse(lambda p, q, k, lse: lse / math.log(2)), {}, "error of lse is 0.44"),
    "no scale": (
        with_lse(lambda p, q, k, lse: closed(p.with_(scale=1.0), q, k, k)[1]), {}, "error of lse",
    ),
    "no mask": (
        with_lse(lambda p, q, k, lse: closed(p.with_(mask=Mask()), q, k, k)[1]), {},
        "row .* of its lse moved when key .* changed",
    ),
    "half a gradient": (
        with_lse(lambda p, q, k, lse: lse / 2 + lse.detach() / 2), {"phase": "train"},
        "error of dq",
    ),
    "a detached one": (
        with_lse(lambda p, q, k, lse: lse, gradient=False), {"phase": "train"}, "lse is detached",
    ),
    "of another shape": (
        with_lse(lambda p, q, k, lse: lse[..., None]), {}, "its lse has the shape",
    ),
    "zero for nothing": (
        with_lse(lambda p, q, k, lse: lse.nan_to_num(neginf=0.0)), {"q_len": 48},
        r"its lse is 0 in row 0 .*, which sees nothing: it must be -inf",
    ),
    "nothing of a key": (
        with_lse(lambda p, q, k, lse: lse.masked_fill(torch.arange(p.q_len) == 5, -torch.inf)), {},
        r"its lse is -inf in row 5 .*, which sees some key",
    ),
    "left out": (lambda p: lambda q, k, v: softmax(p, q, k, v), {}, r"else than \(out, lse\)"),
    "overwritten": (late, {}, "its lse is overwritten by a later call"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_the_gate_judges_it(fault):
    build, changes, reason = FAULTS[fault]
    p = problem(**changes)
    said = gate(judge(p, make(p, 3), 3), build(p), None, 3).reason
    assert (said is None) if reason is None else re.search(reason, said or "")
