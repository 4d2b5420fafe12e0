"""How a call is made: the kernel against torch's profiler, and what could be changed about it."""

import msgspec
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_upper_left
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.profiler import ProfilerActivity, profile

import attnbench
from attnbench.answer.mends import mends
from attnbench.models.replay import Replay, apart
from tests.models.build import only

N = 24
CAUSAL = torch.ones(N, N, dtype=torch.bool).tril()
WINDOW = CAUSAL.triu(-5)
ADDED = torch.zeros(N, N).masked_fill(~CAUSAL, -torch.inf)
LOWEST = torch.zeros(1, 1, N, N).masked_fill(~CAUSAL, torch.finfo(torch.float32).min)
SLIDING = torch.zeros(N, N).masked_fill(~WINDOW, -torch.inf)
ZEROS = torch.zeros(N, N)
ALL = torch.ones(1, 1, N, N, dtype=torch.bool)
LEFT = (torch.arange(N) >= torch.tensor([[5], [0]]))[:, None, None]
sdpa = F.scaled_dot_product_attention


def tensors(heads=4, kv_heads=4, n=N, m=N, d=16, e=16):
    torch.manual_seed(0)
    shapes = (2, heads, n, d), (2, kv_heads, m, d), (2, kv_heads, m, e)
    return tuple(torch.randn(shape) for shape in shapes)


def repeated(q, k, v):
    return q, *(x.repeat_interleave(2, 1) for x in (k, v))


def strided(q, k, v):
    return q.mT.contiguous().mT, k, v


def learning(q, k, v):
    return tuple(x.requires_grad_() for x in (q, k, v))


def with_math(*args, **more):
    with sdpa_kernel(SDPBackend.MATH):
        return sdpa(*args, **more)


def written_out(q, k, v, mask=None):
    scores = q @ k.transpose(-1, -2) / 4
    if mask is not None:
        scores = scores.masked_fill(~mask, -1e9)
    return torch.softmax(scores, -1) @ v


def by_einsum(q, k, v, all_axes="bh"):
    x = all_axes
    weights = nn.Softmax(-1)(torch.einsum(f"{x}qd,{x}kd->{x}qk", q, k).mul(0.25))
    return torch.einsum(f"{x}qk,{x}kd->{x}qd", weights, v)


MHA = nn.MultiheadAttention(64, 4, batch_first=True)
TOKENS = torch.randn(2, N, 64)


def thrown_away(**more):
    out, _ = MHA(TOKENS, TOKENS, TOKENS, **more)
    return out


def weights_read():
    out, weights = MHA(TOKENS, TOKENS, TOKENS)
    return out, weights.sum()


def packed(q, k, v):
    """With batch and heads on one axis, as BLOOM has them, and ALiBi in the product."""
    slopes = 2.0 ** -torch.arange(2.0, 9.0, 2.0)
    alibi = (slopes[:, None, None] * torch.arange(N)).repeat(2, 1, 1)
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    scores = alibi.baddbmm(batch1=q, batch2=k.mT, alpha=0.25).view(2, 4, N, N)
    weights = scores.masked_fill(~CAUSAL, -1e9).softmax(-1)
    return torch.bmm(weights.view(8, N, N), v).view(2, 4, N, 16)


class Keeps:
    """Weights in an attribute, which somebody may read later."""

    def __call__(self):
        self.out, self.weights = MHA(TOKENS, TOKENS, TOKENS)
        return self.out


def flex():
    plan = create_block_mask(lambda b, h, i, j: i >= j, None, None, N, N, device="cpu")
    return flex_attention(*tensors(), block_mask=plan)


PROGRAMS = {
    "no mask": (lambda: sdpa(*tensors()), "flash", "none", "no mask", []),
    "flag": (lambda: sdpa(*tensors(), is_causal=True), "flash", "causal", "is_causal=True", []),
    "boolean": (lambda: sdpa(*tensors(), CAUSAL), "flash", "causal", "a boolean", ["is_causal"]),
    "added": (lambda: sdpa(*tensors(), ADDED), "flash", "causal", "a float32", ["is_causal"]),
    "bias": (
        lambda: sdpa(*tensors(), causal_upper_left(N, N)), "flash", "causal", "a CausalBias", [],
    ),
    "lowest": (lambda: sdpa(*tensors(), LOWEST), "flash", "causal", "a float32", ["is_causal"]),
    "all seen": (lambda: sdpa(*tensors(), ALL), "flash", "none", "a boolean", ["drop_mask"]),
    "zeros": (lambda: sdpa(*tensors(), ZEROS), "flash", "none", "a float32", ["drop_mask"]),
    "window": (lambda: sdpa(*tensors(), WINDOW), "flash", "window:5,0", "a boolean", []),
    "sliding": (
        lambda: sdpa(*tensors(), SLIDING), "flash", "window:5,0", "a float32", ["boolean_mask"],
    ),
    "for each head": (
        lambda: sdpa(*tensors(), WINDOW.expand(2, 4, N, N).contiguous()),
        "flash", "window:5,0", "a boolean", ["one_head"],
    ),
    "learned, unasked": (
        lambda: sdpa(*tensors(), torch.rand(N, N, requires_grad=True)),
        "math", None, "a float32", ["detach_mask"],
    ),
    "one key head": (
        lambda: sdpa(*tensors(kv_heads=1)), "math", "none", "no mask", ["enable_gqa"],
    ),
    "left": (lambda: sdpa(*tensors(), LEFT), "flash", "leftpad:5,0", "a boolean", []),
    "last query": (
        lambda: sdpa(*tensors(n=1), torch.ones(1, N, dtype=torch.bool)),
        "flash", "none", "a boolean", ["drop_mask"],
    ),
    "grouped": (
        lambda: sdpa(*tensors(kv_heads=2), enable_gqa=True), "flash", "none", "no mask", [],
    ),
    "repeated": (
        lambda: sdpa(*repeated(*tensors(kv_heads=2))), "flash", "none", "no mask", ["enable_gqa"],
    ),
    "strided": (lambda: sdpa(*strided(*tensors())), "math", "none", "no mask", ["contiguous"]),
    "three axes": (
        lambda: sdpa(*(x[0] for x in tensors()), is_causal=True),
        "math", "causal", "is_causal=True", ["four_axes"],
    ),
    "mask of three axes": (
        lambda: sdpa(*(x[:, :1] for x in tensors()), WINDOW.expand(1, N, N)),
        "math", "window:5,0", "a boolean", ["mask_axes"],
    ),
    "wide values": (lambda: sdpa(*tensors(e=32)), "math", "none", "no mask", []),
    "dropout": (lambda: sdpa(*tensors(), dropout_p=0.1), "math", "none", "no mask", []),
    "forced": (lambda: with_math(*tensors()), "math", "none", "no mask", ["backend"]),
    "bfloat16": (lambda: sdpa(*(x.bfloat16() for x in tensors())), "flash", "none", "no mask", []),
    "unasked": (
        lambda: sdpa(*learning(*tensors())), "flash", "none", "no mask", ["no_grad"],
    ),
    "asked": (
        lambda: sdpa(*learning(*tensors()), CAUSAL).sum().backward(),
        "flash", "causal", "a boolean", ["is_causal"],
    ),
    "weights thrown away": (lambda: thrown_away(), "math", "none", "no mask", ["need_weights"]),
    "weights read": (lambda: weights_read(), "math", "none", "no mask", []),
    "weights kept": (lambda: Keeps()(), "math", "none", "no mask", []),
    "no weights": (
        lambda: thrown_away(need_weights=False), "flash", "none", "no mask", [],
    ),
    "written out": (
        lambda: written_out(*tensors(), CAUSAL), "written out", "causal", "a mask",
        ["sdpa", "is_causal"],
    ),
    "written out with three axes": (
        lambda: written_out(*(x[0] for x in tensors())), "written out", "none", "no mask", ["sdpa"],
    ),
    "einsum": (lambda: by_einsum(*tensors()), "written out", "none", "no mask", ["sdpa"]),

    "packed": (
        lambda: packed(*tensors()), "written out", "causal+alibi", "a mask", ["sdpa"],
    ),
    "einsum with an ellipsis": (
        lambda: by_einsum(*tensors(), all_axes="..."), "written out", "none", "no mask", ["sdpa"],
    ),
    "flex": (flex, "flex, not compiled", "causal", "a block_mask", ["compile_flex"]),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_call_is_told_by_its_kernel_its_mask_and_what_could_be_changed(name):
    program, kernel, holds, given, changes = PROGRAMS[name]
    with attnbench.capture() as calls:
        program()
    site = only(calls)
    assert site.call is not None and site.call.kernel == kernel
    assert holds in (None, str(site.problem.mask)) and site.call.mask_words().startswith(given)
    assert [m.key for m in mends(site.call, site.problem)] == changes
    with profile(activities=[ProfilerActivity.CPU]) as ran:
        program()
    flash = any("flash_attention_for_cpu" in event.name for event in ran.events())
    assert flash == (kernel == "flash")
    assert bool(site.call.why) == (kernel == "math" and site.call.api == "sdpa")


CHANGED = [
    (name, key) for name, (*_, keys) in PROGRAMS.items() for key in keys if key != "compile_flex"
]


@pytest.mark.parametrize(("name", "key"), CHANGED, ids=map("-".join, CHANGED))
def test_a_mended_call_gives_the_same_output_and_the_same_gradients(name, key):
    with attnbench.capture() as calls:
        PROGRAMS[name][0]()
    site = only(calls)
    (mend,) = (m for m in mends(site.call, site.problem) if m.key == key)
    if key == "is_causal" and site.call.api == "products":  # the products take no flag
        (first,) = (m for m in mends(site.call, site.problem) if m.key == "sdpa")
        changed = mend.change(first.change(site.call))
    else:
        changed = mend.change(site.call)
    assert changed != site.call
    now, then = Replay(site.call, site.problem), Replay(changed, site.problem)
    assert len(now.results()) == (4 if name == "asked" else 1)
    assert apart(now, then) < 1e-5


def test_what_gives_another_output_is_found_out():
    with attnbench.capture() as calls:
        sdpa(*tensors(), WINDOW)
    site = only(calls)
    wrong = msgspec.structs.replace(site.call, mask=None, is_causal=True)
    assert apart(Replay(site.call, site.problem), Replay(wrong, site.problem)) > 1e-2


def test_one_line_on_two_devices_is_two_places():
    with attnbench.capture() as calls:
        for device in ("meta", "cpu", "cpu"):
            sdpa(*(x.to(device) for x in tensors()))
    assert sorted((s.note[:18], s.calls) for s in calls.sites) == [
        ("", 2),
        ("on the meta device", 1),
    ]


def reads(q, k, v):
    weights = (q @ k.mT / 4).softmax(-1)
    return weights @ v, weights


def drops(q, k, v):
    weights = (q @ k.mT / 4).softmax(-1)
    return weights @ v


class Keeping:
    def __call__(self, q, k, v):
        self.weights = (q @ k.mT / 4).softmax(-1)
        return self.weights @ v


@pytest.mark.parametrize(
    ("attend", "kept"),
    [
        (reads, True),
        (lambda *qkv: reads(*qkv)[0], False),
        (drops, False),
        (Keeping(), True),
    ],
)
def test_weights_that_a_program_goes_on_to_use_can_not_be_left_out(attend, kept):
    with attnbench.capture() as calls, torch.no_grad():
        for _ in range(3):
            out = attend(*tensors())
    site = only(calls)
    assert site.calls == 3 and len(out)
    assert site.call.returns == ("weights" if kept else "")
    assert [m.key for m in mends(site.call, site.problem)] == ["sdpa"] * (not kept)


def test_weights_in_a_loop_of_a_script_are_used_only_if_they_are_read_there():
    program = """
for _ in range(3):
    weights = (q @ k.mT / 4).softmax(-1)
    out = weights @ v
    {after}
"""
    for after, returns in (("out.sum()", ""), ("weights.sum()", "weights")):
        with attnbench.capture() as calls:
            names = dict(zip("qkv", tensors(), strict=True))
            exec(compile(program.format(after=after), "script.py", "exec"), names)
        assert only(calls).call.returns == returns
