"""The steps of a visit to a GPU, in the order in which they are worth most if it is cut off."""

from __future__ import annotations

import json
import os
import re
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from attnbench.core.machine import has_c_compiler, this_machine

ATTNBENCH = (sys.executable, "-m", "attnbench")
PYTEST = (
    sys.executable, "-m", "pytest", "-m", "gpu", "-v", "-rs", "-o", "addopts=",
    "--import-mode=importlib", "-p", "no:cacheprovider",
    "-W", "default",
)  # fmt: skip
TESTS = {
    "tests": ("tests/gpu/test_cuda.py",),
    "gates": ("tests/gpu/test_triton.py", "-k", "not speed"),
    "speeds": ("tests/gpu/test_triton.py", "-k", "speed"),
}
AT_ONCE = 8
"""Tests of our kernels' values, each of which compiles for seconds on one core of the host."""
FLASH = (
    "triton.flash", "triton.flash?q_block=128&k_block=128&warps=8&stages=2",
    "triton.flash?q_block=128&k_block=64&warps=8&stages=3", "triton.flash?keys=64x128x8x2",
    "triton.flash?queries=128x64x8x2", "sdpa.flash", "sdpa.cudnn", "sdpa",
)  # fmt: skip
"""Blocks between which only a GPU can tell, and what they are to be held against."""
CLOSING_S = 15
"""What a run needs to end its last cell and say what came of it."""

Command = Callable[[Path, float], list[str] | str]


@dataclass(frozen=True)
class Step:
    """``command``: the words for a results folder and so many seconds, or a sentence why not.

    ``least_s``: with less time it is not begun. ``limit_s``: the most it may take. ``counts``:
    finds the line of its output that counts.
    """

    name: str
    least_s: float
    limit_s: float
    command: Command
    counts: str


def steps(device: str = "cuda") -> list[Step]:
    """All of them: few seconds and much trust first, then the headline, then all the rest."""
    fastest = r".*is the fastest exact variant.*"
    tested = r".*\d+ (?:passed|failed|skipped|error|deselected).*|.*(?:PASSED|FAILED).*"
    return [
        Step("env", 30, 120, _env(device), r"product bfloat16 .*"),
        Step("tests", 20, 90, _tests("tests"), tested),
        Step("timer", 30, 100, _timer(device), r"against triton's do_bench.*"),
        Step("quick", 60, 330, _run("h200-quick", device), fastest),
        Step("gates", 60, 300, _tests("gates"), tested),  # each compiles anew: minutes
        Step("speeds", 60, 240, _tests("speeds"), tested),
        Step("blocks", 60, 180, _blocks(device), fastest),
        Step("energy", 60, 420, _energy, r"energy: .*"),
        Step("million", 60, 240, _run("million", device), r"\[\d+/\d+, .*1048576.*"),
        Step("sweep", 60, 900, _run("h200", device), fastest),
        Step(
            "selfcheck",
            120,
            420,
            lambda out, _: [*ATTNBENCH, "selfcheck", "--out", f"{out}"],
            r"ruler self-check:.*",
        ),
        Step("claims", 60, 200, _claims, r".*reproduced.*"),
    ]


def facts() -> list[str]:
    """What the rest hangs on, in five lines."""
    there, include = this_machine(), Path(sysconfig.get_path("include"))
    gpus = ", ".join(f"{gpu.name}, driver {gpu.driver}" for gpu in there.gpus) or "none"
    try:
        os.close(os.pidfd_open(os.getpid()))
        ends = "by pidfd_open"
    except (OSError, AttributeError) as error:
        ends = f"by asking now and then: {error}"
    triton = there.versions.get("triton", "not installed")
    return [
        f"GPU: {gpus}",
        f"torch: {there.versions.get('torch', 'not installed')}, CUDA {there.torch_cuda or 'none'}",
        f"Triton: {triton}",
        f"C compiler: {'there' if has_c_compiler() else 'none'}, Python.h: "
        f"{'there' if (include / 'Python.h').exists() else 'none'}",
        f"how a worker's end is known: {ends}",
    ]


def no_cuda() -> str:
    """A sentence where torch can't use a GPU here, else nothing."""
    there = this_machine()
    return "" if "cuda" in there.devices else "there is no GPU here that torch can use"


def _env(device: str) -> Command:
    dtypes = "bfloat16,float16,float32"
    return lambda out, _: [
        *ATTNBENCH,
        "env",
        "--device",
        device,
        "--dtype",
        dtypes,
        "--out",
        f"{out}",
    ]


def _timer(device: str) -> Command:
    words = [sys.executable, "proofs/visit_timer.py", device]
    return lambda *_: words if device == "cpu" else no_cuda() or words


def _tests(which: str) -> Command:
    """Those of our clocks and of cells, or those of our kernels: of their values several at once,
    of their speeds one after another.
    """
    kernels = which != "tests"

    def command(out: Path, seconds: float) -> list[str] | str:
        needed = ("pytest", "triton") if kernels else ("pytest",)
        lacking = [name for name in needed if find_spec(name) is None]
        if kernels and not has_c_compiler():
            lacking.append("a C compiler")
        told = f"these tests need {' and '.join(lacking)}" if lacking else ""
        several = which == "gates" and find_spec("xdist") is not None
        at_once = ["-n", f"{AT_ONCE}"] if several else []
        return "; ".join(filter(None, [no_cuda(), told])) or [*PYTEST, *at_once, *TESTS[which]]

    return command


def _blocks(device: str) -> Command:
    """Our FlashAttention in several blocks, beside torch's."""
    grid = {
        "seq": "4096,16384",
        "batch": "1",
        "heads": "16",
        "head-dim": "64,128",
        "dtype": "bfloat16",
        "phase": "forward,train",
        "device": device,
    }
    words = [word for name, value in grid.items() for word in (f"--{name}", value)]

    def command(out: Path, seconds: float) -> list[str] | str:
        if device == "cpu":
            return "our kernels run on cuda"
        limit = f"{max(1, seconds - CLOSING_S):.0f}s"
        return no_cuda() or [
            *ATTNBENCH,
            "run",
            *FLASH,
            *words,
            "--mask",
            "none",
            "--mask",
            "causal",
            "--budget",
            "0.1",
            "--no-report",
            "--limit",
            limit,
            "--out",
            f"{out}",
        ]

    return command


def _claims(out: Path, seconds: float) -> list[str] | str:
    """Those about this GPU that can be tried, in the time that there is."""
    import impls
    from attnbench.features.claims import claim as claims
    from attnbench.features.claims.claim import lacking

    machine, table = this_machine(), impls.table()
    about = [claim for claim in claims.find([]) if claim.needs.gpu]
    fit = [claim.name for claim in about if lacking(claim, machine, table, None) is None]
    if not fit:
        there = ", ".join(gpu.name for gpu in machine.gpus) or "no GPU"
        return f"none of the {len(about)} claims about GPUs can be tried: this machine has {there}"
    budget = max(10.0, 0.6 * seconds)  # the rest is for starting, building and checking
    return [*ATTNBENCH, "reproduce", *fit, "--budget", f"{budget:.0f}", "--out", f"{out}"]


def _energy(out: Path, seconds: float) -> list[str] | str:
    return no_cuda() or [sys.executable, "proofs/visit_energy.py", f"{out}"]


def _run(preset: str, device: str) -> Command:
    """A preset, or the rest of it where an earlier visit left one."""

    def command(out: Path, seconds: float) -> list[str] | str:
        if device != "cpu" and (why := no_cuda()):
            return why
        words = [*ATTNBENCH, "run", "--no-report", "--limit", f"{max(1, seconds - CLOSING_S):.0f}s"]
        begun = unfinished(out, preset)
        if begun is not None:
            return [*words, "--resume", str(begun)]
        return [*words, "--preset", preset, "--device", device, "--out", str(out)]

    return command


def unfinished(out: Path, preset: str) -> Path | None:
    """The latest run of a preset, if there is one."""
    from attnbench.sweep.presets import PRESETS

    found = []
    for header in out.glob("*/*/run.json"):
        try:
            grid = json.loads(header.read_text())["grid"]
        except (ValueError, KeyError, OSError):
            continue  # what a cut-off visit left half written
        if grid.get("title") == PRESETS[preset].title:
            found.append(header.parent)
    return max(found, default=None)


def counted(step: Step, output: str, otherwise: str = "") -> str:
    """The last line of its output that counts; or else what is said, or its last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    hits = [line for line in lines if re.fullmatch(step.counts, line)]
    return (hits or [otherwise][: bool(otherwise)] or lines or ["it said nothing"])[-1]
