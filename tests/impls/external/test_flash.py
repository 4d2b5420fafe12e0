"""The adapters of the flash-attn family and of torch's own kernels, on stand-ins."""

import importlib
import types

import pytest
import torch

from impls.masks import alibi_slopes
from impls.spec import Unavailable
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
from tests.impls.external.libraries import FLASH, flash
from tests.impls.external.stand_ins import READ, attention, blocks, sees


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


@pytest.mark.parametrize("mask", ["causal", DOCUMENTS[0]])
@pytest.mark.parametrize("row", ["flash_attn3", "flash_attn4"])
@pytest.mark.parametrize("with_lse", [False, True])
def test_the_output_is_taken_whether_its_log_sum_comes_with_it_or_not(row, mask, with_lse, library):
    flash(library, FLASH[row], with_lse=with_lse)
    check(problem(mask), build(row, problem(mask)))


@pytest.mark.parametrize(
    ("mask", "lengths"),
    [("causal", UNEQUAL), ("causal+window:4,1", UNEQUAL), ("causal", {"q_len": 13, "kv_len": 5})],
)
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
    with pytest.raises(Unavailable, match="takes scale, window_size"):
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
    on_a_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    library.monkeypatch.setattr(torch, "_scaled_dot_product_flash_attention", on_a_cpu)
    p = problem("causal")
    attend = build(f"torch.{kernel.lower()}", p)
    check(p, attend)
    assert registry.current_flash_attention_impl() == kernel
    assert kernel in attend.note()
    del attend
    assert events == ["activated", "removed"]
    assert registry.current_flash_attention_impl() is None
