"""The inputs of a problem: made from a seed, or read from a file.

Drawn in float32 on the device that needs them, and then cast. A CPU and a GPU draw different values
for the same seed: a CPU takes 6.5 ns a number, too long for a GPU to wait.

    normal      independent, standard
    peaky       logits in the hundreds: the softmax is saturated, nearly every row picks one key
    outliers    a few channels of the keys and values twenty times the rest, as in trained models
    equal_keys  keys equal in runs of 64, as in repeated tokens; queries and values differ
    captured:FILE.npz   arrays q, k, v of the problem's shape

A layer or a block takes tokens as wide as its heads together: x, and for cross-attention a context.
The kinds then apply to the tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from attnbench.gate.findings import Wrong
from impls.problem import Problem

RUN = 64
"""How many neighbouring keys are equal in ``equal_keys``."""


class Inputs(NamedTuple):
    """Queries, keys and values as an implementation takes them."""

    q: Tensor
    k: Tensor
    v: Tensor


class Tokens(NamedTuple):
    """What a layer's self-attention takes: [batch, 1, kv_len, width]."""

    x: Tensor


class Crossed(NamedTuple):
    """What a layer's cross-attention takes: queries come from x, keys and values from context."""

    x: Tensor
    context: Tensor


Ends = Inputs | Tokens | Crossed


def make(problem: Problem, seed: int) -> Ends:
    """The inputs of a problem, the same for the same seed on the same kind of device."""
    layer, kind = problem.level != "core", problem.inputs
    if kind.startswith("captured:") and not layer:
        with np.load(captured_file(kind)) as arrays:
            return Inputs(*(cast(torch.from_numpy(arrays[name]), problem) for name in "qkv"))
    generator = torch.Generator(problem.device).manual_seed(seed)
    at: Any = {"generator": generator, "device": generator.device}

    def drawn(heads: int, length: int, width: int) -> Tensor:
        return torch.randn((problem.batch, heads, length, width), dtype=torch.float32, **at)

    def shaped(x: Tensor) -> Tensor:
        """As the kind has it: of standard deviation 8, so that of q.k d^-1/2 is 64; and so on."""
        match kind:
            case "peaky":
                return x * 8
            case "outliers":
                width = x.shape[-1]
                x[..., torch.randperm(width, **at)[: max(1, width // 32)]] *= 20
            case "equal_keys":
                return x[:, :, torch.arange(x.shape[2]) // RUN * RUN]
        return x

    if layer:
        lengths = (problem.q_len, problem.kv_len) if problem.crosses else (problem.kv_len,)
        tokens = [cast(shaped(drawn(1, n, problem.width)), problem) for n in lengths]
        return Crossed(*tokens) if problem.crosses else Tokens(*tokens)
    shapes = {
        "q": (problem.heads, problem.q_len, problem.head_dim),
        "k": (problem.kv_heads, problem.kv_len, problem.head_dim),
        "v": (problem.kv_heads, problem.kv_len, problem.v_head_dim),
    }
    if kind == "normal":  # one after another: in float32 they take twice the room
        return Inputs(*(cast(drawn(*shape), problem) for shape in shapes.values()))
    parts = {name: drawn(*shape) for name, shape in shapes.items()}
    for name in {"peaky": "qk", "outliers": "kv", "equal_keys": "k"}[kind]:
        parts[name] = shaped(parts[name])
    return Inputs(*(cast(x, problem) for x in parts.values()))


def other_set(inputs: Ends) -> Ends:
    """Other values of the same kind: heads shifted by one; with one head, all reversed."""
    if not isinstance(inputs, Inputs):
        return type(inputs)(*(x.flip(2) for x in inputs))
    if inputs.k.shape[1] > 1:
        group = inputs.q.shape[1] // inputs.k.shape[1]
        return Inputs(inputs.q.roll(group, 1), inputs.k.roll(1, 1), inputs.v.roll(1, 1))
    if inputs.q.shape[0] > 1:
        return Inputs(*(x.roll(1, 0) for x in inputs))
    return Inputs(inputs.q.flip(2), inputs.k.flip(2), inputs.v.flip(2, 3))


def turned(inputs: Ends) -> list[Ends]:
    """Three more sets of the same kind: the other set, and both with their channels reversed."""
    other = other_set(inputs)
    return [other, *(type(inputs)(*(x.flip(3) for x in some)) for some in (inputs, other))]


def cast(x: Tensor, problem: Problem) -> Tensor:
    """In the problem's dtype, on its device, contiguous."""
    return x.to(problem.device, getattr(torch, problem.dtype)).contiguous()


def captured_file(inputs: str) -> Path:
    """The file that ``captured:FILE.npz`` names."""
    return Path(inputs.removeprefix("captured:")).expanduser()


Attend = Callable[..., Tensor]


def weights_of(part: object) -> dict[str, Tensor]:
    """The weights of a layer or of its definition, by name; empty for a core."""
    return dict(getattr(part, "weights", None) or {})


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

    def __init__(self, problem: Problem, attend: Attend, inputs: Ends) -> None:
        self.problem, self.attend = problem, attend
        self.leaves = [x.clone().requires_grad_(problem.gradients) for x in inputs]
        self.weights = weights_of(attend)
        self.names = (*(f"d{name}" for name in inputs._fields), *(f"d:{n}" for n in self.weights))
        """The names of what :meth:`backward` returns: ``dq``, of a weight ``d:in_proj_weight``."""
        self.steps = problem.phase == "decode" and hasattr(attend, "step")
        """Whether it decodes from a memory of its own."""
        self.new: list[Tensor] = []
        self.memory: Any = None
        self.moves = False
        """Whether the memory's address changes: then no replay of a call can read it."""
        self.remember()

    def load(self, inputs: Ends) -> None:
        """Load other values at the same addresses."""
        with torch.no_grad():
            for leaf, values in zip(self.leaves, inputs, strict=True):
                leaf.copy_(values)
        self.remember()

    def remember(self) -> None:
        """Build a decoder's memory of the earlier tokens from the present values."""
        if not self.steps:
            return
        before = self.problem.kv_len - self.problem.q_len
        with torch.no_grad():
            new = [x[:, :, -self.problem.q_len :] for x in self.leaves]
            self.new = self.new or [_own(x) for x in new]
            for kept in self.new:  # so that the new tokens can't be read early
                kept.fill_(torch.nan)
            memory = self._remembered(before)
            if self.memory is None or not put(self.memory, memory):
                self.moves = self.memory is not None
                self.memory = memory
            for kept, values in zip(self.new, new, strict=True):
                kept.copy_(values)

    def _remembered(self, tokens: int) -> Any:
        """A memory of the first tokens, from copies."""
        sources = self.leaves[1:] if self.problem.level == "core" else self.leaves
        past = [_own(x[:, :, :tokens]) for x in sources]
        return self.attend.remember(*self._handed(past))  # type: ignore[attr-defined]

    def step(self, new: Sequence[Tensor], memory: Any) -> tuple[Tensor, Any]:
        """A decoder's step: its output and the memory after it; raises Wrong for anything else."""
        made = self.attend.step(*self._handed(new), memory)  # type: ignore[attr-defined]
        if not isinstance(made, tuple) or len(made) != 2:
            raise Wrong("its step returned something else than (out, memory)")
        return self._given_back(made[0]), made[1]

    def two_steps(self) -> Tensor:
        """The last tokens' output from the memory that an earlier step returned."""
        n, before = self.problem.q_len, self.problem.kv_len - 2 * self.problem.q_len
        tokens, core = slice(before, before + n), self.problem.level == "core"
        with torch.no_grad():
            earlier = [
                _own(x if number == 0 and core else x[:, :, tokens])
                for number, x in enumerate(self.leaves)
            ]
            _, memory = self.step(earlier, self._remembered(before))
            return self.step(self.new, memory)[0]

    def forward(self) -> Tensor:
        """The output; with a graph only in the phases that run backward."""
        with torch.set_grad_enabled(self.problem.gradients):
            if self.steps:
                return self.step(self.new, self.memory)[0]
            return self._given_back(self.attend(*self._handed(self.leaves)))

    def backward(self, out: Tensor, dout: Tensor) -> tuple[Tensor, ...]:
        """A gradient for each input and each weight; zeros where nothing depends on it."""
        wanted = [*self.leaves, *self.weights.values()]
        return torch.autograd.grad(out, wanted, dout, materialize_grads=True)

    def _handed(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        return tensors if self.problem.level == "core" else [x.squeeze(1) for x in tensors]

    def _given_back(self, out: Tensor) -> Tensor:
        layer = self.problem.level != "core" and isinstance(out, Tensor)
        return out.unsqueeze(1) if layer else out


def _own(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format)
