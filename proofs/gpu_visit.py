"""A visit to a GPU in calls of nine minutes: ``python3 -m proofs.gpu_visit --out DIR [--call N]``.

1: the machine, our kernels and their tests. 2: the preset h200-quick, cuDNN's published rates, and
h200 begun. 3: its rest, a million tokens, decoding. 4, on another machine: h200-quick again,
energy, crossovers, limits, the self-check. A call that ends early goes on with the next one's
steps. DIR holds a summary, and for each step its output and its runs; the next call, here or on
another machine, needs all of it and nothing else. ``--device cpu`` tries every command with short
sequences.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import impls
from attnbench.command.terminal import as_ctrl_c
from attnbench.core.disk import HEADER
from attnbench.core.machine import gpu_warnings, this_machine
from attnbench.core.process import Program
from attnbench.report.tables import Table, columns, show

ROOT = Path(__file__).resolve().parent.parent
Words = Mapping[str, str]
"""Options and their values."""
SUMMARY = "summary.json"
ATTNBENCH = (sys.executable, "-m", "attnbench")
TINY = {"batch": "1", "heads": "2", "kv-heads": "2", "head-dim": "16", "dtype": "float32"}
SHORT = {"seq": "64", "budget": "0.01"}
ON_CPU = ("sdpa", "linear.elu")
LAYER = {"heads": "16", "head-dim": "128", "dtype": "bfloat16", "budget": "0.1"}
FORWARD = LAYER | {"batch": "1", "phase": "forward"}
OURS = ("triton.flash", "gluon.flash", "triton.linear")
OTHERS = ("sdpa", "sdpa.cudnn", "sdpa.flash", "cudnn_frontend", "fsa.dense", "flash_attn4")
DECODE = ("triton.decode", "sdpa", "sdpa.cudnn", "sdpa.flash", "flashinfer")
TEN = ("sdpa", "sdpa.cudnn", "sdpa.flash", "sdpa.efficient", "triton.flash", "gluon.flash")
TEN += ("flex", "matmul", "triton.linear", "linear.elu")
CLAIMS = ("h200-sdpa-cudnn", "h200-llama-cudnn", "--points", "10")
FINAL = {"done", "finding"}
ELSEWHERE = 4
"""The call that belongs on another machine, so that no other call goes on to its steps."""
CLOSING_S, GRACE_S, INTERRUPTED = 15.0, 8.0, 130
"""What a run needs to end its last measurement; what a step has after Ctrl-C."""


@dataclass(frozen=True)
class Room:
    """Where a step runs: the device, its own folder of results and its seconds."""

    device: str
    folder: Path
    seconds: float = 0.0
    anew: bool = False
    """The run that an earlier call began can't go on here."""

    @property
    def tiny(self) -> bool:
        """True on a CPU."""
        return self.device == "cpu"

    def beside(self, step: str) -> Path | None:
        """The latest run that a step has made, if there is one."""
        runs = [header.parent for header in self.folder.with_name(step).glob(f"*/*/{HEADER}")]
        return max(runs, key=lambda run: run.name, default=None)

    def options(self, *grids: Words) -> list[str]:
        """The words of a grid on the device; on a CPU of a tiny one, of the same phases."""
        own = {"device": self.device, "out": str(self.folder)}
        grid = dict(ChainMap(own, TINY if self.tiny else {}, *reversed(grids)))
        return [word for name, value in grid.items() for word in (f"--{name}", value)]

    def names(self, variants: Sequence[str]) -> list[str]:
        """The variants that the table has; on a CPU others."""
        rows = impls.table().rows
        return list(ON_CPU) if self.tiny else [v for v in variants if v.partition("?")[0] in rows]

    @property
    def budget(self) -> str:
        """The seconds of a search."""
        return f"{2 if self.tiny else max(10.0, self.seconds - CLOSING_S):.0f}"

    def run(self, variants: Sequence[str], grid: Words, *more: str) -> list[str]:
        """A run that ends in time; the rest of it where an earlier call has begun it."""
        limit = f"{max(1, self.seconds - CLOSING_S):.0f}s"
        words = [*ATTNBENCH, "run", "--no-report", "--limit", limit]
        if (run := self.beside(self.folder.name)) and not self.anew:
            return [*words, "--resume", str(run)]
        short = SHORT if self.tiny else {}
        return [*words, *self.names(variants), *self.options(grid, short), *more]

    def cross(self, variant: str, lengths: str, mask: str, on_cpu: str) -> list[str]:
        """Where a variant overtakes sdpa, or is overtaken by it."""
        other, ends = (on_cpu, "64,128") if self.tiny else (variant, lengths)
        words = self.options(FORWARD, {"mask": mask, "seq": ends, "budget": self.budget})
        return [*ATTNBENCH, "crossover", "sdpa", other, *words]


@dataclass(frozen=True)
class Step:
    """``calls``: the calls that it belongs to. With less than ``least_s`` it is not begun, and it
    ends after ``limit_s``. ``counts`` finds the line of its output that counts.
    """

    name: str
    calls: tuple[int, ...]
    least_s: float
    limit_s: float
    command: Callable[[Room], list[str]]
    counts: str = r".*is the fastest exact variant.*|→ .*"

    def outcome(self, status: int | None, output: str) -> tuple[str, str]:
        """A word for how it ended, and the line that says most; a signal's status is negative."""
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        hits = [line for line in lines if re.fullmatch(self.counts, line)]
        last = (hits or lines or ["no output"])[-1]
        if status is None:
            return "cut off", f"its time was over; {last}"
        if status < 0:
            return "failed", f"signal {-status} ended it; {last}"
        if "were not started. Go on with" in output:
            return "partly", last
        return {0: "done", 1: "finding"}.get(status, "failed"), last


def steps() -> list[Step]:
    """All steps, in the order of the four calls; the first of a call are worth most."""
    kernels = (*with_and_without(OURS), *OTHERS)
    training = LAYER | {"seq": "8192", "batch": "4", "phase": "forward,train"}
    decoding = LAYER | {"phase": "decode"}
    grouped = decoding | {"seq": "131072", "batch": "1,64", "kv-heads": "2"}
    llama = {"seq": "2048,8192,32768,131072", "batch": "1,8,32", "heads": "64", "kv-heads": "8"}
    energy = FORWARD | {"seq": "8192", "batch": "2"}
    tests = r".*\d+ (passed|failed|skipped|error|deselected).*"
    long = "512,65536", "causal", "linear.elu"
    short = "1024,32768", "window:1023,0", "window.blocked"
    bound = r".*(overtakes|faster throughout|neither).*"
    return [
        Step("env", (1,), 30, 120, _env, r"product (bf|fl)oat.*"),
        Step("kernels", (1,), 60, 180, lambda at: at.run(kernels, training)),
        Step("decode", (1,), 30, 90, lambda at: at.run(DECODE, grouped)),
        Step("tests", (1,), 60, 240, _tests, tests),
        Step("quick", (2,), 60, 330, lambda at: at.run((), {"preset": "h200-quick"})),
        Step("claim", (2,), 30, 150, _claim, r".*reproduced.*"),
        Step("h200", (2, 3), 60, 520, lambda at: at.run((), {"preset": "h200"})),
        Step("million", (3,), 30, 150, lambda at: at.run((), {"preset": "million"})),
        Step("shapes", (3,), 30, 150, lambda at: at.run(DECODE, decoding | llama)),
        Step("again", (4,), 60, 330, lambda at: at.run((), {"preset": "h200-quick"})),
        Step("apart", (4,), 5, 30, _apart, r"of what was timed in both.*"),
        Step("energy", (4,), 30, 120, lambda at: at.run(TEN, energy, "--energy")),
        Step("cross-linear", (4,), 20, 60, lambda at: at.cross("triton.linear", *long), bound),
        Step("cross-window", (4,), 20, 60, lambda at: at.cross("window.flex", *short), bound),
        Step("cross-fla", (4,), 60, 120, lambda at: at.cross("fla.linear", *long), bound),
        Step("limits", (4,), 30, 120, _limits, r"sdpa .*"),
        Step("selfcheck", (4,), 60, 240, _selfcheck, r"ruler self-check:.*"),
    ]


def with_and_without(names: Sequence[str]) -> list[str]:
    """Rows of the table, and each again with every option that is on or off the other way."""
    labels = []
    for row in (impls.table().rows[name] for name in names):
        switches = {k: v for k, v in row.options.items() if isinstance(v, bool)}
        labels += [row.name, *(f"{row.name}?{k}={not v}" for k, v in switches.items())]
    return labels


def _env(room: Room) -> list[str]:
    dtypes = "float32" if room.tiny else "bfloat16,float16,float32"
    out = str(room.folder)
    return [*ATTNBENCH, "env", "--device", room.device, "--dtype", dtypes, "--out", out]


def _tests(room: Room) -> list[str]:
    plain = ("-o", "addopts=", "--import-mode=importlib", "-p", "no:cacheprovider")
    return [sys.executable, "-m", "pytest", "-m", "gpu", "-v", "-rs", *plain, "tests/gpu"]


def _claim(room: Room) -> list[str]:
    """cuDNN's published rates on this card."""
    words = ("key-bias-cost", "--points", "1", "--budget", "1") if room.tiny else CLAIMS
    return [*ATTNBENCH, "reproduce", *words, "--out", str(room.folder)]


def _apart(room: Room) -> list[str]:
    """It says itself where one of the two has no run yet."""
    runs = (room.beside(step) or room.folder.with_name(step) for step in ("quick", "again"))
    return [*ATTNBENCH, "compare", *map(str, runs)]


def _limits(room: Room) -> list[str]:
    small = ("--max-memory", "1MiB", "--max-time", "1ms") if room.tiny else ()
    words = room.options(FORWARD, {"budget": room.budget})
    return [*ATTNBENCH, "limits", *room.names(TEN), *words, *small]


def _selfcheck(room: Room) -> list[str]:
    return [*ATTNBENCH, "selfcheck", "--out", str(room.folder)]


class Visit:
    """A visit's folder: what each step came to, its output and its runs."""

    def __init__(self, folder: Path, device: str) -> None:
        self.folder, self.device = folder, device
        self.steps: dict[str, dict[str, Any]] = {}
        (folder / "results").mkdir(parents=True, exist_ok=True)
        if (summary := folder / SUMMARY).exists():
            self.steps = json.loads(summary.read_text())

    def note(self, step: Step, status: str, seconds: float, line: str) -> None:
        """Write down how a step stands."""
        self.steps[step.name] = {"status": status, "seconds": round(seconds, 1), "line": line}
        (self.folder / SUMMARY).write_text(json.dumps(self.steps, indent=1))

    def ends(self, todo: Sequence[Step]) -> dict[Step, str]:
        """How steps stand; empty words for those that were not reached yet."""
        return {step: self.steps.get(step.name, {}).get("status", "") for step in todo}

    def queue(self, left: Sequence[Step], call: int | None) -> tuple[list[Step], list[Step]]:
        """The steps that a call has left, and those of others that it goes on to. If no call is
        named, it is the first with steps that have not failed.
        """
        hopeful = [step for step, end in self.ends(left).items() if end != "failed"]
        call = call or min((min(step.calls) for step in hopeful or left), default=1)
        own = [step for step in left if call in step.calls]
        return own, [step for step in left if step not in own and ELSEWHERE not in step.calls]

    def run(self, todo: Sequence[Step], seconds: float) -> None:
        """Run step after step until the time is over."""
        end = monotonic() + seconds - GRACE_S
        for step in todo:
            left = min(step.limit_s, end - monotonic())
            before = self.steps.get(step.name)
            if left < step.least_s:
                if before is None:
                    self.note(step, "not begun", 0.0, "no time was left for it")
                continue
            room = Room(self.device, self.folder / "results" / step.name, left)
            start = monotonic() - (before or {}).get("seconds", 0.0)
            self.note(step, "cut off", 0.0, "the visit ended in the middle of it")
            print(f"{step.name}: {left:.0f} s at most …", file=sys.stderr, flush=True)
            log = self.folder / f"{step.name}.txt"
            status, output = run_command(step.command(room), left, log)
            if status == 2 and "start a new" in output:
                room = Room(room.device, room.folder, left, anew=True)
                status, output = run_command(step.command(room), left, log)
            word, line = step.outcome(status, output)
            self.note(step, word, monotonic() - start, line)

    def show(self) -> None:
        """Print how each step ended, its seconds, and the line that says most."""
        heads = columns("step", "status", "seconds", "outcome", right=["seconds"], wrap=["outcome"])
        show(Table("", heads, [(name, *one.values()) for name, one in self.steps.items()]))


def run_command(command: list[str], limit_s: float, log: Path) -> tuple[int | None, str]:
    """Run a command for so long at most: its exit status, None where its time was over, and its
    output, which the log holds.
    """
    wide = {**os.environ, "COLUMNS": "200"}  # so that a line that counts is whole
    with (
        log.open("w", buffering=1) as output,
        Program(command, folder=ROOT, variables=wide, watch=output.write) as program,
    ):
        status = program.wait(limit_s)
    return status, log.read_text()


def main(words: Sequence[str]) -> int:
    """Exit status 0 where the call's steps are done; 1 where one found something; 2 where some are
    not done; 130 where somebody stopped it.
    """
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    add = parser.add_argument
    add("--out", required=True, type=Path, metavar="DIR", help="the visit's folder")
    add("--call", type=int, choices=range(1, 5), help="else the first that has steps left")
    add("--minutes", type=float, default=9.0, metavar="M", help="of this call; 9 if not given")
    add("--steps", nargs="+", default=[], choices=[step.name for step in steps()])
    add("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a tiny trial")
    options, machine = parser.parse_args(words), this_machine()
    if options.device not in machine.devices:
        print(f"torch can't use a GPU here: {'; '.join(gpu_warnings(machine))}", file=sys.stderr)
        return 2
    visit = Visit(options.out.resolve(), options.device)
    todo = [step for step in steps() if step.name in options.steps or not options.steps]
    left = [step for step, end in visit.ends(todo).items() if end not in FINAL]
    own, more = (left, []) if options.steps else visit.queue(left, options.call)
    try:
        with as_ctrl_c():
            visit.run([*own, *more], 60 * options.minutes)
    except KeyboardInterrupt:
        print("stopped; what was done is kept, and the same command goes on", file=sys.stderr)
        return INTERRUPTED
    finally:
        visit.show()
    ends = set(visit.ends(own).values())
    return 2 if ends - FINAL else int("finding" in ends)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
