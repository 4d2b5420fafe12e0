"""``attnbench.attention("chunked?block=64")``: a variant of the table as a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import impls
from attnbench.core.machine import this_machine, why_not
from attnbench.core.tuned import TunedOptions
from attnbench.models import no_core
from attnbench.models.mask_of import hides, known_mask, phase_of, problem_of
from impls.errors import CantBeDone
from impls.heads import Attend
from impls.loading import load_function
from impls.masks import OF_DATA, Mask, Shape
from impls.operators import OPERATORS, PARAMETERS, TensorSpec
from impls.problem import Problem, is_usual
from impls.spec import DEVICES, Unsupported, Variant, listed


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


def each(result: Any) -> tuple[Any, ...]:
    """The outputs of a call, however many there are."""
    return result if isinstance(result, tuple) else (result,)


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
    "what is added to the scores is learned, and under dropout, a soft cap or sinks, or with the "
    "log-sum-exp, its gradient can't be had; set the dropout of the attention's weights to 0, or "
    "detach it"
)


HINTS = {
    "lse": "return_lse=True asks for the log-sum-exp",
    "v_in_k": "v=k[..., :n] is a view of the keys already",
}
"""For names of a problem that are no tensors of a call."""


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
    settings: tuple[tuple[str, Any], ...] = ()
    """The parameters of its operator that it sets."""


class Built:
    """A variant as a function of q, k and v, whatever their shapes; raises :class:`NotServed` for
    one that can't run here, and for calls that it doesn't serve.
    """

    def __init__(self, row: Variant) -> None:
        if (wrong := no_core(row)) is not None:
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
        *,
        softcap: float | None = None,
        return_state: bool = False,
        return_lse: bool = False,
        **inputs: Any,
    ) -> Any:
        """``out`` [b, h, n, e]; the first arguments are F.scaled_dot_product_attention's.

        ``softcap``, ``kv_dtype``, ``kv_scale`` and inputs by name (``sinks``, ``g``, ``beta``,
        ``dt``, ``state``) are for the variants that take them; with ``return_state`` the result is
        (out, state), with ``return_lse`` (out, lse), as :data:`impls.operators.OUTPUTS` has it. A
        variant that is causal in any case needs no mask. A mask that requires a gradient gets it
        (:func:`with_bias_gradient`), though not under dropout. Under autocast q, k and v are cast
        to its dtype, doubles aside, as torch does, and the variant runs outside it.
        """
        qkv, kind = (q_bhnd, k_bcmd, v_bcme), q_bhnd.device.type
        returns = {"return_state": return_state, "return_lse": return_lse}
        more: dict[str, Any] = {"softcap": softcap, **returns, **inputs}
        if kind in DEVICES and torch.is_autocast_enabled(kind):
            to, specs = torch.get_autocast_dtype(kind), OPERATORS[self.row.operator].further
            q, k, v = (x if x.dtype == torch.float64 else x.to(to) for x in qkv)
            alike = {n: x for n, x in inputs.items() if n in specs and not specs[n].dtype}
            more |= {n: x.to(q.dtype) for n, x in alike.items() if isinstance(x, Tensor)}
            with torch.autocast(kind, enabled=False):
                return self(q, k, v, mask, scale, is_causal, dropout_p, **more)
        numbers: dict[str, Any] = {"scale": scale, "softcap": softcap, "lse": return_lse or None}
        numbers |= {n: inputs.pop(n) for n, x in PARAMETERS.items() if x.words and n in inputs}
        call = self._call_shape(qkv, inputs, mask, is_causal, dropout_p, numbers)
        attend = self.attend(call)
        more = inputs if not return_state else {**inputs, "return_state": True}
        if return_state and "state" not in OPERATORS[self.row.operator].further:
            raise self._refused("it has no state to return")
        try:
            out = attend(*qkv, **more)
        except Unsupported as why:
            raise self._refused(str(why)) from None
        if not isinstance(mask, Tensor):
            return out
        if mask.requires_grad and (dropout_p or dict(call.settings).keys() - {"scale"}):
            raise self._refused(NO_BIAS_GRADIENT)
        out, *besides = each(out)
        out = with_bias_gradient(out, *qkv, (mask,), scale, is_causal)
        out = out if "sinks" in inputs else fill_empty_rows(out, v_bcme, mask)
        return (out, *besides) if besides else out

    def _call_shape(
        self,
        qkv: tuple[Tensor, Tensor, Tensor],
        inputs: Mapping[str, Tensor],
        mask: Mask | str | Tensor | None,
        is_causal: bool,
        dropout: float,
        numbers: Mapping[str, Any],
    ) -> CallShape:
        b, h, c, n, m, d, e = self._sizes(*qkv, inputs)
        shape, (q, _, _) = Shape(b, h, n, m), qkv
        if mask is None and not is_causal and self.row.on(q.device.type, "masks") == ("causal",):
            mask = "causal"
        whole = self._mask(mask, is_causal, shape)
        gradient = torch.is_grad_enabled() and any(
            x.requires_grad for x in (*qkv, *inputs.values())
        )
        phase = phase_of(shape, whole, gradient=gradient)
        settings: dict[str, Any] = {name: True for name in PARAMETERS if name in inputs}
        settings |= {name: x for name, x in numbers.items() if x is not None}
        scale = settings.get("scale")
        if isinstance(scale, int | float) and is_usual(scale, d):
            del settings["scale"]
        shapes = (b, h, n, d), (b, c, m, d), (b, c, m, e)
        return CallShape(*shapes, q.dtype, q.device, whole, phase, dropout, tuple(settings.items()))

    def attend(self, call: CallShape) -> Attend:
        """``attend(q, k, v)`` for all calls of this shape: built now, or kept from before."""
        build = self.lasting if OF_DATA.isdisjoint(call.mask.kinds) else self.passing
        return build(call)

    def _sizes(
        self, q: Tensor, k: Tensor, v: Tensor, inputs: Mapping[str, Tensor]
    ) -> tuple[int, ...]:
        """Batch, heads, kv_heads, q_len, kv_len, head_dim and v_head_dim; raises NotServed where
        an input is missing, is not known, or its shape or values can't be.
        """
        one, operator = (q.dtype, q.device), OPERATORS[self.row.operator]
        if (k.dtype, k.device) != one or (v.dtype, v.device) != one:
            types = ", ".join(f"{x.dtype} on {x.device}" for x in (q, k, v))
            raise self._refused(f"q, k and v are of one dtype on one device, not {types}")
        wanted = {name: spec for name, spec in operator.inputs.items() if spec.keyword}
        specs = {**operator.inputs, **operator.further}
        if unknown := [name for name in inputs if name not in specs or name in "qkv"]:
            able = listed([*wanted, *operator.further])
            hint = "".join(f"; {HINTS[name]}" for name in unknown if name in HINTS)
            raise self._refused(f"it takes no {listed(unknown)}; by name it takes {able}{hint}")
        if missing := [name for name in wanted if name not in inputs]:
            raise self._refused(f"it takes {listed(missing)} too, by name, after q, k and v")
        sizes: dict[str, int] = {}
        if others := [name for name, x in inputs.items() if not isinstance(x, Tensor)]:
            raise self._refused(f"{listed(others)} must be a tensor, as q, k and v are")
        for name, x in inputs.items():
            own = [str(q.dtype)[6:], *filter(None, [specs[name].dtype])]
            if x.device != q.device or str(x.dtype)[6:] not in own:
                raise self._refused(
                    f"{name} must be {' or '.join(dict.fromkeys(own))} on {q.device}, as q is, and "
                    f"is {str(x.dtype)[6:]} on {x.device}"
                )
        for name, x in {"q": q, "k": k, "v": v, **inputs}.items():
            axes, shape = specs[name].axes, tuple(x.shape)
            fits = len(axes) == len(shape) and all(
                sizes.setdefault(axis, size) == size for axis, size in zip(axes, shape, strict=True)
            )
            if not fits:
                known = ", ".join(f"{axis} {sizes[axis]}" for axis in axes if axis in sizes)
                raise self._refused(
                    f"{name} is [{', '.join(axes)}], here with {known}; its shape is {shape}"
                )
            self._check_values(name, x, specs[name])
        heads = sizes.setdefault("heads", sizes.get("kv_heads", 1))
        sizes.setdefault("kv_heads", heads)
        names = ("batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim", "v_head_dim")
        return tuple(sizes[name] for name in names)

    def _check_values(self, name: str, x: Tensor, spec: TensorSpec) -> None:
        """Refuse values out of range, on a CPU: a GPU would be waited for at every call."""
        if x.device.type != "cpu" or (spec.least == -inf and spec.most == inf) or not x.numel():
            return
        low, high = (float(end) for end in torch.aminmax(x.detach()))
        if not (spec.least <= low and high <= spec.most):
            least = "" if spec.least == -inf else f"{spec.least:g} or above"
            most = "" if spec.most == inf else f"{spec.most:g} or below"
            ends = " and ".join(filter(None, (least, most)))
            raise self._refused(f"{name} must be {ends}, and goes from {low:.4g} to {high:.4g}")

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

    def problem(self, call: CallShape) -> Problem:
        """What is built for such calls: for decoding, the forward pass where that alone can be."""
        problem = problem_of(call.q, call.v, call.dtype, call.device, call.mask, call.phase)
        problem = problem.with_(**dict(call.settings))
        refused = self.row.supports(problem)
        decodes = problem.phase == "decode" and problem.kv_dtype is None
        if refused is not None and decodes:  # forward may compute it too
            whole = problem.with_(phase="forward")
            if self.row.supports(whole) is None:
                return whole
        if refused is not None:
            raise self._refused(refused)
        return problem

    def _build(self, call: CallShape) -> Attend:
        problem = self.problem(call)
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
        specs = OPERATORS[self.row.operator].inputs

        def laid_out(q_bhnd: Tensor, *kv: Tensor, return_state: bool = False, **inputs: Any) -> Any:
            state = None
            if new:  # a model keeps keys and values, so the memory of a decoder is made anew
                step: Any = attend
                ends = {n: x[:, :, -new:] for n, x in inputs.items() if "kv_len" in specs[n].axes}
                before = {name: inputs[name][:, :, :-new] for name in ends}
                memory = step.remember(*(x[:, :, :-new] for x in kv), **before)
                out, state = step.step(q_bhnd, *(x[:, :, -new:] for x in kv), memory, **ends)
            elif return_state:
                out, state = attend(q_bhnd, *kv, return_state=True, **inputs)
            else:
                out = attend(q_bhnd, *kv, **inputs)
            out, *besides = each(out)
            if self.row.reuses_output:  # a later call would write to it
                out, besides = out.clone(), [x.clone() for x in besides]
            out, besides = laid_out_as(out, q_bhnd), [*besides, *[state] * return_state]
            return (out, *besides) if besides else out

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
        how = call.dropout, call.settings
        kind = (widths, call.dtype, call.device, p.phase, mask, how, constants)
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
