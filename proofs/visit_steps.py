"""The steps of a visit to a GPU: the command of each, its calls, and the line of it that counts.

On a CPU every step is tiny: the same command with short sequences, to try the visit itself.
``python proofs/visit_steps.py energies DIR`` and ``… call DEVICE VARIANT …`` are two of these.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import impls  # noqa: E402
from attnbench.core import gpu as nvml  # noqa: E402
from attnbench.core.disk import HEADER  # noqa: E402
from attnbench.core.machine import Machine, gpu_warnings, has_c_compiler, this_machine  # noqa: E402

Words = Mapping[str, str]
"""Options and their values."""
ATTNBENCH = (sys.executable, "-m", "attnbench")
TINY = {"seq": "64", "batch": "1", "heads": "2", "kv-heads": "2", "head-dim": "16"}
TINY |= {"dtype": "float32", "budget": "0.01"}
ON_CPU = ("sdpa", "linear.elu")
LAYER = {"heads": "16", "head-dim": "128", "dtype": "bfloat16", "budget": "0.1"}
FORWARD = LAYER | {"batch": "1", "phase": "forward"}
OURS = ("triton.flash", "gluon.flash")
OTHERS = ("sdpa.cudnn", "sdpa.flash", "cudnn_frontend", "fsa.dense", "flash_attn4")
TEN = (
    "sdpa", "sdpa.cudnn", "sdpa.flash", "sdpa.efficient", "triton.flash", "gluon.flash", "flex",
    "matmul", "triton.linear", "linear.elu",
)  # fmt: skip
REPEATS, WITHIN = 3, 0.05
"""Runs with energy, and how far a variant's joules may lie apart in them."""
ELSEWHERE = 4
"""The call that belongs on another machine, so that no other call goes on to its steps."""
CLOSING_S = 15.0
"""What a run needs to end its last measurement and say what came of it."""
SEVERAL = 8
"""Tests of our kernels at once; each compiles for seconds on one core of the host."""
METRICS = (
    "gpu__time_duration.sum", "lts__t_bytes.sum", "lts__t_bytes.sum.per_second",
    "lts__t_bytes.sum.pct_of_peak_sustained_elapsed", "dram__bytes.sum.per_second",
)  # fmt: skip


@dataclass(frozen=True)
class Room:
    """Where a step runs: the device, the folder of all results, its name and its seconds."""

    device: str
    results: Path
    name: str
    seconds: float = 0.0
    anew: bool = False
    """The run that an earlier call began can't go on here."""

    @property
    def tiny(self) -> bool:
        """True on a CPU."""
        return self.device == "cpu"

    @property
    def out(self) -> str:
        """The step's own folder of results."""
        return str(self.results / self.name)

    def run_of(self, step: str) -> Path | None:
        """The latest run that a step has made, if there is one."""
        runs = [header.parent for header in (self.results / step).glob(f"*/*/{HEADER}")]
        return max(runs, key=lambda run: run.name, default=None)

    def options(self, *grids: Words) -> list[str]:
        """The words of a grid on the device; on a CPU of a tiny one, of the same phases."""
        grid: dict[str, str] = {}
        for some in (*grids, TINY if self.tiny else {}):
            grid |= some
        return [word for k, v in (grid | {"device": self.device}).items() for word in (f"--{k}", v)]

    def names(self, variants: Sequence[str]) -> list[str]:
        """The variants that the table has; on a CPU others."""
        rows = impls.table().rows
        return list(ON_CPU) if self.tiny else [v for v in variants if v.partition("?")[0] in rows]


Command = Callable[[Room], list[str] | str]
"""A command's words, or the sentence why there is nothing to run."""


@dataclass(frozen=True)
class Step:
    """``calls``: the calls that it belongs to. With less than ``least_s`` it is not begun, and it
    ends after ``limit_s``. ``counts`` finds the line of its output that counts.
    """

    name: str
    calls: tuple[int, ...]
    least_s: float
    limit_s: float
    command: Command
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
        if "were not begun. Go on with" in output:
            return "partly", last
        return {0: "done", 1: "finding"}.get(status, "failed"), last


def queue(
    todo: Sequence[Step], statuses: Mapping[str, str], call: int | None
) -> tuple[list[Step], list[Step]]:
    """The steps that a call has left, and those of others that it goes on to. If no call is named,
    it is the first with steps that have neither ended nor turned out to be impossible.
    """
    left = [step for step in todo if statuses.get(step.name) not in ("done", "finding")]
    hopeful = [step for step in left if statuses.get(step.name) not in ("left out", "failed")]
    call = call or min((min(step.calls) for step in hopeful or left), default=1)
    own = [step for step in left if call in step.calls]
    return own, [step for step in left if step not in own and ELSEWHERE not in step.calls]


def steps() -> list[Step]:
    """All steps, in the order of the four calls; the first of a call are worth most."""
    training = LAYER | {"seq": "8192", "batch": "4", "phase": "forward,train"}
    decoding = LAYER | {"phase": "decode"}
    grouped = decoding | {"seq": "131072", "batch": "1,64", "kv-heads": "2"}
    llama = {"seq": "2048,8192,32768,131072", "batch": "1,8,32", "heads": "64", "kv-heads": "8"}
    decode = ("triton.decode", "sdpa", "sdpa.cudnn", "sdpa.flash", "flashinfer")
    flash = ("sdpa", *with_and_without(OURS), "triton.linear", *OTHERS)
    energy = FORWARD | {"seq": "8192", "batch": "2"}
    tests = r".*\d+ (passed|failed|skipped|error|deselected).*"
    bound = r".*(overtakes|faster throughout|neither).*"
    return [
        Step("env", (1,), 30, 120, _env, r"product (bf|fl)oat.*"),
        Step("kernels", (1,), 60, 180, _run(flash, training)),
        Step("decode", (1,), 30, 90, _run(decode, grouped)),
        Step("tests", (1,), 60, 240, _tests, tests),
        Step("l2", (1,), 30, 90, _l2, r"lts__t_bytes.sum.pct.*"),
        Step("quick", (2,), 60, 330, _run((), {"preset": "h200-quick"})),
        Step("claim", (2,), 30, 150, _claim, r".*reproduced.*"),
        Step("h200", (2, 3), 60, 520, _run((), {"preset": "h200"})),
        Step("million", (3,), 30, 150, _run((), {"preset": "million"})),
        Step("shapes", (3,), 30, 150, _run(decode, decoding | llama)),
        Step("again", (4,), 60, 330, _run((), {"preset": "h200-quick"})),
        Step("apart", (4,), 5, 30, _apart, r"of what was timed in both.*"),
        *(
            Step(f"energy-{n}", (4,), 30, 120, _run(TEN, energy, "--energy"))
            for n in range(1, REPEATS + 1)
        ),
        Step("energies", (4,), 5, 30, lambda room: _own("energies", room.results), "energy: .*"),
        Step("cross-linear", (4,), 20, 60, _cross("triton.linear", "512,65536"), bound),
        Step("cross-window", (4,), 20, 60, _cross("window.flex", "1024,32768"), bound),
        Step("cross-fla", (4,), 60, 120, _cross("fla.linear", "512,65536"), bound),
        Step("limits", (4,), 30, 120, _limits, r"sdpa .*"),
        Step("selfcheck", (4,), 60, 240, _selfcheck, r"ruler self-check:.*"),
    ]


def with_and_without(names: Sequence[str]) -> list[str]:
    """Rows of the table, and each again with every option that is on or off the other way."""
    labels = []
    for row in (impls.table().rows[name] for name in names if name in impls.table().rows):
        switches = {k: v for k, v in row.options.items() if isinstance(v, bool)}
        labels += [row.name, *(f"{row.name}?{k}={not v}" for k, v in switches.items())]
    return labels


def _env(room: Room) -> list[str]:
    dtypes = "float32" if room.tiny else "bfloat16,float16,float32"
    return [*ATTNBENCH, "env", "--device", room.device, "--dtype", dtypes, "--out", room.out]


def _run(variants: Sequence[str], grid: Words, *more: str) -> Command:
    """A run that ends in time; the rest of it where an earlier call has begun it."""

    def command(room: Room) -> list[str]:
        limit = f"{max(1, room.seconds - CLOSING_S):.0f}s"
        words = [*ATTNBENCH, "run", "--no-report", "--limit", limit]
        if (run := room.run_of(room.name)) and not room.anew:
            return [*words, "--resume", str(run)]
        return [*words, *room.names(variants), *room.options(grid), *more, "--out", room.out]

    return command


def _tests(room: Room) -> list[str] | str:
    lacking = [name for name in ("pytest", "triton") if find_spec(name) is None]
    lacking += [] if has_c_compiler() else ["a C compiler"]
    if lacking and not room.tiny:
        return f"the tests of our kernels need {' and '.join(lacking)}"
    several = ["-n", f"{SEVERAL}"] if find_spec("xdist") and not room.tiny else []
    plain = ("-o", "addopts=", "--import-mode=importlib", "-p", "no:cacheprovider")
    return [sys.executable, "-m", "pytest", "-m", "gpu", "-v", "-rs", *plain, *several, "tests/gpu"]


def _l2(room: Room) -> list[str] | str:
    if (ncu := shutil.which("ncu")) is None:
        return "ncu is not installed, so the L2 cache's traffic was not measured"
    ours = ["sdpa"] if room.tiny else with_and_without(OURS)[:4]
    words = [ncu, "--profile-from-start", "off", "--metrics", ",".join(METRICS)]
    return [*words, *_own("call", room.device, *ours)]


def _claim(room: Room) -> list[str] | str:
    """cuDNN's published rates on this card: ten points of each claim that has more."""
    from attnbench.features.claims import claim as claims

    machine, table = this_machine(), impls.table()
    fit = [
        each.name
        for each in claims.find([])
        if each.needs.gpu
        and "sdpa.cudnn" in each.needs.variants
        and claims.lacking(each, machine, table) is None
    ]
    if room.tiny:
        words = ["key-bias-cost", "--points", "1", "--budget", "1"]
    elif fit:
        words = [*fit, "--points", "10", "--budget", f"{max(5, 0.5 * room.seconds):.0f}"]
    else:
        return "no published rate of cuDNN can be tried on this GPU"
    return [*ATTNBENCH, "reproduce", *words, "--out", room.out]


def _apart(room: Room) -> list[str] | str:
    quick, again = room.run_of("quick"), room.run_of("again")
    if quick is None or again is None:
        return "it compares the steps quick and again, and one of them has no run yet"
    return [*ATTNBENCH, "compare", str(quick), str(again)]


def _cross(variant: str, lengths: str) -> Command:
    """Where a variant overtakes sdpa, or is overtaken by it."""
    window = variant.startswith("window")
    mask = {"mask": "window:1023,0" if window else "causal"}

    def command(room: Room) -> list[str]:
        on_cpu = "window.blocked" if window else "linear.elu"
        ends = {"seq": "64,128" if room.tiny else lengths}
        words = [on_cpu if room.tiny else variant, *_searched(room, FORWARD | mask, ends)]
        return [*ATTNBENCH, "crossover", "sdpa", *words]

    return command


def _limits(room: Room) -> list[str]:
    small = {"max-memory": "1MiB", "max-time": "1ms"} if room.tiny else {}
    words = [*room.names(TEN), *_searched(room, FORWARD, small)]
    return [*ATTNBENCH, "limits", *words]


def _searched(room: Room, grid: Words, more: Words) -> list[str]:
    """The words of a search: of its problem, and the seconds that there are."""
    seconds = 2.0 if room.tiny else max(10.0, room.seconds - CLOSING_S)
    whole = {**grid, **(TINY if room.tiny else {})}
    whole.pop("seq", None)
    whole |= {"budget": f"{seconds:.0f}", "device": room.device, "out": room.out, **more}
    return [word for name, value in whole.items() for word in (f"--{name}", value)]


def _selfcheck(room: Room) -> list[str]:
    return [*ATTNBENCH, "selfcheck", "--out", room.out]


def _own(*words: object) -> list[str]:
    return [sys.executable, str(ROOT / "proofs" / "visit_steps.py"), *map(str, words)]


def notes(machine: Machine) -> list[str]:
    """What may spoil a visit on this machine, or keep part of it from being measured."""
    lines = gpu_warnings(machine)
    for gpu in machine.gpus:
        if gpu.capability < 9:
            lines.append(
                f"{gpu.name} (compute capability {gpu.capability:g}) has no TMA: kernels that load "
                "through it are unsupported here, or load through pointers"
            )
        board = nvml.board(gpu.uuid)
        energy = board.energy_j() if isinstance(board, nvml.Board) else board
        if isinstance(energy, nvml.Absent):
            lines.append(f"no energy will be measured on {gpu.name}: {energy.reason}")
    return lines


def energies(results: Path) -> int:
    """Print what a token costs in each of the runs with energy, and how far they lie apart.

    Exit status 0 where all variants lie within the bound, 1 where one does not, 2 without figures.
    """
    from attnbench.core.store import each_run, read_records

    runs = [each_run([folder]) for folder in sorted(results.glob("energy-*"))]
    joules: dict[str, list[float]] = {}
    why = "no run with energy lies here"
    for record in (record for paths in runs if paths for record in read_records(paths[-1])):
        if record.energy is not None and record.energy.joules:
            tokens = record.problem.batch * record.problem.q_len
            joules.setdefault(record.variant, []).append(record.energy.joules / tokens)
        else:
            why = record.energy.why if record.energy else record.reason or why
    apart = {name: max(some) / min(some) - 1 for name, some in joules.items() if len(some) > 1}
    for name, some in joules.items():
        figures = "  ".join(f"{1e6 * each:9.4g}" for each in some)
        print(f"{name:18} {figures} µJ a token  {100 * apart.get(name, 0):5.1f} % apart")
    if not apart:
        print(f"energy: nothing to compare: {why if not joules else 'each was measured once'}")
        return 2
    widest, within = max(apart, key=lambda name: apart[name]), [x <= WITHIN for x in apart.values()]
    print(
        f"energy: {sum(within)} of {len(within)} variants within {100 * WITHIN:.0f} %; the widest "
        f"{100 * apart[widest]:.1f} % ({widest})"
    )
    return int(not all(within))


def one_call(device: str, variants: Sequence[str]) -> int:
    """A forward call of each variant, which a profiler is to see alone."""
    import torch

    from attnbench.gate.inputs import make
    from impls.loading import load_function
    from impls.masks import Mask
    from impls.problem import Problem

    n, wide, dtype = (64, 16, "float32") if device == "cpu" else (8192, 128, "bfloat16")
    shape = (4, 16, 16, n, n, wide, wide, dtype)
    problem = Problem(*shape, mask=Mask.parse("causal"), device=device)
    inputs = make(problem, 0)
    for name in variants:
        row = impls.table().find(name)
        if (why := row.supports(problem)) is not None:
            print(f"{name}: {why}")
            continue
        attend = load_function(row.build)(problem, **row.chosen)
        attend(*inputs.qkv)  # compiles
        if device != "cpu":
            torch.cuda.synchronize()
            torch.cuda.profiler.start()
            attend(*inputs.qkv)
            torch.cuda.synchronize()
            torch.cuda.profiler.stop()
    return 0


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    sys.exit(energies(Path(rest[0])) if what == "energies" else one_call(rest[0], rest[1:]))
