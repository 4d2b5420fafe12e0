"""The rows in Triton, interpreted on the CPU, against float64 and the ruler's gate."""

from itertools import cycle, product

import pytest
import torch
import torch.nn.functional as F

from attnbench.gate.inputs import make
from impls import operators
from tests.impls.in_triton import checks, interpreted
from tests.impls.small import check, draw, softmax

interpreted.start()
problem, build = checks.problem, checks.build
BLOCKS = {"q_block": 16, "k_block": 16, "keys": "16x32x4x1", "queries": "32x16x4x1"}
"""Many blocks, and every kind of edge, in few tokens."""


@pytest.fixture(autouse=True)
def signals(monkeypatch):
    """Memory that nothing has written holds signalling NaNs: NumPy warns of any that it adds."""

    def filled(create):
        def create_and_fill(*args, **options):
            x = create(*args, **options)
            if x.dtype == torch.float32:
                x.view(torch.int32).fill_(0x7FA00000)
            return x

        return create_and_fill

    for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
        monkeypatch.setattr(owner, name, filled(getattr(owner, name)))


MASKS = ("none", "causal", "window:9,4", "causal+window:20,3", "window:0,20")
FEW, BLIND = {"q_len": 19, "kv_len": 53}, {"q_len": 53, "kv_len": 19}
FLASH = [
    *((mask, BLIND) for mask in MASKS),
    ("none", {}),
    ("causal+window:20,3", {}),
    *(("causal+window:9,0@upper-left", lengths) for lengths in (FEW, BLIND)),
    ("window:60,30", {"length": 110}),  # with whole blocks between its two edges
    *(
        ("causal", {"batch": batch, "heads": heads, "kv_heads": n, "length": 20})
        for batch, heads, n in ((2, 4, 2), (1, 4, 1), (1, 2, 2))
    ),
    *(("causal", {"length": length}) for length in (1, 15, 16, 17, 48)),
]


WAYS = {"float32": "by pointers", "float16": "by TMA"}


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(("capability", "way"), [(80, "by pointers"), (90, "by TMA")])
def test_flash_takes_bfloat16_either_way(capability, way, fused, monkeypatch):
    monkeypatch.setattr("impls.dense.triton_flash.capability", lambda device: capability)
    p = problem("causal", 48, dtype="bfloat16")
    attend = build("triton.flash", p, **{**BLOCKS, "queries": ""}, fused=fused)
    assert way in attend.note()
    check(p, attend)


EACH_WAY = list(product(WAYS, [False, True]))
CASES = [
    *((mask, FEW, *way) for mask in MASKS for way in EACH_WAY),
    *((*case, *way) for case, way in zip(FLASH, cycle(EACH_WAY), strict=False)),
]


@pytest.mark.parametrize(("mask", "changes", "dtype", "fused"), CASES, ids=str)
def test_flash_is_softmax_attention(mask, changes, dtype, fused):
    p = problem(mask, **{"dtype": dtype, **changes})
    blocks = {**BLOCKS, "queries": ""} if fused else BLOCKS
    attend = build("triton.flash", p, **blocks, fused=fused)
    check(p, attend)
    assert WAYS[dtype] in attend.note()
    assert ("not deterministic" in attend.note()) == fused


CAPPED, SUNK, BOTH = (
    {"softcap": 2.0},
    {"sinks": True},
    {"scale": 1.0, "softcap": 5.0, "sinks": True},
)
PAIRS = [
    ("causal", "float32", False, CAPPED),
    ("window:9,4", "float16", True, CAPPED),
    ("causal", "float16", False, SUNK),
    ("window:9,4", "float32", True, SUNK),
    ("causal", "float32", True, BOTH),
    ("window:9,4", "float16", False, BOTH),
]
"""Any two of a mask, a dtype, a way back and settings meet in one of them."""


@pytest.mark.parametrize(("mask", "dtype", "fused", "settings"), PAIRS, ids=str)
def test_flash_takes_a_scale_a_soft_cap_and_sinks(mask, dtype, fused, settings):
    p = problem(mask, dtype=dtype, batch=2, heads=4, kv_heads=2, **settings)
    blocks = {**BLOCKS, "queries": ""} if fused else BLOCKS
    attend = build("triton.flash", p, **blocks, fused=fused)
    check(p, attend)
    if dtype == "float32":
        assert checks.failing("triton.flash", p, attend) is None


@pytest.mark.parametrize(
    ("fused", "settings"),
    [(False, {}), (False, {"sinks": True, "softcap": 2.0}), (True, {"sinks": True})], ids=str,
)  # fmt: skip
def test_flash_gives_the_log_sum_exp_and_its_gradient(fused, settings):
    p = problem("causal", **BLIND, heads=4, kv_heads=2, lse=True, **settings)
    blocks = {**BLOCKS, "queries": ""} if fused else BLOCKS
    attend = build("triton.flash", p, **blocks, fused=fused)
    assert checks.failing("triton.flash", p, attend) is None


@pytest.mark.parametrize("head_dim", [1, 24, 64, 80, 128, 256])
def test_flash_takes_widths_that_are_no_power_of_two_in_the_blocks_of_its_table(head_dim):
    p = problem("causal", head_dim=head_dim, q_len=20, kv_len=33)
    check(p, build("triton.flash", p))


DECODE = [
    *(({"mask": m}, {}) for m in ("none", "causal", "causal+window:300,0", "causal@upper-left")),
    *(({"mask": m, "q_len": 3}, {}) for m in ("causal", "window:90,0", "causal@upper-left")),
    *(({}, {"splits": splits}) for splits in (1, 2, 3, 64)),
    *(
        ({"heads": heads, "kv_heads": kv_heads, "batch": 2}, {})
        for heads, kv_heads in ((4, 2), (4, 4), (40, 2))
    ),
    *(({"dtype": dtype}, {}) for dtype in ("bfloat16", "float16")),
    *(({"head_dim": width}, {}) for width in (1, 24, 80, 128, 256)),
    *(({"kv_len": length}, {}) for length in (1, 2, 63, 64, 65)),
    ({"heads": 8, "kv_heads": 1, "q_len": 11}, {}),  # more rows than a block holds
    ({"q_len": 5, "kv_len": 3}, {}),  # some see nothing
]
STEP = {"phase": "decode", "q_len": 1, "kv_len": 301, "head_dim": 64}


@pytest.mark.parametrize(("changes", "options"), DECODE, ids=str)
def test_decode_is_softmax_attention(changes, options):
    p = problem(**{"mask": "causal", **STEP, **changes})
    check(p, build("triton.decode", p, **options))


def rounded(x, cache):
    """Each token of each head to the nearest of the numbers that the cache has, times its scale."""
    if cache == "int8":
        numbers = torch.arange(-127.0, 128.0, dtype=torch.float64)
    else:  # a sign, four bits of exponent and three of mantissa; all ones is no number
        bits = torch.arange(127, dtype=torch.float64)
        e, m = (bits / 8).floor(), bits % 8
        numbers = torch.where(e == 0, m / 8 * 2.0**-6, (1 + m / 8) * 2.0 ** (e - 7))
        numbers = torch.cat([-numbers.flip(0), numbers[1:]])
    scale = x.abs().amax(-1, keepdim=True) / numbers[-1]
    place = torch.bucketize(x / scale, (numbers[1:] + numbers[:-1]) / 2)
    return numbers[place] * scale


DECODE8 = [
    *(({"heads": 8, "batch": 3, "kv_len": 131, "dtype": dtype}, {})
      for dtype in ("bfloat16", "float16", "float32")),
    ({"heads": 4, "kv_heads": 2, "q_len": 3, "mask": "window:50,0"}, {"splits": 3}),
    ({"head_dim": 24, "kv_len": 65, "mask": "none"}, {}),
    ({"q_len": 5, "kv_len": 5}, {}),
]  # fmt: skip


@pytest.mark.parametrize("cache", ["int8", "fp8"])
@pytest.mark.parametrize(("changes", "options"), DECODE8, ids=str)
def test_decode_over_a_cache_in_8_bits_is_softmax_over_what_the_cache_holds(
    changes, options, cache
):
    p = problem(**{"mask": "causal", **STEP, "kv_dtype": cache, **changes})

    def exact(p, q, k, v):
        return softmax(p, q, rounded(k, cache), rounded(v, cache))

    check(p, build("triton.decode8", p, **options), exact)


@pytest.mark.parametrize("cache", ["int8", "fp8"])
def test_the_gate_judges_a_cache_by_what_it_holds_and_reports_how_far_that_is_from_softmax(cache):
    shape = {**STEP, "kv_len": 70, "heads": 4, "kv_heads": 2, "head_dim": 32}
    p = problem("causal", **shape, kv_dtype=cache)
    verdict = checks.judged("triton.decode8", p, build("triton.decode8", p))
    assert verdict.reason is None
    assert 1e-3 < verdict.distance.relative < 0.1
    assert verdict.error["forward"].relative < 1e-6
    other = build("triton.decode8", p.with_(kv_dtype="fp8" if cache == "int8" else "int8"))
    assert checks.judged("triton.decode8", p, other).reason


def by_pairs(p, q, k, v):
    """Every weight, cut to its lower triangle and divided."""
    k, v = (x.repeat_interleave(p.group, 1) for x in (k, v))
    weights = ((F.elu(q) + 1) @ (F.elu(k) + 1).mT).tril()
    return weights @ v / weights.sum(-1, keepdim=True)


WIDTHS = ((1, 1), (24, 24), (80, 16), (16, 80))
CUT = {"chunk": 16, "segments": 2}
LINEAR = [
    *(({}, {**CUT, "segments": segments}) for segments in (1, 2, 3)),
    *(({"dtype": dtype}, {**CUT, "segments": n}) for dtype in ("float16", "bfloat16")
      for n in (1, 3)),
    ({"batch": 2, "heads": 4, "kv_heads": 2}, CUT),
    ({"kv_heads": 2}, {**CUT, "segments": 3}),
    *(({"head_dim": d, "v_head_dim": e}, {"segments": 2}) for d, e in WIDTHS),
    ({"head_dim": 128, "v_head_dim": 256, "heads": 1, "length": 20}, {"segments": 2}),
    ({"head_dim": 24, "v_head_dim": 24}, {"segments": 1}),
    *(({"length": length}, CUT) for length in (1, 15, 16, 17, 48)),
    ({"length": 290}, {"chunk": 16, "segments": 19}),  # more than are added up at a time
    ({"head_dim": 128, "dtype": "bfloat16", "heads": 1, "length": 130}, {"segments": 2}),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "options"), LINEAR, ids=str)
def test_linear_is_the_sum_over_pairs_however_it_is_cut(changes, options):
    p = problem("causal", **changes)
    check(p, build("triton.linear", p, **options), by_pairs)


DELTA = [
    *((name, changes, {"chunk": 16}) for name in ("gated_delta", "kda") for changes in (
        {}, {"state": True, "scale": 0.3}, {"dtype": "bfloat16"}, {"dtype": "float16"},
        {"batch": 2, "heads": 4, "kv_heads": 2, "state": True}, {"head_dim": 24, "v_head_dim": 80},
        {"length": 1}, {"length": 16, "state": True},
    )),
    *((name, {"length": 70, "head_dim": d, "heads": 1}, {}) for name in ("gated_delta", "kda")
      for d in (1, 64, 80)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes", "options"), DELTA, ids=str)
def test_delta_rules_are_their_recurrence_and_hand_on_its_state(name, changes, options):
    p = problem("causal", **changes)
    inputs = make(p, 3, operators.inputs(name, p))
    by_place, by_name = inputs.map(lambda x: x.requires_grad_()).arguments
    leaves = [*by_place, *by_name.values()]
    out, after = build(f"triton.{name}", p, **options)(*by_place, **by_name, return_state=True)
    twins = inputs.map(lambda x: x.detach().double().requires_grad_())
    wide, gates = twins.arguments
    want, want_after = walked(p, *wide, **gates)
    near = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 1e-2}[p.dtype]
    dout = torch.randn(want.shape, dtype=torch.float64)
    mine = torch.autograd.grad((out, after), leaves, (dout.to(out.dtype), after.detach()))
    right = torch.autograd.grad((want, want_after), [*wide, *gates.values()], (dout, want_after))
    for got, exact in zip((out, after, *mine), (want, want_after, *right), strict=True):
        assert (got.double() - exact).norm() <= near * exact.norm()


def walked(p, q, k, v, g, beta, state=None):
    """Token by token, and the state at the end."""
    q, k = (x.repeat_interleave(p.group, 1) for x in (q, k))
    if state is None:
        state = q.new_zeros(*v.shape[:2], p.head_dim, p.v_head_dim)
    outs, keep = [], g.exp() if g.dim() == 4 else g.exp()[..., None]
    for t in range(q.shape[2]):
        state = keep[:, :, t, :, None] * state
        change = beta[:, :, t, None] * (v[:, :, t] - (k[:, :, t, None] @ state)[:, :, 0])
        state = state + k[:, :, t, :, None] * change[:, :, None]
        outs.append(p.scale * (q[:, :, t, None] @ state)[:, :, 0])
    return torch.stack(outs, 2), state


def test_a_small_weight_keeps_its_output_and_weights_of_zero_give_zeros_and_finite_gradients():
    p = problem("causal", 1)
    low = torch.full((1, 2, 1, 16), -20.0)
    v = torch.randn(1, 1, 1, 16, generator=torch.Generator().manual_seed(0))
    out = build("triton.linear", p)(low, low[:, :1], v)
    torch.testing.assert_close(out, v.expand(1, 2, 1, 16))
    p = problem("causal", 20)
    q, k, v = draw(p)
    k = torch.full_like(k, -200.0).requires_grad_()
    out = build("triton.linear", p, chunk=16)(q, k, v)
    assert not out.any()
    assert not any(x.any() for x in torch.autograd.grad(out.sum(), (q, k, v)))


@pytest.mark.parametrize(
    ("row", "options", "dtype"),
    [
        ("triton.flash", BLOCKS, "float32"),
        ("triton.flash", BLOCKS, "float16"),
        ("triton.linear", CUT, "float32"),
    ],
)
def test_tokens_that_do_not_lie_next_to_each_other_are_read_in_their_place(row, options, dtype):
    p = problem("causal", 20, dtype=dtype)
    checks.read_in_place(p, build(row, p, **options))


@pytest.mark.parametrize(("dtype", "most"), [("float16", 2e-5), ("bfloat16", 1e-4)])
def test_where_all_keys_are_equal_next_to_nothing_is_left_of_a_querys_gradient(dtype, most):
    """An output is the mean of the values then, whatever the query."""
    p = problem("causal", 90, head_dim=64, dtype=dtype)
    q, k, v = draw(p)
    k = k.detach()[:, :, :1].expand(-1, -1, 90, -1).contiguous().requires_grad_()
    out = build("triton.linear", p, **CUT)(q, k, v)
    dout = torch.randn(out.shape, generator=torch.Generator().manual_seed(8)).to(out.dtype)
    (dq,) = torch.autograd.grad(out, [q], dout)
    pulls = (dout.double() @ v.detach().double().mT).tril().abs()  # of each value, over the row's
    size = pulls.sum(-1) / torch.arange(1, 91)  # share: what cancels
    assert float((dq.double().norm(dim=-1) / size.clamp(min=0.1)).max()) < most


@pytest.mark.parametrize(
    ("row", "mask", "changes", "options"),
    [
        ("triton.flash", "causal+window:9,0", {"length": 20, "dtype": "float16"}, BLOCKS),
        ("triton.decode", "causal", {**STEP, "kv_len": 130}, {}),
        ("triton.linear", "causal", {"length": 20, "inputs": "equal_keys"}, CUT),
        ("triton.linear", "causal", {"length": 20, "dtype": "bfloat16", "inputs": "outliers"}, CUT),
    ],
)
def test_the_gate_lets_it_pass(row, mask, changes, options):
    p = problem(mask, **changes)
    assert checks.failing(row, p, build(row, p, **options)) is None
