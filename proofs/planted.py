"""Are programs told rightly? ``python proofs/planted.py [--gains] [NAME …]``.

Each program of ``proofs/programs`` is captured, and for each of its calls the kernel, what the mask
holds and the mends that are possible are held against what is true of it. ``--gains`` prices the
mends, and holds the promise for a step against pairs of the program and its mended form: leave the
machine alone for that.
"""

from __future__ import annotations

import argparse
import importlib
import math
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from attnbench.answer.choose_calls import Gain, SiteTimes, gain, priced_times  # noqa: E402
from attnbench.answer.mends import MARGIN, Pricer, mends  # noqa: E402
from attnbench.core.settings import Settings  # noqa: E402
from attnbench.models.capture.calls import SeenCalls, Site  # noqa: E402
from attnbench.sweep.engine import engine_on  # noqa: E402
from proofs.programs import ALL, Program  # noqa: E402

for name in ("masks", "layout", "api", "phase"):
    importlib.import_module(f"proofs.programs.{name}")

HOLDS = {"causal": "causal", "hides nothing": "none", "padding (right)": "padding",
         "padding (left)": "leftpad", "window": "window", "alibi": "alibi",
         "documents": "document"}  # fmt: skip
"""The mask of ours, by how a truth begins."""
GIVEN = {"boolean": "a boolean", "float": "a float", "no mask": "no mask", "is_causal": "is_causal",
         "bias object": "a Causal"}  # fmt: skip
"""The words of ours for how it was given, likewise."""
FLEX = {"flex uncompiled": "flex, not compiled", "flex compiled": "flex"}
PAIRS, AT_ONCE = 5, 2
EQUAL = 1e-4
"""How far the two forms' outputs may be apart, where a site says no more."""


def captured(name: str, folder: Path) -> SeenCalls | None:
    """What capture says of a program; None where it says nothing."""
    (folder / "prog.py").write_text(ALL[name].text())
    (folder / "mended.py").write_text(ALL[name].text(mended=True))
    words = ["-m", "attnbench", "capture", "--", sys.executable, "-W", "ignore", "prog.py"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, *words], cwd=folder, env=env, capture_output=True, text=True)
    file = folder / "calls.json"
    return SeenCalls.read(file) if file.exists() else None


def faults(program: Program, calls: SeenCalls | None) -> list[str]:
    """What is said wrongly of a program."""
    found = []
    for line, truth in program.lines():
        here = [] if calls is None else [s for s in calls.sites if f"prog.py:{line}" in s.site]
        if not here and calls is not None and len(program.sites) == 1:
            here = calls.sites  # in a library's line
        if truth["kernel"] == "part of compiled code":
            met = [] if calls is None else calls.unseen
            if not any(f"prog.py:{line}" in sentence for sentence in met):
                found.append(f"line {line}: what torch.compile took is not named")
        elif truth["kernel"] == "no attention":
            found += [f"line {line}: it is taken for attention"] * bool(here)
        else:
            said = (*_kernel(truth, here), *_given(truth, here), *_held(truth, here))
            found += [f"line {line}: {fault}" for fault in said]
        found += [f"line {line}: {fault}" for fault in _mends(truth, here, calls)]
    return found


Truth = dict[str, Any]


def _kernel(truth: Truth, here: list[Site]) -> Iterator[str]:
    """The kernel, and whether a reason is given where no faster one could run."""
    kernels = {s.call.kernel if s.call else "" for s in here}
    wanted = truth["kernel"]
    if wanted.startswith("by hand"):
        wanted = "math" if "nn." in wanted or "fast path" in wanted else "written out"
    wanted = FLEX.get(wanted, wanted)
    if wanted.split(" (")[0] not in kernels:
        yield f"kernel {kernels}, truly {truth['kernel']}"
    of_torch = [s.call for s in here if s.call and s.call.api == "sdpa"]
    if truth["why"] and of_torch and not any(call.why for call in of_torch):
        yield f"no reason is given, truly {truth['why']}"


def _given(truth: Truth, here: list[Site]) -> Iterator[str]:
    """How the mask was given."""
    texts = [s.call.mask_words() for s in here if s.call and s.via in ("sdpa", "mha")]
    wanted = next((word for start, word in GIVEN.items() if truth["given"].startswith(start)), "")
    by_layer = "MultiheadAttention" in truth["given"] or "TransformerEncoder" in truth["given"]
    if texts and not by_layer and not any(text.startswith(wanted) for text in texts):
        yield f"the mask is given as {texts}, truly {truth['given']}"


def _held(truth: Truth, here: list[Site]) -> Iterator[str]:
    """What the mask holds, and at which corner."""
    mask = next((m for words, m in HOLDS.items() if truth["holds"].startswith(words)), "")
    held = {str(s.problem.mask) for s in here if s.faithful}
    if here and not held:
        return  # the call is said to be more than a mask can tell
    if not any(mask in text for text in held):
        yield f"the mask is {held}, truly {truth['holds']}"
    elif mask == "causal" and "corner" in truth["holds"]:
        upper = "upper left" in truth["holds"]
        if not any(("@upper-left" in text) == upper for text in held):
            yield f"{held} is at another corner: {truth['holds']}"


def _mends(truth: Truth, here: list[Site], calls: SeenCalls | None) -> Iterator[str]:
    """What could be changed, and what could not."""
    keys = {
        mend.key
        for s in here
        if calls is not None and s.call and s.faithful
        for mend in mends(s.call, s.problem, calls.others_at(s))
    }
    if missing := truth["mend"] - keys:
        yield f"{missing} is not among {keys or 'no mends'}"
    if wrong := keys - truth["mend"] - truth["maybe"]:
        yield f"{wrong} is advised, truly {truth['mend'] or 'nothing'}"


def promised(calls: SeenCalls) -> Gain:
    """What the mends of a program gain, priced in pairs."""

    def times(s: Site) -> SiteTimes:
        if s.call is None or not s.faithful:
            return SiteTimes(s.site, None, s.via, None)
        priced = Pricer(engine, s.problem, s.call, calls.others_at(s)).price()
        more = {"off": calls.off, "inside_s": calls.a_call_s(s)}
        return priced_times(s.site, s.share, s.call, priced, **more)

    with engine_on("cpu", Settings(threads=int(calls.header.get("torch_threads", 1)))) as engine:
        return gain([times(s) for s in calls.sites], "the program's time")


def step_s(folder: Path, file: str) -> tuple[float, float]:
    """The median of a program's steps but the first, and the number of its output."""
    command = [sys.executable, "-W", "ignore", file]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    steps = [float(line.split()[1]) for line in lines if line.startswith("STEP ")]
    (check,) = (float(line.split()[1]) for line in lines if line.startswith("CHECK "))
    return median(steps[1:] or steps), check


def gains(name: str, folder: Path, calls: SeenCalls) -> bool:
    """Print a promise beside what the program gains; whether its interval holds."""
    found, ratios, equal = promised(calls), [], True
    for _ in range(PAIRS):
        taken = {f: step_s(folder, f) for f in random.sample(["prog.py", "mended.py"], 2)}
        (mended_s, mended), (plain_s, plain) = taken["mended.py"], taken["prog.py"]
        ratios.append(mended_s / plain_s)
        off = max(site.get("equal_to", EQUAL) for site in ALL[name].sites)
        equal = equal and math.isclose(plain, mended, rel_tol=off)
    f, words = found.factor, {w for s in found.sites for w in s.mend}
    holds = equal and f.low <= max(ratios) and min(ratios) <= f.high
    promise = f"{f.value:.2f} [{f.low:.2f}, {f.high:.2f}]"
    if calls.overlap:  # whose share of the time is not known: it is not to lose
        holds, promise = equal and median(ratios) <= 1 + MARGIN, "none"
    print(
        f"{'holds' if holds else 'MISSES':6} {name}: {promise}, "
        f"program {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}); "
        f"{words or 'nothing'}{'' if equal else '; its mended form computes something else'}",
        flush=True,
    )
    return holds


def main() -> int:
    """A line a program with something wrong; the status is 1 where there is one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--gains", action="store_true")
    given = parser.parse_args()
    names = given.names or list(ALL)
    with tempfile.TemporaryDirectory(prefix="planted-") as top:
        folders = {name: Path(top, name) for name in names}
        for folder in folders.values():
            folder.mkdir()
        if given.gains:
            kept = []
            for n, f in folders.items():
                calls = captured(n, f)
                if calls is None:
                    print(f"MISSES {n}: nothing was captured", flush=True)
                kept.append(calls is not None and gains(n, f, calls))
            print(f"{sum(kept)} of {len(kept)} promises hold")
            return int(not all(kept))
        with ThreadPoolExecutor(AT_ONCE) as pool:
            seen = dict(zip(names, pool.map(lambda n: captured(n, folders[n]), names), strict=True))
    wrong = {name: said for name in names if (said := faults(ALL[name], seen[name]))}
    for name, said in wrong.items():
        print(f"{name}: {'; '.join(said)}")
    print(f"{len(names) - len(wrong)} of {len(names)} programs are told rightly")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
