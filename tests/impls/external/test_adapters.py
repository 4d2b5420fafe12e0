"""Every adapter's call, tried on stand-ins of the documented signatures (see stand_ins.py)."""

import importlib
import inspect
import os
import types
from pathlib import Path

import pytest
import torch

import impls
from impls.external import ROWS
from impls.external.common import offsets
from impls.masks import Mask, alibi_slopes
from impls.outside import load_file, load_function
from impls.problem import Problem
from impls.spec import Unavailable, Unsupported

stand_ins = load_file(Path(__file__).with_name("stand_ins.py"))
READ, attention, blocks, sees = (
    getattr(stand_ins, name) for name in ("READ", "attention", "blocks", "sees")
)

SHAPE = {"batch": 2, "heads": 4, "kv_heads": 2, "q_len": 11, "kv_len": 11, "head_dim": 16,
         "v_head_dim": 16, "phase": "train"}  # fmt: skip
"""Every extent is another number, so that a layout that is mixed up fails."""
MASKS = ("none", "causal", "window:3,2", "causal+window:4,1")
DOCUMENTS = ("document:4,6,1", "causal+document:4,6,1", "causal+document:4,6,1+window:2,5")
UNEQUAL = {"q_len": 5, "kv_len": 13}
DECODE = {"q_len": 1, "kv_len": 13, "phase": "decode"}
EXACT = [row for row in ROWS if row.exact]


def problem(mask="none", **changes):
    return Problem(**{**SHAPE, **changes}, mask=Mask.parse(mask))


def inputs(p):
    dice = torch.Generator().manual_seed(7)
    extents = (
        (p.batch, p.heads, p.q_len, p.head_dim),
        (p.batch, p.kv_heads, p.kv_len, p.head_dim),
        (p.batch, p.kv_heads, p.kv_len, p.v_head_dim),
    )
    return [torch.randn(e, generator=dice).requires_grad_(p.gradients) for e in extents]


def truth(p, q, k, v):
    """Softmax attention from the mask's own dense form, in float64."""
    q, k, v = (x.detach().double().requires_grad_(p.gradients) for x in (q, k, v))
    seen = torch.from_numpy(p.mask.visible(p.shape))
    bias = p.mask.bias(p.shape)
    keys, values = (x.repeat_interleave(p.group, 1) for x in (k, v))
    scores = q @ keys.transpose(-1, -2) * p.scale + (0.0 if bias is None else torch.tensor(bias))
    blind = ~seen.any(-1, keepdim=True)
    weights = scores.masked_fill(~(seen | blind), -torch.inf).softmax(-1)
    return (q, k, v), (weights @ values).masked_fill(blind, 0.0)


def check(p, attend):
    """The output and, where there are any, the gradients; and that no layout was a copy."""
    leaves = inputs(p)
    out = attend(*leaves)
    twins, want = truth(p, *leaves)
    assert out.shape == want.shape
    torch.testing.assert_close(out.double(), want, atol=2e-6, rtol=2e-6)
    if p.gradients:
        dout = torch.randn(want.shape, generator=torch.Generator().manual_seed(8))
        got = torch.autograd.grad(out, leaves, dout)
        expected = torch.autograd.grad(want, twins, dout.double())
        for one, other in zip(got, expected, strict=True):
            torch.testing.assert_close(one.double(), other, atol=1e-5, rtol=1e-5)
    return leaves


def views(tensors, leaves):
    """True where each tensor lies in the memory of the leaf that it came from."""
    return all(
        t.untyped_storage().data_ptr() == leaf.untyped_storage().data_ptr()
        for t, leaf in zip(tensors, leaves, strict=True)
    )


# ---- the flash-attn family -----------------------------------------------------------------------


def flash(library, package, with_lse=False):
    """The three functions of a flash-attn module, computing what they document."""
    none = None if package == "flash_attn.cute" else -1

    def window(call):
        assert all(side is none or side >= 0 for side in call.window_size)
        return call.window_size

    def give(out):
        return (out, torch.zeros(1)) if with_lse else out

    def dense(call):
        k = getattr(call, "k_cache", None) if hasattr(call, "k_cache") else call.k
        v = call.v_cache if hasattr(call, "v_cache") else call.v
        n, m = call.q.shape[1], k.shape[1]
        added = 0.0
        if getattr(call, "alibi_slopes", None) is not None:
            assert call.alibi_slopes.dtype == torch.float32
            away = (torch.arange(n)[:, None] + m - n - torch.arange(m)).abs()
            added = -call.alibi_slopes[:, None, None] * away
        seen = sees(n, m, call.causal, *window(call))
        return give(attention(call.q, k, v, call.softmax_scale, seen, added))

    def packed(call):
        assert call.cu_seqlens_q.dtype == torch.int32
        longest = int(call.cu_seqlens_q.diff().max())
        assert call.max_seqlen_q == longest == call.max_seqlen_k
        n = call.q.shape[0]
        seen = sees(n, n, call.causal, *window(call)) & blocks(call.cu_seqlens_k)
        added = 0.0
        if getattr(call, "alibi_slopes", None) is not None:
            away = (torch.arange(n)[:, None] - torch.arange(n)).abs()
            added = -call.alibi_slopes[:, None, None] * away
        q, k, v = (x[None] for x in (call.q, call.k, call.v))
        return give(attention(q, k, v, call.softmax_scale, seen, added)[0])

    names = {"flash_attn_func": dense, "flash_attn_varlen_func": packed}
    if f"{package}.flash_attn_with_kvcache" in READ:
        names["flash_attn_with_kvcache"] = dense
    made = {name: library.as_read(f"{package}.{name}", f) for name, f in names.items()}
    return library.module(package, **made)


FLASH = {
    "flash_attn2": "flash_attn",
    "flash_attn3": "flash_attn_interface",
    "flash_attn4": "flash_attn.cute",
}


@pytest.mark.parametrize("mask", [*MASKS, *DOCUMENTS])
@pytest.mark.parametrize("row", FLASH)
def test_flash_attn_is_called_as_it_documents(row, mask, library):
    flash(library, FLASH[row], with_lse=row == "flash_attn4")
    p = problem(mask)
    leaves = check(p, build(row, p))
    name, call = library.calls[-1]
    assert name.endswith("varlen_func") == ("document" in mask)
    assert call.causal == ("causal" in mask)
    assert views((call.q, call.k, call.v), leaves)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("lengths", [UNEQUAL, {"q_len": 13, "kv_len": 5}], ids=["few", "many"])
@pytest.mark.parametrize("row", FLASH)
def test_flash_attn_puts_the_last_query_at_the_last_key(row, lengths, mask, library):
    flash(library, FLASH[row], with_lse=row == "flash_attn4")
    p = problem(mask, **lengths)
    check(p, build(row, p))


@pytest.mark.parametrize("row", FLASH)
def test_flash_attn_decodes_through_its_cache_form_where_it_has_one(row, library):
    flash(library, FLASH[row], with_lse=row == "flash_attn4")
    p = problem("causal", **DECODE)
    check(p, build(row, p))
    has = f"{FLASH[row]}.flash_attn_with_kvcache" in READ
    assert library.calls[-1][0].endswith("with_kvcache") == has


@pytest.mark.parametrize("mask", ["alibi", "causal+alibi", "causal+alibi+document:4,6,1"])
def test_flash_attn2_gets_the_slopes_of_alibi(mask, library):
    flash(library, "flash_attn")
    p = problem(mask)
    check(p, build("flash_attn2", p))
    copies = p.batch if "document" in mask else 1
    want = torch.from_numpy(alibi_slopes(p.heads)).float().repeat(copies)
    assert torch.equal(library.calls[-1][1].alibi_slopes, want)


@pytest.mark.parametrize(("head_dim", "v_head_dim"), [(64, 128), (192, 128)])
def test_flash_attn3_and_4_take_values_of_another_width(head_dim, v_head_dim, library):
    for row in ("flash_attn3", "flash_attn4"):
        flash(library, FLASH[row], with_lse=row == "flash_attn4")
        p = problem("causal", head_dim=head_dim, v_head_dim=v_head_dim)
        check(p, build(row, p))


@pytest.mark.parametrize("mask", [*MASKS, *DOCUMENTS])
@pytest.mark.parametrize("lengths", [{}, UNEQUAL], ids=["square", "few"])
def test_torch_varlen_gets_offsets_and_a_window(mask, lengths, library, monkeypatch):
    if lengths and "document" in mask:
        pytest.skip("documents have as many queries as keys")
    name = "torch.nn.attention.varlen.varlen_attn"

    def packed(call):
        n, m = call.query.shape[0], call.key.shape[0]
        assert (call.max_q, call.max_k) == tuple(
            int(edges.diff().max()) for edges in (call.cu_seq_q, call.cu_seq_k)
        )
        assert call.enable_gqa == (call.query.shape[1] != call.key.shape[1])
        seen = sees(n, m, False, *call.window_size)
        if len(call.cu_seq_q) > 2:
            seen &= blocks(call.cu_seq_k)
        q, k, v = (x[None] for x in (call.query, call.key, call.value))
        return attention(q, k, v, call.scale, seen)[0]

    module = importlib.import_module("torch.nn.attention.varlen")
    monkeypatch.setattr(module, "varlen_attn", library.as_read(name, packed))
    p = problem(mask, **lengths)
    leaves = check(p, build("torch.varlen", p))
    call = library.calls[-1][1]
    assert views((call.query, call.key, call.value), leaves)
    if mask == "causal":
        assert call.window_size == (-1, 0)


def test_torch_varlen_refuses_a_torch_whose_function_takes_no_window(monkeypatch):
    module = importlib.import_module("torch.nn.attention.varlen")
    monkeypatch.setattr(module, "varlen_attn", lambda q, k, v, cu_q, cu_k, max_q, max_k: None)
    with pytest.raises(Unavailable, match="takes scale, window_size, enable_gqa"):
        build("torch.varlen", problem())


@pytest.mark.parametrize("kernel", ["FA3", "FA4"])
def test_torch_fa_swaps_the_kernel_while_it_lives_and_no_longer(kernel, library):
    library.module("flash_attn_interface")
    library.module("flash_attn.cute.interface")
    registry = torch.nn.attention
    events = []
    handle = types.SimpleNamespace(remove=lambda: events.append("removed"))
    table = importlib.import_module("torch.nn.attention._registry")._FLASH_ATTENTION_IMPLS
    library.monkeypatch.setitem(table, kernel, lambda: events.append("activated") or handle)
    p = problem("causal")
    attend = build(f"torch.{kernel.lower()}", p)
    check(p, attend)  # on the CPU torch's own flash kernel answers
    assert registry.current_flash_attention_impl() == kernel
    assert kernel in attend.note()
    del attend
    assert events == ["activated", "removed"]
    assert registry.current_flash_attention_impl() is None


# ---- xformers, FlashInfer, Transformer Engine ----------------------------------------------------


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
        seen = torch.ones(n, m, dtype=torch.bool) if call.attn_bias is None else (
            call.attn_bias.seen(n, m)
        )  # fmt: skip
        return attention(q, k, v, call.scale, seen).reshape(*extents[:-1], v.shape[-1])

    function = library.as_read("xformers.ops.fmha.memory_efficient_attention", call_it)
    pair = {
        name: types.SimpleNamespace(FwOp=f"{name}F", BwOp=f"{name}B") for name in ("fa2", "fa3")
    }
    library.module(
        "xformers.ops.fmha", memory_efficient_attention=function, attn_bias=kinds,
        flash=pair["fa2"], flash3=pair["fa3"],
    )  # fmt: skip


@pytest.mark.parametrize("mask", [*MASKS, *DOCUMENTS])
@pytest.mark.parametrize("grouped", [False, True], ids=["heads", "grouped"])
def test_xformers_gets_a_bias_object_and_a_forced_operator(mask, grouped, library):
    xformers(library)
    p = problem(mask, kv_heads=2 if grouped else 4, phase="forward" if grouped else "train")
    leaves = check(p, build("xformers", p))
    call = library.calls[-1][1]
    assert call.op == ("fa2F", "fa2B")
    assert call.query.ndim == (5 if grouped else 4)
    assert views((call.query, call.key, call.value), leaves)


@pytest.mark.parametrize("mask", MASKS)
def test_xformers_takes_the_bottom_right_corner_for_unequal_lengths(mask, library):
    xformers(library)
    p = problem(mask, kv_heads=4, **UNEQUAL)
    check(p, build("xformers", p))


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
        "flashinfer", BatchPrefillWithRaggedKVCacheWrapper=Wrapper,
        single_prefill_with_kv_cache=library.as_read(
            "flashinfer.single_prefill_with_kv_cache", prefill
        ),
        single_decode_with_kv_cache=library.as_read(
            "flashinfer.single_decode_with_kv_cache", decode
        ),
    )  # fmt: skip


@pytest.mark.parametrize("mask", ["none", "causal", "causal+window:4,1", "window:3,11", *DOCUMENTS])
@pytest.mark.parametrize("backend", ["fa2", "fa3"])
def test_flashinfer_serves_a_batch_as_more_heads(mask, backend, library):
    flashinfer(library)
    p = problem(mask, head_dim=64, v_head_dim=64, phase="forward")
    attend = build("flashinfer", p, backend=backend)
    leaves = check(p, attend)
    name, call = library.calls[-1]
    assert name.endswith("run") == ("document" in mask)
    assert views((call.q, call.k, call.v), leaves)
    assert backend in attend.note()


@pytest.mark.parametrize("kv_heads", [4, 1])
@pytest.mark.parametrize("mask", ["none", "causal", "causal+window:4,1"])
def test_flashinfer_decodes_one_query_and_says_with_what(kv_heads, mask, library):
    flashinfer(library)
    p = problem(mask, head_dim=64, v_head_dim=64, kv_heads=kv_heads, **DECODE)
    attend = build("flashinfer", p)
    check(p, attend)
    call = library.calls[-1][1]
    assert call.use_tensor_cores == (kv_heads == 1)
    assert ("with tensor cores" in attend.note()) == (kv_heads == 1)


@pytest.mark.parametrize("mask", MASKS[:2])
def test_flashinfer_prefills_where_several_queries_are_new(mask, library):
    flashinfer(library)
    p = problem(mask, head_dim=64, v_head_dim=64, q_len=3, kv_len=13, phase="decode")
    check(p, build("flashinfer", p))
    assert library.calls[-1][0].endswith("single_prefill_with_kv_cache")


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


@pytest.mark.parametrize("mask", [*MASKS, *DOCUMENTS])
@pytest.mark.parametrize("changes", [{}, UNEQUAL, {"v_head_dim": 24}], ids=["", "few", "wide"])
def test_transformer_engine_gives_heads_back_apart(mask, changes, library):
    if "q_len" in changes and "document" in mask:
        pytest.skip("documents have as many queries as keys")
    state, _ = transformer_engine(library)
    p = problem(mask, **changes)
    attend = build("transformer_engine", p)
    assert state["backend_selection_requires_update"]
    leaves = check(p, attend)
    call = library.calls[-1][1]
    assert views((call.query_layer, call.key_layer, call.value_layer), leaves)
    assert attend.note() == "backend fused"


@pytest.mark.parametrize("backend", ["fused", "flash", "unfused"])
def test_transformer_engine_is_told_one_backend_for_the_call_alone(backend, library):
    _, environment = transformer_engine(library)
    library.monkeypatch.setenv("NVTE_FLASH_ATTN", "before")
    library.monkeypatch.delenv("NVTE_FUSED_ATTN", raising=False)
    p = problem("causal")
    check(p, build("transformer_engine", p, backend=backend))
    assert environment[-1] == {
        key: str(int(key.lower() == backend)) for key in ("FLASH", "FUSED", "UNFUSED")
    }
    assert os.environ["NVTE_FLASH_ATTN"] == "before"
    assert "NVTE_FUSED_ATTN" not in os.environ


# ---- all of them ---------------------------------------------------------------------------------


def build(row, p, **options):
    found = impls.table().rows[row]
    return load_function(found.build)(p, **{**found.options, **options})


REFUSED = [
    ("flash_attn2", {"mask": "causal@upper-left", **UNEQUAL}, {}, "last query at the last key"),
    ("flash_attn3", {"head_dim": 20, "v_head_dim": 20}, {}, "multiples of 8, not 20 and 20"),
    ("flash_attn3", {"head_dim": 128, "v_head_dim": 64}, {}, "no kernel for head_dim 128"),
    ("flash_attn3", {"head_dim": 64, "v_head_dim": 512}, {}, "v_head_dim at most 256"),
    ("flash_attn4", {"head_dim": 12}, {}, "multiples of 8"),
    ("flash_attn4", {"head_dim": 264}, {}, "up to 256 on Hopper"),
    ("torch.varlen", {"head_dim": 20, "v_head_dim": 20}, {}, "multiples of 8"),
    ("torch.fa3", {"mask": "causal", **UNEQUAL}, {}, "causal over equal lengths"),
    ("torch.fa4", {"mask": "causal", **UNEQUAL}, {}, "causal over equal lengths"),
    ("xformers", {}, {}, "no backward for grouped heads"),
    ("xformers", {"kv_heads": 4}, {"op": "cutlass"}, "op is fa2 or fa3"),
    ("xformers", {"kv_heads": 4}, {"op": "fa3"}, "head_dim 64 or more in phase train"),
    ("xformers", {"kv_heads": 4, "mask": "document:4,7+window:1,1"}, {}, "together with causal"),
    ("flashinfer", {"head_dim": 32}, {}, "64, 128 or 256"),
    ("flashinfer", {"head_dim": 64, "v_head_dim": 64}, {"backend": "auto"}, "no backend 'auto'"),
    ("flashinfer", {"head_dim": 64, "v_head_dim": 64, "mask": "window:3,2"}, {}, "needs causal"),
    ("transformer_engine", {}, {"backend": "auto"}, "it is flash, fused, unfused"),
    ("transformer_engine", {"head_dim": 20}, {}, "multiples of 8"),
]


@pytest.mark.parametrize(("row", "changes", "options", "said"), REFUSED)
def test_what_a_library_does_not_serve_is_refused_in_a_sentence(
    row, changes, options, said, library
):
    for package in (*FLASH.values(), "flash_attn.cute.interface"):
        library.module(package)
    transformer_engine(library), flashinfer(library), xformers(library)
    with pytest.raises(Unsupported, match=said) as refusal:
        build(row, problem(**changes), **options)
    assert len(str(refusal.value).split()) > 5


@pytest.mark.parametrize("major", [8, 10])
def test_kernels_for_hopper_say_so_elsewhere(major, monkeypatch):
    for module in ("flash_attn3", "torch_flash"):
        place = importlib.import_module(f"impls.external.{module}")
        monkeypatch.setattr(place, "capability", lambda problem: (major, 0))
    for row in ("flash_attn3", "torch.fa3"):
        with pytest.raises(Unavailable, match=f"not on {major}.0") as refusal:
            build(row, problem())
        assert "Hopper" in refusal.value.remedy


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_whose_library_is_missing_says_what_to_install(row, monkeypatch):
    def absent(name, package=None):
        raise ModuleNotFoundError(f"No module named {name!r}")

    built = load_function(row.build)
    monkeypatch.setattr("impls.external.common.importlib.import_module", absent)
    p = problem(head_dim=64, v_head_dim=64, kv_heads=4, kv_len=64, phase="forward")
    with pytest.raises(Unavailable, match=f"{row.name} needs the module") as missing:
        built(p, **row.options)
    assert (
        "pip install" in missing.value.remedy or "python setup.py install" in missing.value.remedy
    )


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_is_untried_runs_on_cuda_and_names_its_origin(row):
    assert row.untried
    assert row.devices == (("cpu", "cuda") if row.name == "natten" else ("cuda",))
    assert row.origin != "attnbench"
    refusal = row.supports(problem("padding:3"))
    assert refusal is not None and row.name in refusal


@pytest.mark.parametrize("row", EXACT, ids=lambda row: row.name)
def test_an_exact_row_counts_the_pairs_of_the_mask(row):
    cost = load_function(row.cost)(problem("causal", phase="forward"), **row.options)
    pairs = 11 * 12 // 2 * SHAPE["batch"] * SHAPE["heads"]
    assert cost.flops == 4 * pairs * 16


def test_the_signatures_read_are_those_of_what_is_installed():
    compared = 0
    for name in READ:
        module, _, function = name.rpartition(".")
        try:
            found = getattr(importlib.import_module(module), function)
        except (ImportError, AttributeError):
            continue
        compared += 1
        installed = inspect.signature(found).parameters.values()
        assert [(p.name, p.kind) for p in installed] == [
            (p.name, p.kind) for p in stand_ins.signature(name).parameters.values()
        ], name
    assert compared  # torch's own, at the least
