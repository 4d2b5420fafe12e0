"""Values that are channels of the keys: drawn, judged, timed and counted as one tensor."""

import pytest
import torch

import impls
from attnbench.answer.paste import command_words, lines
from attnbench.core.record import Status
from attnbench.core.wire import Job, convert, plain
from attnbench.gate.gate import gate
from attnbench.gate.inputs import make
from attnbench.gate.oracle import exact
from attnbench.gate.reference import judge
from attnbench.meter.probe import probe
from impls.loading import load_function
from impls.masks import Mask
from impls.problem import InvalidProblem, Problem
from tests.impls.small import softmax

P = Problem(
    heads=4, kv_heads=1, q_len=40, kv_len=40, head_dim=24, v_head_dim=16, v_in_k=True,
    mask=Mask.parse("causal"),
)  # fmt: skip
FORMS = {
    "forward": {},
    "train": {"phase": "train", "batch": 2},
    "backward": {"phase": "backward"},
    "bfloat16": {"phase": "train", "dtype": "bfloat16"},
    "decode": {"phase": "decode", "q_len": 1},
    "peaky": {"inputs": "peaky"},
    "all that a problem may set": {"phase": "train", "sinks": True, "softcap": 3.0, "lse": True},
    "as wide as the keys": {"phase": "train", "v_head_dim": 24},
}


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_it_is_measured_in_every_form(cells, form):
    p = P.with_(**FORMS[form])
    record = cells.measure(impls.table().find("chunked?block=16"), p, bits_s=1.0)
    assert (record.status, record.reason, record.wrong_on) == (Status.MEASURED, "", "")
    assert "dv" not in record.error and ("dk" in record.error) == p.gradients
    assert record.determinism.repeats and record.determinism.why == ""
    assert probe(Job(impls.table().find("chunked"), p), 10.0).status is Status.MEASURED


HERE = [
    row.name for row in impls.table().rows.values()
    if row.supports(P) is None and "cpu" in row.devices
    and not {"c++", "onnx>=1.19"} & {*row.requires}
    and row.name not in ("exp.naive", "window.blocked", "window.flex")
]  # fmt: skip


@pytest.mark.parametrize("name", HERE)
def test_a_row_takes_the_view_as_any_other_tensor(name):
    row = impls.table().rows[name]
    p = P.with_(phase="train" if "train" in row.on("cpu", "phases") else "forward", batch=2)
    attend = load_function(row.build)(p, **row.chosen)
    assert gate(judge(p, make(p, 3), 3), attend, None, 3).reason is None


def test_the_oracle_gives_the_keys_both_gradients():
    p = P.with_(phase="train", dtype="float64", batch=2)
    inputs, rows = make(p, 0), torch.arange(40)
    assert sorted(inputs) == ["k", "q"]
    q, k, v = inputs.qkv
    assert v.untyped_storage().data_ptr() == k.untyped_storage().data_ptr()
    leaves = [q.requires_grad_(), k.requires_grad_()]
    out = softmax(p, q, k, k[..., :16])
    dout = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).double()
    truth = exact(p, q.detach(), k.detach(), v.detach(), rows, dout).tensors
    assert sorted(truth) == ["dk", "dq", "forward"]
    for name, want in zip(("dq", "dk"), torch.autograd.grad(out, leaves, dout), strict=True):
        torch.testing.assert_close(truth[name], want)


FAULTS = {
    "nothing": (lambda q, k, v: softmax(P, q, k, v), None),
    "no gradient by the values": (lambda q, k, v: softmax(P, q, k, v.detach()), "of dk is"),
    "half of it": (lambda q, k, v: softmax(P, q, k, v / 2 + v.detach() / 2), "of dk is"),
    "no gradient by the scores": (lambda q, k, v: softmax(P, q, k.detach(), v), "of dk is"),
    "the last channels": (lambda q, k, v: softmax(P, q, k, k[..., 8:]), "of forward is"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_gate_refuses(fault):
    attend, reason = FAULTS[fault]
    p = P.with_(phase="train", dtype="float64")
    said = gate(judge(p, make(p, 3), 3), attend, None, 3).reason
    assert said is None if reason is None else reason in said


def test_it_is_written_and_pasted():
    assert convert(plain(P), Problem) == P != P.with_(v_in_k=None)
    assert str(P).endswith("causal forward v-in-k") and "--v-in-k" in command_words(P)
    assert lines("chunked", P)[-1] == 'out = attend(q, k, k[..., :16], mask="causal")'
    assert "scaled_dot_product_attention(q, k, k[..., :16], is_causal" in lines("sdpa", P)[-1]
    with pytest.raises(InvalidProblem, match="have head_dim=24 channels, so it must be 24"):
        P.with_(v_head_dim=32)
