"""What the rows in Triton are timed against on a real GPU, on which nothing else may run."""

from pathlib import Path

import pytest
import torch

from attnbench.gate.inputs import make
from attnbench.meter.clocks import clock_for
from impls.loading import load_file

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]
rows = load_file(Path(__file__).with_name("test_triton_rows.py"))
problem, built = rows.problem, rows.built


def middle(call):
    """The middle one of 48 samples, after 16 that are not looked at."""
    clock = clock_for("cuda", "forward")
    clock.samples(lambda: None, call, 16)
    return sorted(clock.samples(lambda: None, call, 48))[24]


def test_decode_reads_its_cache_at_most_of_what_a_copy_does():
    p = problem(
        "none", "decode", batch=8, heads=32, kv_heads=8, q_len=1, kv_len=32_768, head_dim=128
    )
    q, k, v = (x.cuda() for x in make(p, 0)[:3])
    attend, other = built("triton.decode", p), torch.empty_like(k)
    reading = (k.nbytes + v.nbytes) / middle(lambda: attend(q, k, v))
    assert reading >= 0.7 * 2 * k.nbytes / middle(lambda: other.copy_(k))


def forward_and_backward(p, rows):
    """Middle seconds of some rows, by phase."""
    q, k, v = (x.cuda().requires_grad_() for x in make(p, 0)[:3])
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
