"""How a compiled kernel is read, against NVIDIA's occupancy calculator and code written by hand."""

import pytest

from proofs import compiled
from proofs.compiled import main, tables
from proofs.kernel_facts import (
    CHIPS,
    Product,
    blocks_an_sm,
    broken,
    covered,
    exponentials,
    flop_a_byte,
    loops,
    products,
    read,
)

SOUND = {
    "row": "triton.flash", "kernel": "forward", "capability": 90, "dtype": "bfloat16",
    "head_dim": 128, "mask": "causal", "phase": "train", "heads": "16/16", "keys": 4096,
    "shared": 81920, "spilled": 0, "registers": 230, "threads": 256, "warps": 8, "stages": 2,
    "multiplies": {"wgmma": 24}, "reads": {"TMA": 8}, "serialized": False, "narrow": 0,
    "flop_a_byte": 128.0, "shared_bytes_a_clock": 96.0, "covered": 1.0, "products": 2.0,
    "unseen_releases": 0, "blocks_an_sm": 1,
    "constants": {"Q_BLOCK": 128, "K_BLOCK": 128, "D": 128},
}  # fmt: skip


@pytest.mark.parametrize(
    ("n", "a_in_registers", "expected"),
    [(32, False, 192), (64, False, 128), (128, False, 96), (256, False, 80), (64, True, 64)],
)
def test_wgmma_reads_shared_memory_by_its_shape(n, a_in_registers, expected):
    assert Product(64, n, 16, a_in_registers).shared_bytes_a_clock == expected


@pytest.mark.parametrize(
    ("capability", "registers", "threads", "shared", "expected"),
    [
        (80, 32, 128, 1024, 16), (80, 255, 256, 65536, 1), (80, 128, 128, 81920, 2),
        (80, 32, 32, 0, 32), (86, 40, 128, 0, 12), (86, 32, 32, 0, 16), (86, 128, 128, 49408, 2),
        (86, 16, 512, 0, 3), (89, 32, 32, 0, 24), (89, 255, 128, 256, 2), (90, 56, 128, 256, 9),
        (90, 168, 384, 165000, 1), (90, 168, 128, 65536, 3), (90, 24, 128, 12345, 16),
        (90, 255, 128, 81920, 2), (100, 80, 512, 0, 1), (100, 64, 256, 101376, 2),
    ],
)  # fmt: skip
def test_blocks_an_sm_are_those_of_the_occupancy_calculator(
    capability, registers, threads, shared, expected
):
    """The expected ones are ``cudaOccMaxActiveBlocksPerMultiprocessor``'s, of CUDA 13.0."""
    assert blocks_an_sm(CHIPS[capability], registers, threads, shared) == expected


def test_a_block_that_no_sm_can_hold_fits_nowhere():
    assert blocks_an_sm(CHIPS[90], 32, 128, (227 << 10) + 1) == 0
    assert blocks_an_sm(CHIPS[100], 32, 128, 0, columns=256) == 2


@pytest.mark.parametrize(
    ("kernel", "constants", "expected"),
    [
        ("forward", {"Q_BLOCK": 64}, 64),  # 4 x 64 x 64 x 128 FLOPs for two blocks of 64 x 128 x 2
        ("forward", {"Q_BLOCK": 128}, 128),
        ("backward_keys", {"K_BLOCK": 128}, 256),
        ("backward_keys fused", {"K_BLOCK": 128}, 160),
        ("backward_queries", {"Q_BLOCK": 64}, 96),
        ("read_keys", {"ROWS": 16, "group": 4, "queries": 1}, 4),  # the rest is padding
        ("sums", {"Y_WIDTH": 128, "W_COLUMNS": 128}, 64),
        ("deltas", {"BLOCK": 64}, None),
    ],
)
def test_flops_a_byte_of_l2_follow_from_the_blocks(kernel, constants, expected):
    assert flop_a_byte(kernel, constants, 2) == expected


QK = "HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], RZ, !UPT, gsb0"
PV = "HGMMA.64x128x16.F32.BF16 R88, R152, gdesc[UR12].tnspB, R88, gsb0"
EX2 = "MUFU.EX2 R24, R24"


def wait(groups):
    return f"WARPGROUP.DEPBAR.LE gsb0, 0x{groups}"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ([QK, wait(0), EX2, EX2, PV], (0, 2)),  # PV is waited for with the next QK
        ([QK, PV, wait(1), EX2, EX2, wait(0)], (2, 2)),
        ([QK, PV, wait(1), EX2, wait(0), EX2], (1, 2)),
        ([QK, PV, wait(0), EX2, wait(1)], (0, 1)),
        ([wait(1), EX2, QK, PV], (1, 1)),  # products of the turn before
        ([QK.replace(", gsb0", ""), EX2, PV], (1, 1)),  # PV of the turn before
        ([QK, wait(0)], (0, 0)),
    ],
)
def test_exponentials_run_under_products_that_no_wait_has_ended(body, expected):
    assert exponentials(body) == expected


def sass(*lines):
    """As nvdisasm prints it."""
    return "\n".join(
        x if x.startswith(".L") else f"        /*{16 * i:04x}*/                   {x} ;"
        for i, x in enumerate(lines)
    )


def test_only_the_innermost_loops_that_multiply_are_read():
    text = sass(
        ".L_x_9:", "NOP", "@P0 BRA `(.L_x_9)",
        ".L_x_0:", "NOP",
        ".L_x_1:", QK, "@!P1 BRA `(.L_x_7)",
        ".L_x_8:", PV, wait(1), EX2, wait(0), "@P1 BRA `(.L_x_1)",
        "@P2 BRA `(.L_x_0)",
        ".L_x_2:", QK, wait(0), EX2, "@P1 BRA `(.L_x_2)",
        "EXIT", EX2,
        ".L_x_7:", "NOP", "BRA `(.L_x_8)",
    )  # fmt: skip
    assert [exponentials(loop) for loop in loops(text)] == [(1, 1), (0, 1)]
    assert covered(text) == 0.0


def test_products_of_a_turn_are_counted_from_its_instructions():
    """m64n64k16 eight times is 64 x 64 x 128, and m64n128k16 four times 64 x 128 x 64."""
    qk = ["HGMMA.64x64x16.F32.BF16 R88, gdesc[UR8], R88"] * 8
    pv = ["HGMMA.64x128x16.F32.BF16 R24, R120, gdesc[UR8].tnspB, R24"] * 4
    text = sass(".L_x_1:", *qk, wait(0), *pv, "@!P0 BRA `(.L_x_1)")
    assert products(text, {"Q_BLOCK": 64, "K_BLOCK": 64, "D": 128}, 1) == 2
    assert products(text, {"CHUNK": 64}, 1) is None


PTX = """
.reqntid 384
cp.async.cg.shared.global [ %r1 + 0 ], [ %rd1 + 0 ], 0x10, %r2;
cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%rd3, {%r1}], [%r2];
cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd3, {%r1}], [%r2];
ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];
ld.global.b16 { %rs1 }, [ %rd1 + 0 ];
wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%r1}, %rd1, %rd2, p, 1, 1, 0, 1;
mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%r1}, {%r2}, {%r3}, {%r4};
"""
LOG = """ptxas info    : (C7510) Potential Performance Loss: \
wgmma.mma_async instructions are serialized
ptxas info    : Function properties for forward
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers
"""


def test_ptx_and_the_report_of_ptxas_are_read():
    assert read(PTX, LOG) == {
        "registers": 168, "spilled": 4, "threads": 384, "multiplies": {"wgmma": 1, "mma": 1},
        "reads": {"TMA": 1, "cp.async": 1, "ld": 2}, "specialized": False, "serialized": True,
        "narrow": 1,
    }  # fmt: skip


def test_a_kernel_from_a_cache_is_not_taken_for_one_without_spills():
    with pytest.raises(ValueError, match="registers"):
        read(PTX, "")


def test_a_sound_launch_breaks_no_bound():
    assert broken(SOUND) == []


@pytest.mark.parametrize(
    "fault",
    [
        {"spilled": 900},
        {"spilled": 772, "head_dim": 256, "dtype": "float32", "multiplies": {}},
        {"blocks_an_sm": 0},
        {"serialized": True},
        {"narrow": 1},
        {"multiplies": {}},
        {"multiplies": {"mma": 24}},
        {"multiplies": {"mma": 24}, "capability": 100},
        {"dtype": "float32"},
        {"shared_bytes_a_clock": 320.0},
        {"kernel": "backward_keys", "shared_bytes_a_clock": 320.0},
        {"row": "gluon.flash", "covered": 0.93},
        {"row": "gluon.flash", "covered": None},
        {"row": "gluon.flash", "unseen_releases": 1},
        {"row": "triton.decode", "kernel": "read_keys", "spilled": 8},
    ],
)
def test_a_fault_breaks_a_bound(fault):
    assert len(broken(SOUND | fault)) == 1


def test_launches_that_are_equal_become_one_line():
    launches = [
        SOUND | {"mask": mask, "phase": phase, "registers": registers, "spilled": spilled}
        for mask, registers, spilled in (("none", 200, 4), ("causal", 230, 0))
        for phase in ("forward", "train")
    ]
    other = SOUND | {"mask": "window:300,0", "blocks_an_sm": 2}
    (table,) = tables([*launches, other])
    headings = [column.heading for column in table.columns]
    at = [headings.index(name) for name in ("registers", "spills, B", "mask", "phase")]
    assert [[row[i] for i in at] for row in table.rows] == [
        ["200–230", "0–4", "none; causal", "forward; train"],
        ["230", "0", "window:300,0", "train"],
    ]


@pytest.mark.parametrize(
    ("words", "version", "sentence"),
    [
        (["triton.flush"], "3.9.0", "triton.flush is no row"),
        (["sdpa"], "3.9.0", "sdpa is no row in Triton"),
        (["--sm", "91"], "3.9.0", "--sm 91 is unknown; known are 80, 86"),
        ([], None, "triton is not installed: pip install"),
        ([], "3.3.1", "triton is at 3.3.1: pip install"),
    ],
)
def test_what_cant_be_compiled_is_refused_with_a_sentence(
    words, version, sentence, capsys, monkeypatch
):
    monkeypatch.setattr(compiled, "version_of", lambda name: version)
    assert main(words) == 2
    assert sentence in capsys.readouterr().err
