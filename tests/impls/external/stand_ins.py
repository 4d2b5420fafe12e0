"""Stand-ins for libraries that need a GPU: modules of the same names and signatures, on the CPU.

Each signature was read from the distribution and version that stands beside it. A stand-in binds
what it is called with to that signature, keeps the call, and computes softmax attention from what
the library documents.
"""

import inspect
import sys
import types

import torch

FLASH_ATTN = "flash-attn 2.8.3.post2, sdist"
FLASH_ATTN_3 = "flash-attention 0251105 (2026-08-15), hopper/flash_attn_interface.py"
FLASH_ATTN_4 = "flash-attn-4 4.0.0b36, wheel"
XFORMERS = "xformers 0.0.35, wheel"
FLASHINFER = "flashinfer-python 0.7.2.post1, wheel"
TE = "TransformerEngine d0067d0 (2.20.0.dev0, 2026-08-22)"
FLA = "fla-core 0.6.0, wheel"

READ = {
    "flash_attn.flash_attn_func": (
        FLASH_ATTN,
        "q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), "
        "softcap=0.0, alibi_slopes=None, deterministic=False, return_attn_probs=False",
    ),
    "flash_attn.flash_attn_varlen_func": (
        FLASH_ATTN,
        "q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, "
        "softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, "
        "deterministic=False, return_attn_probs=False, block_table=None",
    ),
    "flash_attn.flash_attn_with_kvcache": (
        FLASH_ATTN,
        "q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, "
        "cache_seqlens=None, cache_batch_idx=None, cache_leftpad=None, block_table=None, "
        "softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, "
        "rotary_interleaved=True, alibi_slopes=None, num_splits=0, return_softmax_lse=False",
    ),
    "flash_attn_interface.flash_attn_func": (
        FLASH_ATTN_3,
        "q, k, v, softmax_scale=None, causal=False, qv=None, q_descale=None, k_descale=None, "
        "v_descale=None, window_size=(-1, -1), attention_chunk=0, softcap=0.0, num_splits=1, "
        "pack_gqa=None, deterministic=False, sm_margin=0, return_attn_probs=False",
    ),
    "flash_attn_interface.flash_attn_varlen_func": (
        FLASH_ATTN_3,
        "q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q=None, "
        "seqused_k=None, softmax_scale=None, causal=False, qv=None, q_descale=None, "
        "k_descale=None, v_descale=None, window_size=(-1, -1), attention_chunk=0, softcap=0.0, "
        "num_splits=1, pack_gqa=None, deterministic=False, sm_margin=0, return_attn_probs=False",
    ),
    "flash_attn_interface.flash_attn_with_kvcache": (
        FLASH_ATTN_3,
        "q, k_cache, v_cache, k=None, v=None, qv=None, rotary_cos=None, rotary_sin=None, "
        "cache_seqlens=None, cache_batch_idx=None, cache_leftpad=None, page_table=None, "
        "cu_seqlens_q=None, cu_seqlens_k_new=None, max_seqlen_q=None, rotary_seqlens=None, "
        "q_descale=None, k_descale=None, v_descale=None, softmax_scale=None, causal=False, "
        "window_size=(-1, -1), attention_chunk=0, softcap=0.0, rotary_interleaved=True, "
        "scheduler_metadata=None, num_splits=0, pack_gqa=None, sm_margin=0, "
        "return_softmax_lse=False",
    ),
    "flash_attn.cute.flash_attn_func": (
        FLASH_ATTN_4,
        "q, k, v, qv=None, gather_kv_indices=None, softmax_scale=None, causal=False, "
        "window_size=(None, None), learnable_sink=None, softcap=0.0, num_splits=1, "
        "pack_gqa=None, deterministic=False, score_mod=None, score_mod_bwd=None, mask_mod=None, "
        "aux_tensors=None, aux_scalars=None, block_sparse_tensors=None, "
        "block_sparse_tensors_bwd=None, return_lse=False, gather_bwd_recompute_p=False, "
        "gather_bwd_token_chunk=None",
    ),
    "flash_attn.cute.flash_attn_varlen_func": (
        FLASH_ATTN_4,
        "q, k, v, qv=None, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None, "
        "max_seqlen_k=None, min_seqlen_k=None, seqused_q=None, seqused_k=None, "
        "gather_kv_indices=None, page_table=None, softmax_scale=None, causal=False, "
        "window_size=(None, None), learnable_sink=None, softcap=0.0, num_splits=1, "
        "pack_gqa=None, deterministic=False, score_mod=None, score_mod_bwd=None, mask_mod=None, "
        "block_sparse_tensors=None, aux_tensors=None, aux_scalars=None, return_lse=False, "
        "scheduler_metadata=None, seqlen_k_per_split=None, disable_scheduler_metadata=False, "
        "gather_bwd_recompute_p=False, gather_bwd_token_chunk=None",
    ),
    "torch.nn.attention.varlen.varlen_attn": (
        "torch 2.13.0",
        "query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, return_aux=None, scale=None, "
        "window_size=(-1, -1), enable_gqa=False, seqused_k=None, block_table=None, "
        "num_splits=None",
    ),
    "xformers.ops.fmha.memory_efficient_attention": (
        XFORMERS,
        "query, key, value, attn_bias=None, p=0.0, scale=None, *, op=None, output_dtype=None",
    ),
    "flashinfer.single_prefill_with_kv_cache": (
        FLASHINFER,
        "q, k, v, scale_q=None, scale_k=None, scale_v=None, o_dtype=None, custom_mask=None, "
        "packed_custom_mask=None, causal=False, kv_layout='NHD', pos_encoding_mode='NONE', "
        "use_fp16_qk_reduction=False, sm_scale=None, window_left=-1, logits_soft_cap=None, "
        "rope_scale=None, rope_theta=None, backend='auto', return_lse=False, kv_cache_sf=None, "
        "k_scale=None, v_scale=None",
    ),
    "flashinfer.single_decode_with_kv_cache": (
        FLASHINFER,
        "q, k, v, kv_layout='NHD', pos_encoding_mode='NONE', use_tensor_cores=False, "
        "q_scale=None, k_scale=None, v_scale=None, window_left=-1, logits_soft_cap=None, "
        "sm_scale=None, rope_scale=None, rope_theta=None, return_lse=False",
    ),
    "flashinfer.BatchPrefillWithRaggedKVCacheWrapper.__init__": (
        FLASHINFER,
        "float_workspace_buffer, kv_layout='NHD', use_cuda_graph=False, qo_indptr_buf=None, "
        "kv_indptr_buf=None, custom_mask_buf=None, mask_indptr_buf=None, backend='auto', "
        "jit_args=None, jit_kwargs=None, variant_owns_mask=False",
    ),
    "flashinfer.BatchPrefillWithRaggedKVCacheWrapper.plan": (
        FLASHINFER,
        "qo_indptr, kv_indptr, num_qo_heads, num_kv_heads, head_dim_qk, head_dim_vo=None, "
        "custom_mask=None, packed_custom_mask=None, causal=False, pos_encoding_mode='NONE', "
        "use_fp16_qk_reduction=False, window_left=-1, logits_soft_cap=None, sm_scale=None, "
        "rope_scale=None, rope_theta=None, q_data_type='float16', kv_data_type=None, "
        "o_data_type=None, non_blocking=True, prefix_len_ptr=None, token_pos_in_items_ptr=None, "
        "token_pos_in_items_len=0, max_item_len_ptr=None, fixed_split_size=None, "
        "disable_split_kv=False, seq_lens=None, seq_lens_q=None, max_token_per_sequence=None, "
        "max_sequence_kv=None, v_indptr=None, o_indptr=None, uniform_q_len=None",
    ),
    "flashinfer.BatchPrefillWithRaggedKVCacheWrapper.run": (
        FLASHINFER,
        "q, k, v, *args, q_scale=None, k_scale=None, v_scale=None, o_scale=None, out=None, "
        "lse=None, return_lse=False, lse_base='log2', lse_layout='NH', enable_pdl=None, "
        "kv_cache_sf=None",
    ),
    "transformer_engine.DotProductAttention.__init__": (
        TE,
        "num_attention_heads, kv_channels, num_gqa_groups=None, attention_dropout=0.0, "
        "qkv_format='sbhd', attn_mask_type='causal', window_size=None, "
        "bottom_right_diagonal=None, sequence_parallel=False, tp_size=1, "
        "get_rng_state_tracker=None, tp_group=None, layer_number=None, attention_type='self', "
        "cp_group=None, cp_global_ranks=None, cp_stream=None, cp_comm_type='p2p', "
        "softmax_scale=None, softmax_type='vanilla', return_max_logit=False, name=None",
    ),
    "transformer_engine.DotProductAttention.forward": (
        TE,
        "query_layer=None, key_layer=None, value_layer=None, attention_mask=None, "
        "qkv_format=None, cu_seqlens_q=None, cu_seqlens_kv=None, cu_seqlens_q_padded=None, "
        "cu_seqlens_kv_padded=None, max_seqlen_q=None, max_seqlen_kv=None, attn_mask_type=None, "
        "window_size=None, bottom_right_diagonal=None, checkpoint_core_attention=False, "
        "core_attention_bias_type='no_bias', core_attention_bias=None, alibi_slopes=None, "
        "fast_zero_fill=True, inference_params=None, pad_between_seqs=None, fp8_output=False, "
        "bf16_backward=False, num_splits=1, score_mod=None, score_mod_bprop=None, "
        "score_mod_tensors=None, score_mod_bprop_tensors=None, qkv_layer=None, kv_layer=None, "
        "qkv_interleave_dim=-3",
    ),
    "sageattention.sageattn": (
        "sageattention 1.0.6, wheel",
        "q, k, v, tensor_layout='HND', is_causal=False, sm_scale=None, smooth_k=True, **kwargs",
    ),
    "natten.na1d": (
        "natten 0.21.7, sdist, built without libnatten",
        "query, key, value, kernel_size, stride=1, dilation=1, is_causal=False, scale=None, "
        "additional_keys=None, additional_values=None, attention_kwargs=None, backend=None, "
        "q_tile_shape=None, kv_tile_shape=None, backward_q_tile_shape=None, "
        "backward_kv_tile_shape=None, backward_kv_splits=None, backward_use_pt_reduction=False, "
        "run_persistent_kernel=True, kernel_schedule=None, torch_compile=False, return_lse=False",
    ),
    "fla.ops.linear_attn.chunk_linear_attn": (
        FLA,
        "q, k, v, scale=None, initial_state=None, output_final_state=False, normalize=True, "
        "cu_seqlens=None",
    ),
    "fla.ops.retention.chunk_retention": (
        FLA,
        "q, k, v, scale=None, initial_state=None, output_final_state=False, cu_seqlens=None, "
        "**kwargs",
    ),
    "fla.ops.gla.chunk_gla": (
        FLA,
        "q, k, v, g, scale=None, initial_state=None, output_final_state=False, "
        "state_v_first=False, cu_seqlens=None, cu_seqlens_cpu=None",
    ),
    "fla.ops.simple_gla.chunk_simple_gla": (
        FLA,
        "q, k, v, g=None, g_gamma=None, scale=None, initial_state=None, "
        "output_final_state=False, state_v_first=False, cu_seqlens=None, cu_seqlens_cpu=None, "
        "**kwargs",
    ),
    "fla.ops.delta_rule.chunk_delta_rule": (
        FLA,
        "q, k, v, beta, scale=None, initial_state=None, output_final_state=False, "
        "use_qk_l2norm_in_kernel=False, cu_seqlens=None, cu_seqlens_cpu=None, **kwargs",
    ),
}


def signature(name):
    return inspect.signature(eval(f"lambda {READ[name][1]}: None"))


class Library:
    """Stand-in modules, put in place for one test; ``calls`` are what they were called with."""

    def __init__(self, monkeypatch):
        self.monkeypatch, self.calls = monkeypatch, []

    def module(self, name, **members):
        made = types.ModuleType(name)
        for member, value in members.items():
            setattr(made, member, value)
        self.monkeypatch.setitem(sys.modules, name, made)
        above, _, last = name.rpartition(".")
        if above:
            if above not in sys.modules:
                self.module(above)
            self.monkeypatch.setattr(sys.modules[above], last, made, raising=False)
        return made

    def as_read(self, name, function):
        """``function(the bound arguments)`` behind the signature that was read."""
        read = signature(name)

        def stand_in(*args, **kwargs):
            bound = read.bind(*args, **kwargs)
            bound.apply_defaults()
            call = types.SimpleNamespace(**bound.arguments)
            self.calls.append((name, call))
            return function(call)

        stand_in.__signature__ = read
        return stand_in


def sees(n, m, causal=False, left=-1, right=-1):
    """Lower-right: query i stands at key i + m - n. -1 or None leaves a side open."""
    away = torch.arange(n)[:, None] + m - n - torch.arange(m)
    seen = torch.ones(n, m, dtype=torch.bool)
    if causal:
        seen &= away >= 0
    if left is not None and left >= 0:
        seen &= away <= left
    if right is not None and right >= 0:
        seen &= -away <= right
    return seen


def attention(q_bnhd, k_bmcd, v_bmce, scale, seen, added=0.0):
    """Softmax attention, tokens before heads; rows that see nothing give zeros."""
    group = q_bnhd.shape[2] // k_bmcd.shape[2]
    assert q_bnhd.shape[2] == group * k_bmcd.shape[2]
    assert all(x.stride(-1) == 1 for x in (q_bnhd, k_bmcd, v_bmce))
    q, k, v = (x.transpose(1, 2) for x in (q_bnhd, k_bmcd, v_bmce))
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    blind = ~seen.any(-1, keepdim=True)
    scores = (q @ k.transpose(-1, -2) * scale + added).masked_fill(~(seen | blind), -torch.inf)
    out = (scores.softmax(-1) @ v).masked_fill(blind, 0.0)
    return out.transpose(1, 2).contiguous()


def blocks(edges):
    """True where two tokens are of one document."""
    owner = torch.bucketize(torch.arange(int(edges[-1])), edges.long(), right=True)
    return owner[:, None] == owner
