"""gluon.flash: its kernels' own source on the CPU, against float64."""

from pathlib import Path

import pytest
import torch

import impls.dense.gluon_flash as variant
from impls.spec import Unsupported
from tests.impls.in_triton import checks, gluon_emulated, interpreted
from tests.impls.small import FAR, check, draw, softmax

if interpreted.ON:
    pytest.skip("needs no interpreter: the default suite runs it", allow_module_level=True)
FOLDER = Path(variant.__file__).parent


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    """The kernels' source in place of what Triton compiles, on memory that holds NaN."""
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, **k: empty(*a, **k).fill_(torch.nan))

    def load(module, *args):
        return gluon_emulated.module(FOLDER / f"{module.rpartition('.')[2]}.py")

    monkeypatch.setattr(variant, "kernels", load)


def problem(mask="causal", length=300, **changes):
    extents = {"phase": "train", "dtype": "bfloat16", "head_dim": 64, **changes}
    return checks.problem(mask, length, **extents)


WIDE = {"head_dim": 128, "dtype": "float16"}


@pytest.mark.parametrize(
    ("mask", "changes"),
    [
        *(("causal", {"length": length}) for length in (1, 63, 129)),
        ("none", {"q_len": 130, "kv_len": 300}),
        ("none", {"q_len": 300, "kv_len": 1, **WIDE}),
        ("causal", {"q_len": 260, "kv_len": 70, "heads": 3, "kv_heads": 3}),  # many see nothing
        ("window:0,200", {"q_len": 150, "kv_len": 300}),
        *(
            pytest.param(mask, changes, marks=pytest.mark.slow)
            for mask, changes in (
                ("causal", {"length": 300, **WIDE}),
                ("causal", {"q_len": 70, "kv_len": 260, "batch": 2, "heads": 4, "kv_heads": 2}),
                ("causal@upper-left", {"q_len": 200, "kv_len": 260, "dtype": "float16"}),
                ("window:200,0", {"q_len": 400, "kv_len": 150, **WIDE}),
                ("causal+window:140,3", {"heads": 4, "kv_heads": 1}),
            )
        ),
    ],
    ids=str,
)
def test_it_is_softmax_attention_with_its_gradients(mask, changes):
    p = problem(mask, **changes)
    check(p, checks.build("gluon.flash", p))


@pytest.mark.parametrize(("options", "width"), [({}, 128), ({"stages": 5, "lazy": 0.0}, 64)])
def test_weights_of_any_size_are_scaled_down_in_time(options, width):
    """Scores of hundreds, each key's above the last one's: a maximum grows in every tile."""
    p = problem("none", q_len=70, kv_len=520, head_dim=width, dtype="float16", phase="forward")
    q, k, v = draw(p)
    k = k + torch.linspace(4.0, 0.0, 520)[:, None].to(k.dtype) * q.mean(-2, keepdim=True)[:, :1]
    out = checks.build("gluon.flash", p, **options)(20 * q, k, v)
    want = softmax(p, *(x.double() for x in (20 * q, k, v)))
    assert float((out.double() - want).norm() / want.norm()) < FAR[p.dtype]


@pytest.mark.slow
@pytest.mark.parametrize(("phase", "length", "seeds"), [("forward", 520, 6), ("train", 300, 3)])
def test_no_order_of_events_changes_a_bit(phase, length, seeds, monkeypatch):
    p = problem("causal", length, heads=3, kv_heads=1, phase=phase)
    leaves, results = draw(p), []
    for seed in range(seeds):
        monkeypatch.setattr(gluon_emulated.Kernel, "seed", seed)
        out = checks.build("gluon.flash", p)(*leaves)
        gradients = torch.autograd.grad(out.square().sum(), leaves) if p.gradients else ()
        results.append((out, *gradients))
    assert not any(x.isnan().any() for x in results[0])
    assert all(all(map(torch.equal, one, results[0])) for one in results)


def test_tokens_are_read_where_they_lie():
    p = problem("causal", 140, phase="forward")
    inputs, attend = draw(p), checks.build("gluon.flash", p)
    want = attend(*inputs)
    by_token = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in inputs]
    odd = [torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape) for x in inputs]
    assert torch.equal(attend(*by_token), want)
    assert torch.equal(attend(*odd), want)


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"head_dim": 96}, {}, "head_dim 64 and 128, not 96"),
        ({"head_dim": 128}, {"stages": 3}, "from 2 to 2 at head_dim 128"),
        ({}, {"lazy": 20.0}, "not between 0 and 15"),
    ],
)
def test_what_it_does_not_take_it_refuses(changes, options, message):
    with pytest.raises(Unsupported, match=message):
        checks.build("gluon.flash", problem(**changes), **options)


def test_it_is_for_hopper_alone(monkeypatch):
    monkeypatch.setattr(variant, "capability", lambda device: 100)
    with pytest.raises(Unsupported, match=r"the device has 10\.0"):
        checks.build("gluon.flash", problem())
