"""Attention that a program writes out: a product, a softmax and a product.

Where a softmax is taken of something that has as many numbers as a product before it, and the next
product takes its result, these are attention. Queries, keys and values are the products' operands;
the scale and the mask are read off the scores, by taking the plain product of queries and keys from
them. That is done for the first calls of a place, and later as far as the program has time for it.
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
from attnbench.models.mask_of import hides

Function = Callable[..., Any]
ACTIVATION = 3  # dimensions of an activation, at least
BACK, ON = 4, 2
"""Products before a softmax that may have made its scores, and after it that may use it."""
FIRST = 4  # calls of a place that are looked at however long that takes
REMEMBERED = 1024
CLOSE, ROUNDED = 2e-2, 64
"""Largest distance of a score from its parts: a share of the largest score, and no more than so
many times what the dtype tells apart."""
ENOUGH = 64  # scores, at the least, of which it is said how they are bent
PROXY = torch._C._TorchDispatchModeKey.PROXY


class Product(NamedTuple):
    """A product as rows [..., n, d] and columns [..., m, d], and how its result lies."""

    name: str
    rows: Tensor
    columns: Tensor
    order: tuple[int, ...]  # the axes of the result, as [..., n, m] has them
    span: Span | None = None
    numbers: int = 0


class Scores(NamedTuple):
    """The scale and the mask between scores and the plain product; ``note``: what was not read."""

    scale: float
    mask: Tensor | None = None
    note: str = ""


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

    def softmax(self, recorder: Recorder, scores: Tensor, dim: int, out: Tensor) -> None:
        """A softmax of scores, or of anything else."""
        product = next((p for p in reversed(self.products) if p.numbers == out.numel()), None)
        self.products.clear()
        self.weights = None
        apart = product is not None and scores.dim() != len(product.order)  # heads and batch
        if product is None or (apart and dim not in (-1, scores.dim() - 1)):
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
                        place.scores = read_scores(product, scores.detach())
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
    if used.numel() != values.numel() or (*used.shape[-2:], after.columns.shape[-1]) != (n, m, m):
        return False
    assert place.scores is not None and product.span is not None
    (scale, mask, note), ends = place.scores, (product.rows, product.columns, after.columns.mT)
    q, k, v = (x.unflatten(0, (-1, heads)) if heads and x.dim() == 3 else x for x in ends)
    if mask is not None and product.rows.dim() == 3:
        by_head = heads and mask.dim() == 3 and mask.shape[0] > 1
        mask = _fewest(mask.unflatten(0, (-1, heads))) if by_head else mask.expand(1, -1, -1, -1)
    if look and place.note is None:
        place.dropout, place.note = _after(values.detach(), used.detach(), product)
    words = product.name, q, k, v, mask, False, scale, place.dropout
    call = CapturedCall(*words, api="products", note=note or place.note or "", ends=ends)
    call = call._replace(weights_used=place.weights_used)
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


def _as_scores(x: Tensor, product: Product) -> Tensor:
    """A tensor that lies as the product's result does, as [..., n, m]."""
    if x.dim() == len(product.order):
        return x.permute([product.order.index(axis) for axis in range(x.dim())])
    rows, columns = product.rows.shape, product.columns.shape
    return x.reshape(*torch.broadcast_shapes(rows[:-2], columns[:-2]), rows[-2], columns[-2])


def read_scores(product: Product, scores: Tensor) -> Scores:
    """The scale and the mask of scores, found against the plain product."""
    rows, columns = product.rows.detach(), product.columns.detach()
    width, dtype = rows.shape[-1], scores.dtype
    eps = max(torch.finfo(x.dtype).eps for x in (rows, scores))
    plain = (rows @ columns.mT).float()
    actual = _as_scores(scores, product).float()
    visible = actual > hides(dtype)
    if not bool(visible.any()):
        return Scores(width**-0.5, None, "its mask hides everything")
    x, y = plain[visible], actual[visible]
    off = min(CLOSE, ROUNDED * eps) * float(x.abs().max())
    usual = (width**-0.5, 1.0)  # queries may have been scaled before
    free = float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())
    for scale in (*usual, free):
        if bool(((y - scale * x).abs() <= off * max(abs(scale), 1e-6)).all()):
            return Scores(_before(scale, width), None if bool(visible.all()) else _fewest(visible))
    near = [s for s in usual if abs(free / s - 1) < 0.1]
    scale = near[0] if near else free
    if y.numel() >= ENOUGH and abs(_correlation(y - scale * x, x**3)) > 0.5:
        return Scores(scale, None, "its scores are capped, or bent in another way")
    bias = _fewest(torch.where(visible, actual - scale * plain, -torch.inf))
    if bias.dim() == 4 and bias.shape[0] > 1:
        return Scores(scale, None, "what is done to its scores is more than a scale and a mask")
    return Scores(_before(scale, width), bias.to(dtype))


def _correlation(x: Tensor, y: Tensor) -> float:
    x, y = x - x.mean(), y - y.mean()
    return float((x * y).mean() / (x.std() * y.std()).clamp(min=1e-30))


def _before(scale: float, width: int) -> float:
    """The scale, where queries that were multiplied before have theirs in themselves."""
    return width**-0.5 if scale == 1.0 else scale


def _fewest(x: Tensor) -> Tensor:
    """A table over [..., n, m] without the leading axes along which it is the same."""
    for axis in range(x.dim() - 2):
        first = x.narrow(axis, 0, 1)
        same = (x == first) | ((x - first).abs() < 1e-3) if x.is_floating_point() else x == first
        if bool(same.all()):
            x = first
    return x


def _after(values: Tensor, used: Tensor, product: Product) -> tuple[float, str]:
    """The share of weights that is dropped, and a note where more is done to them."""
    plain = _as_scores(values, product).float()
    used = used.reshape(plain.shape).float()
    left = (used != 0) & (plain > 0)  # what is left is divided by its share
    more = float((used[left] / plain[left]).median()) if bool(left.any()) else 1.0
    if torch.allclose(used[left], more * plain[left], 0.1, 0.02) and more > 0.99:
        return (0.0 if torch.allclose(plain, used, atol=1e-2) else round(1 - 1 / more, 3)), ""
    return 0.0, "its weights are changed between the softmax and the product"


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

    def softmax(*args: Any, **more: Any) -> Any:
        out = original(*args, **more)
        recorder = NOW.recorder
        if recorder is None or torch.compiler.is_compiling() or not recent.products:
            return out
        state, since = NOW.state(), perf_counter()
        if _activation(out) and not (state.outer or state.heads or _traced()):
            scores = args[0] if args else more["input"]
            dim = args[1] if len(args) > 1 else more.get("dim", -1)
            try:
                recent.softmax(recorder, scores, -1 if dim is None else int(dim), out)
            except Exception as error:
                recorder.report_failure(error)
        state.looked += perf_counter() - since
        return out

    return softmax


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
