"""Compiles what gluon.flash would launch on an H100, without one: a JSON line a launch.

A process of its own: ``python compiling_gluon.py HEAD_DIM MASK…``. ``overlapped``: by group of
warps, how many exponentials the machine code has between the wait that leaves one product in flight
and the wait for that one; ``given_back_unseen``: how many barriers one warp tells that a tile is
free before the others have waited for their product.
"""

import io
import json
import re
import subprocess
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

import torch
import triton
from triton import knobs
from triton.runtime import driver, jit

import impls
import impls.dense.gluon_flash
from impls.loading import load_function
from impls.masks import Mask
from impls.problem import Problem
from tests.impls.in_triton.compiling import PROCESSORS, SPILLS, Driver

DISASSEMBLER = Path(triton.__file__).parent / "backends/nvidia/bin/nvdisasm"


def facts(made, assembler):
    """Of a kernel, from its PTX, its machine code and what the assembler said."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        listing = [DISASSEMBLER, "-c", file.name]
        code = subprocess.run(listing, capture_output=True, text=True, check=True).stdout
    overlapped, unseen, flying, waited = [], 0, False, False
    for line in code.splitlines():
        if found := re.search(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x(\d+)", line):
            flying, waited = found[1] == "1", True
            overlapped += [0] * flying
        elif "MUFU.EX2" in line and flying:
            overlapped[-1] += 1
        elif "BAR.SYNC" in line:
            waited = False
        elif "SYNCS.ARRIVE" in line:
            unseen += waited
    ptx = made.asm["ptx"]
    return {
        "shared": made.metadata.shared,
        "spilled": sum(map(int, SPILLS.findall(assembler))),
        "waiting": "wgmma.mma_async instructions are serialized" in assembler,
        "wgmma": ptx.count("wgmma.mma_async"),
        "from_registers": len(re.findall(r"wgmma\.mma_async[^;]*\{[^}]*\}, \{", ptx)),
        "tma": ptx.count("cp.async.bulk.tensor"),
        "overlapped": overlapped,
        "given_back_unseen": unseen,
    }


def main(head_dim, masks):
    driver.set_active(Driver(90))
    knobs.nvidia.dump_ptxas_log = True
    impls.dense.gluon_flash.capability = lambda device: 90
    impls.dense.gluon_flash.processors = lambda device: PROCESSORS
    row, launched = impls.table().rows["gluon.flash"], jit.JITFunction.run

    def compile_only(kernel, *args, grid, warmup, **options):
        with redirect_stdout(io.StringIO()) as assembler:
            made = launched(kernel, *args, grid=grid, warmup=True, **options)
        about = {"kernel": kernel.fn.__name__, "dtype": dtype, "head_dim": head_dim, "mask": mask}
        print(json.dumps(about | facts(made, assembler.getvalue())), flush=True)

    jit.JITFunction.run = compile_only
    for mask in masks:
        for dtype in ("bfloat16", "float16"):
            extents = (1, 4, 2, 1000, 1000, head_dim, head_dim, dtype)
            p = Problem(*extents, Mask.parse(mask), "train", device="cuda")
            assert row.supports(p) is None
            q = torch.zeros(1, 4, 1000, head_dim, dtype=getattr(torch, dtype)).requires_grad_()
            load_function(row.build)(p, **row.options)(q, q[:, :2], q[:, 2:]).sum().backward()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
