"""Compiles for one kind of GPU, without any, what the rows in Triton and Gluon would launch there.

A process of its own: ``python -m proofs.compiling CAPABILITY few|all ROW…`` writes a JSON line a
launch. The variants' own code builds and calls; every launch is compiled by Triton and not carried
out.
"""

from __future__ import annotations

import io
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from types import SimpleNamespace
from typing import Any

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver, jit

import impls
from impls.loading import load_function
from impls.masks import Mask
from impls.operators import inputs as inputs_of
from impls.problem import Problem
from impls.spec import Unavailable, Unsupported, Variant
from proofs.compiled import CHIPS, KIB, covered, read, unseen_releases, wgmma

DTYPES = ("bfloat16", "float16", "float32")
WIDTHS = (64, 128, 256)
MASKS = ("none", "causal", "window:300,0")
LENGTH, HEADS, GROUPED = 4096, (16, 16), (16, 4)
ODD = ((1, 1, 1, 64), (2, 2, 511, 72))
"""Heads, those of keys, length, width: of the last no block is full. To the compiler a
number that is 1 is a constant, and one that is no multiple of 16 has loads of its own; the
interpreter knows of neither."""
OPTIONS = {"triton.flash": {"fused": True}}
"""With which a row's kernels are other ones, by row."""
FEW = (
    ("bfloat16", "causal", *GROUPED, LENGTH, 128),
    ("float32", "causal", *HEADS, LENGTH, 256),
    ("bfloat16", "causal", *HEADS, LENGTH, 64),
    ("bfloat16", "window:300,0", *GROUPED, LENGTH, 256),  # two edges are the most there is
    *(("bfloat16", "causal", *extents) for extents in ODD),
)
"""What the tests compile for Hopper; for other GPUs the first."""


def pretend(capability: int) -> None:
    """Triton and torch answer as on a machine with this GPU, and nothing comes from a cache."""
    chip = CHIPS[capability]
    major, minor = divmod(capability, 10)
    answers = {  # to what Triton asks before it compiles
        "get_current_target": lambda: GPUTarget("cuda", capability, 32),
        "get_current_device": lambda: 0,
        "get_current_stream": lambda device: 0,
    }
    driver.set_active(SimpleNamespace(**answers))
    knobs.nvidia.dump_ptxas_log = True
    knobs.compilation.always_compile = True
    card = SimpleNamespace(
        name=chip.name, major=major, minor=minor, multi_processor_count=chip.processors,
        shared_memory_per_block_optin=chip.shared * KIB,
    )  # fmt: skip
    torch.cuda.get_device_capability = lambda device=None: (major, minor)
    torch.cuda.get_device_properties = lambda device=None: card


def cases(
    variant: Variant, capability: int, few: bool
) -> Iterator[tuple[Problem, dict[str, Any], dict[str, Any]]]:
    """The problems, each with its case in words and the options of the row."""
    decodes = variant.phases["cuda"] == ("decode",)
    phases = ("decode",) if decodes else ("train",) if few else ("forward", "train")
    if few:
        shapes = FEW if capability == 90 else FEW[:1]
    else:
        whole = itertools.product(DTYPES, MASKS, WIDTHS)
        shapes = (
            *((dtype, mask, *HEADS, LENGTH, d) for dtype, mask, d in whole),
            *(("bfloat16", "causal", *GROUPED, LENGTH, d) for d in WIDTHS),
            *(("bfloat16", "causal", *extents) for extents in ODD),
        )
    caches = ("int8", "fp8") if "kv_dtype" in variant.takes else (None,)
    for (dtype, mask, heads, kv_heads, length, d), phase, cache in itertools.product(
        shapes, phases, caches
    ):
        queries = 1 if decodes else length
        problem = Problem(1, heads, kv_heads, queries, length, d, d, dtype, Mask.parse(mask),
                          phase, device="cuda", kv_dtype=cache)  # fmt: skip
        if variant.supports(problem) is None:
            case = {
                "row": variant.name, "phase": phase, "dtype": dtype, "mask": mask, "head_dim": d,
                "heads": f"{heads}/{kv_heads}", "keys": length, "cache": cache,
            }  # fmt: skip
            yield problem, case, variant.options
            others = OPTIONS.get(variant.name, {})
            if others and others.keys() <= variant.options.keys() and (d == 128 or not few):
                yield problem, case, {**variant.options, **others}


def disassembled(cubin: bytes) -> str:
    """SASS with its labels, by the nvdisasm in Triton's wheel."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        words = [knobs.nvidia.nvdisasm.path, "-c", file.name]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def facts_of(kernel: Any, compiled: Any, log: str) -> dict[str, Any]:
    """What a compiled kernel is, apart from the problem."""
    facts = read(compiled.asm["ptx"], log)
    facts |= {"kernel": kernel.fn.__name__, "shared": compiled.metadata.shared}
    facts |= {"shared_bytes_a_clock": None, "covered": None, "unseen_releases": 0}
    if "wgmma" in facts["multiplies"]:
        sass = disassembled(compiled.asm["cubin"])
        shapes = wgmma(sass.splitlines())
        facts["shared_bytes_a_clock"] = max(p.shared_bytes_a_clock for p in shapes)
        facts["covered"] = covered(sass)
        if facts["specialized"]:
            facts["unseen_releases"] = unseen_releases(sass)
    return facts


class Compiler:
    """In place of ``JITFunction.run``, Gluon's too: compiles a launch and writes down its facts."""

    def __init__(self, capability: int) -> None:
        self.run = jit.JITFunction.run
        self.facts: dict[str, dict[str, Any]] = {}
        self.case: dict[str, Any] = {}
        compiler = self

        def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **named: Any) -> Any:
            with redirect_stdout(io.StringIO()) as log:
                compiled = compiler.run(kernel, *args, grid=grid, warmup=True, **named)
            # of a kernel that this process has compiled before, ptxas reports nothing more
            if compiled.hash not in compiler.facts:
                compiler.facts[compiled.hash] = facts_of(kernel, compiled, log.getvalue())
            launch = {"capability": capability, **compiler.case, **compiler.facts[compiled.hash]}
            print(json.dumps(launch), flush=True)
            return compiled

        jit.JITFunction.run = run


def call(variant: Variant, problem: Problem, options: dict[str, Any]) -> None:
    """One call, with its gradients where the problem asks for them."""
    attend = load_function(variant.build)(problem, **options)
    by_place, by_name = [], {}
    for name, spec in inputs_of(variant.operator, problem).items():
        x = torch.zeros(spec.shape(problem), dtype=getattr(torch, spec.dtype or problem.dtype))
        x.requires_grad_(problem.gradients)
        by_name.update({name: x}) if spec.keyword else by_place.append(x)
    out = attend(*by_place, **by_name)
    if problem.gradients:
        out.sum().backward()


def main(capability: int, few: bool, rows: list[str]) -> None:
    pretend(capability)
    compiler = Compiler(capability)
    for row in rows:
        variant = impls.table().rows[row]
        least = [r.removeprefix("sm>=") for r in variant.requires if r.startswith("sm>=")]
        if capability >= max(map(int, least), default=0):
            for problem, compiler.case, options in cases(variant, capability, few):
                with suppress(Unavailable, Unsupported):
                    call(variant, problem, options)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] == "few", sys.argv[3:])
