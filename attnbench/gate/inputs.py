"""The inputs of a problem: made from a seed, or read from a file.

Drawn in float32 on the device that needs them, and then cast. A CPU and a GPU draw different values
for the same seed: a CPU takes 6.5 ns a number, too long for a GPU to wait.

    normal      independent, standard
    peaky       logits in the hundreds: the softmax is saturated, nearly every row picks one key
    outliers    a few channels of the keys and values twenty times the rest, as in trained models
    equal_keys  keys equal in runs of 64, as in repeated tokens; queries and values differ
    sunk        every score near -112, below what float32's exponential can hold: padding scored 0,
                or a maximum that begins at 0, outweighs them all
    captured:FILE.npz   arrays q, k, v of the problem's shape

A layer or a block takes tokens as wide as its heads together: x, and for cross-attention a context.
The kinds then apply to the tokens; with sunk about half of the heads have scores far below zero.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnbench.gate.findings import Wrong
from impls.operators import QKV, TensorSpec
from impls.operators import inputs as inputs_of
from impls.operators import outputs as outputs_of
from impls.problem import Problem

RUN = 64
"""How many neighbouring keys are equal in ``equal_keys``."""
DEPTH = 112.0
"""How far below zero the scores of ``sunk`` lie: exp(-104) is 0 in float32, and beyond 128 bfloat16
tells scores that differ by 1 no longer apart."""


class Inputs(dict[str, Tensor]):
    """An operator's inputs by name, and their axes."""

    def __init__(
        self, tensors: Mapping[str, Tensor], specs: Mapping[str, TensorSpec] = QKV
    ) -> None:
        super().__init__(tensors)
        self.specs = specs
        self._held = [(n, spec.holds) for n, spec in specs.items() if spec.holds and n in self]

    def map(self, change: Callable[[Tensor], Tensor]) -> Inputs:
        """Every tensor changed."""
        return Inputs({name: change(x) for name, x in self.items()}, self.specs)

    def along(self, change: Callable[[Tensor, int], Tensor], *axes: str) -> Inputs:
        """Those changed that have one of the axes, whose place among its axes ``change`` gets."""
        changed = dict(self)
        for name, x in self.items():
            if (place := self.axis(name, *axes)) is not None:
                changed[name] = change(x, place)
        return Inputs(changed, self.specs)

    def drawn_as(self, *draws: str) -> Inputs:
        """Those that are drawn in one of these ways."""
        return self.only(name for name in self if self.specs[name].draw in draws)

    def size(self, axis: str) -> int:
        """The size of an axis; 1 where no input has it."""
        sizes = (x.shape[at] for n, x in self.items() if (at := self.axis(n, axis)) is not None)
        return next(sizes, 1)

    def axis(self, name: str, *axes: str) -> int | None:
        """The place of the first of these axes that an input has."""
        own = self.specs[name].axes
        return next((own.index(axis) for axis in axes if axis in own), None)

    def only(self, names: Iterable[str]) -> Inputs:
        """Some of them."""
        return Inputs({name: self[name] for name in names}, self.specs)

    @property
    def views(self) -> dict[str, Tensor]:
        """The inputs that lie in others' channels."""
        return {part: self[whole][..., :channels] for whole, (part, channels) in self._held}

    @property
    def qkv(self) -> tuple[Tensor, Tensor, Tensor]:
        """What softmax takes."""
        q, k, *v = (self[n] for n in "qkv" if n in self)
        return q, k, v[0] if v else self.views["v"]

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return next(iter(self.values())).device

    @property
    def arguments(self) -> tuple[list[Tensor], dict[str, Any]]:
        """What ``attend`` gets by place, and what by name."""
        by_name = {name: x for name, x in self.items() if self.specs[name].keyword}
        by_place = [x for name, x in self.items() if name not in by_name]
        if self._held:
            by_place += self.views.values()
        return by_place, by_name


KEY_TOKENS = ("kv_len", "tokens")
TOKENS = ("q_len", *KEY_TOKENS)
"""The axes along which tokens lie."""
SHAPED_BY = {
    "peaky": ("q", "k"),
    "outliers": ("k", "v"),
    "equal_keys": ("k",),
    "sunk": ("q", "k"),
}
"""The inputs of a core that a kind changes; of a layer it changes all."""


DRAW_AS: dict[str, Callable[[Tensor], Tensor]] = {
    "normal": lambda x: x,
    "unit": lambda x: x / x.norm(dim=-1, keepdim=True),
    "log decay": lambda x: torch.nn.functional.logsigmoid(x) / 16,  # a long memory to begin with
    "rate": torch.sigmoid,
}
CHANGED: dict[str, Callable[[Tensor], Tensor]] = {
    "normal": torch.neg,
    "unit": torch.neg,
    "log decay": lambda x: x * 2,
    "rate": lambda x: 1 - x,
}
"""By the way in which it is drawn, another value of the kind."""


def make(problem: Problem, seed: int, specs: Mapping[str, TensorSpec] | None = None) -> Inputs:
    """Inputs, the same for the same seed on the same kind of device; without specs, softmax's."""
    specs = specs or inputs_of("softmax", problem)
    first = {name: spec for name, spec in specs.items() if not spec.keyword}
    further = {n: _drawn_alone(problem, seed, n, specs[n]) for n in specs if n not in first}
    return Inputs({**_first(problem, seed, first), **further}, specs)


def _drawn_alone(problem: Problem, seed: int, name: str, spec: TensorSpec) -> Tensor:
    """An input that comes by keyword, the same whatever else there is."""
    generator = torch.Generator(problem.device).manual_seed(seed + zlib.crc32(name.encode()))
    x = torch.randn(spec.shape(problem), generator=generator, device=generator.device)
    return cast(DRAW_AS[spec.draw](x), problem, spec)


def _first(problem: Problem, seed: int, specs: Mapping[str, TensorSpec]) -> Inputs:
    """The inputs that come by place, of the problem's kind, from one generator."""
    kind = problem.inputs
    if kind.startswith("captured:"):
        with np.load(Path(kind.removeprefix("captured:")).expanduser()) as arrays:
            return Inputs(
                {
                    name: cast(DRAW_AS[spec.draw](torch.from_numpy(arrays[name])), problem)
                    for name, spec in specs.items()
                },
                specs,
            )
    generator = torch.Generator(problem.device).manual_seed(seed)
    at: Any = {"generator": generator, "device": generator.device}

    def drawn(name: str) -> Tensor:
        return torch.randn(specs[name].shape(problem), dtype=torch.float32, **at)

    def finish(name: str, x: Tensor) -> Tensor:
        return cast(DRAW_AS[specs[name].draw](x), problem)

    if kind == "normal":  # one after another: in float32 they take twice the room
        return Inputs({name: finish(name, drawn(name)) for name in specs}, specs)
    shaped_by = SHAPED_BY[kind] if problem.level == "core" else specs
    changed = [name for name in shaped_by if name in specs]
    parts = {name: drawn(name) for name in specs}
    parts |= {name: _shaped(problem, specs, name, parts[name], generator) for name in changed}
    return Inputs({name: finish(name, x) for name, x in parts.items()}, specs)


def _shaped(
    problem: Problem,
    specs: Mapping[str, TensorSpec],
    name: str,
    x: Tensor,
    generator: torch.Generator,
) -> Tensor:
    """As the kind has it: of standard deviation 8, so that of q.k d^-1/2 is 64; and so on."""
    place, width = Inputs({}, specs).axis(name, *TOKENS), x.shape[-1]
    match problem.inputs:
        case "peaky":
            return x * 8
        case "outliers":
            few = torch.randperm(width, generator=generator, device=x.device)[: max(1, width // 32)]
            x[..., few] *= 20
        case "equal_keys" if place is not None:
            return x.index_select(place, torch.arange(x.shape[place], device=x.device) // RUN * RUN)
        case "sunk" if problem.level != "core":
            return x + math.sqrt(DEPTH)
        case "sunk" if specs[name].draw == "normal":  # of unit length they would be parallel
            x[..., 0] = math.sqrt(DEPTH / problem.scale) * (1 if name == "q" else -1)
    return x


def other_set(inputs: Inputs) -> Inputs:
    """Other values of the same kind: heads shifted by one; with one head, batch elements; with one
    of those, all reversed.
    """
    if (kv_heads := inputs.size("kv_heads")) > 1:
        group = inputs.size("heads") // kv_heads
        shifted = inputs.along(lambda x, at: x.roll(group, at), "heads")
        return shifted.along(lambda x, at: x.roll(1, at), "kv_heads")
    if inputs.size("batch") > 1 and "q" in inputs:
        return inputs.along(lambda x, at: x.roll(1, at), "batch")
    turned = inputs.along(lambda x, at: x.flip(at), *TOKENS)
    return turned.along(lambda x, at: x.flip(at), "v_head_dim")


CHANNELS = ("head_dim", "v_head_dim", "width")


def turned(inputs: Inputs) -> list[Inputs]:
    """Three more sets of the same kind: the other set, and both with their channels reversed."""
    other = other_set(inputs)
    reverse = (some.along(lambda x, at: x.flip(at), *CHANNELS) for some in (inputs, other))
    return [other, *reverse]


def cast(x: Tensor, problem: Problem, spec: TensorSpec | None = None) -> Tensor:
    """In the problem's dtype, or as an input is; on its device, contiguous."""
    kind = spec.dtype_on(problem) if spec else problem.dtype
    return x.to(problem.device, getattr(torch, kind)).contiguous()


Attend = Callable[..., Tensor]


def by_name(problem: Problem, result: Any) -> dict[str, Any]:
    """What a call returned: the output as ``forward``, and what the problem asks for besides."""
    names = ("forward", *outputs_of(problem))
    if len(names) == 1:
        return {"forward": result}
    if not isinstance(result, tuple) or len(result) != len(names):
        raise Wrong(f"it returned something else than (out, {', '.join(names[1:])})")
    return dict(zip(names, result, strict=True))


def upstream_besides(problem: Problem, dout: Tensor) -> list[Tensor]:
    """The upstream gradients of what a problem asks for besides the output, a number a row: the
    length of the output's, which no sign changes and which is zero where that is.
    """
    wide = torch.promote_types(dout.dtype, torch.float32)
    return [dout.norm(dim=-1, dtype=wide) for _ in outputs_of(problem)]


def in_sight(x: Tensor) -> Tensor:
    """A log-sum-exp with zeros in the rows that see nothing, as it is compared."""
    return x.masked_fill(x == -torch.inf, 0.0)


def weights_of(part: object) -> dict[str, Tensor]:
    """The weights of a layer or of its definition, by name; empty for a core."""
    return dict(getattr(part, "weights", None) or {})


def tensors_of(memory: Any) -> Iterator[Tensor]:
    """The tensors of a decoder's memory, however it holds them."""
    if isinstance(memory, Tensor):
        yield memory
    elif isinstance(memory, Mapping):
        yield from tensors_of(list(memory.values()))
    elif isinstance(memory, list | tuple):
        for part in memory:
            yield from tensors_of(part)


def bytes_of(memory: Any) -> int:
    """What a decoder's memory takes: each tensor's storage, once, room for more included."""
    storages = (x.untyped_storage() for x in tensors_of(memory))
    return sum({x.data_ptr(): x.nbytes() for x in storages}.values())


def cache_bytes(call: Call) -> int | None:
    """What a decoder keeps of all tokens: its memory, or keys and values; None in other phases."""
    if call.problem.phase != "decode":
        return None
    if call.steps:
        return bytes_of(call.memory)
    kept = (n for n in call.leaves if "kv_len" in call.leaves.specs[n].axes)
    return bytes_of([call.leaves[n] for n in kept])


def put(there: Any, values: Any) -> bool:
    """Copy a decoder's memory into another one; False where their structures differ.

    The other one is then no longer usable.
    """
    if type(there) is not type(values):
        return False
    if isinstance(there, Tensor):
        form = (there.shape, there.stride(), there.dtype, there.device)
        if form != (values.shape, values.stride(), values.dtype, values.device):
            return False
        with suppress(RuntimeError):  # an expanded tensor
            there.copy_(values)
            return True
        return False
    if isinstance(there, (list, tuple)):
        return len(there) == len(values) and all(map(put, there, values))
    if isinstance(there, dict):
        return list(there) == list(values) and all(map(put, there.values(), values.values()))
    return there is None or (isinstance(there, (bool, int, float, str)) and there == values)


class Call:
    """One ``attend`` with tensors of its own. Values change; addresses stay."""

    def __init__(self, problem: Problem, attend: Attend, inputs: Inputs) -> None:
        self.problem, self.attend, specs = problem, attend, inputs.specs
        self.trained = [n for n in inputs if problem.gradients and specs[n].gradient]
        self.leaves = Inputs(
            {n: x.clone().requires_grad_(n in self.trained) for n, x in inputs.items()}, specs
        )
        self.weights = weights_of(attend)
        gradients = [name for name in inputs if specs[name].gradient]
        self.names = (*(f"d{name}" for name in gradients), *(f"d:{n}" for n in self.weights))
        """The names of what :meth:`backward` returns: ``dq``, of a weight ``d:in_proj_weight``."""
        self.outputs = ("forward", *outputs_of(problem))
        """The names of what :meth:`forward` makes."""
        self.besides: dict[str, Tensor] = {}
        """What the last forward pass gave besides the output."""
        self.steps = problem.phase == "decode" and hasattr(attend, "step")
        """Whether it decodes from a memory of its own."""
        self.new = Inputs({}, specs)
        self.memory: Any = None
        self.moves = False
        """Whether the memory's address changes: then no replay of a call can read it."""
        self.remember()

    def load(self, inputs: Inputs) -> None:
        """Load other values at the same addresses."""
        with torch.no_grad():
            for name, leaf in self.leaves.items():
                leaf.copy_(inputs[name])
        self.remember()

    def remember(self) -> None:
        """Build a decoder's memory of the earlier tokens from the present values."""
        if not self.steps:
            return
        n, before = self.problem.q_len, self.problem.kv_len - self.problem.q_len
        with torch.no_grad():
            new = self.leaves.along(lambda x, at: x.narrow(at, x.shape[at] - n, n), *TOKENS)
            self.new = self.new or new.map(_own)
            for tokens in self.new.values():  # so that the new tokens can't be read early
                tokens.fill_(torch.nan)
            memory = self._remembered(before)
            if self.memory is None or not put(self.memory, memory):
                self.moves = self.memory is not None
                self.memory = memory
            for name, values in new.items():
                self.new[name].copy_(values)

    def _remembered(self, tokens: int) -> Any:
        """A memory of the first tokens, from copies."""
        sources = self.leaves.only(
            n for n in self.leaves if "q_len" not in self.leaves.specs[n].axes
        )
        past = sources.along(lambda x, at: x.narrow(at, 0, tokens), *KEY_TOKENS).map(_own)
        by_place, by_name = past.arguments
        return self.attend.remember(*by_place, **by_name)  # type: ignore[attr-defined]

    def step(self, new: Inputs, memory: Any) -> tuple[Tensor, Any]:
        """A decoder's step: its output and the memory after it; raises Wrong for anything else."""
        by_place, by_name = new.arguments
        result = self.attend.step(*by_place, memory, **by_name)  # type: ignore[attr-defined]
        if not isinstance(result, tuple) or len(result) != 2:
            raise Wrong("its step returned something else than (out, memory)")
        return self._by_heads(result[0]), result[1]

    def two_steps(self) -> Tensor:
        """The last tokens' output from the memory that an earlier step returned."""
        n, before = self.problem.q_len, self.problem.kv_len - 2 * self.problem.q_len
        with torch.no_grad():
            earlier = self.leaves.along(lambda x, at: x.narrow(at, before, n), *KEY_TOKENS)
            _, memory = self.step(earlier.map(_own), self._remembered(before))
            return self.step(self.new, memory)[0]

    def forward(self) -> Tensor:
        """The output; with a graph only in the phases that run backward."""
        with torch.set_grad_enabled(self.problem.gradients):
            if self.steps:
                return self.step(self.new, self.memory)[0]
            tensors, named = self.leaves.arguments
            out = self.attend(*tensors, **named)
            if len(self.outputs) > 1:
                self.besides = by_name(self.problem, out)
                out = self.besides.pop("forward")
            return self._by_heads(out)

    def backward(
        self, out: Tensor, dout: Tensor, besides: Sequence[Tensor] | None = None
    ) -> tuple[Tensor, ...]:
        """A gradient for each input and each weight; zeros where nothing depends on it.

        ``out`` is of the last forward pass. ``besides``: the upstream gradients of what that gave
        besides it, :func:`upstream_besides` of ``dout``.
        """
        sources = [*(self.leaves[name] for name in self.trained), *self.weights.values()]
        if not self.besides:
            return torch.autograd.grad(out, sources, dout, materialize_grads=True)
        above = upstream_besides(self.problem, dout) if besides is None else besides
        outs = [out, *self.besides.values()]
        return torch.autograd.grad(outs, sources, [dout, *above], materialize_grads=True)

    def _by_heads(self, out: Tensor) -> Tensor:
        """A layer's output as that of one head."""
        layer = self.problem.level != "core" and isinstance(out, Tensor)
        return out.unsqueeze(1) if layer else out


def _own(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format)


def as_rows(x: Tensor, axes: Sequence[str] = ()) -> Tensor:
    """A tensor as [batch, heads, tokens, channels], in which errors are measured; 1 where it has no
    such axis. A weight's gradient has no axes.
    """
    if not axes:
        return x.reshape((1,) * max(0, 4 - x.dim()) + tuple(x.shape))
    kinds = (("batch",), ("heads", "kv_heads"), TOKENS)
    sizes = [next((x.shape[axes.index(a)] for a in kind if a in axes), 1) for kind in kinds]
    return x.reshape(*sizes, -1)
