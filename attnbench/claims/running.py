"""One claim in a process of its own, with the ruler's environment and a time limit.

Whatever becomes of that process, it costs this claim alone.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from time import monotonic

from attnbench.claims.claim import Claim
from attnbench.claims.figures import Asked, Found
from attnbench.claims.outcome import Outcome
from attnbench.claims.verdict import Verdict
from attnbench.sweep.child import variables_of

LIMIT_S, TIMES = 120.0, 3.0
"""For loading and checking, and how often the time that a claim is given may pass besides."""
LAST_WORDS = 2000
"""Bytes of a dead process's error stream that are read."""


def outcome(claim: Claim, asked: Asked, limit_s: float | None = None) -> Outcome:
    """What became of a claim. Ctrl-C ends its process, and is raised again."""
    start = monotonic()
    limit_s = limit_s or LIMIT_S + TIMES * asked.seconds * claim.timed
    with tempfile.TemporaryDirectory(prefix="attnbench-") as name:
        folder = Path(name)
        ended = _ran(claim, asked, folder, limit_s)
        took_s = monotonic() - start
        if ended is None:
            return Outcome(
                claim, Verdict.NOT_RUN, f"it was still running after {limit_s:.0f} s",
                "give it more time with --budget, or a machine that is not busy", took_s=took_s,
            )  # fmt: skip
        return _read(claim, ended, folder, took_s)


def _ran(claim: Claim, asked: Asked, folder: Path, limit_s: float) -> int | None:
    """How the process ended; None where it had to be ended."""
    question = {
        "how": claim.how, "torch": not claim.timed, "asked": asdict(asked),
        "answer": str(folder / "answer.json"),
    }  # fmt: skip
    with (folder / "words").open("wb") as words:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "attnbench.claims.child"], env=variables_of(asked.threads),
            stdin=subprocess.PIPE, stdout=words, stderr=words, start_new_session=True,
        )  # fmt: skip
    assert process.stdin is not None
    try:
        with suppress(BrokenPipeError):  # it died at once, and its words say why
            process.stdin.write(json.dumps(question).encode() + b"\n")
            process.stdin.flush()
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # it, and what it left behind
        process.wait()
        with suppress(BrokenPipeError):
            process.stdin.close()


def _read(claim: Claim, status: int, folder: Path, took_s: float) -> Outcome:
    try:
        answer = json.loads((folder / "answer.json").read_text())
    except (OSError, ValueError):
        return Outcome(claim, Verdict.NOT_RUN, _died(status, folder), FAULT, took_s=took_s)
    if "cant" in answer:
        return Outcome(claim, Verdict.NOT_RUN, answer["cant"], took_s=took_s)
    return Outcome.of(claim, Found.from_dict(answer), took_s)


FAULT = "run it again by its name; if it fails again, that is a fault of attnbench"


def _died(status: int, folder: Path) -> str:
    """How, and the last that it said."""
    words = (folder / "words").read_bytes()[-LAST_WORDS:].decode(errors="replace")
    last = next((line.strip() for line in reversed(words.splitlines()) if line.strip()), "")
    last = "".join(c if c.isprintable() else "?" for c in last)
    how = f"its process ended with status {status}"
    if status < 0:
        with suppress(ValueError):
            how = f"its process died of {signal.Signals(-status).name}"
    return ": ".join(filter(None, [how, last]))
