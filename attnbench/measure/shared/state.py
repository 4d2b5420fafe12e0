"""What all variants of a process share with each other and with the ruler: nobody may change it.

Settings and random states, names and what stands behind them, copies of the process. A snapshot is
taken before a variant is built and compared when it can't undo anything any more. Names that came
in between are no fault (modules load late, a compiler adds its own), unless they hide one that was
there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from attnbench.measure.shared import names, settings
from attnbench.truth.findings import Wrong

LONG = 120
"""Characters beyond which it is not said what a setting was and is."""


def snapshot() -> dict[str, Any]:
    """All of it, as it stands."""
    return {
        "settings": settings.now(),
        "random": settings.random_states(),
        "copies": _copies_of_this_process(),
        **names.snapshot(),
    }


def allowing(before: dict[str, Any], swaps: Iterable[str]) -> dict[str, Any]:
    """The snapshot with the kernels of some operators as they stand now, and all else as it was.

    For what a row declares that it replaces, as soon as it is built. That it has put torch's own
    kernels back is seen by the snapshot from before.
    """
    kernels, now = before["settings"][settings.KERNELS_OF], settings.now()[settings.KERNELS_OF]
    kernels = {**kernels, **{name: now[name] for name in swaps if name in now}}
    return {**before, "settings": {**before["settings"], settings.KERNELS_OF: kernels}}


def still(before: dict[str, Any]) -> dict[str, Any] | None:
    """The same, where it was just found unchanged and nothing has come to it: it need not be taken
    down again.
    """
    return None if names.grown(before) else before


def changes(before: Mapping[str, Any]) -> list[str]:
    """What is not as it was, in words."""
    copies = [f"a copy of its process left running ({pid})" for pid in _left_running(before)]
    return [*_changed(before), *copies, *names.replaced(before)]


def said(before: Mapping[str, Any]) -> str | None:
    """The same as a sentence; None where all is as it was."""
    parts = {
        "it replaced": list(names.replaced(before)),
        "it left changed what other variants share:": list(_changed(before)),
        "it left a copy of its process running:": list(_left_running(before)),
    }
    return "; ".join(f"{deed} {', '.join(what)}" for deed, what in parts.items() if what) or None


def check(before: Mapping[str, Any]) -> None:
    """Raise :class:`Wrong` where something is not as it was."""
    if (sentence := said(before)) is not None:
        raise Wrong(sentence)


def sealed() -> Callable[[], list[str]]:
    """Tells which names of the modules that notice were replaced. To be kept out of reach."""
    kept = [
        (guard, name, value, getattr(value, "__code__", None))
        for guard in (sys.modules[__name__], names, settings)
        for name, value in vars(guard).items()
        if not name.startswith("__")
    ]

    def broken() -> list[str]:
        return [
            f"{guard.__name__}.{name}"
            for guard, name, value, code in kept
            if vars(guard).get(name) is not value or getattr(value, "__code__", None) is not code
        ]

    return broken


def _changed(before: Mapping[str, Any]) -> Iterator[str]:
    now, states = settings.now(), settings.random_states()
    for name, was in before["settings"].items():
        if now[name] != was:
            short = len(str(was)) + len(str(now[name])) < LONG
            yield f"{name} ({was} → {now[name]})" if short else name
    for name, was in before["random"].items():
        if states.get(name) != was:
            yield name
    yield from names.renumbered(before)


def _left_running(before: Mapping[str, Any]) -> list[str]:
    return [str(pid) for pid in _copies_of_this_process() if pid not in before["copies"]]


def _copies_of_this_process() -> list[int]:
    """Children that run what this process runs: forked, with all that it has."""
    mine = Path("/proc/self/cmdline").read_bytes()
    copies = []
    for task in Path("/proc/self/task").iterdir():
        try:
            children = (task / "children").read_text().split()
        except OSError:  # a thread that has ended, or a system that does not tell
            continue
        for child in map(int, children):
            try:
                if Path(f"/proc/{child}/cmdline").read_bytes() == mine:
                    copies.append(child)
            except OSError:
                continue
    return copies
