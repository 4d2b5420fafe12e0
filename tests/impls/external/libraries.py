"""The libraries themselves, of stand_ins.py: modules that compute what each one documents."""

import os
import types

import torch

from impls.external.common import offsets
from tests.impls.external.stand_ins import READ, attention, blocks, sees

FLASH = {
    "flash_attn2": "flash_attn",
    "flash_attn3": "flash_attn_interface",
    "flash_attn4": "flash_attn.cute",
}


def flash(library, package, with_lse=False):
    """The three functions of a flash-attn module, computing what they document."""
    none = None if package == "flash_attn.cute" else -1

    def window(call):
        assert all(side is none or side >= 0 for side in call.window_size)
        return call.window_size

    def give(out):
        return (out, torch.zeros(1)) if with_lse else out

    def alibi(call, n, m):
        if getattr(call, "alibi_slopes", None) is None:
            return 0.0
        assert call.alibi_slopes.dtype == torch.float32
        away = (torch.arange(n)[:, None] + m - n - torch.arange(m)).abs()
        return -call.alibi_slopes[:, None, None] * away

    def dense(call):
        cached = hasattr(call, "k_cache")
        k, v = (call.k_cache, call.v_cache) if cached else (call.k, call.v)
        n, m = call.q.shape[1], k.shape[1]
        seen = sees(n, m, call.causal, *window(call))
        return give(attention(call.q, k, v, call.softmax_scale, seen, alibi(call, n, m)))

    def packed(call):
        assert call.cu_seqlens_q.dtype == torch.int32
        longest = int(call.cu_seqlens_q.diff().max())
        assert call.max_seqlen_q == longest == call.max_seqlen_k
        n = call.q.shape[0]
        seen = sees(n, n, call.causal, *window(call)) & blocks(call.cu_seqlens_k)
        q, k, v = (x[None] for x in (call.q, call.k, call.v))
        return give(attention(q, k, v, call.softmax_scale, seen, alibi(call, n, n))[0])

    names = {"flash_attn_func": dense, "flash_attn_varlen_func": packed}
    if f"{package}.flash_attn_with_kvcache" in READ:
        names["flash_attn_with_kvcache"] = dense
    made = {name: library.as_read(f"{package}.{name}", f) for name, f in names.items()}
    return library.module(package, **made)


class Bias:
    """A bias object of xformers: its kind, and what it lets a query see."""

    def __init__(self, kind, seen):
        self.kind, self.seen = kind, seen

    def make_local_attention(self, window_size):
        kind, seen = self.kind, self.seen
        return Bias(f"{kind}.local", lambda n, m: seen(n, m) & sees(n, m, True, window_size - 1))

    def make_causal(self):
        return Bias(f"{self.kind}.causal", lambda n, m: self.seen(n, m) & sees(n, m, True))


def xformers(library):
    """Windows and corners as ``materialize`` of xformers 0.0.35 gave them on a CPU."""

    def upper_left(n, m):
        assert n == m, "its flash operators take LowerTriangularMask for equal lengths only"
        return sees(n, m, True)

    def documents(q_seqlen, kv_seqlen=None, *, device=None):
        assert device is not None
        edges = offsets(tuple(q_seqlen), "cpu")
        return Bias("documents", lambda n, m: blocks(edges))

    kinds = types.SimpleNamespace(
        LowerTriangularMask=lambda: Bias("square", upper_left),
        LowerTriangularFromBottomRightMask=lambda: Bias("corner", lambda n, m: sees(n, m, True)),
        LocalAttentionFromBottomRightMask=lambda window_left, window_right: Bias(
            "window", lambda n, m: sees(n, m, False, window_left, window_right)
        ),
        BlockDiagonalMask=types.SimpleNamespace(from_seqlens=documents),
    )

    def call_it(call):
        q, k, v = call.query, call.key, call.value
        extents = q.shape
        if q.ndim == 5:
            assert not torch.is_grad_enabled() or not q.requires_grad
            assert k.stride(3) == 0 and k.shape[:4] == (*q.shape[:1], k.shape[1], *q.shape[2:4])
            q, k, v = q.flatten(2, 3), k[:, :, :, 0], v[:, :, :, 0]
        else:
            assert q.shape[2] == k.shape[2], "it does not repeat heads by itself"
        n, m = q.shape[1], k.shape[1]
        seen = sees(n, m) if call.attn_bias is None else call.attn_bias.seen(n, m)
        return attention(q, k, v, call.scale, seen).reshape(*extents[:-1], v.shape[-1])

    function = library.as_read("xformers.ops.fmha.memory_efficient_attention", call_it)
    pair = {
        name: types.SimpleNamespace(FwOp=f"{name}F", BwOp=f"{name}B") for name in ("fa2", "fa3")
    }
    library.module(
        "xformers.ops.fmha",
        memory_efficient_attention=function,
        attn_bias=kinds,
        flash=pair["fa2"],
        flash3=pair["fa3"],
    )


def flashinfer(library):
    def prefill(call):
        assert call.kv_layout == "HND" and call.backend in ("fa2", "fa3")
        q, k, v = call.q[None], call.k.transpose(0, 1)[None], call.v.transpose(0, 1)[None]
        seen = sees(q.shape[1], k.shape[1], call.causal, call.window_left)
        return attention(q, k, v, call.sm_scale, seen)[0]

    def decode(call):
        assert call.kv_layout == "HND" and call.q.ndim == 2
        assert all(x.is_contiguous() for x in (call.q, call.k, call.v))
        k, v = call.k.transpose(0, 1)[None], call.v.transpose(0, 1)[None]
        seen = sees(1, k.shape[1], False, call.window_left)
        return attention(call.q[None, None], k, v, call.sm_scale, seen)[0, 0]

    base = "flashinfer.BatchPrefillWithRaggedKVCacheWrapper"

    class Wrapper:
        def __init__(self, *args, **kwargs):
            made = library.as_read(f"{base}.__init__", lambda call: call)(*args, **kwargs)
            assert made.kv_layout == "NHD" and made.backend in ("fa2", "fa3")
            assert made.float_workspace_buffer.numel() == 128 << 20

        def plan(self, *args, **kwargs):
            self.planned = library.as_read(f"{base}.plan", lambda call: call)(*args, **kwargs)

        def run(self, *args, **kwargs):
            call = library.as_read(f"{base}.run", lambda call: call)(*args, **kwargs)
            plan = self.planned
            assert (call.q.shape[1], call.k.shape[1]) == (plan.num_qo_heads, plan.num_kv_heads)
            assert plan.q_data_type == plan.kv_data_type == call.q.dtype
            n = call.q.shape[0]
            seen = sees(n, n, plan.causal, plan.window_left) & blocks(plan.kv_indptr)
            return attention(call.q[None], call.k[None], call.v[None], plan.sm_scale, seen)[0]

    library.module(
        "flashinfer",
        BatchPrefillWithRaggedKVCacheWrapper=Wrapper,
        single_prefill_with_kv_cache=library.as_read(
            "flashinfer.single_prefill_with_kv_cache", prefill
        ),
        single_decode_with_kv_cache=library.as_read(
            "flashinfer.single_decode_with_kv_cache", decode
        ),
    )


def transformer_engine(library):
    seen_environment = []

    class DotProductAttention:
        def __init__(self, *args, **kwargs):
            name = "transformer_engine.DotProductAttention.__init__"
            self.made = library.as_read(name, lambda call: call)(*args, **kwargs)

        def __call__(self, *args, **kwargs):
            seen_environment.append(
                {key: os.environ.get(f"NVTE_{key}_ATTN") for key in ("FLASH", "FUSED", "UNFUSED")}
            )
            name = "transformer_engine.DotProductAttention.forward"
            return library.as_read(name, self.forward)(*args, **kwargs)

        def forward(self, call):
            made = self.made
            thd = made.qkv_format == "thd"
            q, k, v = (
                x[None] if thd else x for x in (call.query_layer, call.key_layer, call.value_layer)
            )
            n, m = q.shape[1], k.shape[1]
            assert (q.shape[2], k.shape[2]) == (made.num_attention_heads, made.num_gqa_groups)
            assert made.attention_type == ("self" if n == m else "cross")
            kind = made.attn_mask_type
            assert "bottom_right" in kind or "causal" not in kind or n == m
            seen = sees(n, m, "causal" in kind, *made.window_size)
            if "padding" in kind:
                assert call.cu_seqlens_q.dtype == torch.int32
                seen &= blocks(call.cu_seqlens_kv)
            out = attention(q, k, v, made.softmax_scale, seen).flatten(2)
            return out[0] if thd else out

    library.module("transformer_engine.pytorch", DotProductAttention=DotProductAttention)
    state = {"backend_selection_requires_update": False, "use_fused_attention": True}
    place = "transformer_engine.pytorch.attention.dot_product_attention.dot_product_attention"
    library.module(place, _attention_backends=state)
    return state, seen_environment
