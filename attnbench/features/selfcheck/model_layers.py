"""The attention layers of a running model, call by call: in float64, and by an implementation.

A layer's truth is the layer on one document alone, without padding, in float64, with softmax
written out. In a batch each layer gets the inputs that it had there, whatever the layer before it
gave, so that a fault shows where it stands and doesn't spread. Rows of padding hold random values,
and nothing is asked of them.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from attnbench.answer.paste import PREFIX
from attnbench.gate.budget import RELATIVE_FACTOR, WORST_ROW_FACTOR, allowed
from attnbench.gate.oracle import compare
from attnbench.models.transformers import EagerMask
from impls.errors import CantBeDone

WRITTEN_OUT = f"{PREFIX}matmul"
"""The implementation that computes truth in float64, and in the dtype at hand the yardstick."""
SMALL_WEIGHT = 0.01
"""The gradient of a weight is measured against at least this share of the layer's largest."""
SEES, BLIND = 1e-4, 1e-7
"""A row sees a key that moves it by more, and doesn't see one that moves it by less."""
Named = dict[str, Any]
"""Arguments of a layer, all by name."""


@dataclass(frozen=True)
class Batch:
    """How documents lie in a batch."""

    name: str
    documents: tuple[tuple[int, int, int], ...]
    """Of each its number, its row of the batch, and where it begins."""
    lengths: tuple[int, ...]
    """Of all documents there are."""

    @property
    def shape(self) -> tuple[int, int]:
        """Sequences and tokens."""
        ends = [begin + self.lengths[number] for number, _, begin in self.documents]
        return 1 + max(row for _, row, _ in self.documents), max(ends)

    def spread(self, parts: Sequence[Tensor], fill: Tensor) -> Tensor:
        """``fill`` with the documents' tokens in their places."""
        for number, row, begin in self.documents:
            fill[row, begin : begin + self.lengths[number]] = parts[number][0]
        return fill

    def rows(self, batched: Tensor) -> Tensor:
        """The documents' tokens, one after the other."""
        spans = [(row, begin, begin + self.lengths[n]) for n, row, begin in self.documents]
        return torch.cat([batched[row, begin:end] for row, begin, end in spans])

    def joined(self, parts: Sequence[Tensor]) -> Tensor:
        """The documents' own, in the order of :meth:`rows`."""
        return torch.cat([parts[number][0] for number, *_ in self.documents])

    def owners(self) -> Tensor:
        """The number of each place's document; -1 where it is padding."""
        parts = [torch.full((1, length), n) for n, length in enumerate(self.lengths)]
        return self.spread(parts, torch.full(self.shape, -1))

    def reason(self, wrong: Tensor, words: str) -> str:
        """A sentence on the first pair of a row and a key, [batch, row, key], that is wrong."""
        number, row, key = (int(x) for x in wrong.nonzero()[0])
        owners = self.owners()[number]
        if owners[key] < 0:
            what = ", which is padding"
        elif owners[key] != owners[row]:
            what = " of the other document"
        else:
            what = ", which comes after it" if key > row else ", its own" if key == row else ""
        count, of = int(wrong.any(-1).sum()), len(self.rows(wrong))
        where = f"sequence {number}, " if self.shape[0] > 1 else ""
        return f"{where}row {row} {words} key {key}{what} ({count} of {of} rows are like that)"


class Call(NamedTuple):
    """One call of a layer on one document alone, and what that gives in float64."""

    module: nn.Module
    arguments: Named
    tokens: dict[str, Tensor]
    """The arguments with a row a token."""
    above: Tensor
    """The gradient from above."""
    output: Tensor
    gradients: dict[str, Tensor]


class Size(NamedTuple):
    """How far something is off: relative, and in its worst row."""

    relative: float
    worst_row: float = 0.0


class LayerPass:
    """Hooks on the attention layers while a model runs, which see each call, arguments by name."""

    def __init__(self, layers: Sequence[nn.Module], *, gradients: bool = True) -> None:
        self._layers, self.gradients = layers, gradients
        self._current: nn.Module | None = None
        self._looking = False
        self.calls = 0
        """How many have ended."""

    def __deepcopy__(self, memo: Any) -> LayerPass:
        """Itself: a copy of a layer has the layer's hooks."""
        return self

    def run(self, model: nn.Module, question: Named) -> None:
        """Run the model with the hooks in place."""
        with ExitStack() as stack:
            for layer in self._layers:
                for hook in (
                    layer.register_forward_pre_hook(self._before, with_kwargs=True),
                    layer.register_forward_hook(self._after, with_kwargs=True),
                ):
                    stack.callback(hook.remove)
            stack.enter_context(torch.no_grad())
            model(**question)

    def _before(self, module: nn.Module, args: Any, kwargs: Named) -> Any:
        if self._current is not None:
            return None
        arguments = self.change(by_name(module, args, kwargs))
        self._current = module
        torch.set_grad_enabled(self.gradients)
        return (), arguments

    def _after(self, module: nn.Module, args: Any, kwargs: Named, out: Any) -> Any:
        if module is not self._current or self._looking:
            return None
        self._looking = True
        self.look(module, kwargs, first_tensor(out))
        torch.set_grad_enabled(False)
        self._current, self._looking, self.calls = None, False, self.calls + 1
        return tree_map(lambda x: x.detach() if isinstance(x, Tensor) else x, out)

    def change(self, arguments: Named) -> Named:
        """The arguments that the layer gets instead."""
        return arguments

    def look(self, module: nn.Module, arguments: Named, out: Tensor) -> None:
        """See what a layer gave."""
        raise NotImplementedError


def by_name(module: nn.Module, args: Sequence[Any], kwargs: Named) -> Named:
    """A layer's arguments, those by place too."""
    signature = inspect.signature(module.forward)
    named: Named = {}
    for name, value in signature.bind_partial(*args, **kwargs).arguments.items():
        var = signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD
        named |= value if var else {name: value}
    return named


def first_tensor(out: Any) -> Tensor:
    """A layer's output, [batch, tokens, width], without the weights and caches beside it."""
    first = out if isinstance(out, Tensor) else next(x for x in out if isinstance(x, Tensor))
    return first.flatten(2)


def token_inputs(arguments: Named, shape: tuple[int, int]) -> dict[str, Tensor]:
    """Those arguments that are [batch, tokens, width]."""
    return {
        name: x
        for name, x in arguments.items()
        if isinstance(x, Tensor) and x.is_floating_point() and x.dim() == 3
        if tuple(x.shape[:2]) == shape and "mask" not in name and "bias" not in name
    }


def gradients_of(
    out: Tensor, leaves: Mapping[str, Tensor], module: nn.Module, above: Tensor
) -> dict[str, Tensor]:
    """By name, of the inputs and of the layer's weights."""
    weights = {name: p for name, p in module.named_parameters() if p.requires_grad}
    ends = {**leaves, **weights}
    some = torch.autograd.grad(out, [*ends.values()], above, allow_unused=True)
    pairs = zip(ends.items(), some, strict=True)
    return {name: torch.zeros_like(x) if got is None else got for (name, x), got in pairs}


def in_float64(module: nn.Module, arguments: Named) -> tuple[nn.Module, Named]:
    """A copy of a layer by attention written out, and its arguments; a mask whose numbers are not
    written stays as it is.
    """

    def widened(x: Any) -> Any:
        wide = isinstance(x, Tensor) and x.is_floating_point() and not isinstance(x, EagerMask)
        return x.double() if wide else x

    layer: Any = copy.deepcopy(module).double()
    layer.config._attn_implementation = WRITTEN_OUT
    return layer, tree_map(widened, arguments)


class Truth(LayerPass):
    """A pass over one document alone: all calls, with what each gives in float64."""

    def __init__(self, layers: Sequence[nn.Module], length: int, seed: int) -> None:
        super().__init__(layers, gradients=False)
        self._length = length
        self.calls_made: list[Call] = []
        self._source = torch.Generator().manual_seed(seed)

    def look(self, module: nn.Module, arguments: Named, out: Tensor) -> None:
        """Make the call again in float64."""
        shape = (1, self._length)
        if tuple(out.shape[:2]) != shape:
            raise CantBeDone(f"{type(module).__name__} has rows that are no tokens")
        tokens = {name: x.clone() for name, x in token_inputs(arguments, shape).items()}
        if not tokens:
            raise CantBeDone(f"{type(module).__name__} takes no [batch, tokens, width]")
        above = torch.randn(out.shape, generator=self._source).to(out)
        layer, wide = in_float64(module, arguments)
        leaves = {name: wide[name].detach().requires_grad_() for name in tokens}
        with torch.enable_grad():
            result = first_tensor(layer(**wide | leaves))
            gradients = gradients_of(result, leaves, layer, above.double())
        self.calls_made.append(Call(module, arguments, tokens, above, result.detach(), gradients))


def moved(run: Callable[[Named], Tensor], arguments: Named, name: str) -> Tensor:
    """[batch, row, key]: by what share of the output a row moves as a key's token is reversed."""
    base, x = run(arguments), arguments[name].detach()
    columns = []
    for key in range(x.shape[1]):
        changed = x.clone()
        changed[:, key] *= -1
        apart = run(arguments | {name: changed}) - base
        columns.append(apart.norm(dim=-1) / base.norm(dim=-1).mean())
    return torch.stack(columns, -1).nan_to_num(0.0)


def seen_alone(call: Call, name: str) -> Tensor:
    """[row, key]: by what share a row of a document moves with each of its keys, in truth."""
    layer, wide = in_float64(call.module, call.arguments)
    with torch.no_grad():
        return moved(lambda changed: first_tensor(layer(**changed)), wide, name)[0]


class Judge(LayerPass):
    """A pass over a batch by one implementation: how far each layer is off truth."""

    def __init__(
        self,
        truth: Sequence[Sequence[Call]],
        batch: Batch,
        dtype: str,
        yardstick: Sequence[Mapping[str, Size]] = (),
        *,
        gradients: bool = True,
    ) -> None:
        """``truth``: of each document; without a ``yardstick`` nothing is judged."""
        layers = {id(call.module): call.module for call in truth[0]}
        super().__init__([*layers.values()], gradients=gradients)
        self._truth, self._batch = truth, batch
        self._dtype, self._yardstick = dtype, yardstick
        self.sizes: list[dict[str, Size]] = []
        self.findings: list[Named] = []
        """What differs, at most one of each call."""
        self.worst = 0.0
        """The largest error, as a share of what is allowed."""

    @property
    def _calls(self) -> list[Call]:
        """This call on each of the documents."""
        return [calls[self.calls] for calls in self._truth]

    def change(self, arguments: Named) -> Named:
        """The inputs that the layer had in each document."""
        source = torch.Generator().manual_seed(self.calls)
        leaves = {}
        for name, like in self._calls[0].tokens.items():
            shape = (*self._batch.shape, like.shape[-1])
            fill = torch.randn(shape, generator=source).to(like)
            x = self._batch.spread([call.tokens[name] for call in self._calls], fill)
            leaves[name] = x.requires_grad_(self.gradients)
        return arguments | leaves

    def look(self, module: nn.Module, arguments: Named, out: Tensor) -> None:
        """Compare output and gradients with truth, and say why they differ."""
        calls, batch = self._calls, self._batch
        got, want = batch.rows(out.detach()), batch.joined([call.output for call in calls])
        sizes = {"output": size_of_rows(got, want)}
        if self.gradients:
            above = batch.spread([call.above for call in calls], torch.zeros_like(out))
            leaves = {name: arguments[name] for name in calls[0].tokens}
            sizes |= self._gradients(gradients_of(out, leaves, module, above), leaves)
        self.sizes.append(sizes)
        if self._yardstick:
            self._judge(sizes, self._yardstick[self.calls], module, arguments, out, len(want))

    def _gradients(
        self, got: Mapping[str, Tensor], leaves: Mapping[str, Tensor]
    ) -> dict[str, Size]:
        calls, batch = self._calls, self._batch
        used = [calls[number] for number, *_ in batch.documents]
        sizes, weights = {}, {}
        for name, x in got.items():
            if name in leaves:
                want = batch.joined([call.gradients[name] for call in calls])
                sizes[f"gradient of {name}"] = size_of_rows(batch.rows(x), want)
            else:
                total = sum((call.gradients[name] for call in used), torch.zeros(()))
                weights[name] = (x.double() - total).norm(), total.norm()
        least = SMALL_WEIGHT * max((float(whole) for _, whole in weights.values()), default=0.0)
        for name, (apart, whole) in weights.items():
            sizes[f"gradient of {name}"] = Size(float(apart) / (max(float(whole), least) or 1.0))
        return sizes

    def _judge(
        self,
        sizes: Mapping[str, Size],
        plain: Mapping[str, Size],
        module: nn.Module,
        arguments: Named,
        out: Tensor,
        rows: int,
    ) -> None:
        for what, size in sizes.items():
            for error, base, factor in zip(
                size, plain[what], (RELATIVE_FACTOR, WORST_ROW_FACTOR), strict=True
            ):
                most = allowed(base, factor, self._dtype, rows)
                share = error / most if math.isfinite(error) else math.inf
                self.worst = max(self.worst, share)
                if share > 1 and not (self.findings and self.findings[-1]["call"] == self.calls):
                    first = what == "output" and not self.findings
                    why = self._reason(module, arguments, out) if first else ""
                    finding = {"call": self.calls, "what": what, "error": error}
                    self.findings.append(finding | {"allowed": most, "reason": why})

    def _reason(self, module: nn.Module, arguments: Named, out: Tensor) -> str:
        """Which key a row sees that it should not, or fails to see; else how many rows are off."""
        batch, calls = self._batch, self._calls
        name = [*calls[0].tokens][-1]

        def run(changed: Named) -> Tensor:
            with torch.no_grad():
                return first_tensor(module(**changed)).double()

        try:
            sees = moved(run, arguments, name)
        except Exception as error:  # what differs is known all the same
            return f"which keys it sees can't be seen: {type(error).__name__}"
        truth = torch.zeros_like(sees)
        for number, row, begin in batch.documents:
            end = begin + batch.lengths[number]
            truth[row, begin:end, begin:end] = seen_alone(calls[number], name)
        real = (batch.owners() >= 0)[:, :, None].to(sees.device)
        extra = (sees > SEES) & (truth < BLIND) & real
        missing = (sees < BLIND) & (truth > SEES) & real
        if len(calls[0].tokens) == 1:
            missing |= self._blind_to_itself(module, arguments, out, sees > SEES) & real
        words = [batch.reason(extra, "sees")] if extra.any() else []
        words += [batch.reason(missing, "fails to see")] if missing.any() else []
        if words:
            return "; ".join(words)
        apart = batch.rows(out.detach()).double() - batch.joined([call.output for call in calls])
        off = apart.norm(dim=-1).nan_to_num(math.inf)
        count = int((off > SEES * off.max()).sum())
        return f"each row sees the keys that it should; {count} of {len(off)} rows are off"

    def _blind_to_itself(
        self, module: nn.Module, arguments: Named, out: Tensor, sees: Tensor
    ) -> Tensor:
        """[batch, row, key]: the rows whose output is as if they did not see their own token.

        A row moves with its own token in any case, as a query.
        """
        if "attention_mask" not in arguments:
            return torch.zeros_like(sees)
        own = torch.eye(sees.shape[1], dtype=torch.bool, device=sees.device)
        layer, wide = in_float64(module, {**arguments, "attention_mask": None})
        off = []
        for mask in (sees | own, sees & ~own):
            with torch.no_grad():
                as_if = first_tensor(layer(**wide | {"attention_mask": mask[:, None]}))
            off.append((as_if - out.detach().double()).norm(dim=-1))
        return (off[1] < 0.1 * off[0])[:, :, None] & own


def size_of_rows(got: Tensor, want: Tensor) -> Size:
    """How far rows [rows, width] are off."""
    error = compare(got[None, None], want[None, None])
    numbers = (error.relative, error.worst_row)
    return Size(*(math.nan if x is None else x for x in numbers))
