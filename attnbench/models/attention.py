"""``attnbench.attention("chunked?block=64")``: a variant of the table as a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import impls
from attnbench.answer.paste import OWN
from attnbench.core.machine import this_machine, why_not
from attnbench.core.tuned import TunedOptions
from attnbench.models import wrong_level
from attnbench.models.mask_of import hides, known_mask, phase_of, problem_of
from impls.errors import CantBeDone
from impls.heads import Attend
from impls.loading import load_function
from impls.masks import OF_DATA, Mask, Shape
from impls.problem import Problem, is_usual
from impls.spec import DEVICES, Unsupported, Variant


def with_bias_gradient(
    out_bhne: Tensor,
    q_bhnd: Tensor,
    k_bcmd: Tensor,
    v_bcme: Tensor,
    terms: tuple[Tensor, ...],
    scale: float | None = None,
    is_causal: bool = False,
) -> Tensor:
    """``out``; those of ``terms``, which made the mask, that want a gradient get it through it."""
    if not torch.is_grad_enabled() or not any(term.requires_grad for term in terms):
        return out_bhne
    scale = q_bhnd.shape[-1] ** -0.5 if scale is None else scale
    data = (x.detach() for x in (q_bhnd, k_bcmd, v_bcme))
    apply: Any = _BiasGradient.apply  # torch leaves it untyped
    out: Tensor = apply(out_bhne, *data, scale, is_causal, *terms)
    return out


class _BiasGradient(torch.autograd.Function):
    """The identity of ``out``, whose backward makes the terms' gradients."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, *rest: Any) -> Tensor:
        *qkv, scale, is_causal = rest[:5]
        ctx.save_for_backward(out, *qkv, *rest[5:])
        ctx.scale, ctx.is_causal = scale, is_causal
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Any, ...]:
        if torch.is_grad_enabled():
            raise NotServed(
                "what is added to the scores is learned, and its gradient has no gradient of its "
                "own (create_graph=True): detach it, or use torch's own attention"
            )
        out, q, k, v, *terms = ctx.saved_tensors
        group = q.shape[1] // k.shape[1]
        k, v = (x.to(out.dtype).repeat_interleave(group, 1) for x in (k, v))
        scores = (q.to(out.dtype) @ k.mT) * ctx.scale
        for term in terms:
            boolean = term.dtype == torch.bool
            hidden = ~term if boolean else term <= hides(term.dtype)
            scores = (scores if boolean else scores + term).masked_fill(hidden, -torch.inf)
        if ctx.is_causal:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(later, -torch.inf)
        weights = scores.softmax(-1).nan_to_num(0.0)  # zero in rows that see nothing
        dscores = weights * (dout @ v.mT - (dout * out).sum(-1, keepdim=True))
        needs = ctx.needs_input_grad[6:]
        grads: list[Tensor | None] = []
        for term, want in zip(terms, needs, strict=True):  # a term was broadcast to the scores
            padded = (1,) * (4 - term.dim()) + tuple(term.shape)
            grad = dscores.sum_to_size(padded).reshape(term.shape).to(term.dtype) if want else None
            grads.append(grad)
        return dout, None, None, None, None, None, *grads


def fill_empty_rows(out: Tensor, value: Tensor, mask: Tensor | None, eager: bool = False) -> Tensor:
    """``out``, with the mean of all values at queries from which the mask hides every key by the
    lowest number of its dtype, which leaves nothing of any score. ``eager``: the mask's booleans
    stand for such numbers.
    """
    if mask is None or (mask.dtype == torch.bool and not eager):
        return out

    def look() -> Tensor | None:
        boolean = mask.dtype == torch.bool
        hidden = ~mask if boolean else (mask <= torch.finfo(mask.dtype).min / 2) & ~mask.isinf()
        empty = hidden.all(-1, keepdim=True)
        return empty if bool(empty.any()) else None

    if (empty := known_mask.about(mask, ("empty", eager), look)) is None:
        return out
    mean = value.mean(2, keepdim=True).repeat_interleave(out.shape[1] // value.shape[1], 1)
    return torch.where(empty, mean, out)


def laid_out_as(out: Tensor, query: Tensor) -> Tensor:
    """``out`` in memory as torch's own would be: its axes in the order of the query's, where that
    has its channels side by side, so that a model can look at it as it does at torch's.
    """
    strides = query.stride()
    if strides[3] != 1 or 0 in strides:
        return out.contiguous()
    order = [*sorted(range(3), key=lambda axis: -strides[axis]), 3]
    back = [order.index(axis) for axis in range(4)]
    return out.permute(order).contiguous().permute(back)


LASTING, PASSING = 32, 8
"""Problems that a variant is kept built for: with masks that follow from the shape, and with
masks of the data, whose tables may be as large as the scores."""
NO_BIAS_GRADIENT = (
    "what is added to the scores is learned, and under dropout its gradient can't be had; set the "
    "dropout of the attention's weights to 0"
)


class NotServed(CantBeDone):
    """This variant doesn't serve this call. The text says which, why, and what would serve it."""


class CallShape(NamedTuple):
    """All of a call that its problem follows from: a variant is built once for each."""

    q: tuple[int, ...]
    k: tuple[int, ...]
    v: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    mask: Mask
    phase: str
    dropout: float = 0.0


class Built:
    """A variant as a function of q, k and v, whatever their shapes; raises :class:`NotServed` for
    one that can't run here, and for calls that it doesn't serve.
    """

    def __init__(self, row: Variant) -> None:
        if (wrong := wrong_level(row)) is not None:
            raise NotServed(wrong)
        if (missing := why_not(row, this_machine())) is not None:
            remedy = f"; {missing.remedy}" if missing.remedy else ""
            raise NotServed(f"{missing.reason}{remedy}")
        self.row, self._tuned = row, TunedOptions(this_machine())
        self.lasting = lru_cache(maxsize=LASTING)(self._build)
        self.passing = lru_cache(maxsize=PASSING)(self._build)
        self._alike: dict[Any, Callable[[Problem], Attend]] = {}
        """By kind of problem, what a variant has compiled, the latest last."""

    def __repr__(self) -> str:
        return f"<attention {self.row.label}: {self.row.title}>"

    def __call__(
        self,
        q_bhnd: Tensor,
        k_bcmd: Tensor,
        v_bcme: Tensor,
        mask: Mask | str | Tensor | None = None,
        scale: float | None = None,
        is_causal: bool = False,
        dropout_p: float = 0.0,
    ) -> Tensor:
        """``out`` [b, h, n, e]; arguments after v as in F.scaled_dot_product_attention.

        A scale other than head_dim^-1/2, which every softmax applies, is had by multiplying q
        with the ratio: exact where that is a power of two, else one rounding more; an operator of
        its own has no scores to scale, and refuses it. A mask that requires a gradient gets it
        (:func:`with_bias_gradient`), though not under dropout. Under autocast q, k and v are cast
        to its dtype, doubles aside, as torch does, and the variant runs outside it.
        """
        qkv, kind = (q_bhnd, k_bcmd, v_bcme), q_bhnd.device.type
        if kind in DEVICES and torch.is_autocast_enabled(kind):
            to = torch.get_autocast_dtype(kind)
            q, k, v = (x if x.dtype == torch.float64 else x.to(to) for x in qkv)
            with torch.autocast(kind, enabled=False):
                return self(q, k, v, mask, scale, is_causal, dropout_p)
        self._check_tensors(*qkv)
        batch, heads, q_len, _ = q_bhnd.shape
        shape = Shape(batch, heads, q_len, k_bcmd.shape[2])
        whole = self._mask(mask, is_causal, shape)
        gradient = torch.is_grad_enabled() and any(x.requires_grad for x in qkv)
        phase = phase_of(shape, whole, gradient=gradient)
        one = q_bhnd.dtype, q_bhnd.device
        shapes = tuple(q_bhnd.shape), tuple(k_bcmd.shape), tuple(v_bcme.shape)
        call = CallShape(*shapes, *one, whole, phase, dropout_p)
        attend, scaled, usual = self.attend(call), q_bhnd, q_bhnd.shape[-1] ** -0.5
        if scale not in (None, usual):
            if self.row.computes != OWN:
                scaled = q_bhnd * (scale / usual)
            elif not is_usual(scale, q_bhnd.shape[-1]):
                raise self._refused(
                    f"scale={scale:.6g} is asked for, and it computes {OWN}, which no scale of "
                    "softmax's scores says anything of; leave the scale at head_dim**-0.5, "
                    f"{usual:.6g}, or take a variant that computes softmax"
                )
        try:
            out = attend(scaled, k_bcmd, v_bcme)
        except Unsupported as why:
            raise self._refused(str(why)) from None
        if not isinstance(mask, Tensor):
            return out
        if dropout_p and mask.requires_grad:
            raise self._refused(NO_BIAS_GRADIENT)
        out = with_bias_gradient(out, *qkv, (mask,), scale, is_causal)
        return fill_empty_rows(out, v_bcme, mask)

    def attend(self, call: CallShape) -> Attend:
        """``attend(q, k, v)`` for all calls of this shape: built now, or kept from before."""
        build = self.lasting if OF_DATA.isdisjoint(call.mask.kinds) else self.passing
        return build(call)

    def _check_tensors(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        (qs, ks, vs), one = (tuple(x.shape) for x in (q, k, v)), (q.dtype, q.device)
        if (k.dtype, k.device) != one or (v.dtype, v.device) != one:
            types = ", ".join(f"{x.dtype} on {x.device}" for x in (q, k, v))
            raise self._refused(f"q, k and v are of one dtype on one device, not {types}")
        four = len(qs) == len(ks) == len(vs) == 4
        if not four or ks[:3] != vs[:3] or qs[0] != ks[0] or qs[3] != ks[3]:
            raise self._refused(
                f"q, k and v are [batch, heads, tokens, channels] of one batch, k and v of as many "
                f"heads and tokens, q and k as wide; their shapes are {qs}, {ks}, {vs}"
            )

    def _mask(self, mask: Mask | str | Tensor | None, is_causal: bool, shape: Shape) -> Mask:
        if isinstance(mask, Mask | str):
            if is_causal:
                raise self._refused(f"give either is_causal or the mask {mask}, not both")
            return Mask.parse(mask) if isinstance(mask, str) else mask
        if not isinstance(mask, Tensor | None):
            raise self._refused(
                f"a mask is a tensor, a text such as 'causal' or a Mask, not {type(mask).__name__}"
            )
        return known_mask(mask, is_causal, shape)

    def _build(self, call: CallShape) -> Attend:
        problem = problem_of(call.q, call.v, call.dtype, call.device, call.mask, call.phase)
        refused = self.row.supports(problem)
        if refused is not None and problem.phase == "decode":  # forward may compute it too
            whole = problem.with_(phase="forward")
            if self.row.supports(whole) is None:
                problem, refused = whole, None
        if refused is not None:
            raise self._refused(refused)
        if call.dropout and not self.row.dropout:
            able = ", ".join(row.name for row in impls.table().rows.values() if row.dropout)
            raise self._refused(
                f"dropout_p={call.dropout:g} of the attention's weights is asked for, which it "
                f"doesn't do; these do: {able}. Or train without it: a model of transformers has "
                "it in its configuration"
            )
        try:
            attend = self._compiled_or_built(problem, call)
        except Unsupported as why:
            raise self._refused(str(why)) from None
        new = problem.q_len if problem.phase == "decode" and hasattr(attend, "step") else 0

        def laid_out(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Tensor:
            if new:  # a model keeps keys and values, so the memory of a decoder is made anew
                step: Any = attend
                memory = step.remember(k_bcmd[:, :, :-new], v_bcme[:, :, :-new])
                out: Tensor = step.step(q_bhnd, k_bcmd[:, :, -new:], v_bcme[:, :, -new:], memory)[0]
            else:
                out = attend(q_bhnd, k_bcmd, v_bcme)
            if self.row.reuses_output:  # a later call would write to it
                out = out.clone()
            return laid_out_as(out, q_bhnd)

        return laid_out

    def _compiled_or_built(self, problem: Problem, call: CallShape) -> Attend:
        """The variant for a problem; a variant that compiles shares that among problems alike.

        Alike are problems that differ in batch, lengths and the numbers of a mask alone. Compiled
        code takes 1 and equal lengths for constants, so these are kinds of their own.
        """
        p = problem
        widths, ones = (p.heads, p.kv_heads, p.head_dim, p.v_head_dim), (p.batch, p.q_len, p.kv_len)
        constants = *(n == 1 for n in ones), p.q_len == p.kv_len
        mask = p.mask.kinds, p.mask.upper_left
        kind = (widths, call.dtype, call.device, p.phase, mask, call.dropout, constants)
        alike = self._alike.pop(kind, None)
        if alike is None:
            more = {"dropout": call.dropout} if call.dropout else {}
            options = self._tuned.applied(self.row, problem).chosen
            built: Attend = load_function(self.row.build)(problem, **options, **more)
            if (alike := getattr(built, "alike", None)) is None:
                return built
        self._alike[kind] = alike
        if len(self._alike) > LASTING:
            self._alike.pop(next(iter(self._alike)))
        return alike(problem)

    def _refused(self, why: str) -> NotServed:
        label = self.row.label
        return NotServed(why if why.startswith(label) else f"{label}: {why}")


def attention(name: str, tables: Sequence[str | Path] = ()) -> Built:
    """The variant called ``name``; ``tables``: files with rows of your own. Raises CantBeDone."""
    return Built(impls.table(tables).find(name))
