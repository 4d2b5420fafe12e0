"""Rows from outside the tree: entry points of other distributions, and files named by the user.

An entry point in the group ``attnbench.variants`` names a list of rows, or one: the attribute of a
module that is installed, as in ``mykernels = "mykernels.rows:ROWS"``. Its own name is shown where
it can't be read, and nowhere else. The rows of a file are its ``ROWS``.

Their code is run in a child process that sends the rows back as data. So a row file may import
torch, exit, hang or print at import, and the process that plans a sweep neither pays nor falls.

    python -m impls.outside file PATH          python -m impls.outside entry-points
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import signal
import site
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from impls import BrokenRow
from impls.errors import CantBeDone
from impls.loading import load_file
from impls.loading import load_function as load_function
from impls.spec import Variant

GROUP = "attnbench.variants"
PATIENCE_S = 60
"""Time limit for reading rows; importing torch takes one or two seconds."""


class BrokenTable(CantBeDone):
    """A table file that can't be read: the message says why, and what a table file holds."""


def file_rows(files: Sequence[str | Path]) -> Iterator[Variant | BrokenRow]:
    """The rows of each file; raises :class:`BrokenTable` where a file gives none."""
    for file in files:
        path = Path(file).expanduser()
        if not path.is_file():
            raise BrokenTable(f"there is no table file {file}")
        if path.suffix != ".py":
            raise BrokenTable(f"{file} is no Python file: a table file's name ends in .py")
        yield from _child_rows(str(file), ["file", str(path.resolve())])


def entry_point_rows() -> Iterator[Variant | BrokenRow]:
    """The rows of installed distributions; a broken one costs its own row."""
    if not _any_installed(tuple((p, _changed_ns(p)) for p in sys.path)):
        return
    try:
        yield from _child_rows(f"the entry points in {GROUP}", ["entry-points"])
    except BrokenTable as broken:
        remedy = "uninstall the distributions in that group one by one to find which"
        yield BrokenRow(GROUP, str(broken), remedy)


def python_path(*folders: Path) -> str:
    """PYTHONPATH for a child that is to find these first. A folder of installed packages, which
    it finds anyway, would hide the standard library behind whatever is installed there; and one
    that is on the path has its place.
    """
    path = os.environ.get("PYTHONPATH", "")
    there = [sysconfig.get_paths()[kind] for kind in ("purelib", "platlib")]
    there += [site.getusersitepackages(), *filter(None, path.split(os.pathsep))]
    present = {os.path.realpath(folder) for folder in there}
    first = [str(folder) for folder in folders if os.path.realpath(folder) not in present]
    return os.pathsep.join(filter(None, [*first, path]))


def _changed_ns(folder: str) -> int:
    """When something was installed into a folder of the path, or taken away."""
    with suppress(OSError):
        return Path(folder).stat().st_mtime_ns
    return 0


@cache
def _any_installed(path: tuple[tuple[str, int], ...]) -> bool:
    """True if a distribution on the path has rows: every one's file has to be read for it."""
    return bool(importlib.metadata.entry_points(group=GROUP))


def _child_rows(what: str, arguments: list[str]) -> list[Variant | BrokenRow]:
    """Rows as the child process sent them."""
    path = python_path(Path(__file__).resolve().parent.parent)
    with (
        tempfile.NamedTemporaryFile("r", suffix=".json") as answer,
        tempfile.TemporaryFile() as chatter,
    ):
        # -P: what lies in the current folder is not the package
        command = [sys.executable, "-P", "-m", "impls.outside", *arguments, answer.name]
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=chatter, stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": path}, start_new_session=True,
        ) as child:  # fmt: skip
            try:
                child.wait(timeout=PATIENCE_S)
            except subprocess.TimeoutExpired:
                raise BrokenTable(f"{what} was still importing after {PATIENCE_S} s") from None
            finally:  # whatever ends the waiting, Ctrl-C too; and what the import has started
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(child.pid, signal.SIGKILL)
        text = answer.read()
        chatter.seek(0)
        output = chatter.read()
    if not text:
        last = output.decode(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
        raise BrokenTable(
            f"{what} could not be read: it ended with status {child.returncode} at import "
            f"({last[0]}); a table file defines ROWS, a list of impls.spec.Variant"
        )
    try:
        reply = json.loads(text)
        rows = [msgspec.convert(row, Variant) for row in reply.get("rows", ())]
        broken = [BrokenRow(**row) for row in reply.get("broken", ())]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise BrokenTable(f"{what} could not be read: it sent no rows ({error})") from None
    if "error" in reply:
        raise BrokenTable(
            f"{what} could not be read: {reply['error']}; "
            "a table file defines ROWS, a list of impls.spec.Variant"
        )
    return [*rows, *broken]


# ---- in the child ----------------------------------------------------------------------------


def _send(source: str, where: str) -> dict[str, Any]:
    if source == "entry-points":
        return _entry_points()
    file = Path(where)
    try:
        module = load_file(file)
        if not hasattr(module, "ROWS"):
            return {"error": f"{file.name} defines no ROWS"}
        rows = list(module.ROWS)
    except (Exception, SystemExit) as error:
        return {"error": f"{file.name} raised {type(error).__name__}: {error}"}
    return _plain(rows, str(file), str(file))


def _entry_points() -> dict[str, Any]:
    reply: dict[str, Any] = {"rows": [], "broken": []}
    for point in importlib.metadata.entry_points(group=GROUP):
        origin = f"{point.dist.name} {point.dist.version}" if point.dist else point.value
        try:
            loaded = point.load()
            if not isinstance(loaded, Variant | Iterable):
                raise TypeError(
                    f"it is a {type(loaded).__name__}, and has to be a list of impls.spec.Variant, "
                    "as package.module:ROWS names one"
                )
            rows = [loaded] if isinstance(loaded, Variant) else list(loaded)
        except (Exception, SystemExit) as error:
            reason = f"the entry point {point.value} raised {type(error).__name__}: {error}"
            remedy = f"update or uninstall {origin}"
            row = {"name": point.name, "reason": reason, "remedy": remedy, "origin": origin}
            reply["broken"].append(row)
            continue
        part = _plain(rows, origin, "")
        reply["rows"] += part["rows"]
        reply["broken"] += part["broken"]
    return reply


def _plain(rows: Sequence[Any], origin: str, file: str) -> dict[str, Any]:
    """Rows as data. A path that begins with a colon is in the file itself."""
    reply: dict[str, Any] = {"rows": [], "broken": []}
    for number, row in enumerate(rows):
        if not isinstance(row, Variant):
            reason = f"row {number} of {origin} is {type(row).__name__}, not a Variant"
            problem_row = {"name": f"{origin}[{number}]", "reason": reason, "origin": origin}
            reply["broken"].append(problem_row)
            continue
        paths = {w: getattr(row, w) for w in ("build", "definition", "cost")}
        if not file and any(path and path.startswith(":") for path in paths.values()):
            reason = f"row {row.name} of {origin} has a path that begins with a colon"
            remedy = "name the module: package.module:function"
            problem_row = {"name": row.name, "reason": reason, "remedy": remedy, "origin": origin}
            reply["broken"].append(problem_row)
            continue
        own = {w: file + path for w, path in paths.items() if path and path.startswith(":")}
        try:
            values = msgspec.to_builtins(row.with_(origin=origin, **own))
            msgspec.convert(values, Variant)
        except (TypeError, ValueError) as error:
            reason = f"row {row.name} of {origin} is not plain data: {error}"
            reply["broken"].append({"name": row.name, "reason": reason, "origin": origin})
            continue
        reply["rows"].append(values)
    return reply


if __name__ == "__main__":
    signal.alarm(PATIENCE_S + 5)  # where the process that waits has been killed
    Path(sys.argv[-1]).write_text(json.dumps(_send(sys.argv[1], sys.argv[2])))
