"""A variant as a phase calls it: inputs at fixed addresses, gradients where there are any.

Whatever the level, the ruler's own tensors have four dimensions: a layer's tokens are one head as
wide as the model. What a variant is handed has the dimensions that its level says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from attnbench.truth.findings import Wrong
from attnbench.truth.inputs import Ends
from impls.problem import Problem

Attend = Callable[..., Tensor]


def weights_of(part: object) -> dict[str, Tensor]:
    """What a layer's ``attend`` trains, or its definition has, by name; nothing of a core's."""
    return dict(getattr(part, "weights", None) or {})


def put(there: Any, values: Any) -> bool:
    """Put a decoder's memory where another one lies; False where the two are not made alike.

    Then what lies there is of no use any more.
    """
    if type(there) is not type(values):
        return False
    if isinstance(there, Tensor):
        form = (there.shape, there.stride(), there.dtype, there.device)
        if form != (values.shape, values.stride(), values.dtype, values.device):
            return False
        with suppress(RuntimeError):  # where several of its places are one
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
        """What :meth:`backward` gives, in its order: ``dq``, of a weight ``d:in_proj_weight``."""
        self.steps = problem.phase == "decode" and hasattr(attend, "step")
        """Whether it decodes from a memory of its own making."""
        self.new: list[Tensor] = []
        self.memory: Any = None
        self.moves = False
        """Whether the memory lies elsewhere each time: then no replay of a call can read it."""
        self.remember()

    def load(self, inputs: Ends) -> None:
        """Other values at the same addresses."""
        with torch.no_grad():
            for leaf, values in zip(self.leaves, inputs, strict=True):
                leaf.copy_(values)
        self.remember()

    def remember(self) -> None:
        """What a decoder would have kept of the tokens before, from the values that are there."""
        if not self.steps:
            return
        before = self.problem.kv_len - self.problem.q_len
        with torch.no_grad():
            new = [x[:, :, -self.problem.q_len :] for x in self.leaves]
            self.new = self.new or [x.clone(memory_format=torch.contiguous_format) for x in new]
            for kept in self.new:  # nothing of the new tokens is there to be looked up
                kept.fill_(torch.nan)
            memory = self._remembered(before)
            if self.memory is None or not put(self.memory, memory):
                self.moves = self.memory is not None
                self.memory = memory
            for kept, values in zip(self.new, new, strict=True):
                kept.copy_(values)

    def _remembered(self, tokens: int) -> Any:
        """A memory of the first tokens, from copies that lead nowhere else."""
        sources = self.leaves[1:] if self.problem.level == "core" else self.leaves
        past = [x[:, :, :tokens].clone(memory_format=torch.contiguous_format) for x in sources]
        return self.attend.remember(*self._handed(past))  # type: ignore[attr-defined]

    def step(self, new: Sequence[Tensor], memory: Any) -> tuple[Tensor, Any]:
        """One step of a decoder, as it is: its output and the memory after it."""
        made = self.attend.step(*self._handed(new), memory)  # type: ignore[attr-defined]
        if not isinstance(made, tuple) or len(made) != 2:
            raise Wrong("its step returned something else than (out, memory)")
        return made

    def two_steps(self) -> Tensor:
        """The last tokens' output from a memory that a step before has made."""
        n, before = self.problem.q_len, self.problem.kv_len - 2 * self.problem.q_len
        with torch.no_grad():
            earlier = [
                x if number == 0 and self.problem.level == "core" else x[:, :, before : before + n]
                for number, x in enumerate(self.leaves)
            ]
            earlier = [x.clone(memory_format=torch.contiguous_format) for x in earlier]
            _, memory = self.step(earlier, self._remembered(before))
            return self._given_back(self.step(self.new, memory)[0])

    def forward(self) -> Tensor:
        """The output; with a graph behind it only in the phases that run backward."""
        with torch.set_grad_enabled(self.problem.gradients):
            if self.steps:
                return self._given_back(self.step(self.new, self.memory)[0])
            return self._given_back(self.attend(*self._handed(self.leaves)))

    def backward(self, out: Tensor, dout: Tensor) -> tuple[Tensor, ...]:
        """A gradient for each input and each weight; zeros where nothing depends on it."""
        wanted = [*self.leaves, *self.weights.values()]
        return torch.autograd.grad(out, wanted, dout, materialize_grads=True)

    def _given_back(self, out: Tensor) -> Tensor:
        layer = self.problem.level != "core" and isinstance(out, Tensor)
        return out.unsqueeze(1) if layer else out

    def _handed(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        return tensors if self.problem.level == "core" else [x.squeeze(1) for x in tensors]
