"""The adapters: which function of its library each calls, and with what; what they refuse."""

import importlib
import inspect
import os
import sys
import types
from itertools import product

import pytest
import torch
from torch.nn.attention import _registry as registry

from attnbench.gate.inputs import make
from attnbench.gate.watch import OPERATORS
from impls.dense import einsum
from impls.external import ROWS, torch_flash
from impls.loading import load_function
from impls.spec import Unavailable, Unsupported
from tests.impls.external import stand_ins
from tests.impls.external.stand_ins import READ, build, problem
from tests.impls.small import TABLE, check

MASKS = ("none", "causal", "window:3,2", "causal+window:4,1")
DOCUMENTS = ("document:4,6,1", "causal+document:4,6,1", "causal+document:4,6,1+window:2,5")
UNEQUAL = {"q_len": 5, "kv_len": 13}
DECODE = {"q_len": 1, "kv_len": 13, "phase": "decode"}
FLASH, CORNERS = ("flash_attn2", "flash_attn3", "flash_attn4"), ("causal", "causal+window:4,1")
ALL, EACH = (*MASKS, *DOCUMENTS), {"kv_heads": 4}
SERVED = {"head_dim": 64, "v_head_dim": 64, "phase": "forward"}
STEP = {**SERVED, **DECODE}
TILES = {**SERVED, "q_len": 64, "kv_len": 128}
CASES = [  # rows, masks, what else of the problem, and the function that is called
    (FLASH, MASKS, {}, "flash_attn_func"),
    (FLASH, DOCUMENTS, {}, "flash_attn_varlen_func"),
    (FLASH, CORNERS, UNEQUAL, "flash_attn_func"),
    (FLASH, ("causal",), {"q_len": 13, "kv_len": 5}, "flash_attn_func"),
    (FLASH[:2], ("causal",), DECODE, "flash_attn_with_kvcache"),
    (FLASH[2:], ("causal",), DECODE, "flash_attn_func"),
    (FLASH[:1], ("alibi",), {}, "flash_attn_func"),
    (FLASH[:1], ("causal+alibi+document:4,6,1",), {}, "flash_attn_varlen_func"),
    (FLASH[1:], ("causal",), {"head_dim": 64, "v_head_dim": 128}, "flash_attn_func"),
    (FLASH[1:], ("causal",), {"head_dim": 192, "v_head_dim": 128}, "flash_attn_func"),
    (("torch.varlen",), ALL, {}, "varlen_attn"),
    (("torch.varlen",), CORNERS, UNEQUAL, "varlen_attn"),
    (("xformers",), ALL, EACH, "memory_efficient_attention"),
    (("xformers",), MASKS, {**EACH, **UNEQUAL}, "memory_efficient_attention"),
    (("xformers",), ALL, {"phase": "forward"}, "memory_efficient_attention"),
    (("xformers",), MASKS, {"phase": "forward", **UNEQUAL}, "memory_efficient_attention"),
    (("flashinfer",), (*MASKS[:2], "causal+window:4,1", "window:3,11"), SERVED,
     "single_prefill_with_kv_cache"),
    (("flashinfer", "flashinfer?backend=fa3"), DOCUMENTS, SERVED, "run"),
    (("flashinfer",), (*MASKS[:2], "causal+window:4,1"), STEP, "single_decode_with_kv_cache"),
    (("flashinfer",), ("causal",), {**STEP, "kv_heads": 1}, "single_decode_with_kv_cache"),
    (("flashinfer",), CORNERS, {**STEP, "q_len": 3}, "single_prefill_with_kv_cache"),
    (("hub.flash_attn2", "hub.flash_attn3"), MASKS, {}, "flash_attn_func"),
    (("hub.flash_attn2", "hub.flash_attn3"), ("causal",), DECODE, "flash_attn_with_kvcache"),
    (("fsa.dense",), MASKS[:2], {}, "flash_dense_attn_func"),
    (("fsa.dense",), ("causal",), UNEQUAL, "flash_dense_attn_func"),
    (("fsa.sparse",), MASKS[:2], TILES, "flash_sparse_attn_func"),
    (("cudnn_frontend",), (*MASKS[:2], "causal+window:4,1"), {}, "sdpa_backward"),
    (("cudnn_frontend",), CORNERS, UNEQUAL, "sdpa_backward"),
    (("cudnn_frontend",), ("causal",), {"phase": "forward", "v_head_dim": 24}, "sdpa"),
    (("cudnn_frontend",), ("causal",), DECODE, "sdpa"),
    (("transformer_engine",), ALL, {}, "forward"),
    (("transformer_engine",), MASKS, UNEQUAL, "forward"),
    (("transformer_engine",), ("causal",), {"v_head_dim": 24}, "forward"),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "masks", "changes", "function"), CASES)
def test_what_the_library_is_called_with_means_the_problem(rows, masks, changes, function, library):
    """Its output is taken with the log-sum or without; nothing but a cache is copied."""
    for row, mask in product(rows, masks):
        for library.with_lse in {FLASH[1]: (False, True), FLASH[2]: (True,)}.get(row, (False,)):
            p, label = problem(mask, **changes), TABLE.find(row)
            leaves = check(p, build(label.name, p, **label.chosen))
        call = library.calls[-1]
        assert call.function == function, (row, mask)
        for end, leaf in zip(call.ends, leaves, strict=True):
            assert end.untyped_storage().data_ptr() == leaf.untyped_storage().data_ptr()


@pytest.mark.parametrize(("rows", "masks", "changes", "function"), CASES)
def test_a_log_sum_exp_is_natural_by_heads_and_none_where_nothing_is_seen(
    rows, masks, changes, function, library
):
    phase = {"phase": "forward" if changes.get("phase", "train") == "train" else changes["phase"]}
    for row, mask in product(rows, masks):
        label = TABLE.find(row)
        p = problem(mask, **changes | phase, lse=True)
        if "lse" not in label.parameters:
            assert label.supports(p.with_(device="cuda", dtype="bfloat16")) is not None
            continue
        q, k, v = make(p, 3).qkv
        out, log_sums = build(label.name, p, **label.chosen)(q, k, v)
        torch.testing.assert_close(
            out, build(label.name, p.with_(lse=None), **label.chosen)(q, k, v)
        )
        scores = q @ k.repeat_interleave(p.group, 1).mT * p.scale
        bias = p.mask.bias(p.shape)
        scores = scores if bias is None else scores + torch.from_numpy(bias).to(q.dtype)
        scores = scores.masked_fill(~torch.from_numpy(p.mask.visible(p.shape)), -torch.inf)
        torch.testing.assert_close(log_sums, scores.logsumexp(-1))
        if p.phase == "forward":
            with pytest.raises(Unsupported, match="no gradient through its log-sum-exp"):
                build(label.name, p.with_(phase="train"), **label.chosen)


@pytest.mark.parametrize("kernel", ["FA3", "FA4"])
def test_torchs_kernel_is_swapped_until_the_last_of_its_kind_is_dropped(kernel, library):
    events, row = [], f"torch.{kernel.lower()}"
    handle = types.SimpleNamespace(remove=lambda: events.append("removed"))
    activate = lambda: events.append("activated") or handle  # noqa: E731
    library.monkeypatch.setitem(registry._FLASH_ATTENTION_IMPLS, kernel, activate)
    on_a_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    library.monkeypatch.setattr(torch, "_scaled_dot_product_flash_attention", on_a_cpu)
    p = problem("causal")
    attend, other = build(row, p), torch_flash.Swapped(p, kernel, row)
    check(p, attend)
    summing = p.with_(lse=True, phase="forward")
    torch.testing.assert_close(
        torch_flash.Swapped(summing, kernel, row)(*make(summing, 3).qkv),
        einsum.build(summing)(*make(summing, 3).qkv),
    )
    del attend
    assert registry.current_flash_attention_impl() == other.kernel == kernel
    del other
    assert events.count("removed") == 1 and events[-1] == "removed"
    assert registry.current_flash_attention_impl() is None


@pytest.mark.parametrize("kernel", ["fa3", "fa4"])
def test_a_row_declares_every_operator_that_torch_swaps_and_the_ruler_watches(kernel, monkeypatch):
    swapped, place = [], importlib.import_module(f"torch.nn.attention._{kernel}")
    library = types.SimpleNamespace(impl=lambda name, *_: swapped.append(f"aten::{name}"))
    monkeypatch.setattr(place, "Library", lambda *_: library)
    getattr(place, f"_{kernel}_register_kernels")()
    assert set(swapped) & set(OPERATORS) == set(TABLE.rows[f"torch.{kernel}"].swaps)


@pytest.mark.parametrize("backend", ["fused", "flash", "unfused"])
def test_transformer_engine_is_told_one_backend_for_the_call_alone(backend, library):
    library.monkeypatch.setenv("NVTE_FLASH_ATTN", "before")
    library.monkeypatch.delenv("NVTE_FUSED_ATTN", raising=False)
    p = problem("causal")
    attend = build("transformer_engine", p, backend=backend)
    assert library.backends == {"backend_selection_requires_update": True}
    check(p, attend)
    for key in ("FLASH", "FUSED", "UNFUSED"):
        value = library.calls[-1].environment[f"NVTE_{key}_ATTN"]
        assert value == str(int(key.lower() == backend))
    assert os.environ["NVTE_FLASH_ATTN"] == "before"
    assert "NVTE_FUSED_ATTN" not in os.environ


REFUSED = [  # rows, what else of the problem, options, and what is said
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
    ("sageattention", {"head_dim": 80}, {}, "64, 96 or 128, not 80"),
    ("sageattention", {**SERVED, "kv_len": 200}, {}, "multiple of 64, not 200"),
    ("fsa.dense", {"head_dim": 24, "v_head_dim": 24}, {}, "multiples of 16, not 24"),
    ("fsa.dense", {"mask": "causal@upper-left", **UNEQUAL}, {}, "last query at the last key"),
    ("fsa.sparse", {**SERVED, "q_len": 64, "kv_len": 100}, {}, "multiples of 64 here"),
    ("fsa.sparse", TILES, {"threshold": -1.0}, "must be 0 or more"),
    ("cudnn_frontend", {"mask": "window:3,2"}, {}, "with a causal mask alone"),
    ("cudnn_frontend", {"head_dim": 20}, {}, "multiples of 8"),
    ("natten", EACH, {"window": 1}, "window is 1; it must be 2 or more"),
    ("natten", EACH, {"backend": "auto"}, "cutlass-fna, hopper-fna"),
    ("natten", {**EACH, "q_len": 1, "kv_len": 1}, {}, "2 tokens or more"),
    ("natten", {**EACH, "v_head_dim": 24}, {"backend": "flex-fna"}, "v_head_dim equal to head_dim"),
    ("natten", EACH, {"backend": "hopper-fna"}, "bfloat16 and float16, not float32"),
    ("natten", {**EACH, "dtype": "bfloat16"}, {"backend": "hopper-fna"}, "128, not 16"),
    ("natten", {**EACH, "mask": "causal"}, {"backend": "flex-fna"}, "all 11 keys"),
    ("onnxruntime", SERVED, {"op": "gqa"}, "no op 'gqa'; it is attention or mha"),
    (
        "onnxruntime",
        {**SERVED, "kv_heads": 4, "mask": "causal"},
        {"op": "mha"},
        "no mask, and this is",
    ),
    ("onnxruntime", SERVED, {"op": "mha"}, "as many kv_heads as heads"),
    ("onnxruntime", {**SERVED, "kv_heads": 4, "softcap": 5.0}, {"op": "mha"}, "has no softcap"),
    ("onnxruntime", {**SERVED, **EACH, "dtype": "float16"}, {"op": "mha"}, "float32, not float16"),
]


@pytest.mark.parametrize(("row", "changes", "options", "message"), REFUSED)
def test_what_a_library_does_not_serve_is_refused_in_a_sentence(
    row, changes, options, message, library
):
    with pytest.raises(Unsupported, match=message):
        build(row, problem(**changes), **options)


def test_a_kernel_of_the_hub_is_read_from_the_cache_alone(library):
    def absent(call):
        assert sys.modules["huggingface_hub.constants"].HF_HUB_OFFLINE
        raise FileNotFoundError(f"Cannot find a local snapshot for {call.repo_id}.")

    library.computes("kernels.get_kernel", absent)
    with pytest.raises(Unavailable, match="the hub's cache, and can't: Cannot find") as missing:
        build("hub.flash_attn3", problem())
    assert "get_kernel('kernels-community/flash-attn3', version=1)" in missing.value.remedy
    assert not sys.modules["huggingface_hub.constants"].HF_HUB_OFFLINE


@pytest.mark.parametrize("major", [8, 10])
def test_kernels_for_hopper_say_so_elsewhere(major, monkeypatch):
    monkeypatch.setattr("impls.external.common.capability", lambda problem: (major, 0))
    monkeypatch.setattr("impls.sparse.flex.capability", lambda device: 10 * major)
    for row in ("flash_attn3", "hub.flash_attn3", "torch.fa3", "flex.flash"):
        with pytest.raises(Unavailable, match=f"not on {major}.0") as refusal:
            build(row, problem())
        assert "Hopper" in refusal.value.remedy


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_whose_library_is_missing_says_what_to_install(row, monkeypatch):
    def absent(name, package=None):
        raise ModuleNotFoundError(f"No module named {name!r}")

    built = load_function(row.build)
    monkeypatch.setattr("impls.external.common.importlib.import_module", absent)
    p = problem(head_dim=64, v_head_dim=64, kv_heads=4, q_len=64, kv_len=64, phase="forward")
    with pytest.raises(Unavailable, match=f"{row.name} needs the module") as missing:
        built(p, **row.options)
    assert "install" in missing.value.remedy


def test_the_signatures_read_are_those_of_what_is_installed():
    compared = 0
    for name in READ:
        module, _, function = name.rpartition(".")
        try:
            theirs = getattr(importlib.import_module(module), function)
        except (ImportError, AttributeError):
            continue
        compared += 1
        installed, read = (
            [(p.name, p.kind) for p in each.parameters.values()]
            for each in (inspect.signature(theirs), stand_ins.signature(name))
        )
        assert installed == read, name
    assert compared  # torch's own, at the least
