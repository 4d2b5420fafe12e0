"""``attnbench.attention("chunked?block=64")``: a variant of the table as a function."""

from __future__ import annotations

import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.attention import SDPBackend

import impls
from attnbench.core.machine import this_machine, why_not
from attnbench.models.mask_of import hides, is_usual, mask_of, own_folder, phase_of, problem_of
from impls.asked import CantBeDone
from impls.loading import load_function
from impls.masks import Mask, Shape
from impls.problem import Problem
from impls.spec import DEVICES, Unsupported, Variant


@dataclass
class SeenTensor:
    """A tensor, how often it had been written to, and what it said, for each form of scores."""

    tensor: weakref.ref[Tensor]
    version: int | None
    masks: dict[tuple[bool, Shape], Mask] = field(default_factory=dict)
    end: weakref.finalize[..., Tensor] | None = None
    """What is done when the tensor is gone."""


class KnownMasks:
    """The masks of the tensors that are alive."""

    def __init__(self) -> None:
        self._known: dict[int, SeenTensor] = {}
        self._files: Counter[str] = Counter()
        self._process = os.getpid()
        self._lock = threading.RLock()

    def __call__(self, tensor: Tensor | None, is_causal: bool, shape: Shape) -> Mask:
        """The mask that ``tensor`` and ``is_causal`` are; both mean what F.sdpa takes them for."""
        if tensor is None:
            return mask_of(None, is_causal, shape)
        with self._lock:
            version = None if tensor.is_inference() else tensor._version
            known = self._known.get(id(tensor))
            same = known is not None and known.tensor() is tensor
            if known is None or not same or version is None or known.version != version:
                known = self._learned(tensor, version)
            if (is_causal, shape) not in known.masks:
                mask = mask_of(tensor, is_causal, shape, own_folder("models"))
                known.masks[is_causal, shape] = mask
                self._files.update(part.file for part in mask.parts if part.file)
            return known.masks[is_causal, shape]

    def _learned(self, tensor: Tensor, version: int | None) -> SeenTensor:
        key = id(tensor)
        if key in self._known:
            self._forget(key, self._known[key])
        known = SeenTensor(weakref.ref(tensor), version)
        self._known[key] = known
        known.end = weakref.finalize(tensor, self._forget, key, known)
        known.end.atexit = False
        return known

    def _forget(self, key: int, known: SeenTensor) -> None:
        """A tensor is gone, or says something else now; files that nobody else means go too."""
        with self._lock:
            if self._known.get(key) is known:
                del self._known[key]
            if known.end is not None:
                known.end.detach()
            files = [p.file for mask in known.masks.values() for p in mask.parts if p.file]
            known.masks.clear()
            self._files.subtract(files)
            for file in files:
                if self._files[file] <= 0:
                    del self._files[file]
                    if self._process == os.getpid():  # a forked child's files are its parent's
                        Path(file).unlink(missing_ok=True)


known_mask = KnownMasks()
"""``known_mask(tensor, is_causal, shape)``: one for the process, as the files are."""


def with_bias_gradient(
    out_bhne: Tensor,
    q_bhnd: Tensor,
    k_bcmd: Tensor,
    v_bcme: Tensor,
    terms: tuple[Tensor, ...],
    scale: float | None = None,
    is_causal: bool = False,
) -> Tensor:
    """``out`` as it is, with the gradients of those ``terms`` that want one behind it.

    ``terms`` are all that made the mask: booleans (true: may see) and numbers to add; ``is_causal``
    as F.scaled_dot_product_attention takes it.
    """
    if not torch.is_grad_enabled() or not any(term.requires_grad for term in terms):
        return out_bhne
    scale = q_bhnd.shape[-1] ** -0.5 if scale is None else scale
    data = (x.detach() for x in (q_bhnd, k_bcmd, v_bcme))
    apply: Any = _BiasGradient.apply  # torch leaves it untyped
    made: Tensor = apply(out_bhne, *data, scale, is_causal, *terms)
    return made


class _BiasGradient(torch.autograd.Function):
    """The identity of ``out``, from whose gradient those of the terms are made."""

    @staticmethod
    def forward(
        ctx: Any,
        out: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        scale: float,
        is_causal: bool,
        *terms: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(out, q, k, v, *terms)
        ctx.scale, ctx.is_causal = scale, is_causal
        return out.view_as(out)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Any, ...]:
        out, q, k, v, *terms = ctx.saved_tensors
        group = q.shape[1] // k.shape[1]
        k, v = (x.to(out.dtype).repeat_interleave(group, 1) for x in (k, v))
        weights = _weights((q.to(out.dtype) @ k.mT) * ctx.scale, terms, ctx.is_causal)
        dscores = weights * (dout @ v.mT - (dout * out).sum(-1, keepdim=True))
        wanted = ctx.needs_input_grad[6:]
        grads = [
            dscores.sum_to_size(_padded(term)).reshape(term.shape).to(term.dtype) if want else None
            for term, want in zip(terms, wanted, strict=True)
        ]
        return dout, None, None, None, None, None, *grads


def _padded(term: Tensor) -> tuple[int, ...]:
    return (1,) * (4 - term.dim()) + tuple(term.shape)


def _weights(scores: Tensor, terms: list[Tensor], is_causal: bool) -> Tensor:
    """The softmax, zero in rows that see nothing."""
    for term in terms:
        seen = term if term.dtype == torch.bool else ~(term <= hides(term.dtype))
        added = scores if term.dtype == torch.bool else scores + term
        scores = added.masked_fill(~seen, -torch.inf)
    if is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    return scores.softmax(-1).nan_to_num(0.0)


LASTING, PASSING = 32, 8
"""Problems that a variant is kept built for: with masks that follow from the shape, and with those
that come and go with the data, whose tables may be as large as the scores."""
DATA = {"padding", "document", "dense", "bias"}
OWN = "its own operator"
NO_BIAS_GRADIENT = (
    "what is added to the scores is learned, and under dropout its gradient can't be had; set the "
    "dropout of the attention's weights to 0"
)


class NotServed(CantBeDone):
    """This variant doesn't serve this call. The text says which, why, and what would be."""


class CallShape(NamedTuple):
    """All of a call that its problem follows from: one variant is built for each."""

    q: tuple[int, ...]
    k: tuple[int, ...]
    v: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    mask: Mask
    phase: str
    dropout: float = 0.0


def wrong_level(row: Variant) -> str | None:
    """None for a core in one process, which takes q, k and v, else a sentence."""
    if row.level == "core" and not row.ranks:
        return None
    what = "runs over several processes" if row.ranks else f"is a {row.level}"
    return (
        f"{row.label} {what}, and what is called with q, k and v is a core; 'attnbench list' "
        "shows which are"
    )


def _asked(q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float) -> CallShape:
    gradient = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    shape = Shape(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    phase = phase_of(shape, mask, gradient=gradient)
    return CallShape(
        tuple(q.shape), tuple(k.shape), tuple(v.shape), q.dtype, q.device, mask, phase, dropout
    )


def _kind(problem: Problem, asked: CallShape) -> tuple[object, ...]:
    """What is alike of problems that differ in batch, lengths and the numbers of a mask alone.

    Compiled code takes 1 and equal lengths for what they are, so they are kinds of their own.
    """
    q, kv = problem.q_len, problem.kv_len
    return (
        problem.heads,
        problem.kv_heads,
        problem.head_dim,
        problem.v_head_dim,
        asked.dtype,
        asked.device,
        problem.phase,
        problem.mask.kinds,
        problem.mask.upper_left,
        asked.dropout,
        problem.batch == 1,
        q == 1,
        kv == 1,
        q == kv,
    )


class Built:
    """A variant as a function of q, k and v, whatever their shapes."""

    def __init__(self, row: Variant) -> None:
        if (wrong := wrong_level(row)) is not None:
            raise NotServed(wrong)
        if (missing := why_not(row, this_machine())) is not None:
            remedy = f"; {missing.remedy}" if missing.remedy else ""
            raise NotServed(f"{missing.reason}{remedy}")
        self.row = row
        self.lasting = lru_cache(maxsize=LASTING)(self._build)
        self.passing = lru_cache(maxsize=PASSING)(self._build)
        self._alike: dict[tuple[object, ...], Callable[[Problem], Callable[..., Tensor]]] = {}
        """Of a variant that compiles, by kind of problem, the latest last."""

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
        """``out`` [b, h, n, e]. What comes after v means what F.scaled_dot_product_attention says.

        A scale other than head_dim^-1/2, which every softmax applies, is had by multiplying q
        with the ratio: exact where that is a power of two, else one rounding more; an operator of
        its own has no scores to scale, and refuses it. A mask that wants a gradient gets it beside
        (:mod:`attnbench.models.attention`), though not under dropout. Under autocast q, k and
        v are cast to its dtype, doubles aside, as torch does, and the variant runs outside it.
        """
        kind = q_bhnd.device.type
        if kind in DEVICES and torch.is_autocast_enabled(kind):
            q_bhnd, k_bcmd, v_bcme = (_cast(x, kind) for x in (q_bhnd, k_bcmd, v_bcme))
            with torch.autocast(kind, enabled=False):
                return self(q_bhnd, k_bcmd, v_bcme, mask, scale, is_causal, dropout_p)
        self._fit(q_bhnd, k_bcmd, v_bcme)
        batch, heads, q_len, _ = q_bhnd.shape
        meant = self._meant(mask, is_causal, Shape(batch, heads, q_len, k_bcmd.shape[2]))
        out = self._called(q_bhnd, k_bcmd, v_bcme, meant, scale, dropout_p)
        if not isinstance(mask, Tensor):
            return out
        if dropout_p and mask.requires_grad:
            raise self._refused(NO_BIAS_GRADIENT)
        return with_bias_gradient(out, q_bhnd, k_bcmd, v_bcme, (mask,), scale, is_causal)

    def _called(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None, dropout: float
    ) -> Tensor:
        call, q = self.attend(_asked(q, k, v, mask, dropout)), self._scaled(q, scale)
        try:
            return call(q, k, v)
        except Unsupported as why:
            raise self._refused(str(why)) from None

    def _scaled(self, q: Tensor, scale: float | None) -> Tensor:
        """What the variant is given for q, so that its scores have this scale."""
        usual = q.shape[-1] ** -0.5
        if scale is None or scale == usual:
            return q
        if self.row.computes != OWN:
            return q * (scale / usual)
        if is_usual(scale, q.shape[-1]):
            return q
        raise self._refused(
            f"scale={scale:.6g} is asked for, and it computes {OWN}, which no scale of softmax's "
            f"scores says anything of; leave the scale at head_dim**-0.5, {usual:.6g}, or take a "
            "variant that computes softmax"
        )

    def attend(self, asked: CallShape) -> Callable[..., Tensor]:
        """``attend(q, k, v)`` for all calls that ask this: built now, or kept from before."""
        kept = self.lasting if DATA.isdisjoint(asked.mask.kinds) else self.passing
        return kept(asked)

    def _fit(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        """One dtype, one device, k and v of one length, all of one batch: else a sentence."""
        (qs, ks, vs), one = (q.shape, k.shape, v.shape), (q.dtype, q.device)
        if not len(qs) == len(ks) == len(vs) == 4:
            shapes = f"{tuple(qs)}, {tuple(ks)}, {tuple(vs)}"
            raise self._refused(f"q, k and v are [batch, heads, tokens, channels], not {shapes}")
        if (k.dtype, k.device) != one or (v.dtype, v.device) != one:
            found = ", ".join(f"{x.dtype} on {x.device}" for x in (q, k, v))
            raise self._refused(f"q, k and v are of one dtype on one device, not {found}")
        if ks[:3] != vs[:3] or qs[0] != ks[0] or qs[3] != ks[3]:
            raise self._refused(
                f"q, k and v are of one batch, k and v of as many heads and tokens, q and k as "
                f"wide; their shapes are {tuple(qs)}, {tuple(ks)}, {tuple(vs)}"
            )

    def _meant(self, mask: Mask | str | Tensor | None, is_causal: bool, shape: Shape) -> Mask:
        if isinstance(mask, Mask | str):
            if is_causal:
                raise self._refused(f"give either is_causal or the mask {mask}, not both")
            return Mask.parse(mask) if isinstance(mask, str) else mask
        if not isinstance(mask, Tensor | None):
            raise self._refused(
                f"a mask is a tensor, a text such as 'causal' or a Mask, not {type(mask).__name__}"
            )
        return known_mask(mask, is_causal, shape)

    def _build(self, asked: CallShape) -> Callable[..., Tensor]:
        problem = self._taken(
            problem_of(asked.q, asked.v, asked.dtype, asked.device, asked.mask, asked.phase)
        )
        kind = _kind(problem, asked)
        try:
            call = self._made(problem, kind, self._dropping(asked.dropout))
        except Unsupported as why:
            raise self._refused(str(why)) from None
        if problem.phase == "decode" and hasattr(call, "step"):
            call = _stepping(call, problem.q_len)
        if self.row.reuses_output:
            call = _copied(call)
        return _laid_out(call, problem, asked.dropout)

    def _made(
        self, problem: Problem, kind: tuple[object, ...], more: dict[str, float]
    ) -> Callable[..., Tensor]:
        """The variant for a problem; one that compiles shares what it compiled for others alike."""
        alike = self._alike.pop(kind, None)
        if alike is None:
            call = load_function(self.row.build)(problem, **self.row.chosen, **more)
            if (alike := getattr(call, "alike", None)) is None:
                return call
        self._alike[kind] = alike
        if len(self._alike) > LASTING:
            self._alike.pop(next(iter(self._alike)))
        return alike(problem)

    def _dropping(self, dropout: float) -> dict[str, float]:
        """What the row's ``build`` is told of dropout besides."""
        if not dropout:
            return {}
        if not self.row.dropout:
            able = ", ".join(row.name for row in impls.table().rows.values() if row.dropout)
            raise self._refused(
                f"dropout_p={dropout:g} of the attention's weights is asked for, which it doesn't "
                f"do; these do: {able}. Or train without it: a model of transformers has it in its "
                "configuration"
            )
        return {"dropout": dropout}

    def _taken(self, problem: Problem) -> Problem:
        """The problem as the row takes it: who has no decode may compute the same as forward."""
        refused = self.row.supports(problem)
        if refused is not None and problem.phase == "decode":
            whole = problem.with_(phase="forward")
            problem, refused = (whole, None) if not self.row.supports(whole) else (problem, refused)
        if refused is not None:
            raise self._refused(refused)
        return problem

    def _refused(self, why: str) -> NotServed:
        label = self.row.label
        return NotServed(why if why.startswith(label) else f"{label}: {why}")


def _cast(x: Tensor, kind: str) -> Tensor:
    """As autocast hands it to attention; torch leaves doubles alone."""
    return x if x.dtype == torch.float64 else x.to(torch.get_autocast_dtype(kind))


def _copied(call: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``call`` with its output in memory that no later call writes to."""
    return lambda *qkv: call(*qkv).clone()


def _laid_out(
    call: Callable[..., Tensor], problem: Problem, dropout: float
) -> Callable[..., Tensor]:
    """``call`` with its output in memory as F.scaled_dot_product_attention would lay it out.

    What follows in a model may rely on that: ``out.transpose(1, 2).view(batch, tokens, -1)``.
    """
    mask, grouped = None, problem.group > 1
    causal = problem.mask.is_causal(problem.shape)
    if not (causal or problem.mask.plain):  # that there is one is all that torch's choice looks at
        mask = torch.empty_strided(
            (problem.q_len, problem.kv_len), (0, 1), dtype=torch.bool, device=problem.device
        )

    def attend(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Tensor:
        out = call(q_bhnd, k_bcmd, v_bcme)
        try:
            backend = torch._fused_sdp_choice(
                q_bhnd, k_bcmd, v_bcme, mask, dropout, causal, enable_gqa=grouped
            )
        except RuntimeError:  # under vmap torch doesn't say
            return out
        return _like(out, _steps(backend, q_bhnd.shape, q_bhnd.stride(), out.shape))

    return attend


@lru_cache(maxsize=256)
def _steps(
    backend: int, q: tuple[int, ...], q_steps: tuple[int, ...], out: tuple[int, ...]
) -> tuple[int, ...]:
    """The strides of what a backend of torch's gives."""
    if backend == SDPBackend.EFFICIENT_ATTENTION.value:
        batch, heads, tokens, width = out
        return torch.empty(batch, tokens, heads, width, device="meta").transpose(1, 2).stride()
    if backend == SDPBackend.MATH.value or q != out:
        return torch.empty(out, device="meta").stride()
    return torch.empty_like(torch.empty_strided(q, q_steps, device="meta")).stride()


def _like(out: Tensor, steps: tuple[int, ...]) -> Tensor:
    """``out`` with these strides, copied where it has others."""
    if out.stride() == steps:
        return out
    order = sorted(range(out.dim()), key=lambda dim: -steps[dim])
    return out.permute(order).contiguous().permute([order.index(dim) for dim in range(out.dim())])


def _stepping(call: Callable[..., Tensor], new: int) -> Callable[..., Tensor]:
    """A decoder with a memory of its own, asked with the whole cache.

    A model keeps keys and values, so the memory is made anew at every call: right, but not as
    cheap as the variant could be.
    """

    def attend(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Tensor:
        memory = call.remember(k_bcmd[:, :, :-new], v_bcme[:, :, :-new])  # type: ignore[attr-defined]
        out: Tensor = call.step(q_bhnd, k_bcmd[:, :, -new:], v_bcme[:, :, -new:], memory)[0]  # type: ignore[attr-defined]
        return out

    return attend


def attention(name: str, tables: Sequence[str | Path] = ()) -> Built:
    """The variant called ``name``, as ``out = attention(q, k, v, mask, scale, is_causal)``.

    ``tables``: files with rows of your own, as ``--table`` takes them. An unknown name, and a
    variant that can't run on this machine, are sentences.
    """
    return Built(impls.table(tables).find(name))
