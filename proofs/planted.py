"""Are programs told rightly? ``python -m proofs.planted [--gains] [NAME …]``.

Each program of ``tests/models/programs`` is captured, and for each of its calls the kernel, what
the mask holds and the mends that are possible are held against what is true of it. ``--gains``
prices the mends, and holds the promise for a step against pairs of the program and its mended form:
leave the machine alone for that.

The truth was established apart from attnbench: kernels by torch's profiler, reasons by changing one
thing and asking torch again, equal outputs by running both forms. ``#@a`` at a line's end marks the
call that the facts ``a`` are about: ``mend`` surely gains, ``maybe`` may. ``@loop`` and ``@train``
end a program with its steps, ``@block`` begins it with a module around a call. Each prints
``STEP seconds`` a step and ``CHECK number`` of its last output.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import re
import subprocess
import sys
import tempfile
import textwrap
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from attnbench.answer.choose_calls import Gain, SiteGain, gain, site_gain
from attnbench.answer.mends import MARGIN, Pricer, mends
from attnbench.core.settings import Settings
from attnbench.models.capture.calls import SeenCalls, Site
from attnbench.sweep.engine import engine_on

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted((ROOT / "tests/models/programs").glob("*.toml"))
HEAD = """import time
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

torch.set_num_threads(1)
torch.manual_seed(0)
"""
BLOCK = """class Block(nn.Module):
    def __init__(self, width=512, heads=8, p=0.0):
        super().__init__()
        self.heads, self.p = heads, p
        self.qkv, self.o = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.register_buffer("mask", torch.ones(1024, 1024, dtype=torch.bool).tril())

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = {call}
        return x + self.o(y.transpose(1, 2).flatten(2))
"""
STEP = '    print(f"STEP {time.perf_counter() - t0:.6f}")\n'
CHECK = 'print(f"CHECK {out.double().pow(2).mean().item():.10g}")\n'
HOLDS = {
    "causal": "causal",
    "hides nothing": "none",
    "padding (right)": "padding",
    "padding (left)": "leftpad",
    "window": "window",
    "alibi": "alibi",
    "documents": "document",
}
"""The mask of ours, by how a truth begins."""
MANNERS = {
    "boolean": "a boolean",
    "float": "a float",
    "no mask": "no mask",
    "is_causal": "is_causal",
    "bias object": "a Causal",
}
"""Our words for the way in which it came, likewise."""
FLEX = {"flex uncompiled": "flex, not compiled", "flex compiled": "flex"}
PAIRS, AT_ONCE = 5, 2
EQUAL = 1e-4
"""How far the two forms' outputs may be apart, where a site says no more."""
Truth = dict[str, Any]


def text_of(program: Truth, *, mended: bool = False) -> str:
    """A program as it is run, with its marks."""
    block = re.compile(r"^@block (.*)$", re.MULTILINE)
    code = block.sub(lambda m: BLOCK.replace("{call}", m[1]), program["code"])
    if steps := re.search(r"^@(loop|train) (\d+)(.*)\n", code, re.MULTILINE):
        kind, count, within = steps.groups()
        body = f"t0 = time.perf_counter()\n{code[steps.end() :]}\n"
        if kind == "train":
            body += "" if "\nloss = " in body else "loss = out.pow(2).mean()\n"
            body += "opt.zero_grad()\nloss.backward()\nopt.step()\n"
        loop = f"for step in range({count}):\n{textwrap.indent(body, '    ')}{STEP}"
        if kind == "train":
            loop = f"opt = torch.optim.SGD(m.parameters(), lr=1e-3)\n{loop}"
        else:
            loop = f"with {within.strip() or 'torch.no_grad()'}:\n{textwrap.indent(loop, '    ')}"
        code = code[: steps.start()] + loop
    code = f"{HEAD}\n{code.rstrip()}\n{'' if 'CHECK' in code else CHECK}"
    for old, new in program.get("mended", ()) if mended else ():
        assert old in code, old
        code = code.replace(old, new)
    return code


def facts_of(program: Truth) -> list[tuple[int, Truth]]:
    """The line of each call, and what is true of it."""
    lines = text_of(program).splitlines()
    at = {m[1]: n for n, line in enumerate(lines, 1) if (m := re.search(r"#@(\w+)", line))}
    return [(at[mark], truth) for mark, truth in program.items() if isinstance(truth, dict)]


ALL: dict[str, Truth] = {k: v for file in FILES for k, v in tomllib.loads(file.read_text()).items()}


def capture(name: str, folder: Path) -> SeenCalls | None:
    """The calls that capture finds in a program; None where it says nothing."""
    folder.mkdir(exist_ok=True)
    for file, mended in (("prog.py", False), ("mended.py", True)):
        text = text_of(ALL[name], mended=mended)
        (folder / file).write_text(re.sub(r"[ ]*#@\w+", "", text))
    words = ["-m", "attnbench", "capture", "--", sys.executable, "-W", "ignore", "prog.py"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, *words], cwd=folder, env=env, capture_output=True, text=True)
    file = folder / "calls.json"
    return SeenCalls.read(file) if file.exists() else None


def faults(program: Truth, calls: SeenCalls | None) -> list[str]:
    """What is said wrongly of a program."""
    facts, wrong = facts_of(program), []
    for line, truth in facts:
        here = [] if calls is None else [s for s in calls.sites if f"prog.py:{line}" in s.site]
        if not here and calls is not None and len(facts) == 1:
            here = calls.sites  # in a library's line
        sentences: list[str] = []
        if truth["kernel"] == "part of compiled code":
            if not any(f"prog.py:{line}" in text for text in (calls.unseen if calls else ())):
                sentences = ["what torch.compile took is not named"]
        elif truth["kernel"] == "no attention":
            sentences = ["it is taken for attention"] if here else []
        else:
            sentences = [*_kernel(truth, here), *_manner(truth, here), *_content(truth, here)]
        wrong += [f"line {line}: {s}" for s in (*sentences, *_mends(truth, here, calls))]
    return wrong


def _kernel(truth: Truth, here: list[Site]) -> Iterator[str]:
    """The kernel, and whether a reason is given where no faster one could run."""
    kernels = {s.call.kernel if s.call else "" for s in here}
    expected = truth["kernel"]
    if expected.startswith("by hand"):
        expected = "math" if "nn." in expected or "fast path" in expected else "written out"
    if FLEX.get(expected, expected).split(" (")[0] not in kernels:
        yield f"kernel {kernels}, truly {truth['kernel']}"
    of_torch = [s.call for s in here if s.call and s.call.api == "sdpa"]
    if "why" in truth and of_torch and not any(call.why for call in of_torch):
        yield f"no reason is given, truly {truth['why']}"


def _manner(truth: Truth, here: list[Site]) -> Iterator[str]:
    """The way in which the mask came."""
    texts = [s.call.mask_words() for s in here if s.call and s.via in ("sdpa", "mha")]
    expected = next((w for start, w in MANNERS.items() if truth["given"].startswith(start)), "")
    by_layer = "MultiheadAttention" in truth["given"] or "TransformerEncoder" in truth["given"]
    if texts and not by_layer and not any(text.startswith(expected) for text in texts):
        yield f"the mask is given as {texts}, truly {truth['given']}"


def _content(truth: Truth, here: list[Site]) -> Iterator[str]:
    """What the mask holds, and at which corner."""
    mask = next((m for words, m in HOLDS.items() if truth["holds"].startswith(words)), "")
    masks = {str(s.problem.mask) for s in here if s.faithful}
    if here and not masks:
        return  # the call is said to be more than a mask can tell
    if not any(mask in text for text in masks):
        yield f"the mask is {masks}, truly {truth['holds']}"
    elif mask == "causal" and "corner" in truth["holds"]:
        upper = "upper left" in truth["holds"]
        if not any(("@upper-left" in text) == upper for text in masks):
            yield f"{masks} is at another corner: {truth['holds']}"


def _mends(truth: Truth, here: list[Site], calls: SeenCalls | None) -> Iterator[str]:
    """What could be changed, and what could not."""
    keys = {
        mend.key
        for s in here
        if calls is not None and s.call and s.faithful
        for mend in mends(s.call, s.problem, calls.others_at(s))
    }
    sure, possible = set(truth.get("mend", ())), set(truth.get("maybe", ()))
    if missing := sure - keys:
        yield f"{missing} is not among {keys or 'no mends'}"
    if wrong := keys - sure - possible:
        yield f"{wrong} is advised, truly {sure or 'nothing'}"


def promise_of(calls: SeenCalls) -> Gain:
    """What the mends of a program gain, priced in pairs."""

    def of(s: Site) -> SiteGain:
        if s.call is None or not s.faithful:
            return SiteGain(s.site, None, s.via)
        price = Pricer(engine, s.problem, s.call, calls.others_at(s)).price()
        return site_gain(s.site, calls.share_of(s), s.call, price, calls.a_call_s(s))

    with engine_on("cpu", Settings(threads=int(calls.header.get("torch_threads", 1)))) as engine:
        return gain([of(s) for s in calls.sites], "the program's time")


def step_s(folder: Path, file: str) -> tuple[float, float]:
    """The median of a program's steps but the first, and the number of its output."""
    command = [sys.executable, "-W", "ignore", file]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    words = [line.split() for line in done.stdout.splitlines()]
    steps = [float(w[1]) for w in words if w[0] == "STEP"]
    (check,) = (float(w[1]) for w in words if w[0] == "CHECK")
    return median(steps[1:] or steps), check


def capture_faults(name: str, folder: Path) -> list[str]:
    """What capture says wrongly of a program."""
    return faults(ALL[name], capture(name, folder))


def gains(name: str, folder: Path) -> list[str]:
    """What a promise misses, which is printed beside what the program gains."""
    calls = capture(name, folder)
    if calls is None:
        return ["nothing was captured"]
    promise, ratios, misses = promise_of(calls), [], []
    off = max((t.get("equal_to", EQUAL) for _, t in facts_of(ALL[name])), default=EQUAL)
    for _ in range(PAIRS):
        runs = {f: step_s(folder, f) for f in random.sample(["prog.py", "mended.py"], 2)}
        (mended_s, mended), (plain_s, plain) = runs["mended.py"], runs["prog.py"]
        ratios.append(mended_s / plain_s)
        if not math.isclose(plain, mended, rel_tol=off):
            misses = ["its mended form computes something else"]
    f, words = promise.factor, {w for s in promise.sites for w in s.mend}
    holds, interval = f.low <= max(ratios) and min(ratios) <= f.high, f"[{f.low:.2f}, {f.high:.2f}]"
    if calls.overlap:  # whose share of the time is not known: it is not to lose
        holds, interval = median(ratios) <= 1 + MARGIN, "not promised"
    span = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    offer = f"{f.value:.2f} {interval} by {words or 'nothing'}"
    print(f"{name}: promises {offer}, program {span}", flush=True)
    return misses if holds else [*misses, "its promise does not hold"]


def main() -> int:
    """A line a program with something wrong; the status is 1 where there is one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", default=list(ALL))
    parser.add_argument("--gains", action="store_true")
    options = parser.parse_args()
    ask, at_once = (gains, 1) if options.gains else (capture_faults, AT_ONCE)
    right = 0
    with tempfile.TemporaryDirectory(prefix="planted-") as top, ThreadPoolExecutor(at_once) as pool:
        folders = [Path(top, name) for name in options.names]
        for name, wrong in zip(options.names, pool.map(ask, options.names, folders), strict=True):
            right += not wrong
            print(*(f"{name}: {sentence}\n" for sentence in wrong), sep="", end="", flush=True)
    what = "promises hold" if options.gains else "programs are told rightly"
    print(f"{right} of {len(options.names)} {what}")
    return int(right < len(options.names))


if __name__ == "__main__":
    sys.exit(main())
