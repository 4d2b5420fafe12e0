"""How a run begins: a new folder with its header, or an old one to go on with."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import impls
from attnbench.machine import Machine, this_machine
from attnbench.measure.settings import Settings
from attnbench.paths import long, named
from attnbench.record import PROTOCOL
from attnbench.store import (
    RunFolder,
    StoreError,
    read_header,
    read_records,
    stored_floors,
    stored_selfcheck,
)
from attnbench.sweep.leg import changes, latest, taken_with
from attnbench.sweep.plan import Plan, make_plan
from attnbench.sweep.plausible import Known
from attnbench.sweep.presets import PRESETS, Preset, default_preset
from impls.asked import CantBeDone
from impls.masks import Mask
from impls.problem import InvalidProblem, Problem


class UnknownPreset(CantBeDone):
    """No preset has this name; a sentence."""


@dataclass
class Run:
    """A plan, the folder its records go to, and what that folder already holds."""

    plan: Plan
    folder: RunFolder
    done: Known
    settings: Settings


def find_preset(name: str | None, machine: Machine) -> Preset:
    """A preset by name; the default for what is there if no name is given."""
    name = name or default_preset(machine.devices)
    if name not in PRESETS:
        raise UnknownPreset(f"there is no preset {name!r}; the presets are {', '.join(PRESETS)}")
    return PRESETS[name]


def pinned(threads: int | None, machine: Machine) -> int:
    """How many threads a measurement takes; refuses more than there are cores."""
    if threads is not None and threads > machine.cores:
        raise InvalidProblem(
            f"--threads {threads} on {machine.cores} cores: threads would wait for each other; "
            f"start a run with {machine.cores} at the most"
        )
    return threads or machine.threads


def begin(names: Sequence[str], grid: Preset, tables: Sequence[str], out: Path, *, seed: int,
          threads: int | None, energy: bool = False, machine: Machine | None = None,
          command: str | None = None, problems: Sequence[Problem] = ()) -> Run:  # fmt: skip
    """A new run. Everything that can be refused is refused before the folder is made.

    ``machine``: where it is measured, if that is another than this. ``command``: what repeats it,
    where that is not how this process was called. ``problems``: in place of the grid's, which then
    only says in short what they are.
    """
    machine = machine or this_machine()
    settings = Settings(threads=pinned(threads, machine))
    grid, problems = _with_files_named(grid), [_with_file_named(problem) for problem in problems]
    plan = make_plan(impls.table(tables), names, grid, machine, problems)
    header = {
        "protocol": PROTOCOL, "seed": seed, "budget_s": grid.budget, "variants": list(names),
        "energy": energy, "noise": stored_floors(out, machine, settings.threads),
        "selfcheck": _told(stored_selfcheck(out, machine.name)),
        "grid": asdict(grid), "problems": [p.to_dict() for p in problems],
        "tables": [str(Path(t).resolve()) for t in tables], "settings": settings.to_dict(),
        **taken_with(plan, tables, machine),
        "folder": str(Path.cwd()) if _files(asdict(grid)) else "",
        "command": command or shlex.join(["attnbench", *sys.argv[1:]]),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }  # fmt: skip
    return Run(plan, RunFolder.create(out, machine.name, header), Known(), settings)


def resume(path: Path, machine: Machine | None = None, tables: Sequence[str] = (), *,
           anyway: bool = False) -> Run:  # fmt: skip
    """A run to go on with: the same grid, without the cells that have a record.

    ``tables``: the files of rows that the run was given, named again. A header alone makes no file
    run: the folder may come from somebody else. Where the code, a file or a version is not what it
    was, that is refused in a sentence, unless ``anyway``: then what is measured from here on is
    another leg of the run, and ranked apart.
    """
    header, machine = read_header(path), machine or this_machine()
    try:
        if header["protocol"] != PROTOCOL:
            raise StoreError(
                f"{path} was measured with protocol {header['protocol']} and this attnbench has "
                f"{PROTOCOL}: numbers of unlike protocols can't share a run; start a new one"
            )
        if header["machine"]["name"] != machine.name:
            raise StoreError(
                f"{path} was measured on {header['machine']['name']}, and this is {machine.name}; "
                "start a new run"
            )
        grid = Preset.from_dict(header["grid"])
        for needed in ("seed", "budget_s"):
            header[needed]
        if not isinstance(header.get("noise") or [], list):
            raise TypeError(f"noise is {str(header['noise'])[:50]!r}")
        _same_folder(header)
        _named_again(path, header["tables"], tables)
        table = impls.table(tables)
        given = [Problem.from_dict(values) for values in header.get("problems", ())]
        plan = make_plan(table, header["variants"], grid, machine, given)
        settings = Settings(**{k: v for k, v in header["settings"].items() if k != "environment"})
        pinned(settings.threads, machine)
        now = taken_with(plan, tables, machine)
        changed = changes(latest(header), now)
    except (KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"the header of {path} is damaged ({error}); start a new run") from None
    if changed and (done := Known(read_records(path))) and all(c.key in done for c in plan.cells):
        changed = []  # nothing is left to be measured, so nothing is mixed
    if changed and not anyway:
        raise StoreError(
            f"{path} can't go on as it began: {'; '.join(changed)}. Put that back, start a new "
            "run, or add --anyway, which measures the rest as another leg of this run, ranked apart"
        )
    folder = RunFolder.reopen(path)
    if changed:
        _begin_leg(folder, now, changed)
    return Run(plan, folder, Known(read_records(path)), settings)


def _named_again(path: Path, before: Sequence[str], tables: Sequence[str]) -> None:
    """Raise unless the files of rows that a run was given are those that are named now."""
    if sorted(Path(table).name for table in before) == sorted(Path(table).name for table in tables):
        return
    files = shlex.join(word for table in before for word in ("--table", table))
    raise StoreError(
        f"{path} has rows of {', '.join(before)}, whose code a resumed run executes: if you trust "
        f"it, go on with {files}"
        if before
        else f"{path} was measured without --table; leave it out"
    )


def _begin_leg(folder: RunFolder, now: dict[str, Any], changed: list[str]) -> None:
    """Write down that records from here on are taken with other code, files or versions."""
    leg = {**now, "changes": changed, "command": shlex.join(["attnbench", *sys.argv[1:]]),
           "started": datetime.now(UTC).isoformat(timespec="seconds")}  # fmt: skip
    folder.header.setdefault("legs", []).append(leg)
    folder.save_header()


def _with_files_named(grid: Preset) -> Preset:
    """The grid, with its masks' and inputs' files as :func:`named` spells them."""
    return replace(
        grid, mask=tuple(str(_mask_named(Mask.parse(text))) for text in grid.mask),
        inputs=tuple(map(_inputs_named, grid.inputs)),
        parts=tuple(map(_with_files_named, grid.parts)),
    )  # fmt: skip


def _with_file_named(problem: Problem) -> Problem:
    return problem.with_(mask=_mask_named(problem.mask), inputs=_inputs_named(problem.inputs))


def _mask_named(mask: Mask) -> Mask:
    parts = (replace(part, file=named(part.file)) if part.file else part for part in mask.parts)
    return replace(mask, parts=tuple(parts))


def _inputs_named(inputs: str) -> str:
    kind, colon, file = inputs.partition(":")
    return f"{kind}:{named(file)}" if colon else inputs


def _told(selfcheck: dict[str, Any] | None) -> dict[str, Any] | None:
    """Of the ruler's self-check on that machine, what a reader of the run asks for."""
    return selfcheck and {k: selfcheck.get(k) for k in ("line", "date")}


def _files(grid: dict[str, Any]) -> list[str]:
    """What a grid reads: masks and inputs that are files."""
    each = grid.get("parts") or [grid]
    masks = [x for one in each for x in one["mask"] if "dense:" in x or "bias:" in x]
    return masks + [x for one in each for x in one["inputs"] if x.startswith("captured:")]


def _same_folder(header: dict[str, Any]) -> None:
    """Refuse to look for a mask's or an input's file in another folder than the run did."""
    files = _files(header["grid"])
    if files and long(header["folder"]) != Path.cwd():
        raise StoreError(f"the run reads {files[0]}: resume it from {header['folder']}")
