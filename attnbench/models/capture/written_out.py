"""Attention that has no site: written out as products and a softmax, or inside a compiled graph."""

from __future__ import annotations

import operator
import threading
from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._guards import TracingContext

from attnbench.models.capture.originals import Function, Original, Stands
from attnbench.models.capture.places import place_text, where
from attnbench.models.capture.recorder import NOW

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node

ACTIVATION = 3
"""Dimensions of an activation, at least."""
BACK, ON = 4, 2
"""How many products before a softmax may have made its scores, and how many after it may use it."""
PRODUCTS = ("matmul", "bmm", "baddbmm", "__matmul__")
PROXY = torch._C._TorchDispatchModeKey.PROXY
WHOLE = (
    "multi_head_attention_forward",
    "_native_multi_head_attention",
    "_transformer_encoder_layer_fwd",
)
"""Functions of torch's that a graph may have in one piece."""
COMPILED = (
    "torch.compile compiled nn.MultiheadAttention or its encoder layer in one piece, or attention "
    "that is written out; the former is recorded in a run without compiling"
)
"""Why attention in a compiled graph has no site."""


class _Recent(threading.local):
    """What a thread has just computed, by the number of numbers."""

    def __init__(self) -> None:
        self.products: deque[int] = deque(maxlen=BACK)
        self.weights, self.left = 0, 0


def put_written_out(stands: Stands) -> None:
    """Stand for products and softmax."""
    recent = _Recent()
    for name in ("matmul", "bmm", "baddbmm", "einsum"):
        stands.put(torch, name, lambda o: _product(o, recent))
    for name in PRODUCTS:
        stands.put(Tensor, name, lambda o: _product(o, recent))
    for owner in (torch, Tensor):
        stands.put(owner, "softmax", lambda o: _softmax(o, recent))


def _product(original: Original, recent: _Recent) -> Function:
    """A product: of queries and keys, of weights and values, or of anything else."""

    def note(given: tuple[Any, ...], out: Tensor) -> None:
        operands = [x for x in given if isinstance(x, Tensor)]
        operands += [x for some in given if isinstance(some, list | tuple) for x in some]
        if all(map(_activation, operands)):
            if recent.left and recent.weights in [x.numel() for x in operands]:
                recent.weights = recent.left = 0
                if (recorder := NOW.recorder) is not None:
                    recorder.written_out[place_text(where())] += 1
                    recorder.noticed()
            recent.left = max(0, recent.left - 1)
            recent.products.append(out.numel())

    def product(*given: Any, **more: Any) -> Any:
        out = original.call(*given, **more)
        if torch.compiler.is_compiling() or NOW.recorder is None:
            return out
        if isinstance(out, Tensor) and out.dim() >= ACTIVATION:
            begun, state = perf_counter(), NOW.state()
            if state.outer is None and not state.heads and not _traced():  # else it is a part
                note(given, out)
            state.looked += perf_counter() - begun
        return out

    return product


def _softmax(original: Original, recent: _Recent) -> Function:
    """A softmax: of scores, or of anything else."""

    def softmax(*given: Any, **more: Any) -> Any:
        out = original.call(*given, **more)
        if torch.compiler.is_compiling() or NOW.recorder is None:
            return out
        if isinstance(out, Tensor) and not _traced():
            scores = out.numel() in recent.products and _activation(out)
            recent.weights, recent.left = (out.numel(), ON) if scores else (0, 0)
            recent.products.clear()
        return out

    return softmax


def _traced() -> bool:
    """Whether a compiler calls functions to learn what they return; nothing is computed then."""
    return TracingContext.try_get() is not None or torch._C._get_dispatch_mode(PROXY) is not None


def _activation(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dim() >= ACTIVATION and not x.is_nested


def put_graphs(stands: Stands) -> None:
    """Stand for what hands a graph that was traced to its compiler."""
    from torch._dynamo.output_graph import OutputGraph

    def make(original: Original) -> Function:
        def call_user_compiler(self: Any, gm: GraphModule, *args: Any, **more: Any) -> Any:
            if (recorder := NOW.recorder) is not None:
                try:
                    if calls := sum(map(_is_attention, gm.graph.nodes)):
                        recorder.failures[COMPILED] += calls
                        recorder.noticed()
                except Exception as error:  # how graphs are kept may change with the version
                    recorder.failed(error)
            return original.call(self, gm, *args, **more)

        return call_user_compiler

    stands.put(OutputGraph, "call_user_compiler", make)


def _is_attention(node: Node) -> bool:
    """Whether it is attention without a site: torch's in one piece, or the softmax of another."""
    if _name(node) in WHOLE:
        return True
    if node.op == "placeholder" or _name(node) != "softmax":
        return False
    before = _reaches_product(node, lambda n: n.all_input_nodes)
    return before and _reaches_product(node, lambda n: list(n.users))


def _name(node: Node) -> str:
    if node.target is operator.matmul:
        return "matmul"
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def _reaches_product(start: Node, step: Any) -> bool:
    """Whether these steps lead to a product of activations before they lead to a layer."""
    todo, met = list(step(start)), set[Any]()
    while todo:
        node = todo.pop()
        if node in met or node.op in ("placeholder", "output"):
            continue
        met.add(node)
        name = _name(node)
        if name in (*PRODUCTS, "einsum"):
            operands = [n.meta.get("example_value") for n in node.all_input_nodes]
            if all(_activation(x) for x in operands):
                return True
        elif node.target is not F.linear and name not in ("linear", "layer_norm", "softmax"):
            todo += step(node)
    return False
