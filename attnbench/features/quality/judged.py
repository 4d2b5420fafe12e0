"""A variant in a model, held there against its own definition on what each layer is handed."""

from __future__ import annotations

from torch import Tensor

from attnbench.gate.budget import check_all
from attnbench.gate.findings import Wrong
from attnbench.gate.inputs import Inputs
from attnbench.gate.oracle import compare, sample_rows
from attnbench.gate.reference import Reference, defined, of_rows
from attnbench.models.attention import Built, CallShape
from impls.heads import Attend
from impls.loading import load_function
from impls.operators import inputs as inputs_of
from impls.problem import Problem
from impls.spec import Variant

ROWS = 16
"""Queries of each layer that are held against the definition."""


class JudgedVariant(Built):
    """A variant in the model: it counts its calls, and judges them while ``judging``."""

    def __init__(self, row: Variant) -> None:
        super().__init__(row)
        self.judging, self.calls, self.worst = False, 0, 0.0

    def attend(self, call: CallShape) -> Attend:
        """The variant, raising Wrong where its output is not what its definition says."""
        attend = super().attend(call)

        def judged(*qkv: Tensor, **inputs: Tensor) -> Tensor:
            out = attend(*qkv, **inputs)
            self.calls += 1
            if self.judging:
                tensors = dict(zip("qkv", qkv, strict=True)) | inputs
                self._judge(self.problem(call), tensors, out)
            return out

        return judged

    def _judge(self, problem: Problem, tensors: dict[str, Tensor], out: Tensor) -> None:
        inputs = Inputs(tensors, inputs_of(self.row.operator, problem))
        rows = sample_rows(problem.q_len, ROWS, 0).to(out.device)
        if self.row.exact:
            reference, _ = of_rows(problem, inputs, rows, None, 0)
        else:
            assert self.row.definition is not None
            define = load_function(self.row.definition)(problem, **self.row.chosen)
            reference = defined(problem, inputs, Reference(rows, None), define)
        error = compare(out[:, :, rows], reference.want["forward"])
        self.worst = max(self.worst, error.relative or 0.0)
        name = f"layer {self.calls - 1}'s output"
        try:
            check_all({"forward": error}, reference, problem.dtype)
        except Wrong as why:
            raise Wrong(str(why).replace("forward", name)) from None
