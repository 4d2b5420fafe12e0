"""ONNX Runtime's own attention on a CPU: a model of one operator, asked for as a session.

    op=attention: ONNX's Attention, opset 23, whose inputs lie as here, [b, h, n, d]
    op=mha: com.microsoft.MultiHeadAttention, which never holds all scores, but takes no mask and
        tokens first, [b, n, h d]: q, k and v are copied into that at every call

    out = softmax(softcap(q k^T scale) + mask) v

Causal attention of as many queries as keys is the operator's own ``is_causal``; every other mask is
its tensor ``attn_mask``, and a row that may see nothing gives zeros. Inputs and output are bound by
their addresses, so that nothing but the operator is timed. Where ONNX Runtime has no kernel of its
own (float64, bfloat16, opset 25) it puts some sixty small operators in its place without a word: a
session that holds more than the one is refused.

Version 1.23 put the soft cap after the mask, and gave NaN where a row may see nothing; 1.32 does
neither. Its arena is off, so that memory is taken and given back as the run's allocator has it, and
is seen: an arena keeps what a call took.

Cost: 4 n m d FLOPs a head forward; op=attention holds all scores of a call, op=mha blocks of them,
and the copies. What it takes past torch's allocator is measured from 32 MiB on, and expected by the
cost below that.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from impls.external.common import load, need, swap
from impls.heads import Attend
from impls.problem import Problem
from impls.score_mask import sdpa_arguments
from impls.spec import Unavailable

REMEDY = "pip install 'onnx>=1.19' 'onnxruntime>=1.32'"
OPERATORS = {"attention": ("Attention", ""), "mha": ("MultiHeadAttention", "com.microsoft")}
"""By option, the operator and its domain."""
OPSET, IR_VERSION = 23, 10
KINDS = {"float32": "FLOAT", "float16": "FLOAT16", "bool": "BOOL"}
"""ONNX's names of dtypes."""


def build(problem: Problem, op: str = "attention") -> Attend:
    """One session, with as many threads as torch has."""
    need(op in OPERATORS, f"onnxruntime has no op {op!r}; it is {' or '.join(OPERATORS)}")
    if op == "mha":
        need(problem.mask.plain, f"onnxruntime?op=mha takes no mask, and this is {problem.mask}")
        need(problem.group == 1, "onnxruntime?op=mha needs as many kv_heads as heads")
        need(problem.softcap is None, "onnxruntime?op=mha has no softcap")
        need(problem.dtype == "float32", f"onnxruntime?op=mha is float32, not {problem.dtype}")
    return _Session(problem, op)


class _Session:
    """Binds a call's tensors and runs it; legend in :mod:`impls.heads`."""

    def __init__(self, problem: Problem, op: str) -> None:
        self.problem, self.op, options = problem, op, sdpa_arguments(problem)
        self.runtime = load("onnxruntime", "onnxruntime", REMEDY)
        self.onnx = load("onnx", "onnxruntime", REMEDY)
        self.mask: Tensor | None = options.get("attn_mask")
        attributes: dict[str, Any] = {"scale": problem.scale}
        if op == "mha":
            attributes["num_heads"] = problem.heads
        else:
            attributes["is_causal"] = int(options.get("is_causal", False))
            attributes["softcap"] = problem.softcap or 0.0
        self.session = self._session(attributes)
        self.binding = self.session.io_binding()
        if self.mask is not None:
            self._bind("mask", self.mask)

    def _kind(self, x: Tensor) -> int:
        return getattr(self.onnx.TensorProto, KINDS[str(x.dtype).removeprefix("torch.")])

    def _bind(self, name: str, x: Tensor) -> None:
        bind = self.binding.bind_output if name == "out" else self.binding.bind_input
        bind(name, "cpu", 0, self._kind(x), list(x.shape), x.data_ptr())

    def _session(self, attributes: dict[str, Any]) -> Any:
        """A session of the one operator; raises Unavailable where others would run in its place."""
        p, helper = self.problem, self.onnx.helper
        kind, (name, domain) = getattr(torch, p.dtype), OPERATORS[self.op]
        extents = {"q": (p.heads, p.q_len, p.head_dim), "k": (p.kv_heads, p.kv_len, p.head_dim)}
        extents |= {"v": (p.kv_heads, p.kv_len, p.v_head_dim), "out": p.output_shape[1:]}
        like = {n: torch.empty(p.batch, *e, dtype=kind, device="meta") for n, e in extents.items()}
        if self.op == "mha":
            like = {n: swap(x).flatten(2) for n, x in like.items()}
        if self.mask is not None:
            like["mask"] = self.mask
        infos = {
            n: helper.make_tensor_value_info(n, self._kind(x), list(x.shape))
            for n, x in like.items()
        }
        out = [infos.pop("out")]
        node = helper.make_node(name, list(infos), ["out"], domain=domain, **attributes)
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
        graph = helper.make_graph([node], "attention", list(infos.values()), out)
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
        settings = self.runtime.SessionOptions()
        settings.intra_op_num_threads, settings.inter_op_num_threads = torch.get_num_threads(), 1
        settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
        settings.enable_cpu_mem_arena = settings.enable_mem_pattern = False
        settings.log_severity_level = 3
        with tempfile.TemporaryDirectory() as folder:
            settings.optimized_model_filepath = str(Path(folder) / "model.onnx")
            session = self.runtime.InferenceSession(
                model.SerializeToString(), settings, providers=["CPUExecutionProvider"]
            )
            ran = [n.op_type for n in self.onnx.load(settings.optimized_model_filepath).graph.node]
        if ran != [name]:
            version, how = self.runtime.__version__, f"{len(ran)} operators in the place of {name}"
            raise Unavailable(f"onnxruntime {version} would run {how}", REMEDY)
        return session

    def __call__(self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Tensor:
        out = torch.empty(self.problem.output_shape, dtype=q_bhnd.dtype)
        tensors = {"q": q_bhnd, "k": k_bcmd, "v": v_bcme, "out": out}
        for name, x in tensors.items():
            tensors[name] = swap(x).flatten(2) if self.op == "mha" else x.contiguous()
            self._bind(name, tensors[name])
        self.session.run_with_iobinding(self.binding)
        if self.op == "mha":
            return swap(tensors["out"].unflatten(2, (self.problem.heads, -1)))
        return out

    def note(self) -> str:
        """The operator that the session holds, and whose it is."""
        return f"{OPERATORS[self.op][0]} of onnxruntime {self.runtime.__version__}"
