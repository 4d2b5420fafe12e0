"""Attention that a program writes out: a product, a softmax and a product.

Where a softmax is taken of something that has as many numbers as a product before it, and the next
product takes its result, these are attention. Queries, keys and values are the products' operands;
the scale and the mask are read off the scores, by taking the plain product of queries and keys from
them. A soft cap shows by its ``tanh``, and sinks by a last column of scores that is alike for all
queries. That is done for the first calls of a place, and later as far as the program has time.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._guards import TracingContext

from attnbench.models.capture.captured_call import CapturedCall
from attnbench.models.capture.clocks import Span
from attnbench.models.capture.places import locate
from attnbench.models.capture.readers import may_use
from attnbench.models.capture.recorder import NOW, Recorder
from attnbench.models.capture.scores import (
    Product,
    Scores,
    fewest,
    of_a_head,
    read_scores,
    read_weights,
    sample,
)

Function = Callable[..., Any]
ACTIVATION = 3  # dimensions of an activation, at least
BACK, ON = 4, 2
"""Products before a softmax that may have made its scores, and after it that may use it."""
FIRST = 4  # calls of a place that are looked at however long that takes
REMEMBERED = 1024
PROXY = torch._C._TorchDispatchModeKey.PROXY


class HandWritten:
    """A place where attention is written out, and what was read of its calls."""

    def __init__(self) -> None:
        self.looks = 0
        self.scores: Scores | None = None
        self.dropout = 0.0
        self.note: str | None = None  # what is done to the weights; None before it was looked at
        self.weights: list[weakref.ref[Tensor]] = []
        """Those of the last call, which are alive at the next one if they are used."""
        self.weights_used = False


class Weights(NamedTuple):
    """A softmax of a product."""

    product: Product
    values: Tensor
    place: HandWritten
    look: bool  # whether this call is looked at
    heads: int  # where batch and heads are one axis of the product, and are two of its scores


class Recent(threading.local):
    """The latest products and softmax of a thread."""

    def __init__(self) -> None:
        self.products: deque[Product] = deque(maxlen=BACK)
        self.weights: Weights | None = None
        self.left = 0
        self.places: dict[Any, HandWritten] = {}

    def product(self, name: str, operands: Any, out: Tensor, span: Span) -> None:
        """A product of queries and keys, of weights and values, or of anything else."""
        if (product := _read_product(name, operands)) is None:
            return
        if self.weights is not None:
            weights, self.weights = self.weights, None
            if _record(weights, product, out, span.end):
                self.products.clear()
                return
            self.left -= 1
            self.weights = weights if self.left else None
        self.products.append(product._replace(span=span, numbers=out.numel()))

    def tanh(self, out: Tensor) -> None:
        """A tanh of scores, or of anything else."""
        for number, product in enumerate(self.products):
            if product.numbers == out.numel():
                self.products[number] = product._replace(tanh=sample(out.detach()).clone())

    def softmax(self, recorder: Recorder, scores: Tensor, dim: int, out: Tensor) -> None:
        """A softmax of scores, or of anything else."""
        last, sinks = dim in (-1, scores.dim() - 1), None
        product = next((p for p in reversed(self.products) if p.numbers == out.numel()), None)
        if product is None and last and scores.shape[-1] > 1:
            rows = out.numel() // scores.shape[-1]
            ends = (p for p in reversed(self.products) if p.numbers == out.numel() - rows)
            if (product := next(ends, None)) is not None:
                scores, sinks = scores[..., :-1], scores[..., -1:].detach()
        self.products.clear()
        self.weights = None
        apart = product is not None and scores.dim() != len(product.order)  # heads and batch
        if product is None or (apart and not last):
            return
        if len(self.places) > REMEMBERED:
            self.places.clear()
        key = locate(), tuple(product.rows.shape), tuple(product.columns.shape)
        place = self.places.setdefault(key, HandWritten())
        place.looks += 1
        place.weights_used |= any(x() is not None for x in place.weights)
        place.weights = []
        if look := place.looks <= FIRST or recorder.affordable():
            state = NOW.state()
            state.outer = "a look"  # what looking computes is no attention of the program's
            try:
                if apart or product.order[dim] == len(product.order) - 1:
                    with torch.no_grad():
                        place.scores = read_scores(product, scores.detach(), sinks)
                else:
                    place.scores = Scores(1.0, None, "its softmax is not taken over the keys")
            finally:
                state.outer = None
        if place.scores is not None:  # which it is where looking failed
            heads = scores.shape[1] if scores.dim() == 4 and product.rows.dim() == 3 else 0
            self.weights, self.left = Weights(product, out, place, look, heads), ON


def _record(weights: Weights, after: Product, out: Tensor, end: Any) -> bool:
    """Record the call, if the second product takes the softmax's result."""
    product, values, place, look, heads = weights
    used, (n, m) = after.rows, (product.rows.shape[-2], product.columns.shape[-2])
    beside = values if values.numel() == product.numbers else values[..., :-1]
    if used.numel() != beside.numel() or (*used.shape[-2:], after.columns.shape[-1]) != (n, m, m):
        return False
    assert place.scores is not None and product.span is not None
    read, ends = place.scores, (product.rows, product.columns, after.columns.mT)
    mask, sinks = read.mask, read.sinks
    q, k, v = (x.unflatten(0, (-1, heads)) if heads and x.dim() == 3 else x for x in ends)
    if mask is not None and product.rows.dim() == 3:
        by_head = heads and mask.dim() == 3 and mask.shape[0] > 1
        mask = fewest(mask.unflatten(0, (-1, heads))) if by_head else mask.expand(1, -1, -1, -1)
    if sinks is not None:
        sinks = of_a_head(sinks.unflatten(0, (-1, heads)) if heads else sinks)
        if sinks.dim() == 2:  # no batch, but groups and their heads
            q, k, v = (x.flatten(0, 1)[None] for x in (q, k, v))
            if mask is not None and mask.shape[:2] != (1, 1):
                mask = fewest(mask.expand(*sinks.shape, -1, -1).flatten(0, 1)[None])
            sinks = sinks.flatten()
    if look and place.note is None:
        place.dropout, place.note = read_weights(beside.detach(), used.detach(), product)
    words = product.name, q, k, v, mask, False, read.scale, place.dropout
    caps: Any = {"softcap": read.softcap, "sinks": sinks, "weights_used": place.weights_used}
    note = read.note or place.note or ""
    call = CapturedCall(*words, api="products", note=note, ends=ends, **caps)
    if look and not out.requires_grad:  # else what computes gradients holds them too
        place.weights = [weakref.ref(x) for x in (values, used) if may_use(x)]
    span = product.span._replace(end=end)
    if isinstance(span.start, float):
        span = span._replace(start=span.start + NOW.state().looked - span.looked)
    NOW.record(lambda: call, out, span)
    return True


def _read_product(name: str, operands: Sequence[Any]) -> Product | None:
    """Rows, columns and the order of the result's axes; None for what is no such product."""
    if name == "einsum":
        words, *tensors = operands
        tensors = list(tensors[0]) if isinstance(tensors[0], list | tuple) else tensors
        whole = len(tensors) == 2 and isinstance(words, str) and all(map(_activation, tensors))
        return _of_einsum(words.replace(" ", ""), *tensors) if whole else None
    a, b = operands[-2:]
    if not (_activation(a) and _activation(b)):
        return None
    return Product(name, a, b.mT, tuple(range(max(a.dim(), b.dim()))))


def _of_einsum(words: str, a: Tensor, b: Tensor) -> Product | None:
    """Of an equation that names its result's axes, among them those that an ellipsis stands for."""
    one, two, out = words.replace("->", ",").split(",") if "->" in words else ("", "", "")
    others = "ABCDEFGH"[: a.dim() - len(one.replace(".", ""))]
    one, two, out = (x.replace("...", others) for x in (one, two, out))
    batch = [x for x in out if x in one and x in two]
    inner = [x for x in one if x in two and x not in out]
    row, column = ([x for x in out if x in some and x not in batch] for some in (one, two))
    if not len(inner) == len(row) == len(column) == 1 or len(out) != len(batch) + 2:
        return None
    if (len(one), len(two)) != (a.dim(), b.dim()) or not len(one) == len(two) == len(out):
        return None
    rows = a.permute([one.index(c) for c in (*batch, *row, *inner)])
    columns = b.permute([two.index(c) for c in (*batch, *column, *inner)])
    order = tuple((*batch, *row, *column).index(x) for x in out)
    return Product("einsum", rows, columns, order)


def _activation(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dim() >= ACTIVATION and not x.is_nested


def note_product(recent: Recent, name: str, original: Function) -> Function:
    """A product, noted unless a compiler only learns what it returns.

    In nn.MultiheadAttention the first product is its scores, and the second ends it.
    """

    def product(*args: Any, **more: Any) -> Any:
        recorder = NOW.recorder
        if recorder is None or torch.compiler.is_compiling():
            return original(*args, **more)
        state = NOW.state()
        if state.heads > 0 and name in ("bmm", "baddbmm"):
            return _of_mha(state, original, args, more)
        operands = (*args, *(x for x in more.values() if isinstance(x, Tensor)))
        last: Any = operands[-1] if operands else None
        if isinstance(last, list | tuple) and last:
            last = last[0]
        if not _activation(last) or state.outer or state.heads or _traced():
            return original(*args, **more)
        span = recorder.begin(last)
        out = original(*args, **more)
        span = span._replace(end=span.clock.now())
        since, before = perf_counter(), state.looked
        if _activation(out):
            try:
                recent.product(name, operands, out, span)
            except Exception as error:
                recorder.report_failure(error)
        state.looked = before + perf_counter() - since
        return out

    return product


def note_softmax(recent: Recent, original: Function) -> Function:
    """A softmax, noted likewise."""

    def look(recorder: Recorder, args: Any, more: Any, out: Tensor) -> None:
        scores = args[0] if args else more["input"]
        dim = args[1] if len(args) > 1 else more.get("dim", -1)
        recent.softmax(recorder, scores, -1 if dim is None else int(dim), out)

    return _note_after(recent, original, look)


def note_tanh(recent: Recent, original: Function) -> Function:
    """A tanh, noted likewise."""
    return _note_after(recent, original, lambda _, args, more, out: recent.tanh(out))


def _note_after(recent: Recent, original: Function, look: Callable[..., None]) -> Function:
    """A function whose result is looked at where products were before it."""

    def function(*args: Any, **more: Any) -> Any:
        out = original(*args, **more)
        recorder = NOW.recorder
        if recorder is None or torch.compiler.is_compiling() or not recent.products:
            return out
        state, since = NOW.state(), perf_counter()
        if _activation(out) and not (state.outer or state.heads or _traced()):
            try:
                look(recorder, args, more, out)
            except Exception as error:
                recorder.report_failure(error)
        state.looked += perf_counter() - since
        return out

    return function


def _traced() -> bool:
    return TracingContext.try_get() is not None or bool(torch._C._get_dispatch_mode(PROXY))


def _of_mha(state: Any, original: Function, args: tuple[Any, ...], more: dict[str, Any]) -> Any:
    if state.scores is None:
        span = NOW.begin(args[-2])
        state.scores = span, *args[-2:], args[0] if len(args) > 2 else None
        return original(*args, **more)
    (span, q, k, mask), state.scores = state.scores, None
    heads, scale, out = state.heads, q.shape[-1] ** -0.5, original(*args, **more)

    def call() -> CapturedCall:
        ends: Any = q, k, args[-1]
        qh, kh, vh = (x.unflatten(0, (-1, heads)) for x in (q, k.mT, args[-1]))
        added = mask
        if mask is not None:
            added = mask.unflatten(0, (-1, heads)) if mask.shape[0] > 1 else mask[:, None]
        facts: Any = {"returns": "weights", "unread": state.unread, "ends": ends}
        return CapturedCall("mha", qh, kh, vh, added, scale=scale, api="mha", **facts)

    if span is not None:
        NOW.record(call, out, span)
    return out
