"""Stand-ins for libraries that need a GPU: functions of the same names and signatures, on the CPU.

A stand-in binds what it is called with to its signature in signatures.txt, keeps the call, and
computes softmax attention from what the library documents, as a reader here tells it.
"""

import importlib
import inspect
import math
import os
import sys
import types
from pathlib import Path

import torch

from impls.external.common import offsets
from impls.loading import load_function
from impls.masks import Mask
from impls.problem import Problem
from tests.impls import small

SHAPE = {
    "batch": 2, "heads": 4, "kv_heads": 2, "q_len": 11, "kv_len": 11, "head_dim": 16,
    "v_head_dim": 16, "phase": "train",
}  # fmt: skip
"""Every extent is another number, so that a layout that is mixed up fails."""
READ = dict(
    line.removesuffix(")").split("(", 1)
    for line in Path(__file__).with_name("signatures.txt").read_text().splitlines()
    if not line.startswith("#")
)


def build(row, p, what="build", **options):
    """A row's function, built though its library is not here."""
    variant = small.TABLE.rows[row]
    return load_function(getattr(variant, what))(p, **{**variant.options, **options})


def problem(mask="none", **changes):
    return Problem(**{**SHAPE, **changes}, mask=Mask.parse(mask))


def signature(name):
    return inspect.signature(eval(f"lambda {READ[name]}: None"))


def sees(n, m, causal=False, left=-1, right=-1):
    """Lower-right: query i stands at key i + m - n. -1 or None leaves a side open."""
    away = torch.arange(n)[:, None] + m - n - torch.arange(m)
    visible = torch.ones(n, m, dtype=torch.bool)
    if causal:
        visible &= away >= 0
    if left is not None and left >= 0:
        visible &= away <= left
    if right is not None and right >= 0:
        visible &= -away <= right
    return visible


def blocks(edges):
    """True where two tokens are of one document."""
    assert edges.dtype == torch.int32
    owner = torch.bucketize(torch.arange(int(edges[-1])), edges.long(), right=True)
    return owner[:, None] == owner


def attention(q, k, v, scale, visible, slopes=None):
    """Softmax attention, tokens before heads; rows that see nothing give zeros."""
    return both(q, k, v, scale, visible, slopes)[0]


def both(q, k, v, scale, visible, slopes=None):
    """The same, and the log-sum-exps, heads before tokens; infinite in rows that see nothing."""
    if q.ndim == 3:
        return tuple(x[0] for x in both(q[None], k[None], v[None], scale, visible, slopes))
    group = q.shape[2] // k.shape[2]
    assert q.shape[2] == group * k.shape[2]
    assert all(x.stride(-1) == 1 for x in (q, k, v))
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    blind, scores = ~visible.any(-1, keepdim=True), q @ k.transpose(-1, -2) * scale
    if slopes is not None:
        assert slopes.dtype == torch.float32
        n, m = scores.shape[-2:]
        away = torch.arange(n)[:, None] + m - n - torch.arange(m)
        scores = scores - slopes[:, None, None] * away.abs()
    scores = scores.masked_fill(~(visible | blind), -torch.inf)
    out = (scores.softmax(-1) @ v).masked_fill(blind, 0.0).transpose(1, 2).contiguous()
    return out, scores.logsumexp(-1).masked_fill(blind[..., 0], torch.inf)


def flash_attn(call):
    cached = hasattr(call, "k_cache")
    k, v = (call.k_cache, call.v_cache) if cached else (call.k, call.v)
    n, m = call.q.shape[-3], k.shape[-3]
    assert all(side is call.open or side >= 0 for side in call.window_size)
    visible = sees(n, m, call.causal, *call.window_size)
    if "varlen" in call.function:
        longest = int(call.cu_seqlens_q.diff().max())
        assert call.max_seqlen_q == longest == call.max_seqlen_k
        visible &= blocks(call.cu_seqlens_q) & blocks(call.cu_seqlens_k)
    return call.q, k, v, call.softmax_scale, visible, getattr(call, "alibi_slopes", None)


def torch_varlen(call):
    edges = call.cu_seq_q, call.cu_seq_k
    assert (call.max_q, call.max_k) == tuple(int(x.diff().max()) for x in edges)
    assert call.enable_gqa == (call.query.shape[1] != call.key.shape[1])
    visible = sees(call.query.shape[0], call.key.shape[0], False, *call.window_size)
    if len(call.cu_seq_q) > 2:
        visible &= blocks(call.cu_seq_q) & blocks(call.cu_seq_k)
    return call.query, call.key, call.value, call.scale, visible


def xformers(call):
    q, k, v = call.query, call.key, call.value
    assert call.op == ("fa2F", "fa2B")
    if q.ndim == 5:
        assert not torch.is_grad_enabled() or not q.requires_grad
        assert k.stride(3) == 0 and k.shape[:4] == (*q.shape[:1], k.shape[1], *q.shape[2:4])
        q, k, v = q.flatten(2, 3), k[:, :, :, 0], v[:, :, :, 0]
    else:
        assert q.shape[2] == k.shape[2], "it does not repeat heads by itself"
    n, m = q.shape[1], k.shape[1]
    visible = sees(n, m) if call.attn_bias is None else call.attn_bias.visible(n, m)
    return q, k, v, call.scale, visible


def bias(sight):
    """A bias object of xformers, by what it lets a query see: windows and corners as
    ``materialize`` of xformers 0.0.35 gave them on a CPU."""

    def narrowed(*more):
        return bias(lambda n, m: sight(n, m) & sees(n, m, True, *more))

    return types.SimpleNamespace(
        visible=sight,
        make_local_attention=lambda window_size: narrowed(window_size - 1),
        make_causal=narrowed,
    )


def block_diagonal(q_seqlen, kv_seqlen=None, *, device=None):
    assert device is not None
    return bias(lambda n, m: blocks(offsets(tuple(q_seqlen), "cpu")))


BIASES = types.SimpleNamespace(  # that from the upper left is for equal lengths only
    LowerTriangularMask=lambda: bias(lambda n, m: sees(n, n, True) if n == m else None),
    LowerTriangularFromBottomRightMask=lambda: bias(lambda n, m: sees(n, m, True)),
    LocalAttentionFromBottomRightMask=lambda window_left, window_right: bias(
        lambda n, m: sees(n, m, False, window_left, window_right)
    ),
    BlockDiagonalMask=types.SimpleNamespace(from_seqlens=block_diagonal),
)


def flashinfer_prefill(call):
    assert call.kv_layout == "HND" and call.backend in ("fa2", "fa3")
    k, v = (x.transpose(0, 1) for x in (call.k, call.v))
    visible = sees(call.q.shape[0], k.shape[0], call.causal, call.window_left)
    return call.q, k, v, call.sm_scale, visible


def flashinfer_decode(call):
    q, k, v = call.q, call.k, call.v
    assert call.kv_layout == "HND" and q.ndim == 2
    assert all(x.is_contiguous() for x in (q, k, v))
    assert call.use_tensor_cores == (q.shape[0] >= 4 * k.shape[0])
    visible = sees(1, k.shape[1], False, call.window_left)
    return q[None], k.transpose(0, 1), v.transpose(0, 1), call.sm_scale, visible


def flashinfer_ragged(call):
    assert call.kv_layout == "NHD" and call.backend in ("fa2", "fa3")
    assert call.float_workspace_buffer.numel() == 128 << 20
    assert (call.q.shape[1], call.k.shape[1]) == (call.num_qo_heads, call.num_kv_heads)
    assert call.q_data_type == call.kv_data_type == call.q.dtype
    n = call.q.shape[0]
    visible = sees(n, n, call.causal, call.window_left) & blocks(call.qo_indptr)
    return call.q, call.k, call.v, call.sm_scale, visible & blocks(call.kv_indptr)


def transformer_engine(call):
    q, k, v, kind = call.query_layer, call.key_layer, call.value_layer, call.attn_mask_type
    n, m = q.shape[-3], k.shape[-3]
    assert (call.qkv_format == "thd") == (q.ndim == 3)
    assert (q.shape[-2], k.shape[-2]) == (call.num_attention_heads, call.num_gqa_groups)
    assert call.attention_type == ("self" if n == m else "cross")
    assert "bottom_right" in kind or "causal" not in kind or n == m
    visible = sees(n, m, "causal" in kind, *call.window_size)
    if "padding" in kind:
        visible &= blocks(call.cu_seqlens_q) & blocks(call.cu_seqlens_kv)
    return q, k, v, call.softmax_scale, visible


def flash_sparse(call):
    visible = sees(call.query.shape[1], call.key.shape[1], call.is_causal)
    return call.query, call.key, call.value, call.softmax_scale, visible


READERS = {name: flash_attn for name in READ if name.startswith("flash_attn")} | {
    "torch.nn.attention.varlen.varlen_attn": torch_varlen,
    "flash_sparse_attn.ops.triton.interface.flash_dense_attn_func": flash_sparse,
    "flash_sparse_attn.ops.triton.interface.flash_sparse_attn_func": flash_sparse,
    "xformers.ops.fmha.memory_efficient_attention": xformers,
    "flashinfer.single_prefill_with_kv_cache": flashinfer_prefill,
    "flashinfer.single_decode_with_kv_cache": flashinfer_decode,
    "flashinfer.BatchPrefillWithRaggedKVCacheWrapper.run": flashinfer_ragged,
    "transformer_engine.DotProductAttention.forward": transformer_engine,
}


CUDNN = {
    "__version__": "1.32.0",
    "backend_version": lambda: 92000,
    "create_handle": object,
    "set_stream": lambda handle, stream: None,
    "data_type": types.SimpleNamespace(FLOAT=torch.float32),
    "diagonal_alignment": types.SimpleNamespace(TOP_LEFT="TOP_LEFT", BOTTOM_RIGHT="BOTTOM_RIGHT"),
    "heur_mode": types.SimpleNamespace(A="A", FALLBACK="FALLBACK"),
    "cudnnGraphNotSupportedError": RuntimeError,
}


class Symbol:
    """A tensor of a graph of cuDNN's: its extents, and where its numbers lie."""

    def __init__(self, x=None):
        self.dim, self.stride = ([], []) if x is None else (list(x.shape), list(x.stride()))
        self.output, self.data_type = False, None if x is None else x.dtype

    def __getattr__(self, setter):
        def put(value):
            setattr(self, setter.removeprefix("set_"), value)
            return self

        return put


class Graph:
    """A graph of cuDNN's with one operation, carried out on the CPU."""

    def __init__(self, library, kinds):
        self.library, self.kinds, self.steps = library, kinds, []

    def tensor_like(self, x):
        return Symbol(x)

    def sdpa(self, **options):
        return self._take("sdpa", options, 2)

    def sdpa_backward(self, **options):
        return self._take("sdpa_backward", options, 3)

    def _take(self, name, options, count):
        bound = signature(f"cudnn.pygraph.{name}").bind(**options)
        bound.apply_defaults()
        self.call = types.SimpleNamespace(**bound.arguments, function=name)
        self.results = [Symbol() for _ in range(count)]
        return self.results

    def __getattr__(self, step):
        return lambda *_: self.steps.append(step)

    def get_workspace_size(self):
        return 0

    def execute(self, pack, workspace, handle):
        assert self.steps == ["validate", "build_operation_graph", "create_execution_plans",
                              "check_support", "build_plans"]  # fmt: skip
        for symbol, x in pack.items():
            assert symbol.dim == list(x.shape) and symbol.stride == list(x.stride())
            assert (symbol.data_type or self.kinds["io_data_type"]) == x.dtype
        call = self.call
        self.library.calls.append(call)
        q, k, v = (pack[end].transpose(1, 2) for end in (call.q, call.k, call.v))
        call.ends = q, k, v
        n, m, left = q.shape[1], k.shape[1], call.diagonal_band_left_bound
        assert call.diagonal_alignment == ("TOP_LEFT" if n == m else "BOTTOM_RIGHT")
        assert call.diagonal_band_right_bound == 0 or left is None, "cuDNN's windows are causal"
        visible = sees(
            n, m, call.diagonal_band_right_bound == 0, None if left is None else left - 1
        )
        with torch.enable_grad():
            ends = [x.detach().requires_grad_() for x in (q, k, v)]
            out, log_sums = both(*ends, call.attn_scale, visible)
            out = out.transpose(1, 2)
        if call.function == "sdpa":
            assert self.results[0].output and self.results[1].output == bool(call.generate_stats)
            pack[self.results[0]].copy_(out.detach())
            if call.generate_stats:
                pack[self.results[1]].copy_(log_sums.detach()[..., None])
            return
        assert torch.equal(pack[call.o], out.detach())
        gradients = torch.autograd.grad(out, ends, pack[call.dO])
        for symbol, gradient in zip(self.results, gradients, strict=True):
            pack[symbol].copy_(gradient.transpose(1, 2))


ASKS = ("return_attn_probs", "return_softmax_lse", "return_lse")
"""The arguments that ask for the log-sum-exp."""


class Library:
    """All stand-ins, put in place for one test; ``calls`` are what they were called with."""

    with_lse = False
    """True if flash-attn gives its log-sum too."""

    def __init__(self, monkeypatch):
        self.monkeypatch, self.calls, self.backends = monkeypatch, [], {}
        self.modules = {}
        for name in READERS:
            owner = name.rpartition(".")[0]
            if f"{owner}.__init__" not in READ:
                self.computes(name)
        for package in ("flash_attn_interface", "flash_attn.cute.interface"):
            self.module(package)
        for name in ("natten.na1d", "sageattention.sageattn"):
            self.computes(name)
        ragged = self.object("flashinfer.BatchPrefillWithRaggedKVCacheWrapper", "plan", "run")
        self.put("flashinfer.BatchPrefillWithRaggedKVCacheWrapper", ragged)
        engine = self.object("transformer_engine.DotProductAttention", "forward")
        self.put("transformer_engine.pytorch.DotProductAttention", engine)
        place = "transformer_engine.pytorch.attention.dot_product_attention.dot_product_attention"
        self.put(f"{place}._attention_backends", self.backends)
        self.put("xformers.ops.fmha.attn_bias", BIASES)
        for name, member in CUDNN.items():
            self.put(f"cudnn.{name}", member)
        self.put("cudnn.pygraph", lambda **kinds: Graph(self, kinds))
        self.put("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        hub = {"flash-attn2": "flash_attn", "flash-attn3": "flash_attn_interface"}
        self.computes(
            "kernels.get_kernel",
            lambda call: self.module(hub[call.repo_id.removeprefix("kernels-community/")]),
        )
        stream = types.SimpleNamespace(cuda_stream=0)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
        for module, kind in (("flash", "fa2"), ("flash3", "fa3")):
            pair = types.SimpleNamespace(FwOp=f"{kind}F", BwOp=f"{kind}B")
            self.put(f"xformers.ops.fmha.{module}", pair)

    def module(self, name):
        """A module of torch's, or one that is made, whether or not the library is installed."""
        if name.startswith("torch."):
            return importlib.import_module(name)
        if name not in self.modules:
            self.modules[name] = types.ModuleType(name)
            self.monkeypatch.setitem(sys.modules, name, self.modules[name])
            if "." in name:
                self.put(name, self.modules[name])
        return self.modules[name]

    def put(self, name, value):
        owner, _, member = name.rpartition(".")
        self.monkeypatch.setattr(self.module(owner), member, value, raising=False)

    def computes(self, name, compute=None):
        """A function that gives ``compute(the bound arguments)``, or what the library documents."""
        read = signature(name)

        def stand_in(*args, **kwargs):
            bound = read.bind(*args, **kwargs)
            bound.apply_defaults()
            return self.computed(name, types.SimpleNamespace(**bound.arguments), compute)

        stand_in.__signature__ = read
        self.put(name, stand_in)

    def computed(self, name, call, compute=None):
        call.function, call.environment = name.rpartition(".")[2], dict(os.environ)
        call.open = None if "cute" in name else -1
        self.calls.append(call)
        if compute is not None:
            return compute(call)
        arguments = READERS[name](call)
        call.ends = arguments[:3]
        q, (out, log_sums) = getattr(call, "query", arguments[0]), both(*arguments)
        asks = any(getattr(call, word, False) for word in ASKS)
        if name.startswith("transformer_engine"):
            return out.flatten(-2)
        if name.startswith("flashinfer"):
            assert getattr(call, "lse_base", "log2") == "log2"
            results = out, log_sums.mT / math.log(2)
            results = tuple(x[0] for x in results) if "single_decode" in name else results
            return results if asks else results[0]
        out = out.reshape(*q.shape[:-1], out.shape[-1])
        return (out, log_sums, None) if asks or self.with_lse else out

    def object(self, base, *methods):
        """A class whose methods keep what they are told; the last computes."""
        library = self

        class Object:
            def __init__(self, *args, **kwargs):
                self.arguments = {}
                self.record("__init__", args, kwargs)

            def record(self, method, args, kwargs):
                bound = signature(f"{base}.{method}").bind(*args, **kwargs)
                bound.apply_defaults()
                more = {name: x for name, x in bound.arguments.items() if x is not None}
                self.arguments = {**bound.arguments, **self.arguments, **more}
                if method == methods[-1]:
                    call = types.SimpleNamespace(**self.arguments)
                    return library.computed(f"{base}.{method}", call)

            def __call__(self, *args, **kwargs):
                return self.record(methods[-1], args, kwargs)

            def __getattr__(self, method):
                if method not in methods:
                    raise AttributeError(method)
                return lambda *args, **kwargs: self.record(method, args, kwargs)

        return Object
