"""Other libraries' functions, recorded: modules of their names, with the signatures they have."""

import inspect
import re
import sys
from importlib import import_module

import pytest
import torch

import attnbench
from attnbench.models.capture.functions import layer_call
from attnbench.models.capture.libraries import call_of
from attnbench.models.capture.masks import Masks
from impls.masks import Shape
from tests.models.build import only

REST = """
    softcap=0.0, alibi_slopes=None, deterministic=False, return_attn_probs=False"""
FILES = {
    # Dao-AILab/flash-attention 2.8.4
    "flash_attn/__init__.py": "from flash_attn.flash_attn_interface import *",
    "flash_attn/flash_attn_interface.py": f"""
def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False,
    window_size=(-1, -1), {REST}):
    return q * 2 + k.sum() + v.sum()
def flash_attn_qkvpacked_func(qkv, dropout_p=0.0, softmax_scale=None, causal=False,
    window_size=(-1, -1), {REST}):
    return qkv[:, :, 0] * 2
def flash_attn_kvpacked_func(q, kv, dropout_p=0.0, softmax_scale=None, causal=False,
    window_size=(-1, -1), {REST}):
    return q * 2
def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
    dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), {REST},
    block_table=None):
    return q * 2
def flash_attn_with_kvcache(q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None,
    cache_seqlens=None, cache_batch_idx=None, cache_leftpad=None, block_table=None,
    softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, rotary_interleaved=True,
    alibi_slopes=None, num_splits=0, return_softmax_lse=False):
    return q * 2
""",
    # its flash_attn/cute/
    "flash_attn/cute/__init__.py": "from .interface import flash_attn_func",
    "flash_attn/cute/interface.py": """
def flash_attn_func(q, k, v, qv=None, gather_kv_indices=None, softmax_scale=None, causal=False,
    window_size=(None, None), learnable_sink=None, softcap=0.0, num_splits=1, pack_gqa=None,
    deterministic=False, score_mod=None, score_mod_bwd=None, mask_mod=None, aux_tensors=None,
    aux_scalars=None, block_sparse_tensors=None, block_sparse_tensors_bwd=None, return_lse=False):
    return q * 2
""",
    # its hopper/, which is flash-attn 3
    "flash_attn_interface.py": """
def flash_attn_qkvpacked_func(qkv, softmax_scale=None, causal=False, q_descale=None, k_descale=None,
    v_descale=None, window_size=(-1, -1), attention_chunk=0, softcap=0.0, deterministic=False,
    num_heads_q=None, sm_margin=0, return_attn_probs=False):
    return qkv * 2
""",
    # facebookresearch/xformers, whose masks write themselves out
    "xformers/__init__.py": "",
    "xformers/ops/__init__.py": "from .fmha import memory_efficient_attention",
    "xformers/ops/fmha/__init__.py": """
import torch
class LowerTriangularMask: pass
class BlockDiagonalMask: pass
def memory_efficient_attention(query, key, value, attn_bias=None, p=0.0, scale=None, *, op=None,
    output_dtype=None):
    return query * 2
""",
    # thu-ml/SageAttention
    "sageattention/__init__.py": "from .core import sageattn",
    "sageattention/core.py": """
def sageattn(q, k, v, tensor_layout="HND", is_causal=False, sm_scale=None, return_lse=False,
    **kwargs):
    return sageattn_qk_int8_pv_fp16_cuda(q, k, v, tensor_layout, is_causal)
def sageattn_qk_int8_pv_fp16_cuda(q, k, v, tensor_layout="HND", is_causal=False,
    qk_quant_gran="per_thread", sm_scale=None, pv_accum_dtype="fp32", smooth_k=True,
    smooth_v=False, return_lse=False, **kwargs):
    return q * 2
""",
    # huggingface/diffusers 0.42
    "diffusers/__init__.py": "",
    "diffusers/models/__init__.py": "",
    "diffusers/models/attention_dispatch.py": """
from torch.nn.functional import scaled_dot_product_attention as sdpa
class _AttentionBackendRegistry:
    @classmethod
    def get_active_backend(cls):
        return "native", None
def dispatch_attention_fn(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False,
    scale=None, enable_gqa=False, attention_kwargs=None, *, backend=None, parallel_config=None):
    return sdpa(*(x.transpose(1, 2) for x in (query, key, value)), enable_gqa=True).transpose(1, 2)
""",
}


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The modules of these names, not yet imported."""
    for file, text in FILES.items():
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if sys.modules[name].__spec__ and str(tmp_path) in str(sys.modules[name].__spec__.origin):
            del sys.modules[name]


def x(*shape, **more):
    torch.manual_seed(0)
    return torch.randn(*shape, 8, **more)


Q, K = x(2, 12, 4), x(2, 12, 2)  # [batch, length, heads, width]
STARTS = torch.tensor([0, 5, 12], dtype=torch.int32)
SLOPES = torch.tensor([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8])
X, PACKED = x(2, 12), x(12, 4)
ENDS = torch.arange(12) < torch.tensor([[12], [7]])
CALLS = """
flash_attn: flash_attn_func(Q, K, K, causal=True) -> b2 h4/2 n12 d8 f32 causal
flash_attn: flash_attn_func(Q, K, K, causal=True, window_size=(3, -1)) \\
    -> b2 h4/2 n12 d8 f32 window:3,0
flash_attn: flash_attn_qkvpacked_func(x(2, 12, 3, 4)) -> b2 h4/4 n12 d8 f32 none
flash_attn: flash_attn_kvpacked_func(Q, x(2, 9, 2, 2)) -> b2 h4/2 n12x9 d8 f32 none
flash_attn: flash_attn_varlen_func(PACKED, PACKED, PACKED, STARTS, STARTS, 7, 7, causal=True) \
    -> b1 h4/4 n12 d8 f32 causal+document:5,7
flash_attn: flash_attn_func(Q, K, K, softmax_scale=0.5, softcap=30.0) \
    -> b2 h4/2 n12 d8 f32 none forward scale 0.5 softcap 30
flash_attn: flash_attn_func(Q, K, K, return_attn_probs=True) \
    -> b2 h4/2 n12 d8 f32 none forward lse
flash_attn.cute: flash_attn_func(Q, K, K, causal=True, return_lse=True) \
    -> b2 h4/2 n12 d8 f32 causal forward lse
flash_attn.cute: flash_attn_func(Q, K, K, causal=True, learnable_sink=SLOPES) \
    -> b2 h4/2 n12 d8 f32 causal forward sinks
flash_attn.cute: flash_attn_func(Q, K, K, window_size=(2, 1)) -> b2 h4/2 n12 d8 f32 window:2,1
flash_attn_interface: flash_attn_qkvpacked_func(x(2, 12, 8), num_heads_q=4, causal=True) \
    -> b2 h4/2 n12 d8 f32 causal
flash_attn_interface: flash_attn_qkvpacked_func(x(2, 12, 3, 4)) -> b2 h4/4 n12 d8 f32 none
xformers.ops: memory_efficient_attention(Q, Q[:, :9], Q[:, :9], fmha.LowerTriangularMask()) \
    -> b2 h4/4 n12x9 d8 f32 causal@upper-left
xformers.ops: memory_efficient_attention(X, X, X, torch.ones(2, 12, 12).tril().log()) \
    -> b2 h1/1 n12 d8 f32 causal
sageattention: sageattn(Q.transpose(1, 2), *[K.transpose(1, 2)] * 2, is_causal=True) \
    -> b2 h4/2 n12 d8 f32 causal
sageattention: sageattn(Q, K, K, tensor_layout="NHD") -> b2 h4/2 n12 d8 f32 none
diffusers.models.attention_dispatch: dispatch_attention_fn(Q, K, K, ENDS, scale=8**-0.5) \
    -> b2 h4/2 n12 d8 f32 padding:12,7
"""
UNLIKE = """
flash_attn: flash_attn_func(Q, K, K, alibi_slopes=SLOPES) -> ALiBi
flash_attn: flash_attn_with_kvcache(Q[:, :1], K, K, cache_seqlens=STARTS[1:]) -> fill a part
flash_attn: flash_attn_varlen_func(PACKED, PACKED, PACKED, STARTS, STARTS // 2, 7, 7) \\
    -> unlike lengths
xformers.ops: memory_efficient_attention(Q, Q, Q, fmha.BlockDiagonalMask()) -> Mask was not read
flash_attn: flash_attn_func(Q, K, K, softcap=-30.0) -> its softcap is -30, not a number above 0
flash_attn.cute: flash_attn_func(Q, K, K, learnable_sink=SLOPES[:3]) -> not one a head
"""


def cases(text):
    """The module, the call and what follows from it, of each line."""
    lines = text.replace("\\\n   ", "").strip().splitlines()
    return [re.fullmatch(r"(.*?): (.*) -> (.*)", line).groups() for line in lines]


def run(module, call):
    """What was captured of a call, which gives what it gives uncaptured."""
    with attnbench.capture() as calls:
        names = globals() | vars(import_module(module))
        out = eval(call, dict(names))
    again = eval(call, globals() | vars(import_module(module)))
    assert torch.equal(out, again)
    return only(calls), calls


@pytest.mark.parametrize(("module", "call", "problem"), cases(CALLS))
def test_a_call_is_the_problem_that_its_arguments_say(installed, module, call, problem):
    site, _ = run(module, call)
    problem += " forward" * ("forward" not in problem)
    assert str(site.problem) == problem and site.calls == 1
    assert site.faithful and not site.note
    library, name = module.partition(".")[0], call.partition("(")[0]
    assert site.via == ("diffusers native" if library == "diffusers" else f"{library} {name}")


def test_few_queries_are_the_last_of_the_keys(installed):
    site, _ = run("flash_attn", "flash_attn_func(Q[:, :3], K, K, causal=True)")
    assert str(site.problem) == "b2 h4/2 n3x12 d8 f32 causal decode"


@pytest.mark.parametrize(("module", "call", "why"), cases(UNLIKE))
def test_what_a_problem_can_not_describe_counts_and_says_why(installed, module, call, why):
    site, calls = run(module, call)
    assert site.calls == 1 and why in site.note and calls.problems() == []
    assert site.share is not None


@pytest.mark.parametrize("packs", [True, False])
def test_a_layer_that_packs_says_its_documents_and_one_that_unpads_its_padding(packs):
    q = x(1, 4, 12)
    inner = call_of(
        "flash_attn flash_attn_varlen_func",
        {"q": x(12, 4), "k": x(12, 4), "v": x(12, 4), "cu_seqlens_q": STARTS, "causal": True},
    )
    padded, seen = x(2, 4, 7), torch.arange(7) < torch.tensor([[5], [7]])
    given = (q, None) if packs else (padded, seen)
    call = layer_call(
        "transformers flash_attention_2", None, (given[0],) * 3, given[1], [lambda: inner], {}
    )
    mask = str(call.look((None, None), Masks(None))[0].mask)
    assert mask == ("causal+document:5,7" if packs else "causal+padding:5,7")


def test_torchs_own_packed_attention_is_read_by_the_names_that_it_has():
    varlen_attn = import_module("torch.nn.attention.varlen").varlen_attn
    read = {"query", "key", "value", "cu_seq_q", "cu_seq_k", "window_size", "scale", "seqused_k"}
    assert read <= set(inspect.signature(varlen_attn).parameters)
    values = {"query": x(12, 4), "key": x(12, 4), "value": x(12, 4), "window_size": (-1, 0)}
    call = call_of("varlen_attn", values | {"cu_seq_q": STARTS, "cu_seq_k": STARTS})
    assert str(call.find_mask(Masks(None), Shape(1, 4, 12, 12)).mask) == "causal+document:5,7"
