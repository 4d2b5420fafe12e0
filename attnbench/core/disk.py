"""Files that are written whole or not at all, and the paths in them as they are kept and shown."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from secrets import token_hex
from typing import Any

from impls.errors import CantBeDone

HEADER, RECORDS = "run.json", "records.jsonl"
MACHINE, SELFCHECK = "env.json", "selfcheck.json"
"""Beside a machine's runs: its own facts, and what the ruler's self-check found there."""
NAME_SHOWN = 100
"""Characters of a file's name that its draft's name begins with."""
CHECKOUT = Path(__file__).resolve().parents[2]


class StoreError(CantBeDone):
    """Something about the results folder; a sentence with what to do."""


def from_json(text: str | bytes) -> Any:
    """The values of a JSON text; raises ValueError for what is none or is nested too deep."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep to be read") from None


def cache_folder() -> Path:
    """A folder of the user's for what can be made again; raises StoreError where there is none."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(home) / "attnbench"
    try:
        writable_folder(folder)
    except OSError as error:
        remedy = "set XDG_CACHE_HOME to a folder that you can write to"
        raise unwritable(f"under {folder}", error, remedy) from None
    return folder


def unwritable(
    what: str, error: OSError, remedy: str = "give another folder with --out"
) -> StoreError:
    """Why something can't be written, and what to do."""
    return StoreError(f"can't write {what}: {error.strerror}; {remedy}")


def writable_folder(path: Path) -> None:
    """A folder that files can be put into; raises OSError now where none could be later."""
    path.mkdir(parents=True, exist_ok=True)
    if not os.access(path, os.W_OK | os.X_OK):
        raise PermissionError(None, "permission denied")


def append_whole(descriptor: int, data: bytes, *, sync: bool = True) -> None:
    """At the end of a file: all, on disk when this returns; else raises OSError, adding none."""
    size, left = os.fstat(descriptor).st_size, memoryview(data)
    try:
        while left:
            left = left[os.write(descriptor, left) :]
        if sync:
            os.fsync(descriptor)
    except OSError:
        os.ftruncate(descriptor, size)
        raise


def open_draft(path: Path) -> tuple[int, Path]:
    """A new file beside a path, open for appending, and its name."""
    draft = path.with_name(f".{path.name[:NAME_SHOWN]}.{token_hex(8)}.new")
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    return os.open(draft, flags, 0o666), draft


def write_whole(path: Path, data: bytes, *, sync: bool = True) -> None:
    """A file, whole and on disk when this returns; else raises OSError, and the one before stays.
    So does what is no file, such as /dev/null.

    ``sync``: whether to wait for the disk; what can be made again need not.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is there, and no file", str(path))
    descriptor, draft = open_draft(path)
    try:
        try:
            append_whole(descriptor, data, sync=sync)
        finally:
            os.close(descriptor)
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)  # it may be what filled the disk
        raise


# ---- paths as they are kept and shown ------------------------------------------------------------


def short(text: str) -> str:
    """A text in which paths are relative to this checkout, or else begin with ``~``."""
    places = {f"{CHECKOUT}/": "", str(CHECKOUT): "."}
    if own := home():
        places |= {str(Path(own).resolve()): "~", own: "~"}
    for place, instead in places.items():
        end = "" if place.endswith("/") else r"(?![\w.-])"
        text = re.sub(r"(?<![\w.~-])" + re.escape(place) + end, instead, text)
    return text


def short_in(value: Any) -> Any:
    """A plain value whose texts, however deep, are as :func:`short` gives them."""
    if isinstance(value, str):
        return short(value)
    if isinstance(value, Mapping):
        return {short(str(name)): short_in(each) for name, each in value.items()}
    return [short_in(each) for each in value] if isinstance(value, list | tuple) else value


def long(path: str) -> Path:
    """A path that :func:`short` wrote, as it is on this machine."""
    return CHECKOUT / re.sub(r"^~(?=/|$)", lambda _: home(), path)


def table_words(header: Mapping[str, Any]) -> list[str]:
    """``--table FILE`` for each file of rows that a run's header names, wherever one stands."""
    tables = header.get("tables") or ()
    return [word for table in tables for word in ("--table", str(long(str(table))))]


def home() -> str:
    """The user's own folder; empty where there is none, or all there is lies in it."""
    folder = os.path.expanduser("~")  # noqa: PTH111 - Path.home() raises where it is not known
    return folder if folder.startswith("/") and len(folder) > 1 else ""


def name_from_here(path: str) -> str:
    """How a file is named where it is found from the current folder alone: relative to that, or to
    the home, which is ``~``.
    """
    for folder, before in ((str(Path.cwd()), Path()), (home(), Path("~"))):
        if folder and Path(path).is_relative_to(folder):
            return str(before / Path(path).relative_to(folder))
    return path
