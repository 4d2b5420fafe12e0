"""What a sweep will do, known before it starts: cells, what is left out and why, and how long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from msgspec import structs

from attnbench.core import gpu as nvml
from attnbench.core.format import counted, first_few, key_values, roughly
from attnbench.core.machine import Gpu, Machine, gpu_warnings, pace, why_not
from attnbench.core.record import Record, Status, cell_key
from attnbench.core.tuned import TunedOptions
from attnbench.sweep.presets import Preset
from impls import Table
from impls.loading import load_function
from impls.masks import Mask
from impls.operators import PARAMETERS
from impls.problem import SHORT, InvalidProblem, Problem
from impls.spec import Variant


def spread(variants: Sequence[Variant], world: int, device: str, machine: Machine) -> list[Variant]:
    """The variants, those that run over several processes over ``world`` of them unless they were
    asked for with a number of their own; raises InvalidProblem where there are none, or the
    machine has too few devices.
    """
    if world > 1 and not any(row.ranks for row in variants):
        raise InvalidProblem(
            f"--world {world} says nothing of {first_few([row.label for row in variants], 3)}: "
            "each runs in one process; leave it out, or name one that runs over several, like ring"
        )
    there, what = (machine.cores, "core") if device == "cpu" else (max(len(machine.gpus), 1), "GPU")
    rows = []
    for row in variants:
        if row.ranks and row.world == 1:
            row = row.with_options({"world": str(world)})
        if row.world > there:
            remedy = f"use --world {there} at the most" if there > 1 else "leave it out"
            raise InvalidProblem(
                f"{row.label} needs a {what} for each of its {row.world} processes, and this "
                f"machine has {there}: {remedy}"
            )
        rows.append(row)
    return rows


def shared_out(grid: Preset) -> Preset:
    """A grid whose lengths can be dealt out: of a preset's odd ones the next that two pieces for
    each process divide.
    """
    if grid.world == 1:
        return grid
    pieces = 2 * grid.world
    if grid.parts:
        return structs.replace(grid, parts=tuple(map(shared_out, grid.products)))
    return grid.with_(seq=tuple(str(-(-int(n) // pieces) * pieces) for n in grid.seq))


CALLS = 30
"""That a cell makes of its whole problem: in the gate, in the meters, and seven samples."""
REASONS = 3
"""Why measurements are left out is said of so few reasons."""
DIGITS = 12
"""A length has fewer."""
CPU_FLOPS, GPU_FLOPS = 1.2e11, 1e14
"""Guesses at attention's speed, of all rows together: of a thread where :func:`pace` is 1, and of
one kernel on a GPU."""
TWO_BYTES = 4
"""How many times as fast a GPU works on numbers of two bytes: a guess too."""
SEVERAL_KERNELS = 20
"""How many times as long a GPU takes for as much work in PyTorch's operators, one after another."""
STARTING_S = {"cpu": 0.25, "cuda": 0.45}
CEILINGS_S = 5.0
"""The worker's start, and the ceilings."""
COMPILING_S = {"cpu": {"c++": 4.0}, "cuda": {"c++": 8.0, "fla-core": 12.0, "triton": 2.0}}
"""A cell, by its device and what is required: torch.compile's, kernels in Triton, and fla's, which
are tuned for 40 s at their first call and not at every length.
"""
LAST_S = 8.0
"""What takes as long as this to compile comes last: it takes as long as many others."""
UNTIMED = {"plain": 0.24, "compiled": 0.75}
"""The share of these that a cell takes that is not timed."""


def ceilings_s() -> float:
    """A guess at the seconds of the worker's start and the ceilings here."""
    return CEILINGS_S * pace()


@dataclass(frozen=True)
class Cell:
    """A variant on a problem; ``left_out`` is the record of one that can't be run."""

    variant: Variant
    problem: Problem
    left_out: Record | None
    guess_s: float

    @property
    def key(self) -> str:
        """As in its record."""
        return cell_key(self.variant.label, self.problem)


@dataclass(frozen=True)
class Plan:
    """All the cells, the variants of one problem side by side."""

    cells: list[Cell]

    @property
    def to_run(self) -> list[Cell]:
        """The cells that a worker will see."""
        return [c for c in self.cells if c.left_out is None]

    def sentence(self, about_s: float) -> str:
        """One line: how many cells, how many are left out and why, and about how long."""
        runs, left = self.to_run, [c.left_out for c in self.cells if c.left_out is not None]
        variants, problems = len({c.variant.label for c in runs}), len({c.problem for c in runs})
        text = f"{counted(len(runs), 'measurement')}: {counted(variants, 'variant')} on "
        text += counted(problems, "problem")
        if left:
            why = Counter(record.reason for record in left)
            reasons = "; ".join(f"{n} × {reason}" for reason, n in why.most_common())
            reasons = reasons if len(why) <= REASONS else "'attnbench list --why' says why"
            text += f"; {len(left)} left out ({reasons})"
        return f"{text}; about {roughly(about_s)}"

    def warnings(self) -> Iterator[str]:
        """What may not be meant: rows that no key is visible to."""
        for problem in dict.fromkeys(c.problem for c in self.to_run):
            blind = problem.mask.blind_rows(problem.shape)
            if blind.any():
                share = f"{int(blind.sum())} of {blind.size} rows"
                yield f"note: {share} of {problem} see no key under {problem.mask}, and give zeros"
        yield from self.tuned_notes()

    def tuned_notes(self) -> Iterator[str]:
        """Which variants run with tuned options, and on how many problems."""
        for label, by_options in self.tuned.items():
            each = [
                f"{words} on {counted(len(some), 'problem')}" for words, some in by_options.items()
            ]
            yield f"note: {label} is tuned on this machine: {'; '.join(each)}"

    @property
    def tuned(self) -> dict[str, dict[str, list[str]]]:
        """By variant, the options tuned for it, with the problems on which it runs with each."""
        tuned = dict[str, dict[str, list[str]]]()
        for cell in self.to_run:
            if cell.variant.tuned:
                by_options = tuned.setdefault(cell.variant.label, {})
                by_options.setdefault(key_values(cell.variant.tuned), []).append(str(cell.problem))
        return tuned


LONG = {short: full for full, short in SHORT.items()} | {"fp32": "float32", "fp16": "float16"}


def problems(grid: Preset, levels: Sequence[str] = ("core",)) -> Iterator[Problem]:
    """Every problem of a grid; raises CantBeDone for one that can't exist."""
    for each in grid.products:
        for level, phase, mask, seq in product(levels, each.phase, each.mask, each.seq):
            parsed = Mask.parse(mask)
            q_len, kv_len = _lengths(seq, phase)
            axes = (each.batches(kv_len), each.heads, each.head_dim, each.dtype, each.inputs)
            for batch, heads, width, dtype, inputs in product(*axes):
                for kv_heads, v_width, settings in product(
                    each.kv_heads or (heads,), each.v_head_dim or (width,), each.settings()
                ):
                    yield Problem(
                        batch=batch,
                        heads=heads,
                        kv_heads=kv_heads,
                        q_len=q_len,
                        kv_len=kv_len,
                        head_dim=width,
                        v_head_dim=v_width,
                        dtype=LONG.get(dtype, dtype),
                        mask=parsed,
                        phase=phase,
                        inputs=inputs,
                        level=level,
                        device=each.device,
                        **settings,
                    )


def _lengths(seq: str, phase: str) -> tuple[int, int]:
    """``N`` is as many queries as keys, but one query in ``decode``; ``QxK`` says both."""
    words = seq.lower().split("x")
    if len(words) > 2 or not all(w.isascii() and w.isdigit() and len(w) < DIGITS for w in words):
        raise InvalidProblem(f"--seq {seq[:50]!r} is neither a length N nor QxK (queries x keys)")
    if len(words) == 2:
        return int(words[0]), int(words[1])
    return (1 if phase == "decode" else int(seq)), int(seq)


def _check_captured(problem: Problem) -> None:
    """Raise a sentence where captured inputs don't fit the problem."""
    kind, _, name = problem.inputs.partition(":")
    if kind != "captured":
        return
    import numpy as np

    file = Path(name).expanduser()
    b, d = problem.batch, problem.head_dim
    keys = (b, problem.kv_heads, problem.kv_len)
    shapes = {"q": (b, problem.heads, problem.q_len, d), "k": (*keys, d)}
    if not problem.v_in_k:
        shapes["v"] = (*keys, problem.v_head_dim)
    try:
        if file.exists() and not file.is_file():
            raise OSError("it is no file")
        with file.open("rb") as opened, np.load(opened) as arrays:
            parts = {part: arrays[part] for part in shapes}
    except Exception as error:  # cut off, or nothing of the kind
        raise InvalidProblem(
            f"captured inputs {file} can't be read as an .npz of q, k and v: {error}"
        ) from None
    for part, array in parts.items():
        if array.dtype.kind not in "fiu":
            raise InvalidProblem(f"{file}: {part} is of {array.dtype}, no numbers")
        if array.shape != shapes[part]:
            raise InvalidProblem(
                f"{file}: {part} has the shape {array.shape}, and the problem {problem} needs "
                f"{shapes[part]}; set --seq, --heads, --head-dim to fit the file"
            )
        if not np.isfinite(array.astype(np.float64)).all():
            raise InvalidProblem(
                f"{file}: {part} holds numbers that are not finite; nothing can be said"
            )


def here(device: str, machine: Machine) -> Gpu | None:
    """Raise InvalidProblem where the machine has no such device; the GPU that it is, if known.

    ``cuda`` alone may be any of them; a number has to be one of those that CUDA shows.
    """
    kind, _, number = device.partition(":")
    if kind in machine.devices:
        uuid = nvml.uuid_of(device) if kind != "cpu" else ""
        match = next((gpu for gpu in machine.gpus if gpu.uuid == uuid), None)
        if number and match is None:
            why = f": {uuid.reason}" if isinstance(uuid, nvml.Absent) else ""
            raise InvalidProblem(f"no device {device} found{why}")
        return match
    why = f" ({'; '.join(gpu_warnings(machine))})" if kind == "cuda" else ""
    but = ", where a GPU's preset would take hours" if kind == "cuda" else ""
    raise InvalidProblem(
        f"no {kind.upper()} device found: use --device {machine.devices[-1]}{but}{why}"
    )


AXES = ("batch", "heads", "kv_heads", "head_dim", "v_head_dim", "dtype", "phase", "inputs", "level")
"""Those that a grid and a problem have by the same name and as the same values."""


def grid_of(problems: Sequence[Problem], title: str) -> Preset:
    """The values that some problems have, axis by axis: what a run says of them in short."""
    axes: dict[str, Any] = {
        name: tuple(dict.fromkeys(getattr(p, name) for p in problems)) for name in AXES
    }
    seq = [str(p.q_len) if p.q_len == p.kv_len else f"{p.q_len}x{p.kv_len}" for p in problems]
    axes["seq"], axes["mask"] = (
        tuple(dict.fromkeys(each)) for each in (seq, [str(p.mask) for p in problems])
    )
    parameters = {
        name: tuple(dict.fromkeys(p.parameters.get(name) for p in problems))
        for name in PARAMETERS
        if any(name in p.parameters for p in problems)
    }
    return Preset(title, device=problems[0].device, parameters=parameters, **axes)


def make_plan(
    table: Table,
    names: Sequence[str],
    grid: Preset,
    machine: Machine,
    chosen_problems: Sequence[Problem] = (),
    *,
    tuned: bool = False,
) -> Plan:
    """The cells of some variants (all, if none is named) over a grid, or over problems given;
    ``tuned``: with the options that were tuned on the machine.

    Raises CantBeDone for no such variant, and for problems that can't be, or not on the machine.
    """
    options = TunedOptions(machine) if tuned else None
    if chosen_problems or not grid.parts:
        return Plan(list(_cells(table, names, grid, machine, chosen_problems, options)))
    side_by_side: dict[Problem, dict[str, Cell]] = {}
    for part in grid.products:
        for cell in _cells(table, names, part, machine, (), options):
            side_by_side.setdefault(cell.problem, {}).setdefault(cell.key, cell)
    cells = [cell for cells in side_by_side.values() for cell in cells.values()]
    if not cells:
        wanted = ", ".join(dict.fromkeys(part.operator for part in grid.products))
        raise InvalidProblem(
            f"the layers compute {wanted}, and none of {', '.join(names)} does: name others, or "
            "none"
        )
    return Plan(
        sorted(
            cells,
            key=lambda c: c.problem.device != "cpu" and compiling_s(c.variant, "cuda") >= LAST_S,
        )
    )


def _cells(
    table: Table,
    names: Sequence[str],
    grid: Preset,
    machine: Machine,
    chosen_problems: Sequence[Problem],
    tuned: TunedOptions | None,
) -> Iterator[Cell]:
    variants = [table.find(name) for name in names or grid.variants or table.rows]
    variants = [v for v in variants if grid.operator in ("", v.operator)]
    variants = spread(variants, grid.world, grid.device, machine)
    levels = grid.level or ("core",)
    if (names or grid.variants) and not grid.level:
        levels = tuple(dict.fromkeys(v.level for v in variants))
    each_problem = list(dict.fromkeys(chosen_problems or problems(grid, levels)))
    if not each_problem:
        raise InvalidProblem("the grid is empty: give at least one value for each of its axes")
    for problem in each_problem:
        _check_captured(problem)
    for device in dict.fromkeys(p.device for p in each_problem):
        here(device, machine)
    variants = list({v.label: v for v in variants}.values())
    if not names:  # a run that is stopped has what is likeliest to be advised
        variants.sort(key=lambda row: row.origin != "torch")
    lost = {v.level for v in variants} - set(levels) if names else set()  # named in vain: say so
    for problem in each_problem:
        for variant in variants:
            if variant.level == problem.level or variant.level in lost:
                row = tuned.applied(variant, problem) if tuned else variant
                yield _cell(row, problem, grid, machine)


def _cell(variant: Variant, problem: Problem, grid: Preset, machine: Machine) -> Cell:
    if (missing := why_not(variant, machine)) is not None:
        more = {"remedy": missing.remedy}
        left = Record.of(variant, problem, Status.UNAVAILABLE, missing.reason, **more)
        return Cell(variant, problem, left, 0.0)
    if (refusal := variant.supports(problem)) is not None:
        left = Record.of(variant, problem, Status.UNSUPPORTED, refusal)
        return Cell(variant, problem, left, 0.0)
    guess = checks_s(variant, problem, machine, timed=grid.budget > 0) + 1.4 * grid.budget
    return Cell(variant, problem, None, guess)


def call_s(problem: Problem, machine: Machine) -> float:
    """A guess at the seconds of a call: the work of dense attention at this machine's speed."""
    if problem.device == "cpu":
        rate = CPU_FLOPS * machine.threads / pace()
    else:
        rate = GPU_FLOPS * (TWO_BYTES if problem.dtype in ("bfloat16", "float16") else 1)
    return _dense_work(problem) / rate


def _dense_work(problem: Problem) -> float:
    pairs = problem.batch * problem.heads * problem.q_len * problem.kv_len
    each = problem.head_dim + problem.v_head_dim
    return 2.0 * pairs * each * (3 if problem.gradients else 1)


def compiling_s(variant: Variant, kind: str) -> float:
    """A guess at the seconds that compiling takes in a cell, on this kind of device."""
    seconds = [s for what, s in COMPILING_S[kind].items() if _requires(variant, what)]
    return max(seconds, default=0.0)


def _requires(variant: Variant, what: str) -> bool:
    return any(r.startswith(what) for r in variant.requires)


def checks_s(variant: Variant, problem: Problem, machine: Machine, *, timed: bool = True) -> float:
    """A guess at the seconds of a cell besides its samples: it is built and passes the gate, and
    if it is ``timed`` is looked at in other ways.
    """
    kind = problem.device.split(":")[0]
    once, untimed = compiling_s(variant, kind), UNTIMED["compiled"]
    if not once:
        once, untimed = STARTING_S[kind], UNTIMED["plain"]
    seconds = call_s(problem, machine)
    if kind == "cuda" and variant.origin == "attnbench" and not _requires(variant, "triton"):
        seconds *= SEVERAL_KERNELS
        if variant.cost is not None:
            cost = load_function(variant.cost)(problem, **variant.chosen)
            seconds *= min(1.0, cost.flops / _dense_work(problem))
    once *= pace() if kind == "cpu" else 1.0
    return once * (1.0 if timed else untimed) + CALLS * seconds
