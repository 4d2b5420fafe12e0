"""gluon.flash: its kernels' own source on the CPU, against float64; and what the compiler makes."""

from pathlib import Path

import pytest
import torch

import impls.dense.gluon_flash as variant
from impls.spec import Unsupported
from tests.impls.in_triton import checks, gluon_emulated, interpreted

if interpreted.ON:
    pytest.skip("needs no interpreter: the default suite runs it", allow_module_level=True)
SOURCE = Path(variant.__file__).with_name("gluon_kernels.py")
SEEDS = 6


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    """The kernels' source, changed or not, in place of what Triton compiles; four processors."""

    def use(changes={}, seed=0):  # noqa: B006 - read alone
        def load(module, *args):
            path = SOURCE.with_name(f"{module.rpartition('.')[2]}.py")
            return gluon_emulated.module(path, *changes.get(path.stem, ()))

        monkeypatch.setattr(variant, "kernels", load)
        monkeypatch.setattr(gluon_emulated.Kernel, "seed", seed)

    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, **k: empty(*a, **k).fill_(torch.nan))
    use()
    return use


def problem(mask="causal", length=300, **changes):
    extents = {"phase": "forward", "dtype": "bfloat16", "head_dim": 64, **changes}
    return checks.problem(mask, length, **extents)


def off(p, inputs=None, **options):
    """The distance of the output by the norm, and of the log-sums at the most."""
    q, k, v = inputs or checks.draw(p)
    out, log_sums = checks.build("gluon.flash", p, **options).forward(q, k, v)
    log_sums = log_sums[..., : p.q_len]
    q, k, v = q.double(), *(x.double().repeat_interleave(p.group, 1) for x in (k, v))
    want = checks.softmax(p, q, k, v)
    visible = torch.from_numpy(p.mask.visible(p.shape))
    scores = (q @ k.mT * p.scale).masked_fill(~visible, -torch.inf)
    of_rows = (scores.logsumexp(-1) / torch.tensor(2.0).log()).nan_to_num(neginf=torch.inf)
    apart = torch.where(of_rows == log_sums, 0.0, (of_rows - log_sums).abs())
    far = (out.double() - want).norm() / want.norm().clamp(min=1.0)
    return float(far), float(apart.max())


WIDE = {"head_dim": 128, "dtype": "float16"}
CASES = [
    *(("causal", {"length": length}) for length in (1, 63, 128, 129, 300)),
    ("causal", {"length": 300, **WIDE}),
    ("none", {"q_len": 130, "kv_len": 500}),
    ("none", {"q_len": 300, "kv_len": 1, **WIDE}),
    ("causal", {"q_len": 70, "kv_len": 390, "batch": 2, "heads": 4, "kv_heads": 2}),
    ("causal", {"q_len": 390, "kv_len": 70, "heads": 3, "kv_heads": 3}),  # many see nothing
    ("causal@upper-left", {"q_len": 200, "kv_len": 390, "dtype": "float16"}),
    ("window:100,50", {"length": 400}),
    ("window:0,200", {"q_len": 150, "kv_len": 300}),
    ("window:200,0", {"q_len": 400, "kv_len": 150, **WIDE}),
    ("causal+window:140,3", {"length": 400, "heads": 4, "kv_heads": 1}),
]


@pytest.mark.parametrize(("mask", "changes"), CASES, ids=str)
def test_it_is_softmax_attention(mask, changes):
    p = problem(mask, **changes)
    output, log_sums = off(p)
    assert output < checks.FAR[p.dtype]
    assert log_sums < 1e-4


@pytest.mark.parametrize(
    ("options", "width"), [({}, 128), ({"stages": 5}, 64), ({"lazy": 0.0}, 64)]
)
def test_weights_of_any_size_are_scaled_down_in_time(options, width):
    """Scores of hundreds, each key's above the last one's: a maximum grows in every tile."""
    p = problem("none", q_len=70, kv_len=520, head_dim=width, dtype="float16")
    q, k, v = checks.draw(p)
    k = k + torch.linspace(4.0, 0.0, 520)[:, None].to(k.dtype) * q.mean(-2, keepdim=True)[:, :1]
    inputs = 20 * q, k, v
    output, log_sums = off(p, inputs, **options)
    assert output < checks.FAR[p.dtype]
    assert log_sums < 1e-3


@pytest.mark.parametrize("stages", [2, 3])
def test_no_order_of_events_changes_a_bit(emulated, stages):
    p = problem("causal", 520, heads=3, kv_heads=1)
    inputs, outputs = checks.draw(p), []
    for seed in range(SEEDS):
        emulated(seed=seed)
        outputs.append(checks.build("gluon.flash", p, stages=stages)(*inputs))
    assert not outputs[0].isnan().any()
    assert all(torch.equal(one, outputs[0]) for one in outputs)


FAULTS = {
    "the producer waits for a phase that has not begun": (
        "(used // STAGES + 1) & 1)", "used // STAGES & 1)"),
    "keys are read before they came": (
        "wait(k_ready.index(slot), phase)", "wait(k_ready.index(slot), 1 - phase)"),
    "keys are given back while they are read": (
        """            scores = warpgroup_mma_wait(1, deps=(scores,))
            mbarrier.arrive(k_free.index(slot), count=1)
""", """            mbarrier.arrive(k_free.index(slot), count=1)
            scores = warpgroup_mma_wait(1, deps=(scores,))
"""),
    "nobody waits for the values": (
        "            mbarrier.wait(v_ready.index(behind), its_phase)\n", ""),
    "values are given back by one group for both": (
        "v_ready, v_free = barriers_of(STAGES, 2)", "v_ready, v_free = barriers_of(STAGES, 1)"),
    "sums are not scaled down": ("            if grew:\n", "            if False:\n"),
    "the total is not scaled down": ("total * decay + gl.sum(p, 1)", "total + gl.sum(p, 1)"),
    "the output's place is given back before it is stored": (
        """        tma.store_wait(0)
        mbarrier.arrive(q_free.index(OWN), count=1)
""", """        mbarrier.arrive(q_free.index(OWN), count=1)
        tma.store_wait(0)
"""),
    "the output is stored without a fence": (
        "any more\n        fence_async_shared()\n", "any more\n"),
    "the other edge of the mask is not looked at": (
        "(start + BLOCK > rest)", "(start > rest)"),
    "a tile at the end of the tiles is left out": (
        "if rounds * programs + place < tiles", "if rounds * programs + place + 1 < tiles"),
    "groups read the same queries": ("flat(q_ring.index(OWN))", "flat(q_ring.index(0))"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_kernel_is_found(emulated, fault):
    """Within as many orders of events as above: it shows in the numbers, or is seen."""
    p = problem("causal", 520, heads=3, kv_heads=1)
    q, k, v = checks.draw(p)
    faults = []
    for seed in range(SEEDS):
        if faults:
            break
        emulated({"gluon_kernels": [FAULTS[fault]]}, seed=seed)
        try:
            output, log_sums = off(p, (30 * q, k, v))
        except gluon_emulated.Fault as seen:
            faults.append(str(seen))
            continue
        if not (output < checks.FAR[p.dtype] and log_sums < 1e-3):  # NaN is none
            faults.append(f"off by {output}")
    assert faults


@pytest.mark.parametrize(("mask", "changes"), CASES, ids=str)
def test_its_gradients_are_those_of_softmax_attention(mask, changes):
    p = problem(mask, **changes, phase="train")
    checks.check(p, checks.build("gluon.flash", p))


def test_no_order_of_events_changes_a_bit_of_the_gradients(emulated):
    p = problem("causal", 390, heads=4, kv_heads=2, phase="train")
    leaves, gradients = checks.draw(p), []
    for seed in range(SEEDS):
        emulated(seed=seed)
        out = checks.build("gluon.flash", p)(*leaves)
        gradients.append(torch.autograd.grad(out.square().sum(), leaves))
    assert all(map(torch.equal, one, gradients[0]) for one in gradients)


BACKWARD_FAULTS = {
    "keys are given back while they are read": (
        """            gradient = warpgroup_mma_wait(0, deps=(gradient,))
            mbarrier.arrive(k_free.index(slot), count=1)
""", """            mbarrier.arrive(k_free.index(slot), count=1)
            gradient = warpgroup_mma_wait(0, deps=(gradient,))
"""),
    "queries are given back while they are read": (
        """            gradient_k = warpgroup_mma_wait(0, deps=(gradient_k,))
            mbarrier.arrive(q_free.index(slot), count=1)
""", """            mbarrier.arrive(q_free.index(slot), count=1)
            gradient_k = warpgroup_mma_wait(0, deps=(gradient_k,))
"""),
    "nobody waits for the gradient": ("mbarrier.wait(do_ready.index(slot), phase)", "pass"),
    "dv is stored without a fence": (
        "v.store(gradient_v.to(dtype))\n        fence_async_shared()",
        "v.store(gradient_v.to(dtype))"),
    "one head's queries stand for all": (" + step // steps,", ","),
    "the deltas are left out": ("(dp - lost[None, :])", "dp"),
    "the place of dk and dv is given back before they are stored": (
        """v_ring.index(OWN))
        tma.store_wait(0)
        mbarrier.arrive(free.index(OWN), count=1)
""", """v_ring.index(OWN))
        mbarrier.arrive(free.index(OWN), count=1)
        tma.store_wait(0)
"""),
}  # fmt: skip


@pytest.mark.parametrize("fault", BACKWARD_FAULTS)
def test_a_fault_in_a_backward_kernel_is_found(emulated, fault):
    p = problem("causal", 390, heads=6, kv_heads=3, phase="train")
    faults = []
    for seed in range(SEEDS):
        if faults:
            break
        emulated({"gluon_backward_kernels": [BACKWARD_FAULTS[fault]]}, seed=seed)
        try:
            checks.check(p, checks.build("gluon.flash", p))
        except AssertionError as seen:
            faults.append(str(seen))
    assert faults


GATED = [
    ("causal", {"length": 150, "phase": "train", "heads": 4, "kv_heads": 2}),
    ("window:90,9", {"length": 200, **WIDE}),
]


@pytest.mark.parametrize(("mask", "changes"), GATED, ids=str)
def test_the_gate_lets_it_pass(mask, changes):
    p = problem(mask, **changes)
    assert checks.failing("gluon.flash", p, checks.build("gluon.flash", p)) is None


def test_tokens_are_read_where_they_lie():
    p = problem("causal", 140)
    inputs, attend = checks.draw(p), checks.build("gluon.flash", p)
    want = attend(*inputs)
    by_token = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in inputs]
    odd = [torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape) for x in inputs]
    once = [x[:, :, :1].expand(x.shape) for x in inputs]
    assert torch.equal(attend(*by_token), want)
    assert torch.equal(attend(*odd), want)
    assert torch.equal(attend(*once), attend(*(x.contiguous() for x in once)))


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


MASKS = ("none", "causal", "window:300,0")
