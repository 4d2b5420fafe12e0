"""What a variant's output should be: its definition in float64, and what the same plain form makes
of it in the problem's own dtype. The second error is the yardstick for the first.

For exact softmax the definition is the oracle. It serves every variant of a problem, so it is
computed once. For the others the definition is their own, differentiated by autograd; so it is for
layers, whose weights are differentiated too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial

import torch
from torch import Tensor

from attnbench.core.record import Error
from attnbench.gate.inputs import (
    TOKENS,
    Inputs,
    as_rows,
    by_name,
    cast,
    in_sight,
    make,
    turned,
    upstream_besides,
    weights_of,
)
from attnbench.gate.oracle import (
    compare,
    exact,
    recomputed,
    sample_rows,
    softmax_define,
    worse,
)
from impls.operators import OUTPUT_AXES, OUTPUTS, QKV, TensorSpec
from impls.operators import inputs as inputs_of
from impls.problem import Problem

BLOCK_BYTES = 128 << 20
PLAIN_SCORES = 1 << 25
"""Scores that the plain forms compute at most: their errors are a yardstick, and a few rows of a
long sequence give it as well as many."""
EARLY = 4
"""Of the sampled rows the first are always tried: under a causal mask they mean over few keys, so
their outputs, and what rounding leaves of them, are hundreds of times those of late rows."""
ZERO_SHARE = 1e-10
"""Of the terms that cancel: what is below this of them is the oracle's own rounding."""
ROWS = 256
"""How many rows of queries are judged; all of them where there are fewer."""
ENOUGH_ROWS, MOST_DRAWS = 256, 16
WHOLE_SCORES = 1 << 28
"""Scores up to which every row is looked at, if not as closely as the sampled ones."""
EVERY_SCORES = 1 << 20
"""Scores up to which every row is judged, gradients too."""
OWN_ROWS = 128
"""How many of them are held against a variant's own definition where no gradients are judged: it is
computed for one variant alone."""
IN_FLOAT64 = 2.0**-29
"""The spacing of float64 over that of float32."""

Tensors = dict[str, Tensor]


def axes_of(name: str, specs: Mapping[str, TensorSpec]) -> tuple[str, ...]:
    """The axes of the gradient ``dNAME`` of an input, none of a weight's; those of an output."""
    if name == "forward":
        return OUTPUT_AXES
    spec = OUTPUTS.get(name) or specs.get(name.removeprefix("d"))
    return spec.axes if spec else ()


def rows_of(tensor: Tensor, axes: Sequence[str], rows: Tensor) -> Tensor:
    """An output or a gradient in rows; of one with an axis of queries, some of them."""
    if "q_len" in axes:
        tensor = tensor.index_select(axes.index("q_len"), rows)
    return as_rows(tensor, axes)


Defines = Callable[..., Tensor]
"""``define(q, k, v, rows)``; of a layer ``define(x, rows, weights)``, or with a context after x. A
layer's has ``weights``, the ones that its ``attend`` trains."""


@dataclass(frozen=True)
class Reference:
    """What should come out for some rows, and how near the plain form in the same dtype gets."""

    rows: Tensor
    dout: Tensor | None
    """The upstream gradient, full size, zero outside the rows."""
    want: Tensors = field(default_factory=dict)
    """``forward``, what comes besides, and with gradients ``dq``, ``dk``, ``dv``, in float64. dq
    over the rows."""
    errors: Callable[[], dict[str, Error]] = dict
    """Makes ``plain``."""
    cancels: dict[str, float] = field(default_factory=dict)
    """Of those that are zero in truth, the size of the terms that cancel."""
    tried: int = 0
    """How many rows, over the batch and the heads, the plain form is tried on, at the most."""
    specs: Mapping[str, TensorSpec] = field(default_factory=lambda: QKV)

    @cached_property
    def plain(self) -> dict[str, Error]:
        """The plain form's errors; computed where they are first asked for."""
        return self.errors()

    def of(self, name: str, whole: Tensor) -> Tensor:
        """The part of a call's result that ``want`` has: the rows of the output, and of the
        gradients that have an axis of queries.
        """
        return rows_of(whole, axes_of(name, self.specs), self.rows)

    def numbers(self, name: str) -> int:
        """How many numbers a tensor without tokens has, such as a gradient a head; else as many
        as there are rows.
        """
        axes = axes_of(name, self.specs)
        return self.tried if not axes or {*axes} & {*TOKENS} else self.want[name].numel()


@dataclass(frozen=True)
class Judged:
    """A problem with its inputs and what exact softmax makes of them."""

    problem: Problem
    inputs: Inputs
    softmax: Reference
    """Of a layer only what its variants share: which rows, under which upstream gradient."""
    mean: Callable[[], Tensor] | None
    """Makes once what ``mean_v`` makes of the rows, in float64: the zero of skill. None of a
    layer."""
    entropy: float | None
    dout: Tensor | None
    """An upstream gradient with no zeros, for what is timed: zeros could be skipped."""
    whole: Tensors | None
    """The plain form of every row under that gradient, where only some are judged and it is
    affordable.
    """
    seed: int

    def of(self, operator: str) -> Judged:
        """The same for the rows of an operator: its further inputs are drawn."""
        specs = inputs_of(operator, self.problem)
        if specs.keys() == self.inputs.keys():
            return self
        drawn = [(s.axes, s.draw) for s in self.inputs.specs.values()]
        if [(specs[name].axes, specs[name].draw) for name in self.inputs] != drawn:
            return replace(self, inputs=make(self.problem, self.seed, specs))
        new = make(self.problem, self.seed, {n: s for n, s in specs.items() if s.keyword})
        return replace(self, inputs=Inputs({**self.inputs, **new}, specs))


def judge(problem: Problem, inputs: Inputs, seed: int) -> Judged:
    """Everything about a problem that its variants share."""
    count = problem.q_len if _scores(problem) <= EVERY_SCORES else ROWS
    rows = sample_rows(problem.q_len, count, seed).to(problem.device)
    every = len(rows) == problem.q_len
    dout = dense = None
    b, h, n, e = problem.output_shape
    if problem.gradients:
        dout = cast(torch.zeros(1), problem).expand(b, h, n, e).clone()
        dout[:, :, rows] = _draw((b, h, len(rows), e), problem, seed + 1)
        dense = dout if every else _draw((b, h, n, e), problem, seed + 3)
    if problem.level != "core":
        return Judged(problem, inputs, Reference(rows, dout), None, None, dense, None, seed)
    softmax, entropy = of_rows(problem, inputs, rows, dout, seed)
    mean = cache(lambda: exact(problem, *inputs.qkv, rows, uniform=True).out)
    whole = None
    if not every and _scores(problem) <= WHOLE_SCORES:  # in float32 at the least
        wider = inputs if problem.dtype == "float64" else inputs.map(Tensor.float)
        each = torch.arange(problem.q_len, device=problem.device)
        whole = differentiated(problem, wider, each, dense, softmax_define(problem))
    return Judged(problem, inputs, softmax, mean, entropy, dense, whole, seed)


def _draw(shape: tuple[int, ...], problem: Problem, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return cast(torch.randn(shape, generator=generator, dtype=torch.float32), problem)


def _scores(problem: Problem) -> int:
    return problem.batch * problem.heads * problem.q_len * problem.kv_len


def wide(inputs: Inputs) -> Inputs:
    """The inputs in float64."""
    return inputs.map(Tensor.double)


def differentiated(
    problem: Problem, inputs: Inputs, rows: Tensor, dout: Tensor | None, define: Defines
) -> Tensors:
    """A definition's output and gradients, block by block, summed in float64."""
    trained, specs = dout is not None, inputs.specs
    dtype = next(iter(inputs.values())).dtype
    names = [name for name in inputs if trained and specs[name].gradient]
    leaves = Inputs({n: x.detach().requires_grad_(n in names) for n, x in inputs.items()}, specs)
    weights = {
        name: weight.detach().to(dtype).requires_grad_(trained)
        for name, weight in weights_of(define).items()
    }
    sources = [*(leaves[name] for name in names), *weights.values()] if trained else []
    sums = [torch.zeros_like(x, dtype=torch.float64) for x in sources]
    blocks: list[Tensors] = []
    tensors, named = leaves.arguments
    for some in row_blocks(problem, rows, dtype.itemsize):
        if problem.level == "core":
            outs = by_name(problem, define(*tensors, some, **named))
        else:
            out = define(*tensors, some, *([weights] if weights else [])).unsqueeze(1)
            outs = {"forward": out}
        blocks.append({name: x.detach() for name, x in outs.items()})
        if dout is not None:
            above = [dout[:, :, some], *upstream_besides(problem, dout[:, :, some])]
            above = [x.to(out.dtype) for x, out in zip(above, outs.values(), strict=True)]
            made = [*outs.values()]
            parts = torch.autograd.grad(made, sources, above, materialize_grads=True)
            for total, part in zip(sums, parts, strict=True):
                total += part
    results = {n: torch.cat([block[n] for block in blocks], 2) for n in blocks[0]}
    for name in results.keys() & OUTPUTS.keys():
        results[name] = as_rows(in_sight(results[name]), axes_of(name, specs))
    gradients = [*(f"d{n}" for n in names), *(f"d:{n}" for n in weights)] if trained else []
    for name, total in zip(gradients, sums, strict=True):
        results[name] = rows_of(total, axes_of(name, specs), rows)
    return results


def row_blocks(problem: Problem, rows: Tensor, item_bytes: int) -> Iterator[Tensor]:
    """The sampled rows in blocks whose scores stay small."""
    scores = problem.batch * problem.heads * problem.kv_len * item_bytes
    return iter(rows.split(max(1, BLOCK_BYTES // scores)))


def few_rows(problem: Problem, rows: Tensor) -> Tensor:
    """The rows that the plain forms are tried on: all, or a spread of them where rows are long."""
    scores_per_row = problem.batch * problem.heads * problem.kv_len
    count = min(len(rows), max(8, PLAIN_SCORES // scores_per_row))
    early = torch.arange(min(EARLY, count), device=rows.device)
    spread = torch.linspace(len(early), len(rows) - 1, count - len(early), device=rows.device)
    return rows[torch.cat([early, spread.long()])]


# ---- exact softmax ----


def of_rows(
    problem: Problem, inputs: Inputs, rows: Tensor, dout: Tensor | None, seed: int
) -> tuple[Reference, float]:
    """What softmax makes of some rows, and the mean entropy there; ``dout`` is zero elsewhere."""

    def truth(inputs: Inputs, rows: Tensor) -> tuple[Tensors, float]:
        upstream = None if dout is None else dout[:, :, rows]
        softmax = exact(problem, *inputs.qkv, rows, upstream, **inputs.arguments[1])
        return softmax.tensors, softmax.entropy

    want, entropy = truth(inputs, rows)
    few = few_rows(problem, rows)
    want_few = want if len(few) == len(rows) else truth(inputs, few)[0]
    plain = _plain_errors(problem, inputs, few, dout, want_few)
    tried = problem.batch * problem.heads * len(few)
    draws = min(MOST_DRAWS, math.ceil(ENOUGH_ROWS / tried))  # again where few may be lucky
    generator = torch.Generator().manual_seed(seed + 4)
    for _ in range(draws - 1):  # the same queries with their channels mixed: other scores of a kind
        mixed = torch.randperm(problem.head_dim, generator=generator).to(problem.device)
        other = Inputs({**inputs, "q": inputs["q"][..., mixed].contiguous()}, inputs.specs)
        errors = _plain_errors(problem, other, few, dout, truth(other, few)[0])
        plain = {name: worse(plain[name], errors[name]) for name in want}
    cancels = _cancelling(problem, inputs, rows, dout, want)
    tried *= draws
    return Reference(rows, dout, want, lambda: plain, cancels, tried, inputs.specs), entropy


def _plain_errors(
    problem: Problem, inputs: Inputs, rows: Tensor, dout: Tensor | None, want: Tensors
) -> dict[str, Error]:
    """The worse of the two textbook forms, measure by measure; the second is ``recomputed``."""
    tensors = differentiated(problem, inputs, rows, dout, softmax_define(problem))
    plain = {name: compare(tensors.pop(name), want[name]) for name in want}
    again: Tensors = {}
    for some in row_blocks(problem, rows, max(4, problem.item_bytes)):
        upstream = None if dout is None else dout[:, :, some]
        parts = recomputed(problem, *inputs.qkv, some, upstream, **inputs.arguments[1])
        for name, part in parts.items():
            if name in ("forward", "dq", *OUTPUTS):
                again[name] = torch.cat([*([again[name]] if name in again else []), part], 2)
            else:
                part = as_rows(part, axes_of(name, inputs.specs))
                again[name] = again.get(name, 0.0) + part.double()
    return {name: worse(plain[name], compare(again.pop(name), want[name])) for name in want}


def _cancelling(
    problem: Problem, inputs: Inputs, rows: Tensor, dout: Tensor | None, want: Tensors
) -> dict[str, float]:
    """Which tensors are zero in truth, and from terms of what size.

    A row that sees one key has a weight of exactly one, so nothing flows into its scores; a
    relative error would divide by the rounding of the oracle. In a layer a key's bias gets no
    gradient, since no softmax changes by it.
    """
    largest = max(float(x.abs().max()) for x in want.values())
    sizes = dict.fromkeys(want, largest)
    if problem.level == "core":
        q, k, v = (float(x.double().norm(dim=-1).max()) for x in inputs.qkv)
        out = float(dout[:, :, rows].double().norm(dim=-1).max()) if dout is not None else 0.0
        many = math.sqrt(len(rows) * problem.group)
        through = problem.scale * out * v
        sizes |= {"forward": v, "dq": through * k, "dk": through * q * many, "dv": out * many}
    return {n: sizes[n] for n, x in want.items() if float(x.abs().max()) <= ZERO_SHARE * sizes[n]}


# ---- a definition of its own ----


def defined(problem: Problem, inputs: Inputs, softmax: Reference, define: Defines) -> Reference:
    """The reference of a variant that has a definition of its own."""
    rows, dout = softmax.rows, softmax.dout
    if dout is None and len(rows) > OWN_ROWS:
        rows = rows[torch.linspace(0, len(rows) - 1, OWN_ROWS, device=rows.device).long()]
    few = few_rows(problem, rows)
    by = partial(differentiated, problem, dout=dout, define=define)

    def errors(inputs: Inputs, truth: Tensors) -> dict[str, Error]:
        """What the definition makes of itself in the problem's dtype.

        In float64 that would be nothing at all, however many terms cancel; so there it is what
        float32 makes of it, in proportion to the spacings.
        """
        if problem.dtype != "float64":
            got = by(inputs, few)
            return {name: compare(got[name], truth[name]) for name in truth}
        got = by(inputs.map(Tensor.float), few)
        return {name: _in_float64(compare(got[name], truth[name])) for name in truth}

    want = by(wide(inputs), rows)
    tried = problem.batch * problem.heads * len(few)
    others = turned(inputs) if tried < ENOUGH_ROWS else []  # few rows may be lucky

    def worst() -> dict[str, Error]:
        plain = errors(inputs, want if len(few) == len(rows) else by(wide(inputs), few))
        for other in others:
            more = errors(other, by(wide(other), few))
            plain = {name: worse(plain[name], more[name]) for name in want}
        return plain

    cancels = _cancelling(problem, inputs, rows, dout, want)
    tried *= 1 + len(others)
    return Reference(rows, dout, want, worst, cancels, tried, inputs.specs)


def _in_float64(error: Error) -> Error:
    """An error of float32 as float64 would make it; none where it is not a number."""
    measures = [m for m in (error.relative, error.max, error.worst_row) if m is not None]
    if len(measures) < 3 or not all(map(math.isfinite, measures)):
        measures = [0.0] * 3
    relative, largest, worst = (m * IN_FLOAT64 for m in measures)
    return error.with_(relative=relative, max=largest, worst_row=worst)
