"""Changes of a program's call so that it takes less time and gives the same.

A mend changes a :class:`~attnbench.core.call.CallForm`. Those that a call allows are tried at once:
pairs of the call as it is made and of the call with all of them. Then each is left out in turn, and
one without which the call is as fast is not advised.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from attnbench.answer.paste import beyond_torch
from attnbench.core.call import BACKENDS, CallForm, TensorForm
from attnbench.core.stats import Interval, Verdict
from attnbench.core.wire import plain
from impls.masks import Mask

if TYPE_CHECKING:
    from attnbench.sweep.engine import Engine
    from impls.problem import Problem

MARGIN = 0.02  # a mend that gains less is not worth a line of a program
CAP, BUDGET_S, LIMIT_S = 640, 4.0, 300.0
ENOUGH = 0.9  # a variant that another package brings has to gain a tenth over what torch can do
NOTHING = "there is nothing to change about how it is called"
VARIES = "its line is called with other masks too, and what would gain here is wrong for those"


@dataclass(frozen=True)
class Mend:
    """One thing to change, in the program's words."""

    key: str
    words: str
    change: Callable[[CallForm], CallForm] = field(repr=False, compare=False)


def mends(
    form: CallForm, problem: Problem, others: Sequence[tuple[CallForm, Problem]] = ()
) -> list[Mend]:
    """All that may be changed without changing what the call computes.

    ``others``: the other calls of its line, which get the same change. What is said of the mask has
    to hold for all of them, those of one token and those of more apart: a program can tell these.
    """
    alike = [call for call in others if _one_token(call[1]) == _one_token(problem)]
    unlike = [call for call in others if call not in alike]
    if form.api in ("products", "eager", "sdpa") and beyond_torch(problem):
        return list(_gradients(form))  # the mask, too, is changed by calling torch's function
    masks = []
    for mend in _masks(form, problem):
        if all(_holds(mend.key, *call) for call in alike):
            only = (
                "" if all(_holds(mend.key, *call) for call in unlike) else ONLY[problem.q_len > 1]
            )
            masks.append(dataclasses.replace(mend, words=mend.words + only))
    groups = (_products(form, problem), masks, _tensors(form, problem), _kernels(form, problem))
    return [mend for some in groups for mend in some]


ONLY = ", where q has one token", ", where q has more than one token"


def _one_token(problem: Problem) -> bool:
    return problem.q_len == 1


def _holds(key: str, form: CallForm, problem: Problem) -> bool:
    """True where the mend of a mask leaves this call as it is, too."""
    if key in ("drop_mask", "is_causal"):
        return problem.mask.plain if key == "drop_mask" else problem.mask.is_causal(problem.shape)
    if form.mask is None or (key == "boolean_mask" and form.mask.dtype == "bool"):
        return True
    return key in [mend.key for mend in _masks(form, problem)]


def _products(form: CallForm, problem: Problem) -> Iterator[Mend]:
    """Other functions, which do not hold the matrix of scores."""
    weights = form.returns == "weights"
    if form.api in ("products", "eager") and not weights:
        words = "F.scaled_dot_product_attention in place of the products and the softmax"
        if form.api == "eager":
            words = 'attn_implementation="sdpa" in place of "eager"'
        yield Mend("sdpa", words, lambda f: _four_axes(replace(f, api="sdpa"), problem))
    if form.api == "mha" and weights and form.unread:
        words = "need_weights=False: nobody reads the weights"
        yield Mend("need_weights", words, lambda f: _four_axes(replace(f, returns=""), problem))
    if form.api == "flex":
        words = "torch.compile(flex_attention) in place of flex_attention"
        yield Mend("compile_flex", words, lambda f: replace(f, api="flex compiled"))


def _masks(form: CallForm, problem: Problem) -> Iterator[Mend]:
    """Other ways to say what the mask says."""
    if form.mask is None or form.is_causal:
        return
    if form.mask.gradient:
        if form.api == "sdpa" and not (form.gradient and form.asked):
            words = "attn_mask.detach(): nobody asks for its gradient"
            yield Mend("detach_mask", words, _with_mask(gradient=False))
    elif form.returns != "weights" or form.unread:
        yield from _plain_masks(form, form.mask, problem)


def _plain_masks(form: CallForm, tensor: TensorForm, problem: Problem) -> Iterator[Mend]:
    """The same of a mask that no gradient is asked of."""
    mask: Mask = problem.mask
    if mask.plain:
        words = "drop attn_mask: it hides nothing"
        yield Mend("drop_mask", words, lambda f: replace(f, mask=None, mask_type=""))
        return
    if mask.is_causal(problem.shape):
        beside = "beside attn_mask" if form.api == "mha" else "in place of the tensor"
        words = f"is_causal=True {beside}"
        yield Mend(
            "is_causal", words, lambda f: replace(f, mask=None, mask_type="", is_causal=True)
        )
        return
    if form.api != "sdpa":
        return
    kinds = {*mask.kinds}
    if tensor.dtype != "bool" and not {"alibi", "bias"} & kinds:
        words = "a boolean mask in place of a float one"
        yield Mend("boolean_mask", words, _with_mask(dtype="bool"))
    if _for_each_head(tensor) and not {"dense", "bias", "alibi"} & kinds:
        words = "attn_mask of one head, which is that of all, in place of one for each"
        yield Mend("one_head", words, _with_mask_of_one_head)
    if len(tensor.shape) == 3:
        words = "attn_mask with four axes in place of three"
        yield Mend("mask_axes", words, lambda f: replace(f, mask=_more_axes(f.mask, problem)))


def _with_mask(**changes: Any) -> Callable[[CallForm], CallForm]:
    """The call with a mask that has these fields of its form instead."""
    return lambda form: replace(form, mask=form.mask and replace(form.mask, **changes))


def _for_each_head(mask: TensorForm) -> bool:
    return len(mask.shape) == 4 and mask.shape[1] > 1


def _with_mask_of_one_head(form: CallForm) -> CallForm:
    if (mask := form.mask) is None or not _for_each_head(mask):
        return form
    batch, _, n, m = mask.shape
    return replace(form, mask=mask.contiguous((batch, 1, n, m)))


def _more_axes(mask: TensorForm | None, problem: Problem) -> TensorForm | None:
    if mask is None or len(mask.shape) != 3:
        return mask
    first, *rest = mask.shape
    heads = first != problem.batch and first > 1
    return mask.contiguous((1, first, *rest) if heads else (first, 1, *rest))


def _tensors(form: CallForm, problem: Problem) -> Iterator[Mend]:
    """Other layouts of queries, keys and values; no gradient."""
    torchs = form.api in ("sdpa", "mha") and form.returns != "weights"
    if form.repeated > 1 and not form.enable_gqa and form.api in ("sdpa", "products"):
        yield Mend("enable_gqa", "enable_gqa=True in place of repeat_interleave", _grouped)
    if torchs and len(form.q.shape) == 3:
        words = "q, k and v with four axes in place of three: q[None]"
        yield Mend("four_axes", words, lambda f: _four_axes(f, problem))
    if any(x.last_strided for x in (form.q, form.k, form.v)) and torchs:
        words = "transpose before the projection, not after: q, k and v contiguous along head_dim"
        yield Mend("contiguous", words, lambda f: replace(f, copied=True))
    if len(form.k.shape) == 4 and form.k.shape[1] < form.q.shape[1] and not form.enable_gqa:
        words = "enable_gqa=True: key and value have fewer heads than query"
        yield Mend("enable_gqa", words, lambda f: replace(f, enable_gqa=True))
    yield from _gradients(form)


def _gradients(form: CallForm) -> Iterator[Mend]:
    """No gradient, where nobody asks for one."""
    # without gradients nn.MultiheadAttention takes another path, which may be slower
    if form.gradient and not form.asked and form.api != "mha":
        words = "torch.no_grad() around it: nobody asks for a gradient"
        yield Mend("no_grad", words, lambda f: replace(f, gradient=False))


def _grouped(form: CallForm) -> CallForm:
    """Each head of the keys once."""
    few = [replace_heads(x, x.shape[1] // form.repeated) for x in (form.k, form.v)]
    return replace(form, enable_gqa=True, repeated=1, k=few[0], v=few[1])


def replace_heads(x: TensorForm, heads: int) -> TensorForm:
    """A tensor of fewer heads, its numbers one after another."""
    batch, _, length, width = x.shape
    return x.contiguous((batch, heads, length, width))


def _four_axes(form: CallForm, problem: Problem) -> CallForm:
    """Batch and heads as axes of their own."""

    def four(x: TensorForm) -> TensorForm:
        if len(x.shape) != 3:
            return x
        (first, *rest), (stride, *others) = x.shape, x.strides
        batch = first // problem.heads if first % problem.heads == 0 else first
        heads = first // batch
        return replace(x, shape=(batch, heads, *rest), strides=(heads * stride, stride, *others))

    mask = form.mask
    if mask is not None and len(mask.shape) == 3:
        mask = four(mask) if mask.shape[0] > 1 else mask.contiguous((1, *mask.shape))
    return replace(form, q=four(form.q), k=four(form.k), v=four(form.v), mask=mask)


def _kernels(form: CallForm, problem: Problem) -> Iterator[Mend]:
    """Other kernels than the one that torch was let choose."""
    if form.api not in ("sdpa", "mha") or form.returns == "weights":
        return
    if problem.device == "cpu":
        if "flash" in form.disabled:
            words = "let sdpa_kernel take SDPBackend.FLASH_ATTENTION too, or drop it"
            yield Mend("backend", words, lambda f: replace(f, disabled=()))
        return
    fused = [x for x in ("cudnn", "flash", "efficient") if x != form.kernel]
    for name in fused:
        only = replace(form, disabled=tuple(x for x in BACKENDS if x != name))
        words = f"wrap in {_sdpa_kernel(only)}"
        yield Mend("backend", words, lambda f, only=only: replace(f, disabled=only.disabled))  # type: ignore[misc]


def backend_order(form: CallForm) -> list[str]:
    """torch's names of its backends, those first that a call may use."""
    order = sorted(("flash", "efficient", "cudnn", "math"), key=lambda x: x in form.disabled)
    return [BACKENDS[name] for name in order]


def _sdpa_kernel(form: CallForm) -> str:
    backends = ", ".join(f"SDPBackend.{name}" for name in backend_order(form))
    return f"sdpa_kernel([{backends}], set_priority=True)"


def lines(form: CallForm, keys: Sequence[str], problem: Problem, *, axes: int = 4) -> list[str]:
    """A call with its mends, as a program would make it whose tensors have so many axes."""
    if form.api in ("flex", "flex compiled"):
        return ["flex_attention = torch.compile(flex_attention)"]
    if form.api == "mha":
        beside = ["attn_mask=mask"] if form.is_causal or form.mask is not None else []
        flags = {"is_causal=True": form.is_causal, "need_weights=False": not form.returns}
        words = [*beside, *(word for word, so in flags.items() if so)]
        return [f"out, _ = attention({', '.join(['x, x, x', *words])})"]
    flags = {
        "attn_mask=attn_mask": form.mask is not None,
        "is_causal=True": form.is_causal,
        f"dropout_p={form.dropout:g}": form.dropout > 0,
        f"scale={problem.scale!r}": "scale" in problem.parameters,
        "enable_gqa=True": form.enable_gqa,
    }
    words = [word for word, so in flags.items() if so]
    some = [f"out = F.scaled_dot_product_attention({', '.join(['q, k, v', *words])})"]
    if axes == 3:
        qkv = "q[None], k[None], v[None]"
        if form.mask is not None and len(form.mask.shape) == 4:
            words[0] = "attn_mask=attn_mask[None]"
        some = [f"out = F.scaled_dot_product_attention({', '.join([qkv, *words])})[0]"]
    if form.copied:
        some.insert(0, "q, k, v = q.contiguous(), k.contiguous(), v.contiguous()")
    if "backend" in keys and form.disabled:  # on a GPU: which kernel comes first
        some[-1:] = [f"with {_sdpa_kernel(form)}:", f"    {some[-1]}"]
    if "no_grad" in keys:
        some = ["with torch.no_grad():", *(f"    {line}" for line in some)]
    return some


# ---- what they gain ------------------------------------------------------------------------------


class Priced(msgspec.Struct, frozen=True):
    """Mends of a call with what they gain together; ``why``: why there is none."""

    keys: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    now_s: float | None = None
    then_s: float | None = None
    ratio: Interval | None = None
    form: CallForm | None = None
    """The call as it is mended; None where a variant takes its place."""
    code: tuple[str, ...] = ()
    why: str = ""

    @property
    def gains(self) -> bool:
        """True where something is to be changed."""
        return bool(self.keys)

    @property
    def variant(self) -> str:
        """The variant that takes the call's place; empty where the call itself is mended."""
        return self.keys[0] if self.keys and self.form is None else ""


class Pricer:
    """Asks a worker for pairs of a call and the call with mends, or of a variant of the table."""

    def __init__(
        self,
        engine: Engine,
        problem: Problem,
        form: CallForm,
        others: Sequence[tuple[CallForm, Problem]] = (),
    ) -> None:
        """``others``: the other calls of its line."""
        self._engine, self._problem, self._form = engine, problem, form
        self._others = others

    def best_variant(self, names: Sequence[str], priced: Priced, **how: Any) -> Priced:
        """The fastest of some variants in the place of the call, where it gains enough over the
        call with its mends; else ``priced``.

        ``how``: with which tables, and how the program hands masks over.
        """
        mended = priced.form or self._form
        ratios = {
            name: _ratio(self._compared(mended, mended, {"variant": name, **how})) for name in names
        }
        name = min(ratios, key=ratios.__getitem__)
        if ratios[name] > ENOUGH:
            return priced
        answer = self._compared(self._form, self._form, {"variant": name, **how})
        if not _faster(answer):
            return priced
        ratio, seconds = _interval(answer), _seconds(answer)
        return Priced((name,), (f"take {name}",), ratio=ratio, **seconds)

    def price(self) -> Priced:
        """The mends that gain, together."""
        some = mends(self._form, self._problem, self._others)
        if not some:
            return Priced(why=VARIES if mends(self._form, self._problem) else NOTHING)
        kernels = [m for m in some if m.key == "backend" and self._problem.device != "cpu"]
        rest = [m for m in some if m not in kernels]
        each = [self._best_of(rest), *(self._best_of([*rest, kernel]) for kernel in kernels)]
        return min(each, key=lambda p: p.ratio.value if p.ratio else inf)

    def _best_of(self, some: Sequence[Mend]) -> Priced:
        """All of them together, but for those without which the call is as fast."""
        if not some:
            return Priced(why=NOTHING)
        remaining = list(some)
        answer = self._pairs(self._form, remaining)
        while not _faster(answer) and len(remaining) > 1:
            # one of them may cost more than another gains, or change the output
            fewer = [[m for m in remaining if m is not each] for each in remaining]
            answers = [self._pairs(self._form, some) for some in fewer]
            best = min(range(len(fewer)), key=lambda n: _ratio(answers[n]))
            remaining, answer = fewer[best], answers[best]
        if not _faster(answer):
            words, why = "; ".join(mend.words for mend in some), answer.get("why")
            result = f"not done, since {why}" if why else "no gain is shown"
            return Priced(why=f"{words}: {result}", **_seconds(answer))
        for each in list(remaining):
            without = [m for m in remaining if m is not each]
            if without and _as_fast(self._pairs(_changed(self._form, without), [each])):
                remaining = without
        if len(remaining) < len(some):
            answer = self._pairs(self._form, remaining)
            if not _faster(answer):
                return Priced(why=answer.get("why") or "no gain is shown", **_seconds(answer))
        form, keys = _changed(self._form, remaining), tuple(m.key for m in remaining)
        ratio = _interval(answer)
        return Priced(
            keys,
            tuple(m.words for m in remaining),
            ratio=self._copied_or_not(ratio, form) if form.copied else ratio,
            form=form,
            code=tuple(self._lines(form, keys)),
            **_seconds(answer),
        )

    def _copied_or_not(self, copied: Interval, form: CallForm) -> Interval:
        """The gain of copies, widened to what the layout gains where it costs nothing."""
        q, k, v = (x.contiguous() for x in (form.q, form.k, form.v))
        free = self._compared(self._form, replace(form, copied=False, q=q, k=k, v=v))
        if not _faster(free) or (least := _interval(free)).value > copied.value:
            return copied
        return Interval((least.value + copied.value) / 2, least.low, copied.high)

    def _lines(self, form: CallForm, keys: Sequence[str]) -> list[str]:
        if "sdpa" in keys and self._form.api == "eager":
            return ['model.set_attn_implementation("sdpa")']
        axes = len(self._form.q.shape) if len(form.q.shape) == 4 else 4
        return lines(form, keys, self._problem, axes=axes)

    def _pairs(self, form: CallForm, some: Sequence[Mend]) -> dict[str, Any]:
        """Pairs of a form and the form with these mends."""
        return self._compared(form, _changed(form, some))

    def _compared(
        self, form: CallForm, against: CallForm, taking: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        from attnbench.core.process import WorkerLost

        question = {
            "answer": "attnbench.models.replay:answer",
            "form": msgspec.to_builtins(form),
            "against": msgspec.to_builtins(against),
            "taking": taking,
            "problem": plain(self._problem),
            "margin": MARGIN,
            "cap": CAP,
            "budget_s": BUDGET_S,
        }
        try:
            return self._engine.ask(question, LIMIT_S)
        except WorkerLost as lost:
            return {"why": lost.reason}


def _changed(form: CallForm, some: Sequence[Mend]) -> CallForm:
    for mend in some:
        form = mend.change(form)
    return form


def _faster(answer: Mapping[str, Any]) -> bool:
    return "comparison" in answer and answer["comparison"]["verdict"] == Verdict.FASTER


def _as_fast(answer: Mapping[str, Any]) -> bool:
    """True if both were timed and the second is no faster; false where their outputs differ."""
    return "comparison" in answer and not _faster(answer)


def _interval(answer: Mapping[str, Any]) -> Interval:
    return Interval(*(answer["comparison"][name] for name in ("ratio", "low", "high")))


def _ratio(answer: Mapping[str, Any]) -> float:
    return _interval(answer).value if "comparison" in answer else inf


def _seconds(answer: Mapping[str, Any]) -> dict[str, Any]:
    return {name: answer[name] for name in ("now_s", "then_s") if name in answer}
