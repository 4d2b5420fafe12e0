"""The rows in Triton on a real GPU: the ruler's gate, and speeds, which are timed apart from it."""

import pytest
import torch

from attnbench.gate.inputs import make
from attnbench.meter.clocks import clock_for
from impls.masks import Mask
from impls.problem import Problem
from tests.impls.in_triton.checks import build, failing

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")]
DTYPES = ("float32", "bfloat16", "float16")


def problem(mask, phase="train", **changes):
    shape = {
        "batch": 2, "heads": 8, "kv_heads": 2, "q_len": 500, "kv_len": 700, "head_dim": 64,
        "dtype": "bfloat16", "device": "cuda", **changes,
    }  # fmt: skip
    return Problem(**{"v_head_dim": shape["head_dim"], **shape}, mask=Mask.parse(mask), phase=phase)


def built(row, p, **options):
    pytest.importorskip("triton", reason="triton is not installed")
    return build(row, p, **options)


def holds(row, p, **options):
    assert failing(row, p, built(row, p, **options)) is None


MASKS = ("none", "causal", "window:100,50", "causal@upper-left")
WIDTHS = (40, 64, 128, 256)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("mask", "width"), [*((mask, 64) for mask in MASKS), *(("causal", width) for width in WIDTHS)]
)
def test_flash_passes_the_gate_with_every_mask_and_width_of_its_table(mask, width, dtype):
    p = problem(mask, head_dim=width, dtype=dtype)
    holds("triton.flash", p)
    if width <= 128:
        holds("triton.flash", p, fused=True)


@pytest.mark.parametrize("dtype", DTYPES[1:])
@pytest.mark.parametrize(("mask", "width"), [*((mask, 64) for mask in MASKS), ("causal", 128)])
def test_flash_in_gluon_passes_the_gate_on_hopper(mask, width, dtype):
    pytest.importorskip("triton", minversion="3.6")
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("it is written for Hopper's instructions")
    holds("gluon.flash", problem(mask, head_dim=width, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", ["none", "window:900,0"])
@pytest.mark.parametrize("head_dim", WIDTHS)
def test_decode_passes_the_gate(head_dim, mask, dtype):
    p = problem(mask, "decode", q_len=1, kv_len=5000, head_dim=head_dim, dtype=dtype)
    holds("triton.decode", p)
    holds("triton.decode", p.with_(q_len=30))  # more rows than a block of them holds


def test_flash_reads_tokens_past_the_reach_of_32_bits():
    shape = {"batch": 1, "heads": 64, "kv_heads": 64, "q_len": 300_000, "kv_len": 300_000}
    p = problem("window:64,0", "forward", **shape, head_dim=128)
    by_token = (1, p.q_len, p.heads, p.head_dim)  # a head's last is 2.4e9 numbers away
    by_head = [
        torch.randn(by_token, device="cuda", dtype=torch.bfloat16).transpose(1, 2) for _ in range(3)
    ]
    out = built("triton.flash", p)(*by_head)[:, -1:, -16:]
    end = [x[:, -1:, -128:] for x in by_head]
    want = built("triton.flash", p.with_(heads=1, kv_heads=1, q_len=128, kv_len=128))(*end)
    torch.testing.assert_close(out, want[:, :, -16:], atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", WIDTHS)
def test_linear_passes_the_gate(head_dim, dtype):
    for batch, length in ((1, 3000), (8, 500)):  # in segments, and in one
        p = problem(
            "causal", batch=batch, q_len=length, kv_len=length, head_dim=head_dim, dtype=dtype
        )
        holds("triton.linear", p)
    holds("triton.linear", p.with_(v_head_dim=80))
    if head_dim == 64 and dtype == "bfloat16":
        holds("triton.linear", p.with_(batch=1, q_len=1 << 20, kv_len=1 << 20, phase="forward"))
    for inputs in ("peaky", "outliers", "equal_keys") if head_dim == 64 else ():
        holds("triton.linear", problem("causal", q_len=700, inputs=inputs, dtype=dtype))


def middle(call):
    """The middle one of 48 samples, after 16 that are not looked at."""
    clock = clock_for("cuda", "forward")
    clock.samples(lambda: None, call, 16)
    return sorted(clock.samples(lambda: None, call, 48))[24]


def test_decode_has_most_of_the_speed_of_a_copy():
    p = problem(
        "none", "decode", batch=8, heads=32, kv_heads=8, q_len=1, kv_len=32_768, head_dim=128
    )
    q, k, v = (x.cuda() for x in make(p, 0).values())
    attend, other = built("triton.decode", p), torch.empty_like(k)
    reading = (k.nbytes + v.nbytes) / middle(lambda: attend(q, k, v))
    assert reading >= 0.7 * 2 * k.nbytes / middle(lambda: other.copy_(k))


def forward_and_backward(p, rows):
    """Middle seconds of some rows, by phase."""
    q, k, v = (x.cuda().requires_grad_() for x in make(p, 0).values())
    times = {"forward": {}, "backward": {}}
    for row in rows:
        attend = built(row, p)
        out = attend(q, k, v)
        dout = torch.randn_like(out)

        def forward(attend=attend):
            with torch.no_grad():
                return attend(q, k, v)

        def backward(out=out, dout=dout):
            return torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)

        for phase, call in (("forward", forward), ("backward", backward)):
            times[phase][row] = middle(call)
    return times


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("length", [4096, 16384])
def test_flash_has_most_of_the_speed_of_torchs(length, head_dim):
    p = problem(
        "causal", batch=1, heads=16, kv_heads=16, q_len=length, kv_len=length, head_dim=head_dim
    )
    times = forward_and_backward(p, ("triton.flash", "sdpa.flash"))
    for phase, share in (("forward", 0.9), ("backward", 0.7)):  # seven products for FA2's five
        assert times[phase]["sdpa.flash"] >= share * times[phase]["triton.flash"], (phase, times)
