"""ONNX Runtime's attention, run: against the oracle, against ONNX's own reference, and what it
would do without a word.
"""

import os
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from attnbench.core.wire import Job
from attnbench.gate.inputs import make
from attnbench.meter.cell import Bench
from impls.external import onnxruntime as adapter
from impls.spec import Unavailable
from tests.impls.small import TABLE, problem

pytestmark = pytest.mark.slow
F32, F16 = {"dtype": "float32"}, {"dtype": "float16", "v_head_dim": 16}
CASES = [
    *((mask, F32) for mask in ("none", "causal", "window:5,3", "padding:0,30", "prefix:7")),
    *((mask, F32) for mask in ("causal+alibi", "leftpad:45,9", "causal+document:20,25")),
    ("causal", {**F32, "q_len": 9}),
    ("causal@upper-left", {**F32, "q_len": 60}),
    ("causal", {**F32, "softcap": 5.0, "scale": 0.3}),
    ("none", {**F32, "q_len": 1, "phase": "decode"}),
    *((mask, F16) for mask in ("causal", "padding:0,30")),
]


@pytest.fixture(autouse=True)
def installed():
    missing = [name for name in ("onnx", "onnxruntime") if find_spec(name) is None]
    if missing:
        assert "CI" not in os.environ, f"{missing} are not installed"
        pytest.skip("it needs the extra onnx")


@pytest.fixture(scope="module")
def bench():
    return Bench()


@pytest.mark.parametrize(("mask", "more"), CASES)
def test_it_computes_softmax_under_the_mask_and_is_never_wrong_elsewhere(bench, mask, more):
    record = bench.measure(Job(TABLE.find("onnxruntime"), problem(mask, **more), timed=False))
    assert (record.status, record.reason, record.wrong_on) == ("measured", "", "")
    assert record.note.startswith("Attention of onnxruntime 1.")


@pytest.mark.parametrize("more", [{}, {"q_len": 9}, {"q_len": 1, "phase": "decode"}])
def test_so_does_the_form_that_never_holds_all_scores(bench, more):
    p = problem("none", **F32, kv_heads=4, **more)
    record = bench.measure(Job(TABLE.find("onnxruntime?op=mha"), p, budget_s=0.01))
    assert (record.status, record.reason, record.wrong_on) == ("measured", "", "")


def test_it_agrees_with_the_reference_that_onnx_ships():
    from onnx import TensorProto, helper
    from onnx.reference import ReferenceEvaluator

    p = problem("causal", **F32, softcap=5.0)
    inputs = make(p, 0)
    infos = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, x.shape) for n, x in inputs.items()
    ]
    out = helper.make_tensor_value_info("out", TensorProto.FLOAT, p.output_shape)
    node = helper.make_node("Attention", list(inputs), ["out"], is_causal=1, softcap=5.0)
    graph = helper.make_graph([node], "reference", infos, [out])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)])
    (want,) = ReferenceEvaluator(model).run(None, {n: x.numpy() for n, x in inputs.items()})
    got = adapter.build(p)(*inputs.values())
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-4, atol=1e-5)


def test_nothing_is_copied_where_tensors_lie_as_the_operator_wants_them(monkeypatch):
    p = problem("window:5,3", **F32)
    inputs, attend, bound = list(make(p, 0).values()), adapter.build(p), {}
    bind = attend._bind
    monkeypatch.setattr(attend, "_bind", lambda n, x: (bound.update({n: x}), bind(n, x)))
    out = attend(*inputs)
    for name, x in zip(("q", "k", "v", "out"), (*inputs, out), strict=True):
        assert bound[name].data_ptr() == x.data_ptr(), name
    turned = inputs[0].transpose(1, 2).contiguous().transpose(1, 2)  # tokens first in memory
    torch.testing.assert_close(attend(turned, *inputs[1:]), out, rtol=0, atol=0)


@pytest.mark.parametrize(("opset", "dtype"), [(25, "float32"), (23, "float64")])
def test_what_it_would_take_apart_into_small_operators_is_refused(monkeypatch, opset, dtype):
    monkeypatch.setattr(adapter, "OPSET", opset)
    monkeypatch.setattr(adapter, "KINDS", {**adapter.KINDS, "float64": "DOUBLE"})
    with pytest.raises(Unavailable, match=r"would run \d\d operators in the place of Attention"):
        adapter.build(problem("causal", dtype=dtype))


def test_its_memory_is_seen_though_torch_has_no_part_in_it(bench):
    p = problem("none", length=2400, batch=1, **F32)
    record = bench.measure(Job(TABLE.find("onnxruntime"), p, budget_s=0.01))
    assert record.memory.peak_bytes == pytest.approx(record.memory.expected_bytes, rel=0.25)
