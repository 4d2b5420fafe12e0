"""triton.linear, interpreted on the CPU, against float64 and the ruler's gate."""

import pytest
import torch
import torch.nn.functional as F

from tests.impls.in_triton import checks, interpreted

interpreted.start()


def problem(length=37, **changes):
    return checks.problem("causal", length, **changes)


def build(p, **options):
    return checks.build("triton.linear", p, **options)


def by_pairs(p, q, k, v):
    """Every weight, cut to its lower triangle and divided."""
    weights = ((F.elu(q) + 1) @ (F.elu(k) + 1).mT).tril()
    return weights @ v / weights.sum(-1, keepdim=True)


WIDTHS = ((1, 1), (24, 24), (80, 16), (16, 80), (128, 256))
CELLS = [
    *(({}, 16, segments) for segments in (1, 2, 3)),
    *(({"dtype": dtype}, 16, n) for dtype in ("float16", "bfloat16") for n in (1, 3)),
    ({"batch": 2, "heads": 4, "kv_heads": 2}, 16, 2),
    ({"kv_heads": 2}, 16, 3),
    *(({"head_dim": d, "v_head_dim": e}, None, 2) for d, e in WIDTHS),
    ({"head_dim": 24, "v_head_dim": 24}, None, 1),
    *(({"length": length}, 16, 2) for length in (1, 15, 16, 17, 48)),
]


@pytest.mark.parametrize(("changes", "chunk", "segments"), CELLS, ids=str)
def test_it_is_the_sum_over_pairs_however_it_is_cut(changes, chunk, segments):
    p = problem(**changes)
    options = {"segments": segments} | ({"chunk": chunk} if chunk else {})
    checks.check(p, build(p, **options), by_pairs)


@pytest.mark.parametrize(
    ("dtype", "inputs"),
    [("float32", "equal_keys"), ("bfloat16", "outliers")],
)
def test_the_gate_lets_it_pass(inputs, dtype):
    p = problem(40, dtype=dtype, inputs=inputs)
    assert checks.failing("triton.linear", p, build(p, chunk=16, segments=2)) is None


@pytest.mark.parametrize(("heads", "length", "segments"), [(1, 999, 4), (8, 999, 1), (1, 37, 1)])
def test_it_fills_the_device_with_segments_of_some_chunks(heads, length, segments):
    """Eight programs fill a device of four processors twice."""
    p = problem(length, heads=heads, dtype="bfloat16" if heads < length == 999 else "float32")
    assert build(p).note().endswith(f"segments: {segments}")


def test_no_bit_of_a_later_token_comes_into_an_output():
    p = problem(40)
    attend = build(p, chunk=16, segments=2)
    q, k, v = (x.detach() for x in checks.draw(p))
    want = attend(q, k, v)
    for x in (q, k, v):
        x[:, :, 33:] = torch.nan if x is v else 1e4
    assert torch.equal(attend(q, k, v)[:, :, :32], want[:, :, :32])


def test_a_small_weight_keeps_its_output_and_weights_of_zero_give_zeros_and_finite_gradients():
    p = problem(1)
    low = torch.full((1, 2, 1, 16), -20.0)
    v = torch.randn(1, 1, 1, 16, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(build(p)(low, low[:, :1], v), v.expand(1, 2, 1, 16))
    p = problem(20)
    q, k, v = checks.draw(p)
    k = torch.full_like(k, -200.0).requires_grad_()
    out = build(p, chunk=16)(q, k, v)
    assert not out.any()
    assert not any(x.any() for x in torch.autograd.grad(out.sum(), (q, k, v)))


def test_tokens_that_do_not_lie_next_to_each_other_are_read_in_their_place():
    p = problem(20)
    checks.read_in_place(p, build(p, chunk=16, segments=2))
