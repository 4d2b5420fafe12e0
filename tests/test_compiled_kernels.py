"""How compiled kernels are read and bounded, by code written by hand."""

import pytest

from proofs.compiled import Product, broken, covered, exponentials, loops, read, unseen_releases

SOUND = {
    "row": "triton.flash",
    "kernel": "forward",
    "capability": 90,
    "dtype": "bfloat16",
    "head_dim": 128,
    "shared": 81920,
    "spilled": 0,
    "multiplies": {"wgmma": 24},
    "serialized": False,
    "narrow": 0,
    "shared_bytes_a_clock": 96.0,
    "covered": 1.0,
    "unseen_releases": 0,
}


@pytest.mark.parametrize(
    ("n", "a_in_registers", "expected"), [(32, False, 192), (128, False, 96), (64, True, 64)]
)
def test_wgmma_reads_shared_memory_by_its_shape(n, a_in_registers, expected):
    assert Product(64, n, 16, a_in_registers).shared_bytes_a_clock == expected


QK = "HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], RZ, !UPT, gsb0"
PV = "HGMMA.64x128x16.F32.BF16 R88, R152, gdesc[UR12].tnspB, R88, gsb0"
EX2 = "MUFU.EX2 R24, R24"


def wait(groups):
    return f"WARPGROUP.DEPBAR.LE gsb0, 0x{groups}"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ([QK, wait(0), EX2, EX2, PV], (0, 2)),  # PV is waited for with the next QK
        ([QK, PV, wait(1), EX2, wait(0), EX2], (1, 2)),
        ([wait(1), EX2, QK, PV], (1, 1)),  # products of the turn before
        ([QK.replace(", gsb0", ""), EX2, PV], (1, 1)),  # PV of the turn before
        ([QK.replace(", gsb0", ""), EX2, PV, wait(0)], (0, 1)),  # which has ended
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


def test_a_tile_given_back_before_all_warps_have_waited_is_counted():
    release = "SYNCS.ARRIVE.TRANS64 RZ, [UR4], R2"
    assert unseen_releases(sass(wait(0), release)) == 1
    assert unseen_releases(sass(wait(0), "BAR.SYNC.DEFER_BLOCKING 0x0", release)) == 0


PTX = """
.reqntid 384
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
        "registers": 168, "spilled": 4, "multiplies": {"wgmma": 1, "mma": 1},
        "specialized": False, "serialized": True, "narrow": 1,
    }  # fmt: skip
    assert read(PTX, 2 * LOG)["spilled"] == 8  # of a kernel and of a function beside it
    with pytest.raises(ValueError, match="registers"):  # from a cache: spills are unknown
        read(PTX, "")


def test_a_sound_launch_breaks_no_bound():
    assert broken(SOUND) == []


@pytest.mark.parametrize(
    "fault",
    [
        {"spilled": 900},
        {"spilled": 772, "head_dim": 256, "dtype": "float32", "multiplies": {}},
        {"shared": 233_000},
        {"serialized": True},
        {"narrow": 1},
        {"multiplies": {}},
        {"multiplies": {"mma": 24}},
        {"multiplies": {"mma": 24}, "capability": 100},
        {"dtype": "float32"},
        {"kernel": "backward_keys", "shared_bytes_a_clock": 320.0},
        {"row": "gluon.flash", "covered": 0.93},
        {"row": "gluon.flash", "unseen_releases": 1},
        {"row": "triton.decode", "kernel": "read_keys", "spilled": 8},
        {
            "row": "triton.kda",
            "kernel": "walk",
            "capability": 100,
            "dtype": "float32",
            "multiplies": {},
            "spilled": 28,
        },
    ],
)
def test_a_fault_breaks_a_bound(fault):
    assert len(broken(SOUND | fault)) == 1
