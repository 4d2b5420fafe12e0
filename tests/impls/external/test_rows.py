"""What the external rows share: refusals, what to install, costs, and the signatures read."""

import importlib
import inspect

import pytest

from impls.external import ROWS
from impls.loading import load_function
from impls.spec import Unavailable, Unsupported
from tests.impls.external import stand_ins
from tests.impls.external.checks import UNEQUAL, build, problem
from tests.impls.external.stand_ins import READ

SERVED = {"head_dim": 64, "v_head_dim": 64, "kv_heads": 1, "phase": "forward"}
EACH = {"kv_heads": 4}
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
    ("sageattention", {"head_dim": 80}, {}, "64, 96 or 128, not 80"),
    ("sageattention", {**SERVED, "kv_len": 200}, {}, "multiple of 64, not 200"),
    ("natten", EACH, {"window": 1}, "window is 1; it must be 2 or more"),
    ("natten", EACH, {"backend": "auto"}, "cutlass-fna, hopper-fna"),
    ("natten", {**EACH, "q_len": 1, "kv_len": 1}, {}, "2 tokens or more"),
    ("natten", {**EACH, "v_head_dim": 24}, {"backend": "flex-fna"}, "v_head_dim equal to head_dim"),
    ("natten", EACH, {"backend": "hopper-fna"}, "bfloat16 and float16, not float32"),
    ("natten", {**EACH, "dtype": "bfloat16"}, {"backend": "hopper-fna"}, "128, not 16"),
    ("natten", {**EACH, "mask": "causal"}, {"backend": "flex-fna"}, "all 11 keys"),
]


@pytest.mark.parametrize(("row", "changes", "options", "said"), REFUSED)
def test_what_a_library_does_not_serve_is_refused_in_a_sentence(
    row, changes, options, said, library
):
    with pytest.raises(Unsupported, match=said):
        build(row, problem(**changes), **options)


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
    assert "install" in missing.value.remedy


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
