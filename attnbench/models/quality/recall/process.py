"""A training in a process of its own, as whoever started it holds it. Without torch.

The environment that has to stand before torch is loaded is set, Ctrl-C reaches the parent alone,
and a process that says nothing for too long is ended. What it told before is kept.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from time import monotonic
from typing import IO, Any

from attnbench.models.quality.recall.setting import Job
from attnbench.sweep.child import variables_of

START_S = 120.0
"""For torch to be loaded, a variant to be built, and the test to be looked at."""
LAST_WORDS = 300


def run(job: Job) -> dict[str, Any]:
    """One row of evidence: what was asked, how it ended, and its checkpoints."""
    row: dict[str, Any] = {
        "variant": job.variant.label, "computes": job.variant.computes,
        "family": job.variant.family, "setting": job.setting.to_dict(), "seed": job.seed,
        "seconds": job.seconds, "status": "failed", "reason": "", "remedy": "",
        "parameters": None, "state_numbers": None, "curve": [],
    }  # fmt: skip
    with tempfile.TemporaryFile() as words:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "attnbench.models.quality.recall.child"],
            env=variables_of(job.threads), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=words, start_new_session=True,
        )  # fmt: skip
        try:
            _listen(process, job, row)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()
        if not row["reason"] and row["status"] == "failed":
            row["reason"] = _died(process.returncode, words)
    return row


def _listen(process: subprocess.Popen[bytes], job: Job, row: dict[str, Any]) -> None:
    """Hand over the job and take in lines until the stream ends or the time is over."""
    assert process.stdin is not None and process.stdout is not None
    with suppress(BrokenPipeError):
        process.stdin.write(json.dumps(job.to_dict()).encode())
        process.stdin.close()
    limit = START_S + 2 * job.limit_s
    until, heard, pipe = monotonic() + limit, b"", process.stdout.fileno()
    while True:
        ready, _, _ = select.select([pipe], [], [], max(0.0, until - monotonic()))
        if not ready:
            row["status"] = "timed_out"
            row["reason"] = f"it was ended after {limit:.0f} s"
            return
        if not (part := os.read(pipe, 1 << 16)):
            return
        *lines, heard = (heard + part).split(b"\n")
        for line in lines:
            told = json.loads(line)
            if "checkpoint" in told:
                row["curve"].append(told["checkpoint"])
            else:
                row.update(told)


def _died(status: int, words: IO[bytes]) -> str:
    """What is known of a process that did not say how it ended."""
    how = f"signal {-status}" if status < 0 else f"status {status}"
    words.seek(0)
    lines = words.read().decode(errors="replace").strip().splitlines()
    said = f": {lines[-1][:LAST_WORDS]}" if lines else ""
    return f"its process ended with {how}{said}"
