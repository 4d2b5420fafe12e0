"""What compilers make of our GPU kernels, without a GPU: ``python -m proofs.compiled [ROW …]``.

Every launch of the rows in Triton and Gluon is compiled for five kinds of GPU, in width, dtype,
mask and phase; each is held to its bounds by its PTX, its SASS and the report of ptxas. Exit
status 1 where a bound is broken. Half an hour of one processor.

Shared memory limits wgmma. A tensor core rate of 2,048 dense bf16 multiply-adds a clock and SM
(H100: 989 TFLOP/s, 132 SMs, 1.83 GHz) makes m64nNk16 take N / 2 clocks. It reads B, 32 N bytes,
and A, 2,048 bytes, unless A is in registers. An SM reads at most 128 bytes a clock. Other dtypes
have the same ratio: their K is 32 bytes long.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from math import inf
from typing import Any, NamedTuple

import impls

Launch = dict[str, Any]
"""The facts of a launch, and its problem."""
LONGEST_S = 3600
KIB = 1 << 10


class Chip(NamedTuple):
    """By the CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"."""

    name: str
    processors: int
    shared: int  # KiB that one block can have


CHIPS = {
    80: Chip("A100", 108, 163),
    86: Chip("RTX 3090", 82, 99),
    89: Chip("RTX 4090", 128, 99),
    90: Chip("H100, H200", 132, 227),
    100: Chip("B200", 148, 227),
}


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


TENSOR_CORES = {"wgmma": "wgmma.mma_async", "mma": "mma.sync", "tcgen05": "tcgen05.mma."}
LOAD = re.compile(r"ld\.global[.:\w]*\.[bf](\d+)")
REGISTERS_USED = re.compile(r"Used (\d+) registers")
SPILLED = re.compile(r"(\d+) bytes spill stores")


def read(ptx: str, log: str) -> dict[str, Any]:
    """The facts that PTX and ptxas's report hold."""
    registers = REGISTERS_USED.findall(log)
    if not registers:
        raise ValueError(f"ptxas has not reported a kernel's registers: {log!r}")
    return {
        "registers": max(map(int, registers)),
        "spilled": sum(map(int, SPILLED.findall(log))),
        "multiplies": {k: n for k, text in TENSOR_CORES.items() if (n := ptx.count(text))},
        "specialized": "setmaxnreg" in ptx,
        "serialized": "wgmma.mma_async instructions are serialized" in log,
        "narrow": sum(int(bits) <= 16 for bits in LOAD.findall(ptx)),
    }


NO_SPILLS = (64, 128)
MOST_SPILLED, MOST_SPILLED_WIDE = 128, 768
"""Bytes that a thread of triton.flash may store to memory for want of registers: of two bytes a
number up to 128 wide, and else."""
MOST_SPILLED_DELTA = 24
"""Of the delta rules: float32 with a decay a channel, 128 wide, on a B200, and gated_delta on an
A100; 4 or none elsewhere."""
DELTA = {"triton.gated_delta", "triton.kda"}
SHARED_BYTES_A_CLOCK = {"forward": 96, "backward_keys": 128}
"""Of triton.flash, 128 wide, on Hopper."""
COVERED = 0.95
"""Of gluon.flash forward: all EX2 of the weights, but for a number a row that scales sums down."""
ONE_TOKEN = {"keep"}
"""A kernel that rounds one token, which a thread may load a number at a time."""
MULTIPLY = {
    "forward", "backward_keys", "backward_queries", "read_keys", "sums", "walk", "prepare",
}  # fmt: skip
"""Kernels that multiply matrices."""
CORES = {90: "wgmma", 100: "tcgen05"}
"""What multiplies triton.flash and gluon.flash by two bytes a number; elsewhere mma."""


def broken(launch: Launch) -> list[str]:
    """What is wrong with a launch."""
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
    if launch["shared"] > CHIPS[capability].shared * KIB:
        lines.append(f"no SM can hold a block with {launch['shared']} bytes of shared memory")
    lines += over("spilled", _most_spilled(launch))
    lines += _tensor_cores(launch)
    if hopper and half and width == 128:
        if row == "triton.flash" and kernel in SHARED_BYTES_A_CLOCK:
            lines += over("shared_bytes_a_clock", SHARED_BYTES_A_CLOCK[kernel])
        forward = launch["multiplies"] and not kernel.startswith("backward")
        if row == "gluon.flash" and forward and (launch["covered"] or 0) < COVERED:
            lines.append(f"only {launch['covered'] or 0:.0%} of its EX2 run under a product")
    if row == "gluon.flash" and launch["unseen_releases"]:
        lines.append("it releases tiles before all warps have waited for their product")
    return lines


def _most_spilled(launch: Launch) -> float:
    """The bytes that a thread may spill."""
    row, dtype, narrow = launch["row"], launch["dtype"], launch["head_dim"] <= NO_SPILLS[-1]
    if launch["capability"] == 90 and dtype == "bfloat16" and launch["head_dim"] in NO_SPILLS:
        return 0
    if row == "triton.flash":
        return MOST_SPILLED if dtype != "float32" and narrow else MOST_SPILLED_WIDE
    return MOST_SPILLED_DELTA if row in DELTA else inf


def _tensor_cores(launch: Launch) -> list[str]:
    """Two bytes a number are multiplied by tensor cores, float32 in full."""
    expected = launch["dtype"] != "float32" and launch["kernel"] in MULTIPLY
    cores = CORES.get(launch["capability"], "mma")
    if expected and not launch["multiplies"]:
        return ["it has no products on tensor cores"]
    if launch["multiplies"] and not expected:
        return ["it has products on tensor cores, and no products of it are known"]
    if expected and launch["row"].endswith(".flash") and cores not in launch["multiplies"]:
        return [f"it has no {cores}"]
    return []


def faults(launches: Sequence[Launch]) -> list[str]:
    """A line for each bound that a launch breaks."""
    what = ("row", "kernel", "dtype", "head_dim", "mask", "phase", "heads")
    return [
        f"{' '.join(str(launch[name]) for name in what)} sm_{launch['capability']}: {line}"
        for launch in launches
        for line in broken(launch)
    ]


def our_rows() -> list[str]:
    """The rows of our own kernels."""
    return [name for name in impls.table().rows if name.startswith(("triton.", "gluon."))]


def compile_rows(rows: Sequence[str], capability: int, few: bool = False) -> list[Launch]:
    """The facts of every launch, from a process of its own with an empty cache."""
    hidden = ("TRITON_INTERPRET", "PYTHONPATH")
    words = ["-m", "proofs.compiling", f"{capability}", "few" if few else "all", *rows]
    with tempfile.TemporaryDirectory(prefix="attnbench-compiled-") as cache:
        env = {k: v for k, v in os.environ.items() if k not in hidden}
        env |= {"TRITON_CACHE_DIR": cache, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        more = {"env": env, "stdout": subprocess.PIPE, "text": True, "timeout": LONGEST_S}
        done = subprocess.run([sys.executable, *words], check=True, **more)
    return [json.loads(line) for line in done.stdout.splitlines()]


def main(rows: Sequence[str]) -> int:
    def compiled(task: tuple[str, int]) -> list[Launch]:
        row, capability = task
        launches = compile_rows([row], capability)
        spilled = max((launch["spilled"] for launch in launches), default=0)
        print(f"{row} sm_{capability}: {len(launches)} launches, {spilled} bytes spilled at most")
        return launches

    tasks = itertools.product(rows or our_rows(), CHIPS)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        launches = list(itertools.chain(*pool.map(compiled, tasks)))
    lines = faults(launches)
    print(*lines, f"{len(launches)} launches; bounds broken: {len(lines)}", sep="\n")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
