"""The adapters of exact attention: which function of its library each calls, and that what it is
called with means the problem: its stand-in computes that, and the oracle is met."""

import importlib
import os
import types

import pytest
import torch
from torch.nn.attention import _registry as registry

from attnbench.gate.watch import OPERATORS
from impls.external import torch_flash
from impls.external import transformer_engine as adapter
from impls.spec import Unavailable
from tests.impls.external.checks import DECODE, DOCUMENTS, MASKS, UNEQUAL, build, check, problem
from tests.impls.small import TABLE

FLASH, CORNERS = ("flash_attn2", "flash_attn3", "flash_attn4"), ("causal", "causal+window:4,1")
ALL, EACH = (*MASKS, *DOCUMENTS), {"kv_heads": 4}
SERVED = {"head_dim": 64, "v_head_dim": 64, "phase": "forward"}
STEP = {**SERVED, **DECODE}
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
    (("transformer_engine",), ALL, {}, "forward"),
    (("transformer_engine",), MASKS, UNEQUAL, "forward"),
    (("transformer_engine",), ("causal",), {"v_head_dim": 24}, "forward"),
]  # fmt: skip
CASES = [
    (row, mask, changes, function)
    for rows, masks, changes, function in CASES
    for row in rows
    for mask in masks
]


@pytest.mark.parametrize(("row", "mask", "changes", "function"), CASES)
def test_what_the_library_is_called_with_means_the_problem(row, mask, changes, function, library):
    """Its output is taken whether the log-sum comes with it or not; nothing but a cache of keys is
    copied."""
    for library.with_lse in {FLASH[1]: (False, True), FLASH[2]: (True,)}.get(row, (False,)):
        p, label = problem(mask, **changes), TABLE.find(row)
        leaves = check(p, build(label.name, p, **label.chosen))
    call = library.calls[-1]
    assert call.function == function
    for end, leaf in zip(call.ends, leaves, strict=True):
        assert end.untyped_storage().data_ptr() == leaf.untyped_storage().data_ptr()


def test_torch_varlen_refuses_a_torch_whose_function_takes_no_window(monkeypatch):
    module = importlib.import_module("torch.nn.attention.varlen")
    monkeypatch.setattr(module, "varlen_attn", lambda q, k, v, cu_q, cu_k, max_q, max_k: None)
    with pytest.raises(Unavailable, match="takes scale, window_size"):
        build("torch.varlen", problem())


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
        told = library.calls[-1].environment[f"NVTE_{key}_ATTN"]
        assert told == str(int(key.lower() == backend))
    assert os.environ["NVTE_FLASH_ATTN"] == "before"
    assert "NVTE_FUSED_ATTN" not in os.environ


def test_transformer_engine_puts_cudas_random_state_back_when_it_fails_too(library, monkeypatch):
    chance = types.SimpleNamespace(offset=8)
    chance.get_offset = lambda: chance.offset
    chance.set_offset = lambda offset: setattr(chance, "offset", offset)
    monkeypatch.setattr(adapter, "_chance", lambda device: chance)
    p = problem("causal")
    attend = build("transformer_engine", p)
    inner = attend.module

    def draws(*ends, **more):
        chance.offset += 16
        return inner(*ends, **more)

    attend.module = draws
    check(p, attend)
    assert chance.offset == 8
    attend.module = lambda *ends, **more: [draws(*ends, **more), 1 / 0]
    with pytest.raises(ZeroDivisionError):
        check(p, attend)
    assert chance.offset == 8
