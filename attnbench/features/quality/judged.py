"""A variant in a model, held there against its own definition on what each layer is handed."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from attnbench.gate.budget import check_all
from attnbench.gate.findings import Wrong
from attnbench.gate.inputs import Inputs
from attnbench.gate.oracle import compare, sample_rows
from attnbench.gate.reference import Reference, defined, of_rows
from attnbench.models.attention import Built
from attnbench.models.mask_of import phase_of, problem_of
from impls.loading import load_function
from impls.masks import Mask, Shape
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
        **inputs: Tensor,
    ) -> Any:
        """The variant's output; raises Wrong where it is not what its definition says."""
        qkv = q_bhnd, k_bcmd, v_bcme
        returns = {"return_state": return_state, "return_lse": return_lse}
        more: dict[str, Any] = {"softcap": softcap, **returns, **inputs}
        out = super().__call__(*qkv, mask, scale, is_causal, dropout_p, **more)
        self.calls += 1
        if self.judging:
            batch, heads, q_len, _ = q_bhnd.shape
            shape = Shape(batch, heads, q_len, k_bcmd.shape[2])
            settings: dict[str, Any] = dict.fromkeys(inputs, True)
            settings |= {"scale": scale, "softcap": softcap}
            whole = self._mask(mask, is_causal, shape)
            phase = phase_of(shape, whole, gradient=False)
            form = (q_bhnd.shape, v_bcme.shape, q_bhnd.dtype, q_bhnd.device)
            problem = problem_of(*form, whole, phase).with_(**settings)
            if self.row.supports(problem) is not None:  # decoding, by the forward pass
                problem = problem.with_(phase="forward")
            self._judge(problem, dict(zip("qkv", qkv, strict=True)) | inputs, out)
        return out

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
            check_all({"forward": error}, reference.plain, reference, problem.dtype)
        except Wrong as why:
            raise Wrong(str(why).replace("forward", name)) from None
