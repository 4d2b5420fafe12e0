"""A call made again as a program makes it, and with something changed, in pairs.

The tensors lie as the program's do, under the mask that was seen, whether it comes as a flag or a
tensor; heads that the program repeats are repeated in the call. Values are random: no kernel of
exact attention takes longer for one than for another. Before any pair is taken, both give the same
output, and the same gradients where some are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import cache
from typing import Any

import msgspec
import numpy as np
import torch
import torch.nn.functional as F
from msgspec.structs import replace
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnbench.core.call import BACKENDS, CallForm, TensorForm
from attnbench.core.stats import StopRule, compare
from attnbench.core.wire import convert
from attnbench.meter.clocks import clock_for
from attnbench.models.attention import attention, each
from impls.errors import CantBeDone
from impls.masks import OF_DATA
from impls.operators import QKV
from impls.operators import inputs as inputs_of
from impls.problem import Problem

TOLERANCE = {"float64": 1e-10, "float32": 1e-5, "bfloat16": 2e-2, "float16": 4e-3}
"""Largest relative distance of the outputs of two kernels of one call, by dtype."""
WARM = 3
FLEX = ("flex", "flex compiled")
Values = tuple[Tensor, Tensor, Tensor, Tensor]


class Replay:
    """One form of a call, as one side of pairs."""

    def __init__(
        self,
        form: CallForm,
        problem: Problem,
        taking: Taking | None = None,
        seed: int = 0,
    ) -> None:
        """``taking``: a variant in the place of the function that the program calls."""
        self.form, self.problem, self.taking, self._seed = form, problem, taking, seed
        self._mask, self._calls = _mask(form, problem), 0
        self._clock = clock_for(problem.device, "train" if problem.gradients else "forward")
        self._attend = _attend(form, problem) if taking is None else taking.attend(self)
        self._kept: list[Any] = []
        self._out: Any = None
        self.fresh()

    def fresh(self) -> None:
        """Use tensors at other addresses from now on."""
        q, k, v, dout = values(self.problem, self._seed)
        form, few = self.form, 1
        if self._repeats:
            few = form.repeated
        elif len(form.k.shape) == 4:
            few = max(1, k.shape[1] // form.k.shape[1])
        ends = zip((q, k[:, ::few], v[:, ::few]), (form.q, form.k, form.v), strict=True)
        some = [_laid(x, end) for x, end in ends]
        self._kept = [*self._kept[-1:], some]
        ends = zip(some, (self.form.q, self.form.k, self.form.v), strict=True)
        self._qkv = [x.requires_grad_(form.gradient) for x, form in ends]
        self._further = {
            name: x.to(getattr(torch, form.q.dtype)).requires_grad_(form.gradient)
            for name, x in further(self.problem, self._seed).items()
        }
        self._dout = dout
        self._clock.samples(self._nothing, self._run, WARM)

    @property
    def _repeats(self) -> bool:
        """True where heads are copied in the call, as the program did before it."""
        return self.form.repeated > 1 and not self.form.enable_gqa

    def sample(self) -> float:
        """Seconds of one call."""
        return self._clock.samples(self._nothing, self._run, 1)[0]

    def results(self) -> list[Tensor]:
        """The output, and the gradients that are asked for."""
        self._nothing()
        self._run()
        out, *besides = each(self._out)
        sums = [x.detach().nan_to_num(neginf=0.0) for x in besides]  # of rows that see nothing
        results = [out.detach().reshape(self.problem.output_shape), *sums]
        if not self.problem.gradients:
            return results
        ends = (*self._qkv, *self._further.values())
        return [*results, *(x.grad for x in ends if x.grad is not None)]

    def _nothing(self) -> None:
        self._out = None
        masks = [] if self._mask is None else [self._mask]
        for x in (*self._qkv, *self._further.values(), *masks):
            x.grad = None
        self._calls += 1
        new = self.taking is not None and self.taking.calls_a_mask
        if new and self._mask is not None and self._calls % new == 0:
            self._mask = self._mask.clone()

    def _run(self) -> Any:
        form = self.form
        with ExitStack() as stack:
            if form.disabled:
                some = [name for word, name in BACKENDS.items() if word not in form.disabled]
                stack.enter_context(sdpa_kernel([getattr(SDPBackend, name) for name in some]))
            if form.autocast:
                kind, dtype = self.problem.device.split(":")[0], getattr(torch, form.autocast)
                stack.enter_context(torch.autocast(kind, dtype=dtype))
            stack.enter_context(torch.set_grad_enabled(form.gradient))
            q, k, v = self._qkv
            if self._repeats:
                if form.k.strides[1]:
                    k, v = (x.repeat_interleave(form.repeated, 1) for x in (k, v))
                else:  # the program copies nothing
                    k, v = (x.expand(-1, form.repeated, -1, -1) for x in (k, v))
            if form.copied:
                q, k, v = (x.contiguous() for x in (q, k, v))
            self._out = self._attend(q, k, v, self._mask, **self._further)
        if self.problem.gradients and form.gradient:
            out, *besides = each(self._out)
            # torch's own kernels have no gradient through the log-sum-exp
            besides = besides if form.api in FLEX else []
            above = [self._dout.reshape(out.shape).to(out.dtype), *map(torch.ones_like, besides)]
            torch.autograd.backward([out, *besides], above)
        return self._out


def values(problem: Problem, seed: int) -> Values:
    """q, k, v and the gradient from above, the same for all forms of a problem."""
    generator = torch.Generator(problem.device).manual_seed(seed)
    shapes = (*(spec.shape(problem) for spec in QKV.values()), problem.output_shape)
    q, k, v, dout = (
        torch.randn(shape, generator=generator, device=generator.device) for shape in shapes
    )
    return q, k, v, dout


def further(problem: Problem, seed: int) -> dict[str, Tensor]:
    """The inputs that the problem has besides, by name."""
    generator = torch.Generator(problem.device).manual_seed(seed)
    specs = {n: spec for n, spec in inputs_of("softmax", problem).items() if spec.keyword}
    shapes = {name: spec.shape(problem) for name, spec in specs.items()}
    at: Any = {"generator": generator, "device": generator.device}
    return {name: torch.randn(shape, **at) for name, shape in shapes.items()}


def _laid(x: Tensor, form: TensorForm) -> Tensor:
    """The values in a tensor of this form; of a head that repeats, one is taken."""
    dtype = getattr(torch, form.dtype)
    if x.numel() != np.prod(form.shape):  # heads that are repeated in the call
        return x.to(dtype).contiguous()
    if len(form.shape) == 3 and x.shape[1] > 1 and form.shape[0] != x.shape[0] * x.shape[1]:
        raise CantBeDone("its tensors have three axes of which none holds the heads")
    lies = torch.empty_strided(form.shape, form.strides, dtype=dtype, device=x.device)
    if 0 in form.strides:
        raise CantBeDone("its tensors are expanded over an axis")
    lies.copy_(x.reshape(form.shape))
    return lies


def _mask(form: CallForm, problem: Problem) -> Tensor | None:
    """The problem's mask as the form gives it."""
    if form.mask is None:
        return None
    visible = torch.from_numpy(problem.mask.visible(problem.shape).copy()).to(problem.device)
    added = problem.mask.bias(problem.shape)
    if form.is_causal:
        raise CantBeDone("it has a mask and is_causal besides")
    if form.mask.dtype == "bool":
        table = visible
    else:
        dtype = getattr(torch, form.mask.dtype)
        base = torch.zeros((), dtype=torch.float64) if added is None else torch.from_numpy(added)
        base = base.to(problem.device).nan_to_num(neginf=0.0)
        table = torch.where(visible, base, -torch.inf).to(dtype)
    shape, strides = form.mask.shape, form.mask.strides
    whole = table.expand(problem.batch, problem.heads, *table.shape[2:])
    if len(shape) == 3:  # batch and heads, or batch alone, as one axis
        whole = whole[:, 0] if shape[0] == problem.batch else whole.flatten(0, 1)
    whole = whole[(0,) * (whole.dim() - len(shape))]
    once = (size == 1 or stride == 0 for size, stride in zip(shape, strides, strict=True))
    part = whole[tuple(slice(0, 1 if one else None) for one in once)]
    return part.contiguous().expand(shape).requires_grad_(form.mask.gradient)


Attend = Callable[..., Any]
"""Of q, k, v, the mask's tensor, and further inputs by name."""


class Taking(msgspec.Struct, frozen=True):
    """A variant of the table, called as the lines to paste call it."""

    variant: str
    tables: tuple[str, ...] = ()
    by_model: bool = False  # a model hands the mask over, so that it can't be named
    calls_a_mask: int = 0  # after so many calls the program makes another mask; 0: never

    def attend(self, call: Replay) -> Attend:
        """The function; what it makes of a mask is kept while the mask's tensor is the same."""
        form, mask = call.form, call.problem.mask
        settings = call.problem.settings
        returns = {"return_lse": True} if call.problem.lse else {}
        function = attention(self.variant, self.tables)
        by_name = not self.by_model and OF_DATA.isdisjoint(mask.kinds)

        def attend(q: Tensor, k: Tensor, v: Tensor, tensor: Tensor | None, **more: Tensor) -> Any:
            how: Any = {"dropout_p": form.dropout, **settings, **more, **returns}
            if by_name or tensor is None:
                return function(q, k, v, mask=mask, **how)
            return function(q, k, v, tensor, is_causal=form.is_causal, **how)

        return attend


def _attend(form: CallForm, problem: Problem) -> Attend:
    """The function that the program calls."""
    scale, dropout = problem.settings.get("scale"), form.dropout
    match form.api:
        case "flex" | "flex compiled":
            return _flex(form, problem)
        case "products" | "eager":
            return _written_out(form, problem)
        case "mha" if form.returns == "weights":
            return _with_weights(form, problem)
        case "sdpa" if problem.lse:
            return _with_log_sums(form, problem)
        case "sdpa" | "mha":
            causal, grouped = form.is_causal, form.enable_gqa

            def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Any:
                return F.scaled_dot_product_attention(
                    q, k, v, mask, dropout, causal, scale=scale, enable_gqa=grouped
                )

            return attend
    raise CantBeDone(f"how {form.api} is called is not known")


def _with_log_sums(form: CallForm, problem: Problem) -> Attend:
    """The operator of torch that gives its log-sum-exp, where one is known by its kernel."""
    if form.kernel != "flash" or problem.device != "cpu":
        raise CantBeDone(f"how torch's {form.kernel} gives its log-sum-exp is not known here")
    words: Any = form.dropout, form.is_causal
    scale = problem.settings.get("scale")

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Any:
        operator = torch._scaled_dot_product_flash_attention_for_cpu
        return operator(q, k, v, *words, attn_mask=mask, scale=scale)

    return attend


def _written_out(form: CallForm, problem: Problem) -> Attend:
    """Product, scale, soft cap, mask, sinks, softmax, product."""
    scale, cap = problem.scale, problem.softcap

    def attend(
        q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, sinks: Tensor | None = None
    ) -> Any:
        scores = torch.matmul(q, k.mT) * scale
        if cap is not None:
            scores = torch.tanh(scores / cap) * cap
        if mask is not None and mask.dtype == torch.bool:
            scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        elif mask is not None:
            scores = scores + mask
        if sinks is not None:
            column = sinks[:, None, None].expand(*scores.shape[:-1], 1)
            scores = torch.cat([scores, column], -1)
        weights = F.dropout(scores.softmax(-1), form.dropout)
        return torch.matmul(weights if sinks is None else weights[..., :-1], v)

    return attend


def _with_weights(form: CallForm, problem: Problem) -> Attend:
    """The way of nn.MultiheadAttention to return its weights, averaged over the heads."""
    heads, scale = problem.heads, problem.scale

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Any:
        q, k, v = (x.flatten(0, 1) if x.dim() == 4 else x for x in (q, k, v))
        if mask is None:
            weights = torch.bmm(q * scale, k.mT).softmax(-1)
        else:
            added = mask.flatten(0, 1) if mask.dim() == 4 else mask
            weights = torch.baddbmm(added, q * scale, k.mT).softmax(-1)
        out = torch.bmm(F.dropout(weights, form.dropout), v)
        weights.unflatten(0, (-1, heads)).mean(1)
        return out

    return attend


def _flex(form: CallForm, problem: Problem) -> Attend:
    from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

    from impls.score_mask import beside_sinks, closed_log_sums
    from impls.sparse.flex_kernel import score_mod

    shape, device, scale = problem.shape, problem.device, problem.settings.get("scale")
    score, may_see = score_mod(problem), problem.mask.flex_mask(shape, device)
    how: Any = {"score_mod": score, "scale": scale, "enable_gqa": form.enable_gqa}
    plan = None if may_see is None else create_block_mask(may_see, *shape, device=device)
    function: Any = compiled_flex() if form.api == "flex compiled" else flex_attention

    def attend(
        q: Tensor, k: Tensor, v: Tensor, _: Tensor | None, sinks: Tensor | None = None
    ) -> Any:
        if sinks is None and not problem.lse:
            return function(q, k, v, block_mask=plan, **how)
        out, more = function(q, k, v, block_mask=plan, return_aux=AuxRequest(lse=True), **how)
        out = out if sinks is None else beside_sinks(out, more.lse, sinks)
        return (out, closed_log_sums(more.lse, sinks, None)) if problem.lse else out

    return attend


@cache
def compiled_flex() -> Any:
    """FlexAttention, compiled once for all that is made again in this process."""
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)


# ---- pairs ---------------------------------------------------------------------------------------


def apart(one: Replay, other: Replay) -> float:
    """The largest relative distance of outputs and gradients; without dropout."""
    a, b = (
        Replay(replace(x.form, dropout=0.0), x.problem, x.taking).results() for x in (one, other)
    )
    worst = 0.0
    for x, y in zip(a, b, strict=True):
        x, y = x.double(), y.double().reshape(x.shape)
        distance = float((x - y).norm() / x.norm().clamp_min(1e-30))
        worst = max(worst, distance if distance == distance else float("inf"))
    return worst


def answer(_: Any, question: Mapping[str, Any]) -> dict[str, Any]:
    """To ``{"form": …, "problem": …, "against": form, "taking": a variant or None, …}``: the pairs
    of the one call and the other, or why there are none.
    """
    problem = convert(question["problem"], Problem)
    one, two = (msgspec.convert(question[name], CallForm) for name in ("form", "against"))
    rule = StopRule(question["margin"], cap=question["cap"], budget_s=question["budget_s"])
    try:
        now = Replay(one, problem)
        then = Replay(two, problem, msgspec.convert(question["taking"], Taking | None))
        off, dtype = apart(now, then), one.autocast or problem.dtype
        if off > TOLERANCE[dtype]:
            return {"why": f"its output would be another: off by {off:.1e}, relative"}
        comparison = compare(now, then, rule)
    except CantBeDone as why:
        return {"why": str(why)}
    except Exception as error:  # whatever a call of a program raises here
        return {"why": f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"}
    now_s, then_s = comparison.medians
    return {"comparison": msgspec.to_builtins(comparison), "now_s": now_s, "then_s": then_s}
