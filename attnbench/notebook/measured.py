"""``attnbench.run(…)``: a grid measured, and its records as a DataFrame."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench import given
from attnbench.notebook.asked import BadWord, changes, command, held, read, several
from attnbench.notebook.frames import load
from attnbench.notebook.progress import OneLine
from attnbench.sweep.plan import grid_of
from attnbench.sweep.run import Interrupt, Stopped, sweep

if TYPE_CHECKING:
    import pandas as pd

    from attnbench.models.calls import Calls
    from attnbench.sweep.slots import Places
    from attnbench.sweep.start import Run
    from impls.problem import Problem

Words = str | Iterable[str] | None
Numbers = int | Iterable[int] | str | None
Lengths = int | str | Iterable[int | str] | None


def run(
    variants: str | Iterable[str] = (), *, preset: str | None = None, seq: Lengths = None,
    batch: Numbers = None, heads: Numbers = None, kv_heads: Numbers = None,
    head_dim: Numbers = None, v_head_dim: Numbers = None, dtype: Any = None, mask: Words = None,
    phase: Words = None, inputs: Words = None, level: Words = None, device: str | None = None,
    devices: Words = None, world: int | None = None, budget: float | None = None,
    tables: str | Path | Iterable[str | Path] = (), threads: int | None = None,
    seed: int | None = None, energy: bool = False, out: str | Path = "results",
    problems: str | Path | Calls | None = None, resume: str | Path | None = None,
    quiet: bool = False,
) -> pd.DataFrame:  # fmt: skip
    """Measure every combination of what is given, and return the records, a row each.

    ``variants``: names as ``attnbench list`` has them, all of the table if none. The grid is that
    of ``preset``, or of the device's default, with what is given in place of its own: one value or
    several, ``seq=[256, "1x4096"]``, ``mask=["causal", "window:255,0"]``. ``tables``: Python files
    with rows of your own. ``devices``: several GPUs, measured on side by side. ``budget``: seconds
    of sampling a cell. ``problems``: in place of a grid, what ``attnbench.capture`` gave, or its
    file. ``resume``: the folder of a run to go on with; then nothing else is given.

    Ctrl-C lets a cell end and raises ``KeyboardInterrupt``; what was measured is kept. The folder
    of the run is ``df.attrs["run"]``. What was not measured has a row too, with its ``reason``.

    >>> df = attnbench.run(["sdpa", "matmul"], seq=[256, 512], phase="forward")  # doctest: +SKIP
    >>> df[["variant", "problem.q_len", "time.median_s"]]                        # doctest: +SKIP
    """
    asked = {
        "seq": seq, "batch": batch, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim,
        "v_head_dim": v_head_dim, "dtype": dtype, "mask": mask, "phase": phase, "inputs": inputs,
        "level": level, "device": device, "world": world, "budget": budget,
    }  # fmt: skip
    more = {"preset": preset, "problems": problems, "seed": seed, "threads": threads,
            "energy": energy}  # fmt: skip
    asked = {name: held(value) for name, value in asked.items()}
    names, files, where = (
        several(name, found) if (found := held(value)) else ()
        for name, value in (("variants", variants), ("tables", tables), ("devices", devices))
    )
    places, line = _places(where), OneLine(quiet=quiet)
    if resume is not None:
        if names or files or any(x not in (None, False) for x in (asked | more).values()):
            raise BadWord("resume takes the grid of the run it names; leave the rest out")
        begun = _resumed(Path(resume), places)
    else:
        begun = _begun(names, asked, more | {"devices": where}, files, Path(out), places, line)
    with closing(begun.folder):
        _measure(begun, places, line)
    line.end(begun.folder.path)
    return load(begun.folder.path)


def _places(devices: Sequence[str]) -> Places:
    from attnbench.sweep.local import Local

    return Local(read("devices", given.words, devices) if devices else ())


def _resumed(path: Path, places: Places) -> Run:
    from attnbench.sweep import start

    return start.resume(path, places.machine)


def _begun(names: Sequence[str], asked: dict[str, Any], more: dict[str, Any],
           files: Sequence[str], out: Path, places: Places, line: OneLine) -> Run:  # fmt: skip
    from attnbench.sweep import start

    changed = changes(asked)
    problems = _captured(more, changed, line)
    if problems:
        grid = grid_of(problems, "the problems of a program").with_(budget=changed.get("budget"))
    else:
        changed |= {"device": places.kind} if places.kind is not None else {}
        grid = start.find_preset(more["preset"], places.machine).with_(**changed)
    numbers = {
        name: read(name, parse, more[name]) if more[name] is not None else None
        for name, parse in (("seed", given.seed), ("threads", given.count))
    }
    return start.begin(
        names, grid, files, out, seed=numbers["seed"] or 0, threads=numbers["threads"],
        energy=more["energy"], machine=places.machine, problems=problems,
        command=command(names, asked | more, files),
    )  # fmt: skip


def _captured(more: Mapping[str, Any], changed: Mapping[str, Any],
              line: OneLine) -> list[Problem]:  # fmt: skip
    """The problems of a program; none where a grid is asked for."""
    calls = more["problems"]
    if calls is None:
        return []
    from attnbench.models.calls import Calls

    beside = [name for name in changed if name != "budget"]
    beside += ["preset"] if more["preset"] else []
    if beside:
        raise BadWord(f"problems says which problems; leave out {', '.join(beside)}")
    calls = calls if isinstance(calls, Calls) else Calls.read(Path(calls))
    if not (found := calls.problems()):
        raise BadWord("problems holds no call that can be put as a problem")
    if not calls.complete:
        line.tell(f"note: the calls are not complete; {' '.join(calls.unseen)}")
    return found


def _measure(begun: Run, places: Places, line: OneLine) -> None:
    plan, folder = begun.plan, begun.folder
    line.tell(plan.sentence())
    for note in filter(None, (places.note, folder.set_aside, *plan.warnings())):
        line.tell(note)
    device = next((cell.problem.device for cell in plan.to_run), "cpu")
    try:
        with places.slots(begun.settings, device) as slots:
            sweep(plan, begun.done, folder, slots, line, interrupt(line))
    except (Stopped, KeyboardInterrupt):
        line.close()
        raise KeyboardInterrupt(
            f"stopped; what was measured is kept: attnbench.load({str(folder.path)!r}) reads it, "
            f"attnbench.run(resume={str(folder.path)!r}) goes on"
        ) from None


def interrupt(line: OneLine) -> Interrupt:
    """Ctrl-C is heard in the main thread alone; in another nobody listens."""
    main = threading.current_thread() is threading.main_thread()
    return Interrupt(line.tell) if main else _Deaf(line.tell)


class _Deaf(Interrupt):
    """One that can't be asked."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Nothing is caught."""
        yield
