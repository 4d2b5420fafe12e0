"""What a compiled kernel says about itself (its PTX, its SASS, the report of ptxas), and the bounds
that each launch must keep to.

Shared memory limits wgmma. A tensor core rate of 2,048 dense bf16 multiply-adds a clock and SM
(H100: 989 TFLOP/s, 132 SMs, 1.83 GHz) makes m64nNk16 take N / 2 clocks. It reads B, 32 N bytes,
and A, 2,048 bytes, unless A is in registers. An SM reads at most 128 bytes a clock. Other dtypes
have the same ratio: their K is 32 bytes long.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

KIB = 1 << 10
REGISTERS, REGISTER_UNIT, MOST_REGISTERS = 65536, 256, 255
TENSOR_MEMORY = 512
"""Columns an SM, on Blackwell."""


class Chip(NamedTuple):
    """What an SM has, by the CUDA C++ Programming Guide, "Technical Specifications"."""

    name: str
    processors: int
    shared: int  # KiB that one block can have
    shared_sm: int  # KiB that all blocks have, of which each costs one more than it asks for
    warps: int
    blocks: int


CHIPS = {
    80: Chip("A100", 108, 163, 164, 64, 32),
    86: Chip("RTX 3090", 82, 99, 100, 48, 16),
    89: Chip("RTX 4090", 128, 99, 100, 48, 24),
    90: Chip("H100, H200", 132, 227, 228, 64, 32),
    100: Chip("B200", 148, 227, 228, 64, 32),
}


def blocks_an_sm(chip: Chip, registers: int, threads: int, shared: int, columns: int = 0) -> int:
    """How many blocks an SM holds at once; 0 where one alone does not fit."""
    if shared > chip.shared * KIB or registers > MOST_REGISTERS:
        return 0
    warps = -(-threads // 32)
    of_a_warp = -(-max(registers, 1) * 32 // REGISTER_UNIT) * REGISTER_UNIT
    of_a_block = -(-shared // 128) * 128 + KIB
    return min(
        chip.blocks,
        chip.warps // warps,
        REGISTERS // of_a_warp // 4 * 4 // warps,  # an SM's warps are dealt to four parts
        chip.shared_sm * KIB // of_a_block,
        TENSOR_MEMORY // columns if columns else chip.blocks,
    )


Constants = Mapping[str, Any]
Work = tuple[str, int, int, int]
FUSED = " fused"
"""After the name of a kernel that is told FUSED: it does the work of another one besides."""
HELD: dict[str, Work] = {
    "forward": ("Q_BLOCK", 2, 2, 0),
    "backward_keys": ("K_BLOCK", 4, 2, 0),
    "backward_keys" + FUSED: ("K_BLOCK", 5, 2, 1),
    "backward_queries": ("Q_BLOCK", 3, 2, 0),
    "read_keys": ("ROWS", 2, 2, 0),
}
"""A kernel of softmax: the block that a program holds, its products of that with each block that
it streams, and how many tensors it streams, of the inputs' dtype and of float32."""


GLUON_ROWS = 128


def _sums(c: Constants, size: int) -> float:
    y, w = c["Y_WIDTH"], c["W_COLUMNS"]
    return 2 * y * w / ((y + w) * size)


def _walk(c: Constants, size: int) -> float:
    x, w = c["X_WIDTH"], c["W_COLUMNS"]
    return (2 * c["CHUNK"] * (x + w) + 4 * x * w) / ((2 * x + w) * size)


WALKED: dict[str, Callable[[Constants, int], float]] = {"sums": _sums, "walk": _walk}


def flop_a_byte(kernel: str, constants: Constants, size: int) -> float | None:
    """FLOPs for each byte that a program reads through L2; None for a kernel without products."""
    if kernel in WALKED:
        return WALKED[kernel](constants, size)
    block, products, streams, wide = HELD.get(kernel, ("", 0, 0, 0))
    if "BLOCK" in constants and kernel in HELD:  # in Gluon, two groups of 64 rows
        rows = GLUON_ROWS
    elif block in constants:
        rows = constants[block]
    else:
        return None
    if block == "ROWS":  # the rest of the block is padding
        rows = min(rows, constants["group"] * constants["queries"])
    return 2 * products * rows / (streams * size + wide * 4)


class Product(NamedTuple):
    """A wgmma instruction."""

    m: int
    n: int
    k: int
    a_in_registers: bool

    @property
    def shared_bytes_a_clock(self) -> float:
        """Bytes of shared memory that it reads a clock while the tensor cores are busy."""
        a = 0 if self.a_in_registers else self.m * 32
        return (a + 32 * self.n) / (self.n / 2)


WGMMA = re.compile(r"HGMMA\.(\d+)x(\d+)x(\d+)\S* R\d+, (R\d+|gdesc)")
LABEL = re.compile(r"^(\.L\w+):")
INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(.*?);")
BRANCH = re.compile(r"\bBRA\b.*`\((\.L\w+)\)")
WAIT = re.compile(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x([0-9a-f]+)")


def wgmma(lines: Sequence[str]) -> list[Product]:
    """The wgmma instructions in SASS."""
    matches = filter(None, map(WGMMA.search, lines))
    return [Product(*map(int, m.groups()[:3]), m[4] != "gdesc") for m in matches]


def loops(sass: str) -> list[list[str]]:
    """The innermost loops that multiply, each as its instructions."""
    lines: list[str] = []
    labels: dict[str, int] = {}
    spans: dict[int, int] = {}
    for line in sass.splitlines():
        if label := LABEL.match(line):
            labels[label[1]] = len(lines)
        elif instruction := INSTRUCTION.search(line):
            lines.append(instruction[1])
            back = BRANCH.search(instruction[1])
            if back and back[1] in labels:
                spans[labels[back[1]]] = len(lines)
    spans = {a: b for a, b in spans.items() if wgmma(lines[a:b])}

    def outside(a: int, b: int) -> bool:
        """A loop around another one, or code apart from its loop that jumps back into it."""
        return any((a < c and d <= b) or c < a < d < b for c, d in spans.items())

    return [lines[a:b] for a, b in spans.items() if not outside(a, b)]


def exponentials(loop: Sequence[str]) -> tuple[int, int]:
    """EX2 in a turn of a loop: how many run while a product is in flight, and how many there are.

    ``gsb0`` ends a group of products; a wait leaves at most so many groups in flight. The first
    turn only fills the pipeline.
    """
    flying = covered = count = 0
    for turn in range(2):
        for line in loop:
            if "HGMMA" in line and "gsb0" in line:
                flying += 1
            elif wait := WAIT.search(line):
                flying = min(flying, int(wait[1], 16))
            elif turn and "MUFU.EX2" in line:
                count += 1
                covered += flying > 0
    return covered, count


def covered(sass: str) -> float | None:
    """The share of EX2 that runs under a product, in the loop where it is least; None without."""
    shares = [under / count for under, count in map(exponentials, loops(sass)) if count]
    return min(shares, default=None)


def unseen_releases(sass: str) -> int:
    """How many barriers one warp tells that a tile is free before the others of its group have
    waited for their product: what a ring of tiles must not have.
    """
    count, waited = 0, False
    for line in sass.splitlines():
        if WAIT.search(line):
            waited = True
        elif "BAR.SYNC" in line:
            waited = False
        elif "SYNCS.ARRIVE" in line:
            count += waited
    return count


def products(sass: str, constants: Constants, warpgroups: int) -> float | None:
    """Products of a block of queries, a block of keys and the width in the shortest loop's turn."""
    if not {"Q_BLOCK", "K_BLOCK", "D"} <= set(constants) or not (inner := loops(sass)):
        return None
    work = sum(p.m * p.n * p.k for p in wgmma(min(inner, key=len)))
    return work * warpgroups / (constants["Q_BLOCK"] * constants["K_BLOCK"] * constants["D"])


TENSOR_CORES = {"wgmma": "wgmma.mma_async", "mma": "mma.sync", "tcgen05": "tcgen05.mma."}
TMA = re.compile(r"cp\.async\.bulk\.tensor\.\dd\.shared")
CP_ASYNC = re.compile(r"cp\.async\.c[ag]\.shared\.global [^;]*?, (0x[0-9a-f]+|\d+)[,;]")
LOAD = re.compile(r"ld\.global[.:\w]*\.[bf](\d+)")
REGISTERS_USED = re.compile(r"Used (\d+) registers")
SPILLED = re.compile(r"(\d+) bytes spill stores")
THREADS = re.compile(r"\.reqntid (\d+)")


def read(ptx: str, log: str) -> dict[str, Any]:
    """The facts that PTX and ptxas's report hold."""
    registers = REGISTERS_USED.findall(log)
    if not registers:
        raise ValueError(f"ptxas has not reported a kernel's registers: {log!r}")
    asynchronous = [int(size, 0) for size in CP_ASYNC.findall(ptx)]
    loads = [int(bits) for bits in LOAD.findall(ptx)]
    ways = {"TMA": len(TMA.findall(ptx)), "cp.async": len(asynchronous), "ld": len(loads)}
    return {
        "registers": max(map(int, registers)),
        "spilled": sum(map(int, SPILLED.findall(log))),
        "threads": int(THREADS.findall(ptx)[0]),
        "multiplies": {k: n for k, text in TENSOR_CORES.items() if (n := ptx.count(text))},
        "reads": {way: n for way, n in ways.items() if n},
        "specialized": "setmaxnreg" in ptx,
        "serialized": "wgmma.mma_async instructions are serialized" in log,
        "narrow": sum(bits <= 16 for bits in loads),
    }


Launch = dict[str, Any]
"""The facts of a launch, and its problem."""
NO_SPILLS = (64, 128)
MOST_SPILLED, MOST_SPILLED_WIDE = 128, 768
"""Bytes that a thread of triton.flash may store to memory for want of registers: of two bytes a
number up to 128 wide, and else."""
SHARED_BYTES_A_CLOCK = {"forward": 96, "backward_keys": 128}
"""Of triton.flash, 128 wide, on Hopper."""
COVERED = 0.95
"""Of gluon.flash forward: all EX2 of the weights, but for a number a row that scales sums down."""
ONE_TOKEN = {"keep"}
"""A kernel that rounds one token, which a thread may load a number at a time."""
CORES = {90: "wgmma", 100: "tcgen05"}
"""What multiplies triton.flash and gluon.flash by two bytes a number; elsewhere mma."""


def broken(launch: Launch) -> list[str]:
    """A line for each bound that a launch breaks."""
    capability, row, kernel, width = (
        launch[name] for name in ("capability", "row", "kernel", "head_dim")
    )
    half = launch["dtype"] != "float32"
    hopper = capability == 90

    def over(fact: str, most: float) -> list[str]:
        return [f"{fact} is {launch[fact]}, over {most}"] if (launch[fact] or 0) > most else []

    lines = [] if kernel in ONE_TOKEN else over("narrow", 0)
    if launch["serialized"]:
        lines.append("its wgmma are serialized")
    if launch["blocks_an_sm"] == 0:
        lines.append(f"no SM can hold a block with {launch['shared']} bytes of shared memory")
    if hopper and launch["dtype"] == "bfloat16" and width in NO_SPILLS:
        lines += over("spilled", 0)
    elif row == "triton.flash":
        lines += over(
            "spilled", MOST_SPILLED if half and width <= NO_SPILLS[-1] else MOST_SPILLED_WIDE
        )
    lines += _products(launch)
    if hopper and half and width == 128:
        if row == "triton.flash" and kernel in SHARED_BYTES_A_CLOCK:
            lines += over("shared_bytes_a_clock", SHARED_BYTES_A_CLOCK[kernel])
        forward = launch["multiplies"] and not kernel.startswith("backward")
        if row == "gluon.flash" and forward and (launch["covered"] or 0) < COVERED:
            lines.append(f"only {launch['covered'] or 0:.0%} of its EX2 run under a product")
    if row == "gluon.flash" and launch["unseen_releases"]:
        lines.append("it releases tiles before all warps have waited for their product")
    return lines


def _products(launch: Launch) -> list[str]:
    """Two bytes a number are multiplied by tensor cores, float32 in full."""
    expected = launch["dtype"] != "float32" and launch["flop_a_byte"] is not None
    cores = CORES.get(launch["capability"], "mma")
    if expected and not launch["multiplies"]:
        return ["it has no products on tensor cores"]
    if launch["multiplies"] and not expected:
        return ["it has products on tensor cores, and no products of it are known"]
    if expected and launch["row"].endswith(".flash") and cores not in launch["multiplies"]:
        return [f"it has no {cores}"]
    return []


def described(launch: Launch) -> str:
    """A launch in a line."""
    what = ("row", "kernel", "dtype", "head_dim", "mask", "phase", "heads")
    return " ".join(str(launch[name]) for name in what) + f" sm_{launch['capability']}"
