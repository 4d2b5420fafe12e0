"""A variant as a phase calls it: inputs at fixed addresses, gradients where there are any."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from attnbench.truth.inputs import Inputs
from impls.problem import Problem

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


class Call:
    """One ``attend`` with tensors of its own. Values change; addresses stay."""

    def __init__(self, problem: Problem, attend: Attend, inputs: Inputs) -> None:
        self.problem, self.attend = problem, attend
        self.leaves = [x.clone().requires_grad_(problem.gradients) for x in inputs]

    def load(self, inputs: Inputs) -> None:
        """Other values at the same addresses."""
        with torch.no_grad():
            for leaf, values in zip(self.leaves, inputs, strict=True):
                leaf.copy_(values)

    def forward(self) -> Tensor:
        """The output; with a graph behind it only in the phases that run backward."""
        with torch.set_grad_enabled(self.problem.gradients):
            return self.attend(*self.leaves)

    def backward(self, out: Tensor, dout: Tensor) -> tuple[Tensor, ...]:
        """dq, dk and dv; zeros for an input that the output does not depend on."""
        return torch.autograd.grad(out, self.leaves, dout, materialize_grads=True)
