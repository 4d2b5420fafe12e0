"""A visit to a GPU in calls of nine minutes: ``python3 proofs/gpu_visit.py --out DIR [--call N]``.

1: the machine, our kernels and their tests. 2: the preset h200-quick, cuDNN's published rates, and
h200 begun. 3: its rest, a million tokens, decoding. 4, on another machine: h200-quick again,
energy, crossovers, limits, the self-check. A call that ends early goes on with the next one's
steps. DIR holds at most eight files, is whole after every step, and is all that the next call
needs, here or on another machine.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from textwrap import shorten
from time import monotonic
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

if TYPE_CHECKING:  # they need packages that may have to be installed first
    from proofs.visit_steps import Step

SUMMARY, LOG, RESULTS, CACHES = "summary.json", "log.txt", "results.tar.gz", "caches.tar.gz"
PIECE_BYTES, MOST_PIECES = 15 << 20, 3
"""Of an archive: what comes back from a machine is often limited file by file."""
LOG_BYTES, STEP_LOG_BYTES = 12 << 20, 1 << 20
PACKING_S = 15.0
"""At the end, for a step's grace and for writing everything down."""
KEEP_EVERY_S, GRACE_S = 60.0, 8.0
"""How often a long step's results are kept; the time that it has after Ctrl-C."""
INTERRUPTED = 130

Result = tuple[int | None, str]
"""A step's exit status, None where its time was over, and its output."""
Runner = Callable[[Sequence[str], float, Callable[[], None]], Result]


class NoVisit(Exception):
    """The folder can't hold a visit, or holds another one; a sentence."""


class Stopped(KeyboardInterrupt):
    """Somebody ended the visit in a step, whose output until then is ``output``."""

    def __init__(self, output: str) -> None:
        super().__init__()
        self.output = output


class VisitFolder:
    """The folder that a visit leaves, and the results and caches that grow beside it."""

    def __init__(self, folder: Path, room: Path, device: str, before: Path | None = None) -> None:
        """``before``: the folder of an earlier call, if it is another one."""
        self.folder, self.device = folder, device
        self.results, self.cache, self.brought = (room / n for n in ("results", "cache", "brought"))
        self.steps: dict[str, dict[str, Any]] = {}
        self.notes: list[str] = []
        self._log, self._cached = b"", 0
        source = before or folder
        for new in (self.results, self.cache, self.brought):
            new.mkdir(parents=True, exist_ok=True)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if (source / SUMMARY).is_file():
                self._read(source)
            elif before is not None:
                raise NoVisit(f"{before} holds no visit to go on with: it has no {SUMMARY}")
            elif others := sorted(p.name for p in folder.iterdir() if not p.name.startswith(".")):
                raise NoVisit(f"{folder} holds other files ({others[0]}); choose another folder")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise NoVisit(f"{source} holds a damaged visit ({error}); choose another") from None
        except OSError as error:
            raise NoVisit(f"{folder} can't hold a visit: {error.strerror}") from None

    def _read(self, source: Path) -> None:
        summary = json.loads((source / SUMMARY).read_text())
        if summary["device"] != self.device:
            raise NoVisit(
                f"{source} holds a visit with --device {summary['device']}, and this one has "
                f"{self.device}; choose another folder"
            )
        for name, one in summary["steps"].items():
            self.steps[name] = {**one, "status": one["status"], "seconds": float(one["seconds"])}
        if (source / LOG).exists():
            self._log = (source / LOG).read_bytes()
        unpack(source, RESULTS, self.results)
        unpack(source, CACHES, self.brought)

    def tell(self, step: str, output: str) -> None:
        """Add what a step printed to the log; of much the end."""
        text = output.encode(errors="replace")[-STEP_LOG_BYTES:]
        self._log = (self._log + f"\n==== {step}\n".encode() + text)[-LOG_BYTES:]

    def write(self) -> None:
        """All of it, as it is now; raises NoVisit where there is no room for it."""
        summary = {"device": self.device, "steps": self.steps, "notes": self.notes}
        try:
            self._put(LOG, self._log)
            summary["left_out"] = self._put_archive(RESULTS, self.results)
            if (count := sum(1 for _ in self.cache.rglob("*"))) != self._cached:
                summary["left_out"] += self._put_archive(CACHES, self.cache)
                self._cached = count
            self._put(SUMMARY, json.dumps(summary, indent=1).encode())
        except OSError as error:
            raise NoVisit(f"{self.folder} can't hold a visit: {error.strerror}") from None

    def _put(self, name: str, data: bytes) -> None:
        new = self.folder / f".{name}"
        new.write_bytes(data)
        new.replace(self.folder / name)

    def _put_archive(self, name: str, source: Path) -> list[str]:
        """In pieces; of more than may be kept nothing, and a sentence. A page isn't kept, since it
        can be rendered again.
        """
        command = ["tar", "-cz", "--exclude=report", "-C", str(source), "."]
        data = subprocess.run(command, capture_output=True).stdout  # though a file is written to
        pieces = [data[i : i + PIECE_BYTES] for i in range(0, len(data), PIECE_BYTES)]
        most = MOST_PIECES * PIECE_BYTES
        parts = pieces if len(data) <= most else []
        names = [f"{name}.{number}" if number else name for number in range(len(parts))]
        for each, piece in zip(names, parts, strict=True):
            self._put(each, piece)
        for old in set(self.folder.glob(f"{name}*")) - {self.folder / each for each in names}:
            old.unlink()
        too_large = f"{name} has {len(data):,} bytes, more than {most:,}, and is not kept"
        return [] if parts else [too_large]


def unpack(folder: Path, name: str, target: Path) -> None:
    """An archive's pieces, if there are any; raises ValueError where they are damaged."""
    if pieces := sorted(folder.glob(f"{name}*")):
        data = b"".join(piece.read_bytes() for piece in pieces)
        done = subprocess.run(["tar", "-xz", "-C", str(target)], input=data, capture_output=True)
        if done.returncode:
            raise ValueError(f"its {name} can't be unpacked: {done.stderr.decode().strip()}")


def install(wheels: Path, target: Path) -> list[str]:
    """Install wheels into a folder, which asks no network; a sentence on each that is left out."""
    files = sorted(wheels.glob("*.whl"))
    notes = [] if files else [f"{wheels} holds no wheels"]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    pip += ["--disable-pip-version-check", "--upgrade", "--target", str(target)]
    for wheel in files:
        done = subprocess.run([*pip, str(wheel)], capture_output=True, text=True)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.strip()] or ["pip failed"]
            errors = [line for line in lines if line.startswith("ERROR")] or lines
            notes.append(f"{wheel.name} is left out: {errors[0].removeprefix('ERROR: ')}")
    return notes


def fill_cache(source: Path, cache: Path) -> list[str]:
    """Copy Triton's cache, which holds fla's tuning too, if the Triton here has made it."""
    try:
        here = version("triton")
    except PackageNotFoundError:
        return ["Triton is not installed here, so its cache is left alone"]
    makers = set()
    for file in source.glob("*/*.json"):
        with suppress(ValueError, AttributeError):
            makers.add(json.loads(file.read_text()).get("triton_version"))
    if others := sorted(makers - {None, here}):
        return [f"{source} was made by Triton {others[0]}, and this is {here}: it is left alone"]
    if not makers:
        return [f"{source} holds no cache of Triton's"]
    shutil.copytree(source, cache, dirs_exist_ok=True)
    return []


def run_command(command: Sequence[str], limit_s: float, keep: Callable[[], None]) -> Result:
    """Run a command in a group of its own for so long at most; call ``keep`` now and then."""
    env = {**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "200"}  # a line that counts is whole
    with tempfile.TemporaryFile() as output:
        files = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(command, cwd=ROOT, env=env, start_new_session=True, **files)
        end, status, stopped = monotonic() + limit_s, None, False
        try:
            while (status := _waited(process, min(KEEP_EVERY_S, end - monotonic()))) is None:
                if monotonic() >= end:
                    break
                keep()
        except KeyboardInterrupt:
            stopped = True
        finally:
            _end(process)
        output.seek(0)
        text = output.read().decode(errors="replace")
    if stopped:
        raise Stopped(text)
    return status, text


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let it keep what it has, then kill its whole group."""
    try:
        if process.poll() is None:
            process.terminate()  # attnbench takes it as Ctrl-C, which background jobs may ignore
            _waited(process, GRACE_S)
    finally:  # though Ctrl-C comes a second time
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _waited(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    with suppress(subprocess.TimeoutExpired):
        return process.wait(max(0.0, seconds))
    return None


def visit(
    todo: Sequence[Step],
    folder: VisitFolder,
    seconds: float,
    run: Runner = run_command,
    now: Callable[[], float] = monotonic,
) -> None:
    """Run step after step until the time is over."""
    from proofs.visit_steps import Room

    def note(step: Step, status: str, seconds: float, line: str) -> None:
        folder.steps[step.name] = {"status": status, "seconds": round(seconds, 1), "line": line}
        folder.write()

    end = now() + seconds - PACKING_S
    folder.write()
    for step in todo:
        left = min(step.limit_s, end - now())
        before = folder.steps.get(step.name)
        if left < step.least_s:
            if before is None:
                note(step, "not begun", 0.0, "no time was left for it")
            continue
        room = Room(folder.device, folder.results, step.name, left)
        command = step.command(room)
        if isinstance(command, str):
            note(step, "left out", 0.0, command)
            continue
        start = now() - (before or {}).get("seconds", 0.0)
        note(step, "cut off", 0.0, "the visit ended in the middle of it")
        print(f"{step.name}: {left:.0f} s at most …", file=sys.stderr, flush=True)
        try:
            status, output = run(command, left, folder.write)
            if status == 2 and "--resume" in command and "start a new" in output:
                folder.tell(step.name, output)
                status, output = run(step.command(replace(room, anew=True)), left, folder.write)
        except Stopped as stopped:
            folder.tell(step.name, stopped.output)
            note(step, "cut off", now() - start, "the visit was stopped in the middle of it")
            raise
        folder.tell(step.name, output)
        word, line = step.outcome(status, output)
        note(step, word, now() - start, line)


def table(folder: VisitFolder) -> str:
    """A line for each step: how it ended, its seconds, and the line that says most."""
    rows = [f"{'step':14}{'status':11}{'seconds':>8}  outcome"]
    for name, one in folder.steps.items():
        line = shorten(one["line"], 120, placeholder=" …")  # the summary has it whole
        rows.append(f"{name:14}{one['status']:11}{one['seconds']:8.1f}  {line}")
    return "\n".join(rows)


def main(words: Sequence[str]) -> int:
    """Exit status 0 where the call's steps are done, or left out; 1 where one found something;
    2 where some are not done; 130 where somebody stopped it.
    """
    options, start = _parser().parse_args(words), monotonic()
    with tempfile.TemporaryDirectory(prefix="attnbench-visit-") as name:
        room, notes = Path(name), list[str]()
        if options.wheels:
            notes += install(options.wheels, room / "packages")
            sys.path.insert(0, str(room / "packages"))
        ours = [str(room / "packages"), str(ROOT)]
        paths = [*ours, *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
        try:
            return _visited(options, room, notes, 60 * options.minutes + start)
        except ModuleNotFoundError as error:
            notes.append(f"gpu_visit: {error}: bring its wheel along with --wheels")
        except NoVisit as error:
            notes.append(f"gpu_visit: {error}")
        print("\n".join(notes), file=sys.stderr)
        return 2


def _visited(options: argparse.Namespace, room: Path, notes: list[str], end: float) -> int:
    """Prepare a call and run it; raises NoVisit where there can be none."""
    from attnbench.command.terminal import as_ctrl_c
    from attnbench.core.machine import this_machine
    from proofs import visit_steps

    machine, todo = this_machine(), visit_steps.steps()
    if unknown := set(options.steps) - {step.name for step in todo}:
        names = ", ".join(step.name for step in todo)
        raise NoVisit(f"there is no step {', '.join(sorted(unknown))}; the steps are {names}")
    warnings = visit_steps.notes(machine)
    if options.device not in machine.devices:
        raise NoVisit(f"torch can't use a GPU here: {'; '.join(warnings)}")
    folder = VisitFolder(options.out, room, options.device, options.before)
    os.environ["TRITON_CACHE_DIR"] = str(folder.cache)
    for source in filter(None, (folder.brought, options.wheels)):
        notes += fill_cache(source, folder.cache) if any(source.glob("*/*.json")) else []
    notes += fill_cache(options.caches, folder.cache) if options.caches else []
    folder.notes = notes + warnings
    folder.tell(
        "machine", json.dumps({"machine": machine.to_dict(), "notes": folder.notes}, indent=1)
    )
    for note in folder.notes:
        print(f"note: {note}", file=sys.stderr)
    todo = [step for step in todo if step.name in options.steps] if options.steps else todo
    statuses = {name: one["status"] for name, one in folder.steps.items()}
    own, more = visit_steps.queue(todo, statuses, options.call)
    try:
        with as_ctrl_c():
            visit([*own, *more], folder, end - monotonic())
    except KeyboardInterrupt:
        print("stopped; what was done is kept, and the same command goes on", file=sys.stderr)
        return INTERRUPTED
    finally:
        print(table(folder))
    ends = {folder.steps[step.name]["status"] for step in (todo if options.steps else own)}
    return 2 if ends - {"done", "finding", "left out"} else int("finding" in ends)


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    add, path = parser.add_argument, {"type": Path, "metavar": "DIR"}
    steps = {"type": lambda text: text.replace(",", " ").split(), "metavar": "NAME,…"}
    add("--out", required=True, help="the visit's folder", **path)
    add("--call", type=int, choices=range(1, 5), help="else the first with steps left")
    add("--minutes", type=float, default=9.0, metavar="M", help="of this call; 9 if not given")
    add("--before", help="an earlier call's folder, if it is not --out", **path)
    add("--wheels", help="packages to install first, without a network", **path)
    add("--caches", help="Triton's cache, if not with the wheels", **path)
    add("--steps", default=[], help="these steps alone", **steps)
    add("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a tiny trial")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
