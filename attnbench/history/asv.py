"""asv, called as a process of its own: it measures the commits, and makes the pages.

What it says goes on to the error stream as it comes. It is given each commit by its hash, so that
what is measured is what was looked up; its rounds go through all commits there and back, which
takes a steady drift of the machine out of their medians.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnbench.sweep.checkout import without_git
from impls.asked import CantBeDone

CONFIGURATION = "asv.conf.json"
SOME_FAILED = 2
"""How ``asv run`` ends where a benchmark failed; the others' results are kept."""
LAST_LINES = 12


class AsvError(CantBeDone):
    """asv is not there, or could not do it; a sentence."""


@dataclass(frozen=True)
class Asv:
    """asv for a checkout, as its configuration file says."""

    root: Path
    results: Path
    pages: Path

    @classmethod
    def of(cls, root: Path) -> Asv:
        """Raises a sentence where asv or its configuration is not there."""
        if importlib.util.find_spec("asv") is None:
            raise AsvError(
                f"asv is not installed for {sys.executable}; install it with "
                f"{sys.executable} -m pip install 'asv>=0.6.5,<0.7'"
            )
        said = _configuration(root / CONFIGURATION)
        return cls(root, root / said["results_dir"], root / said["html_dir"])

    def run(self, hashes: Sequence[str], machine: str, rounds: int, bench: str | None) -> bool:
        """Measure commits; True where every benchmark came to a value."""
        words = ["run", "HASHFILE:-", "--machine", machine, "--show-stderr", "--record-samples",
                 "--interleave-rounds", "--attribute", f"rounds={rounds}"]  # fmt: skip
        words += ["--bench", bench] if bench else []
        return self._call(words, "\n".join(hashes), (0, SOME_FAILED)) == 0

    def publish(self) -> Path:
        """Make the pages anew, of all that the results folder holds; where they begin."""
        self._call(["publish"])
        return self.pages / "index.html"

    def preview(self) -> None:
        """Show the pages in a browser, until Ctrl-C."""
        self._call(["preview", "--browser"])

    @property
    def preview_command(self) -> str:
        """What to type to see the pages: a browser doesn't read them from a folder."""
        configuration = _short(str(self.root / CONFIGURATION))
        return f"{_short(sys.executable)} -m asv preview --config {configuration}"

    def _call(self, words: Sequence[str], given: str = "", well: Sequence[int] = (0,)) -> int:
        """asv's exit status; raises its last words where that is none of those that are well."""
        # -P: a folder named asv where somebody stands is not it
        command = [sys.executable, "-P", "-m", "asv", *words[:1], "--config",
                   str(self.root / CONFIGURATION), *words[1:]]  # fmt: skip
        last: deque[str] = deque(maxlen=LAST_LINES)
        with subprocess.Popen(
            command, cwd=self.root, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace",
            env={**without_git(os.environ), "PYTHONUNBUFFERED": "1"},
        ) as child:  # fmt: skip
            assert child.stdin is not None and child.stdout is not None
            with child.stdin as asking:
                asking.write(given)
            for line in child.stdout:
                last.append(line.rstrip())
                sys.stderr.write(line)
                sys.stderr.flush()
            status = child.wait()
        if status not in well:
            said = next((line for line in reversed(last) if line.strip()), "it said nothing")
            raise AsvError(
                f"'asv {words[0]}' ended with status {status}: {said.strip()}; what it said before "
                "is above"
            )
        return status


def checked_regex(text: str | None) -> str | None:
    """A pattern as it is; raises a sentence for what is none."""
    try:
        re.compile(text or "")
    except re.error as error:
        raise AsvError(f"--bench {text!r} is no regular expression: {error}") from None
    return text


def _configuration(file: Path) -> dict[str, Any]:
    """By asv's own reading, which takes comments."""
    from asv.util import UserError, load_json

    if not file.exists():
        raise AsvError(
            f"there is no {file.name} in {file.parent}; history is kept in a clone of attnbench "
            "as a whole, with its benchmarks folder: run it there"
        )
    try:
        said = load_json(str(file), js_comments=True)
        return {name: str(said[name]) for name in ("results_dir", "html_dir")}
    except (OSError, ValueError, KeyError, TypeError, UserError) as error:
        raise AsvError(
            f"{file} can't be read ({type(error).__name__}: {error}); 'git checkout -- "
            f"{file.name}' brings it back"
        ) from None


def _short(path: str) -> str:
    """As seen from where we stand, if it lies there."""
    here = str(Path.cwd())
    return path.removeprefix(here + "/")
