"""Scores and weights of attention that is written out, read against the plain product."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from attnbench.models.capture.clocks import Span
from attnbench.models.mask_of import hides

CLOSE, ROUNDED = 2e-2, 64
"""Largest distance of a score from its parts: a share of the largest score, and no more than so
many times what the dtype tells apart."""
ENOUGH = 64  # scores, at the least, of which it is said how they are bent
SOME = 1 << 16  # numbers that are kept of a tanh
BENT = "its scores are capped, or bent in another way"


class Product(NamedTuple):
    """A product as rows [..., n, d] and columns [..., m, d], and how its result lies."""

    name: str
    rows: Tensor
    columns: Tensor
    order: tuple[int, ...]  # the axes of the result, as [..., n, m] has them
    span: Span | None = None
    numbers: int = 0
    tanh: Tensor | None = None
    """A sample of the tanh of its result, if the program took one."""


class Scores(NamedTuple):
    """What lies between scores and the plain product; ``note``: what was not read."""

    scale: float
    mask: Tensor | None = None
    note: str = ""
    softcap: float | None = None
    sinks: Tensor | None = None
    """The sink of each head, [...] as the product's leading axes."""


Parts = tuple[Tensor, Tensor, Tensor]
"""The plain product, the scores, and what is visible, each [..., n, m]."""


def sample(x: Tensor) -> Tensor:
    """Some of its numbers, evenly spread."""
    return x.flatten()[:: max(1, x.numel() // SOME)]


def _as_scores(x: Tensor, product: Product) -> Tensor:
    """A tensor that lies as the product's result does, as [..., n, m]."""
    if x.dim() == len(product.order):
        return x.permute([product.order.index(axis) for axis in range(x.dim())])
    rows, columns = product.rows.shape, product.columns.shape
    return x.reshape(*torch.broadcast_shapes(rows[:-2], columns[:-2]), rows[-2], columns[-2])


def read_scores(product: Product, scores: Tensor, column: Tensor | None = None) -> Scores:
    """The parts of scores, found against the plain product; ``column``: those of one key more."""
    rows, columns = product.rows.detach(), product.columns.detach()
    usual = (rows.shape[-1] ** -0.5, 1.0)  # queries may have been scaled before
    plain = (rows @ columns.mT).float()
    actual = _as_scores(scores, product).float()
    visible = actual > hides(scores.dtype)
    if not bool(visible.any()):
        return Scores(usual[0], None, "its mask hides everything")
    off = min(CLOSE, ROUNDED * max(torch.finfo(x.dtype).eps for x in (rows, scores)))
    parts, shift = (plain, actual, visible), torch.zeros(())
    if product.tanh is not None:
        read = _capped(product.tanh, scores, parts, usual, off)
    else:
        scale = _scale(plain[visible], actual[visible], usual, off)
        if scale is None:  # what is added to a row as a whole changes no weight
            (x_mean, x), (y_mean, y) = (_about_mean(t, visible) for t in (plain, actual))
            if (scale := _scale(x, y, usual, off)) is not None:
                shift = y_mean - scale * x_mean
        if scale is None:
            read = _with_bias(parts, usual, scores.dtype)
        else:
            read = Scores(_before(scale, usual), _hiding(visible))
    if column is None:
        return read
    if column.dim() == len(product.order):
        column = _as_scores(column, product)
    column = column.reshape(*visible.shape[:-1], 1)
    near = off * (1 + float(column.abs().max()))
    return _with_sinks(read, column.float() - shift, visible, near)


def _hiding(visible: Tensor) -> Tensor | None:
    return None if bool(visible.all()) else fewest(visible)


def _slope(x: Tensor, y: Tensor) -> float:
    x, y = x - x.mean(), y - y.mean()
    return float((x * y).sum() / (x * x).sum())


def _scale(x: Tensor, y: Tensor, usual: tuple[float, ...], off: float) -> float | None:
    """The factor by which y is x, if it is."""
    near = off * float(x.abs().max())
    for scale in (*usual, _round(_slope(x, y), off)):
        if bool(((y - scale * x).abs() <= near * max(abs(scale), 1e-6)).all()):
            return scale
    return None


def _about_mean(x: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of what is visible in each row, and what is visible less that mean."""
    seen = x.where(visible, 0.0)
    mean = seen.sum(-1, keepdim=True) / visible.sum(-1, keepdim=True).clamp(min=1)
    return mean, (x - mean)[visible]


def _capped(
    tanh: Tensor,
    scores: Tensor,
    parts: Parts,
    usual: tuple[float, ...],
    off: float,
) -> Scores:
    """Scores that are a tanh times the cap."""
    plain, actual, visible = parts
    some = sample(scores).float()
    if some.shape != tanh.shape:
        return Scores(usual[0], None, BENT)
    seen = some > hides(scores.dtype)
    y, t = some[seen], tanh.float()[seen]
    cap = _round(float((y * t).sum() / (t * t).sum()), off)
    x, y = plain[visible], actual[visible]
    inner = (y / cap).abs() < 0.9  # of what lies close to the cap not much is to be read
    slope = _slope(x[inner], cap * torch.atanh(y[inner] / cap)) if bool(inner.any()) else usual[0]
    for scale in (*usual, _round(slope, off)):
        near = off * float(y.abs().max())
        if bool(((y - cap * torch.tanh(scale * x / cap)).abs() <= near).all()):
            return Scores(_before(scale, usual), _hiding(visible), "", cap)
    return Scores(usual[0], None, BENT)


def _round(x: float, off: float) -> float:
    """The shortest number that is as close as can be told."""
    short = (float(f"{x:.{digits}g}") for digits in range(1, 7))
    return next((n for n in short if abs(n - x) <= off / 4 * abs(n)), x)


def _with_sinks(read: Scores, column: Tensor, visible: Tensor, near: float) -> Scores:
    """These, with the sinks that a last column [..., n, 1] of scores is."""
    seen = visible.any(-1, keepdim=True)
    low, high = column.where(seen, torch.inf).amin((-2, -1)), column.where(seen, -torch.inf)
    high = high.amax((-2, -1))
    if bool((high - low > near).any()):
        return read._replace(note=read.note or "a column beside its scores is none of sinks")
    return read._replace(sinks=low)


def of_a_head(sinks: Tensor) -> Tensor:
    """Sinks [batch, heads] as [heads], where they are alike in the batch; others as they are."""
    near = 4 * CLOSE * (1 + sinks.abs().max())
    alike = sinks.dim() == 2 and bool(((sinks - sinks[:1]).abs() <= near).all())
    return sinks[0] if alike else sinks


def _with_bias(parts: Parts, usual: tuple[float, ...], dtype: torch.dtype) -> Scores:
    """Scores to which something is added."""
    plain, actual, visible = parts
    x, y = plain[visible], actual[visible]
    free = _slope(x, y)
    near = [s for s in usual if abs(free / s - 1) < 0.1]
    scale = near[0] if near else _round(free, CLOSE)
    if y.numel() >= ENOUGH and abs(_correlation(y - scale * x, x**3)) > 0.5:
        return Scores(scale, None, BENT)
    bias = fewest(torch.where(visible, actual - scale * plain, -torch.inf))
    if bias.dim() == 4 and bias.shape[0] > 1:
        return Scores(scale, None, "what is done to its scores is more than a scale and a mask")
    return Scores(_before(scale, usual), bias.to(dtype))


def _correlation(x: Tensor, y: Tensor) -> float:
    x, y = x - x.mean(), y - y.mean()
    return float((x * y).mean() / (x.std() * y.std()).clamp(min=1e-30))


def _before(scale: float, usual: tuple[float, ...]) -> float:
    """The scale, where queries that were multiplied before have theirs in themselves."""
    return usual[0] if scale == 1.0 else scale


def fewest(x: Tensor) -> Tensor:
    """A table over [..., n, m] without the leading axes along which it is the same."""
    for axis in range(x.dim() - 2):
        first = x.narrow(axis, 0, 1)
        same = (x == first) | ((x - first).abs() < 1e-3) if x.is_floating_point() else x == first
        if bool(same.all()):
            x = first
    return x


def read_weights(values: Tensor, used: Tensor, product: Product) -> tuple[float, str]:
    """The share of weights that is dropped, and a note where more is done to them."""
    plain = _as_scores(values, product).float()
    used = used.reshape(plain.shape).float()
    left = (used != 0) & (plain > 0)  # what is left is divided by its share
    more = float((used[left] / plain[left]).median()) if bool(left.any()) else 1.0
    if torch.allclose(used[left], more * plain[left], 0.1, 0.02) and more > 0.99:
        return (0.0 if torch.allclose(plain, used, atol=1e-2) else round(1 - 1 / more, 3)), ""
    return 0.0, "its weights are changed between the softmax and the product"
