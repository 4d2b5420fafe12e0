"""ONNX's own reference of an operator, in NumPy."""

import importlib

import pytest
import torch

OPSET = 27
"""The first with LinearAttention."""


def computed(operator, inputs, outputs, **attributes):
    """What a node makes of tensors by name, in the order of its inputs; None where it has none."""
    onnx = pytest.importorskip("onnx", reason="onnx is not installed: the extra 'test' has it")
    helper, number = onnx.helper, onnx.TensorProto.FLOAT
    feeds = {n: x.detach().numpy() for n, x in inputs.items() if x is not None}
    names = [n if n in feeds else "" for n in inputs]
    node = helper.make_node(operator, names, outputs, **attributes)
    graph = helper.make_graph(
        [node], "one",
        [helper.make_tensor_value_info(n, number, x.shape) for n, x in feeds.items()],
        [helper.make_tensor_value_info(n, number, None) for n in outputs],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
    evaluator = importlib.import_module("onnx.reference").ReferenceEvaluator(model)
    return [torch.from_numpy(x) for x in evaluator.run(None, feeds)]
