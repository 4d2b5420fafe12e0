"""Attention that a program writes out as a product, a softmax and a product: met, not recorded.

Which problem it is can't be told from its parts (where the mask comes in, which axis is which), but
that it was there can: a softmax over as many numbers as a product of two activations just gave,
whose outcome goes into a product. Activations have three dimensions or more, so that layers, whose
weights have two, are no such products, and a classifier's softmax is no attention.
"""

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
from attnbench.models.capture.where import told, where

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node

    from attnbench.models.capture.now import Now

ACTIVATION = 3
"""Dimensions of one, at the least."""
BACK, ON = 4, 2
"""How many products before a softmax may have made its scores, and how many after it may use it."""
PRODUCTS = ("matmul", "bmm", "baddbmm", "__matmul__")
SOFTMAX = "softmax"
PROXY = torch._C._TorchDispatchModeKey.PROXY
WHOLE = ("multi_head_attention_forward", "_native_multi_head_attention",
         "_transformer_encoder_layer_fwd")  # fmt: skip
"""Functions of torch's that a graph may have in one piece."""
COMPILED = (
    "torch.compile compiled nn.MultiheadAttention or its encoder layer in one piece, or attention "
    "that is written out; the former is recorded in a run without compiling"
)
"""Why attention in a compiled graph has no site."""


class _Seen(threading.local):
    """What a thread has just computed, by the number of numbers."""

    def __init__(self) -> None:
        self.products: deque[int] = deque(maxlen=BACK)
        self.weights, self.left = 0, 0


def put(stands: Stands, now: Now) -> None:
    """Stand for products and softmax."""
    seen = _Seen()
    for name in ("matmul", "bmm", "baddbmm", "einsum"):
        stands.put(torch, name, lambda o: product(o, now, seen))
    stands.put(torch, SOFTMAX, lambda o: softmax(o, now, seen))
    for name in PRODUCTS:
        stands.put(Tensor, name, lambda o: product(o, now, seen))
    stands.put(Tensor, SOFTMAX, lambda o: softmax(o, now, seen))


def product(original: Original, now: Now, seen: _Seen) -> Function:
    """A product: of queries and keys, of weights and values, or of anything else."""

    def note(given: tuple[Any, ...], out: Tensor) -> None:
        operands = [x for x in given if isinstance(x, Tensor)]
        operands += [x for some in given if isinstance(some, list | tuple) for x in some]
        if all(map(_activation, operands)):
            if seen.left and seen.weights in [x.numel() for x in operands]:
                seen.weights = seen.left = 0
                now.written_out(told(where()))
            seen.left = max(0, seen.left - 1)
            seen.products.append(out.numel())

    def product(*given: Any, **more: Any) -> Any:
        if torch.compiler.is_compiling():
            return original.call(*given, **more)
        out = original.call(*given, **more)
        if now.on and isinstance(out, Tensor) and out.dim() >= ACTIVATION:
            begun, state = perf_counter(), now.state()
            if state.outer is None and not state.heads and not _traced():  # else it is a part
                note(given, out)
            state.looked += perf_counter() - begun
        return out

    return product


def softmax(original: Original, now: Now, seen: _Seen) -> Function:
    """A softmax: of scores, or of anything else."""

    def softmax(*given: Any, **more: Any) -> Any:
        if torch.compiler.is_compiling():
            return original.call(*given, **more)
        out = original.call(*given, **more)
        if now.on and isinstance(out, Tensor) and not _traced():
            scores = out.numel() in seen.products and _activation(out)
            seen.weights, seen.left = (out.numel(), ON) if scores else (0, 0)
            seen.products.clear()
        return out

    return softmax


def _traced() -> bool:
    """Whether a compiler calls functions to learn what they return; nothing is computed then."""
    return TracingContext.try_get() is not None or torch._C._get_dispatch_mode(PROXY) is not None


def _activation(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dim() >= ACTIVATION and not x.is_nested


# ---- in what torch.compile compiles ------------------------------------------------------------


def put_graphs(stands: Stands, now: Now) -> None:
    """Stand for what hands a graph that was traced to its compiler."""
    from torch._dynamo.output_graph import OutputGraph

    def make(original: Original) -> Function:
        def call_user_compiler(self: Any, gm: GraphModule, *args: Any, **more: Any) -> Any:
            if (recorder := now.recorder) is not None:
                try:
                    recorder.not_put(COMPILED, sum(map(_is_attention, gm.graph.nodes)))
                except Exception as error:  # how graphs are kept may change with the version
                    recorder.failed(error)
            return original.call(self, gm, *args, **more)

        return call_user_compiler

    stands.put(OutputGraph, "call_user_compiler", make)


def _is_attention(node: Node) -> bool:
    """Whether it is attention without a site: torch's in one piece, or the softmax of another."""
    if _named(node) in WHOLE:
        return True
    if node.op == "placeholder" or _named(node) != SOFTMAX:
        return False
    before = _reaches(node, lambda n: n.all_input_nodes)
    return before and _reaches(node, lambda n: list(n.users))


def _named(node: Node) -> str:
    if node.target is operator.matmul:
        return "matmul"
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def _reaches(start: Node, step: Any) -> bool:
    """Whether a product of activations is met along these steps, before a layer is."""
    todo, met = list(step(start)), set[Any]()
    while todo:
        node = todo.pop()
        if node in met or node.op in ("placeholder", "output"):
            continue
        met.add(node)
        if _named(node) in (*PRODUCTS, "einsum"):
            made = [n.meta.get("example_value") for n in node.all_input_nodes]
            if all(_activation(x) for x in made):
                return True
        elif node.target is not F.linear and _named(node) not in ("linear", "layer_norm", SOFTMAX):
            todo += step(node)
    return False
