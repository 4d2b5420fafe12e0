"""The adapters of xformers, FlashInfer and Transformer Engine, on stand-ins."""

import os
import types

import pytest

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

CELLS = [(mask, {}) for mask in (*MASKS, *DOCUMENTS)] + [(mask, UNEQUAL) for mask in MASKS]


@pytest.mark.parametrize(("mask", "changes"), CELLS)
@pytest.mark.parametrize("grouped", [False, True], ids=["heads", "grouped"])
def test_xformers_gets_a_bias_object_and_a_forced_operator(mask, changes, grouped, library):
    xformers(library)
    phase = "forward" if grouped else "train"
    p = problem(mask, kv_heads=2 if grouped else 4, phase=phase, **changes)
    leaves = check(p, build("xformers", p))
    call = library.calls[-1][1]
    assert call.op == ("fa2F", "fa2B")
    assert call.query.ndim == (5 if grouped else 4)
    assert views((call.query, call.key, call.value), leaves)


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


@pytest.mark.parametrize("new", [1, 3])
@pytest.mark.parametrize("kv_heads", [4, 1])
@pytest.mark.parametrize("mask", ["none", "causal", "causal+window:4,1"])
def test_flashinfer_decodes_one_query_and_says_with_what_and_prefills_several(
    kv_heads, mask, new, library
):
    flashinfer(library)
    step = {**DECODE, "q_len": new}
    p = problem(mask, head_dim=64, v_head_dim=64, kv_heads=kv_heads, **step)
    attend = build("flashinfer", p)
    check(p, attend)
    name, call = library.calls[-1]
    if new > 1:
        assert name.endswith("single_prefill_with_kv_cache")
    else:
        assert call.use_tensor_cores == ("with tensor cores" in attend.note()) == (kv_heads == 1)


@pytest.mark.parametrize(("mask", "changes"), [*CELLS, ("causal", {"v_head_dim": 24})])
def test_transformer_engine_gives_heads_back_apart(mask, changes, library):
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
    told = {key: str(int(key.lower() == backend)) for key in ("FLASH", "FUSED", "UNFUSED")}
    assert environment[-1] == told
    assert os.environ["NVTE_FLASH_ATTN"] == "before"
    assert "NVTE_FUSED_ATTN" not in os.environ


def test_transformer_engine_puts_cudas_random_state_back_when_it_fails_too(library, monkeypatch):
    chance = types.SimpleNamespace(offset=8)
    chance.get_offset = lambda: chance.offset
    chance.set_offset = lambda offset: setattr(chance, "offset", offset)
    transformer_engine(library)
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
