"""The adapters of the flash-attn family and of torch's own kernels, on stand-ins."""

import importlib
import types

import pytest
import torch
from torch.nn.attention import _registry as registry

from attnbench.gate.watch import OPERATORS
from impls import table
from impls.external import torch_flash
from impls.masks import alibi_slopes
from impls.spec import Unavailable
from tests.impls.external import checks
from tests.impls.external.checks import DECODE, UNEQUAL, build, check, problem, views
from tests.impls.external.libraries import FLASH, flash
from tests.impls.external.stand_ins import READ, attention, blocks, sees

CELLS = [(mask, {}) for mask in (*checks.MASKS, *checks.DOCUMENTS)]
CELLS += [(mask, UNEQUAL) for mask in ("causal", "causal+window:4,1")]
FLASH_CELLS = [*CELLS, ("causal", {"q_len": 13, "kv_len": 5}), ("causal", DECODE)]


@pytest.mark.parametrize(("mask", "changes"), FLASH_CELLS)
@pytest.mark.parametrize("row", FLASH)
def test_flash_attn_is_called_as_it_documents(row, mask, changes, library):
    """With the last query at the last key; a step goes through the cache form where there is one.

    The output is taken whether its log-sum comes with it or not.
    """
    flash(library, FLASH[row], with_lse=row == "flash_attn4")
    p = problem(mask, **changes)
    leaves = check(p, build(row, p))
    name, call = library.calls[-1]
    cached = p.phase == "decode" and f"{FLASH[row]}.flash_attn_with_kvcache" in READ
    assert name.endswith("with_kvcache") == cached
    assert name.endswith("varlen_func") == ("document" in mask)
    assert call.causal == ("causal" in mask)
    assert cached or views((call.q, call.k, call.v), leaves)
    if row == "flash_attn3" and not cached:
        flash(library, FLASH[row], with_lse=True)
        check(p, build(row, p))


@pytest.mark.parametrize("mask", ["alibi", "causal+alibi+document:4,6,1"])
def test_flash_attn2_gets_the_slopes_of_alibi(mask, library):
    flash(library, "flash_attn")
    p = problem(mask)
    check(p, build("flash_attn2", p))
    copies = p.batch if "document" in mask else 1
    want = torch.from_numpy(alibi_slopes(p.heads)).float().repeat(copies)
    assert torch.equal(library.calls[-1][1].alibi_slopes, want)


@pytest.mark.parametrize("head_dim", [64, 192])
@pytest.mark.parametrize("row", ["flash_attn3", "flash_attn4"])
def test_flash_attn3_and_4_take_values_of_another_width(row, head_dim, library):
    flash(library, FLASH[row], with_lse=row == "flash_attn4")
    p = problem("causal", head_dim=head_dim, v_head_dim=128)
    check(p, build(row, p))


@pytest.mark.parametrize(("mask", "changes"), CELLS)
def test_torch_varlen_gets_offsets_and_a_window(mask, changes, library, monkeypatch):
    def packed(call):
        edges = call.cu_seq_q, call.cu_seq_k
        assert (call.max_q, call.max_k) == tuple(int(x.diff().max()) for x in edges)
        assert call.enable_gqa == (call.query.shape[1] != call.key.shape[1])
        seen = sees(call.query.shape[0], call.key.shape[0], False, *call.window_size)
        if len(call.cu_seq_q) > 2:
            seen &= blocks(call.cu_seq_k)
        q, k, v = (x[None] for x in (call.query, call.key, call.value))
        return attention(q, k, v, call.scale, seen)[0]

    name = "torch.nn.attention.varlen.varlen_attn"
    module = importlib.import_module("torch.nn.attention.varlen")
    monkeypatch.setattr(module, "varlen_attn", library.as_read(name, packed))
    p = problem(mask, **changes)
    leaves = check(p, build("torch.varlen", p))
    call = library.calls[-1][1]
    assert views((call.query, call.key, call.value), leaves)
    assert mask != "causal" or call.window_size == (-1, 0)


def test_torch_varlen_refuses_a_torch_whose_function_takes_no_window(monkeypatch):
    module = importlib.import_module("torch.nn.attention.varlen")
    monkeypatch.setattr(module, "varlen_attn", lambda q, k, v, cu_q, cu_k, max_q, max_k: None)
    with pytest.raises(Unavailable, match="takes scale, window_size"):
        build("torch.varlen", problem())


@pytest.mark.parametrize("kernel", ["FA3", "FA4"])
def test_torchs_kernel_is_swapped_until_the_last_of_its_kind_is_dropped(kernel, library):
    library.module("flash_attn_interface")
    library.module("flash_attn.cute.interface")
    events, row = [], f"torch.{kernel.lower()}"
    handle = types.SimpleNamespace(remove=lambda: events.append("removed"))
    activate = lambda: events.append("activated") or handle  # noqa: E731
    library.monkeypatch.setitem(registry._FLASH_ATTENTION_IMPLS, kernel, activate)
    on_a_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    library.monkeypatch.setattr(torch, "_scaled_dot_product_flash_attention", on_a_cpu)
    p = problem("causal")
    attend, other = build(row, p), torch_flash.Swapped(p, kernel, row)
    check(p, attend)
    assert kernel in attend.note()
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
    assert set(swapped) & set(OPERATORS) == set(table().rows[f"torch.{kernel}"].swaps)
