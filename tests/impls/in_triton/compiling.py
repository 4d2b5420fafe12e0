"""Compiles for one kind of GPU, without any, what the rows in Triton would launch there.

A process of its own: ``python compiling.py CAPABILITY ROW…`` writes a JSON line a kernel. The
variants' own code builds and calls; every launch is compiled by Triton and not carried out.
"""

import io
import json
import re
import sys
from contextlib import redirect_stdout

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver, jit

import impls
import impls.dense.triton_decode
import impls.dense.triton_flash
import impls.linear.triton_linear
from impls.loading import load_function
from impls.masks import Mask
from impls.problem import Problem

PROCESSORS = 132
SPILLS = re.compile(r"(\d+) bytes spill stores")
WIDTHS = {"bfloat16": (64, 128, 256), "float16": (256,), "float32": (128, 256)}
"""The ends of the tables' rows."""
ODD = ((1, 1, 1, 1, 64), (2, 2, 511, 511, 72))
"""Heads, those of keys, queries, keys, width: of the last no block is full. To the compiler a
number that is 1 is a constant, and one that is no multiple of 16 has loads of its own; the
interpreter knows of neither."""
DTYPES = {"triton.linear": ("bfloat16", "float16", "float32")}


class Driver:
    """What Triton asks of a driver before it compiles."""

    def __init__(self, capability):
        self.get_current_target = lambda: GPUTarget("cuda", capability, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


def compiled(problem, row):
    """Every launch of one call, with its gradients where the problem asks for them."""
    launched = jit.JITFunction.run

    def compile_only(kernel, *args, grid, warmup, **told):
        with redirect_stdout(io.StringIO()) as assembler:
            made = launched(kernel, *args, grid=grid, warmup=True, **told)
        ptx = made.asm["ptx"]
        said = {
            "row": row,
            "dtype": problem.dtype,
            "head_dim": problem.head_dim,
            "mask": str(problem.mask),
            "kernel": kernel.fn.__name__,
            "shared": made.metadata.shared,
            "tensor_cores": ptx.count("wgmma.mma_async") + ptx.count("mma.sync"),
            "spilled": sum(map(int, SPILLS.findall(assembler.getvalue()))),
            "waiting": "wgmma.mma_async instructions are serialized" in assembler.getvalue(),
            "narrow": len(re.findall(r"ld\.global[.:\w]*\.b16", ptx)),
        }
        print(json.dumps(said), flush=True)

    jit.JITFunction.run = compile_only
    found = impls.table().rows[row]
    assert found.supports(problem) is None
    attend = load_function(found.build)(problem, **found.options)
    p, dtype = problem, getattr(torch, problem.dtype)
    q = torch.zeros(p.batch, p.heads, p.q_len, p.head_dim, dtype=dtype)
    k, v = torch.zeros(2, p.batch, p.kv_heads, p.kv_len, p.head_dim, dtype=dtype)
    out = attend(*(x.requires_grad_(p.gradients) for x in (q, k, v)))
    if p.gradients:
        out.sum().backward()
    jit.JITFunction.run = launched


def main(capability, rows):
    hopper = capability == 90
    driver.set_active(Driver(capability))
    knobs.nvidia.dump_ptxas_log = True
    impls.dense.triton_flash.capability = lambda device: capability
    impls.dense.triton_decode.processors = lambda device: PROCESSORS
    impls.linear.triton_linear.processors = lambda device: PROCESSORS
    for row in rows:
        decodes = impls.table().rows[row].phases["cuda"] == ("decode",)
        for dtype in DTYPES.get(row, ("bfloat16", "float32")):
            widths = WIDTHS[dtype] if hopper else WIDTHS[dtype][-1:]
            cells = [("causal", 4, 2, 4096, 4096, d) for d in widths]
            if hopper and row == "triton.flash":  # two edges are the most there is to hold
                cells[-1] = ("window:300,0", *cells[-1][1:])
            if hopper and dtype == "bfloat16":
                cells += [("causal", *extents) for extents in ODD]
            for mask, heads, kv_heads, queries, keys, d in cells:
                phase, queries = ("decode", 1) if decodes else ("train", queries)
                extent = (1, heads, kv_heads, queries, keys, d, d, dtype)
                compiled(Problem(*extent, Mask.parse(mask), phase, device="cuda"), row)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
