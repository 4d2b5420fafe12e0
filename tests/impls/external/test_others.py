"""The adapters of xformers, FlashInfer and Transformer Engine, on stand-ins."""

import importlib
import os
from types import SimpleNamespace

import pytest
from torch.nn.attention import _registry as registry

from attnbench.gate.watch import OPERATORS
from impls import table
from impls.external import torch_flash
from impls.external import transformer_engine as adapter
from tests.impls.external.checks import (
    DECODE,
    DOCUMENTS,
    MASKS,
    UNEQUAL,
    build,
    check,
    problem,
    views,
)
from tests.impls.external.libraries import flashinfer, transformer_engine, xformers

# ---- xformers ------------------------------------------------------------------------------------


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


# ---- FlashInfer ----------------------------------------------------------------------------------


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


# ---- Transformer Engine --------------------------------------------------------------------------


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


@pytest.mark.parametrize("fails", [False, True])
def test_transformer_engine_puts_cudas_random_state_back(fails, library, monkeypatch):
    class Generator:
        def __init__(self):
            self.offset = 8

        def get_offset(self):
            return self.offset

        def set_offset(self, offset):
            self.offset = offset

    chance, drawn = Generator(), []
    transformer_engine(library)
    monkeypatch.setattr(adapter, "_chance", lambda device: chance)
    p = problem("causal")
    attend = build("transformer_engine", p)
    inner = attend.module

    def draws(*ends, **more):
        chance.offset += 16
        drawn.append(chance.offset)
        if fails:
            raise ValueError("no room")
        return inner(*ends, **more)

    attend.module = draws
    if fails:
        with pytest.raises(ValueError, match="no room"):
            check(p, attend)
    else:
        check(p, attend)
    assert set(drawn) == {24}
    assert chance.offset == 8


# ---- torch's own, swapped ------------------------------------------------------------------------


@pytest.mark.parametrize(("kernel", "row"), [("FA3", "torch.fa3"), ("FA4", "torch.fa4")])
def test_torchs_kernel_is_swapped_until_the_last_of_its_kind_is_dropped(kernel, row, monkeypatch):
    handles = []

    def activated():
        handles.append(SimpleNamespace(removed=False))
        handles[-1].remove = lambda own=handles[-1]: setattr(own, "removed", True)
        return handles[-1]

    monkeypatch.setitem(registry._FLASH_ATTENTION_IMPLS, kernel, activated)
    one, other = (torch_flash.Swapped(problem(), kernel, row) for _ in range(2))
    del one
    assert registry.current_flash_attention_impl() == other.kernel
    del other
    assert registry.current_flash_attention_impl() is None
    assert [handle.removed for handle in handles] == [True]


@pytest.mark.parametrize(("module", "row"), [("fa3", "torch.fa3"), ("fa4", "torch.fa4")])
def test_a_row_declares_every_operator_that_torch_swaps_and_the_ruler_watches(
    module, row, monkeypatch
):
    swapped, place = [], importlib.import_module(f"torch.nn.attention._{module}")
    library = SimpleNamespace(impl=lambda name, *_: swapped.append(f"aten::{name}"))
    monkeypatch.setattr(place, "Library", lambda *_: library)
    getattr(place, f"_{module}_register_kernels")()
    assert set(swapped) & set(OPERATORS) == set(table().rows[row].swaps)
