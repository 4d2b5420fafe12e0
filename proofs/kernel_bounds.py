"""What a launch of our GPU kernels must keep to."""

from __future__ import annotations

from typing import Any

Launch = dict[str, Any]
NO_SPILLS = (64, 128)
SPILLED, SPILLED_WIDE = 128, 768
"""Bytes that a thread of triton.flash may store to memory for want of registers: of two bytes a
number up to 128 wide, and else."""
SHARED_BYTES_A_CLOCK = {"forward": 96, "backward_keys": 128}
"""Of triton.flash, 128 wide, on Hopper."""
COVERED = 0.95
"""Of gluon.flash forward: all EX2 of the weights, but for a number a row that scales sums down."""
ONE_TOKEN = {"keep"}
"""A kernel that rounds one token, which a thread may load a number at a time."""
TENSOR_CORES = {90: "wgmma", 100: "tcgen05"}
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
        lines += over("spilled", SPILLED if half and width <= NO_SPILLS[-1] else SPILLED_WIDE)
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
    cores = TENSOR_CORES.get(launch["capability"], "mma")
    if expected and not launch["multiplies"]:
        return ["it has no products on tensor cores"]
    if launch["multiplies"] and not expected:
        return ["it has products on tensor cores, and kernel_facts.py knows of none"]
    if expected and launch["row"].endswith(".flash") and cores not in launch["multiplies"]:
        return [f"it has no {cores}"]
    return []


def described(launch: Launch) -> str:
    """A launch in a line."""
    what = ("row", "kernel", "dtype", "head_dim", "mask", "phase", "heads")
    return " ".join(str(launch[name]) for name in what) + f" sm_{launch['capability']}"
