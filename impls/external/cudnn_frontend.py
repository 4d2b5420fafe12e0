"""cuDNN's attention through its own Python interface, as a graph with one operation.

    softmax( q k^T d^-1/2 + mask ) v      q and k [b, h, n, d], v [b, h, n, e]

``pygraph.sdpa`` and ``sdpa_backward``, built for the layout of the inputs at its first call, with
cuDNN's own choice of an engine (heuristics A, then the fallback). torch's cuDNN backend reaches the
same engines; here the graph is asked for directly, so windows and unequal lengths are served too.
Aligned lower-right. A window's left side stands with a causal mask alone, and its bound counts the
query itself. Grouped heads native; head_dim and v_head_dim are multiples of 8, at most 256. Where
cuDNN has no engine, its sentence is the refusal.

Cost: 4 n m d FLOPs a head forward on the pairs that the mask lets meet; a float32 a row, and
cuDNN's workspace.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from impls.external.common import Pattern, closing, load, need, need_multiple, pattern
from impls.heads import Attend
from impls.problem import Problem
from impls.spec import Unsupported

REMEDY = "pip install nvidia-cudnn-frontend"


class Plan(NamedTuple):
    """A graph that is built, its tensors in the order of its arguments, and its scratch space."""

    graph: Any
    tensors: list[Any]
    workspace: Tensor


class Cudnn:
    """``attend``: a plan for each layout that came, forward and backward."""

    def __init__(self, problem: Problem, library: Any, mask: Pattern) -> None:
        self.problem, self.library = problem, library
        self.close = closing(problem, "cudnn_frontend", lambda out: out)
        self.handle = library.create_handle()
        alignment = library.diagonal_alignment
        equal = problem.q_len == problem.kv_len
        self.mask = {
            "attn_scale": problem.scale,
            "diagonal_alignment": alignment.TOP_LEFT if equal else alignment.BOTTOM_RIGHT,
            "diagonal_band_left_bound": mask.left + 1 if mask.left >= 0 else None,
            "diagonal_band_right_bound": 0 if mask.causal else None,
        }
        self.plans: dict[tuple[Any, ...], Plan] = {}

    def __call__(self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Any:
        """One call; the first of a layout builds its graph."""
        return self.close(_Attention.apply(q_bhnd, k_bcmd, v_bcme, self))  # type: ignore[no-untyped-call]

    def note(self) -> str:
        """The version of cuDNN."""
        return f"cuDNN {self.library.backend_version()}, frontend {self.library.__version__}"

    def forward(self, *ends: Tensor) -> tuple[Tensor, ...]:
        """The output and, where there will be gradients or it is asked for, each row's log-sum."""
        q, v = ends[0], ends[2]
        keeps = self.problem.gradients or bool(self.problem.lse)
        results = [q.new_empty(*q.shape[:3], v.shape[-1])]
        if keeps:
            results.append(q.new_empty(*q.shape[:3], 1, dtype=torch.float32))

        def operation(graph: Any, q: Any, k: Any, v: Any) -> Any:
            return graph.sdpa(q=q, k=k, v=v, generate_stats=keeps, **self.mask)[: len(results)]

        self.run("sdpa", operation, ends, tuple(results))
        return tuple(results)

    def backward(self, *ends: Tensor) -> tuple[Tensor, ...]:
        """dq, dk and dv of q, k, v, the output, its gradient and the log-sums."""
        gradients = tuple(torch.empty_like(x) for x in ends[:3])

        def operation(graph: Any, q: Any, k: Any, v: Any, o: Any, do: Any, stats: Any) -> Any:
            return graph.sdpa_backward(q=q, k=k, v=v, o=o, dO=do, stats=stats, **self.mask)

        self.run("sdpa_backward", operation, ends, gradients)
        return gradients

    def run(self, name: str, operation: Any, ends: tuple[Tensor, ...],
            results: tuple[Tensor, ...]) -> None:  # fmt: skip
        """Carry out the operation on the current stream."""
        key = (name, *(x.stride() for x in ends))
        if key not in self.plans:
            self.plans[key] = self.plan(operation, ends, results)
        graph, tensors, workspace = self.plans[key]
        stream = torch.cuda.current_stream(self.problem.device).cuda_stream
        self.library.set_stream(handle=self.handle, stream=stream)
        pack = dict(zip(tensors, (*ends, *results), strict=True))
        graph.execute(pack, workspace, handle=self.handle)

    def plan(self, operation: Any, ends: tuple[Tensor, ...], results: tuple[Tensor, ...]) -> Plan:
        """The graph of one operation; raises Unsupported where cuDNN has no engine for it."""
        cudnn, types = self.library, self.library.data_type
        kinds = {"bfloat16": "BFLOAT16", "float16": "HALF", "float32": "FLOAT"}
        graph = cudnn.pygraph(
            io_data_type=getattr(types, kinds[self.problem.dtype]),
            intermediate_data_type=types.FLOAT,
            compute_data_type=types.FLOAT, handle=self.handle,
        )  # fmt: skip
        inputs = [graph.tensor_like(x) for x in ends]
        outputs = operation(graph, *inputs)
        for tensor, x in zip(outputs, results, strict=True):
            tensor.set_output(True).set_dim(list(x.shape)).set_stride(list(x.stride()))
            if x.dtype == torch.float32:
                tensor.set_data_type(types.FLOAT)
        try:
            graph.validate()
            graph.build_operation_graph()
            graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
            graph.check_support()
            graph.build_plans()
        except cudnn.cudnnGraphNotSupportedError as error:
            lines = str(error).strip().splitlines() or ["it says no more"]
            raise Unsupported(f"cuDNN has no engine for this: {lines[0]}") from None
        size = max(1, graph.get_workspace_size())
        workspace = torch.empty(size, dtype=torch.uint8, device=ends[0].device)
        return Plan(graph, [*inputs, *outputs], workspace)


def build(problem: Problem) -> Attend:
    """The graph is built at the first call."""
    library = load("cudnn", "cudnn_frontend", REMEDY)
    need_multiple(problem, "cudnn_frontend")
    mask = pattern(problem, "cudnn_frontend")
    need(
        mask.causal or not mask.local,
        f"cudnn_frontend's windows stand with a causal mask alone, so {problem.mask} needs it too",
    )
    return Cudnn(problem, library, mask)


class _Attention(torch.autograd.Function):
    """Keeps q, k, v, the output and a log-sum a row."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, attend: Cudnn) -> Any:
        q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
        out, *log_sums = attend.forward(q, k, v)
        ctx.save_for_backward(q, k, v, out, *log_sums)
        ctx.attend = attend
        return (out, *log_sums) if attend.problem.lse else out

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, log_sums = ctx.saved_tensors
        dout = upstream[0]
        dout = dout if dout.stride() == out.stride() else dout.contiguous()
        return *ctx.attend.backward(q, k, v, out, dout, log_sums), None
