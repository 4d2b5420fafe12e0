"""Runs a program with its attention calls recorded, and merges what its processes wrote.

Every Python that it starts finds our ``sitecustomize`` and writes files of its own into a folder
beside the result. They are merged again and again while it runs, so that something readable is left
whatever is killed. A signal that reaches this process alone is handed on to the program.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from attnbench.core.disk import open_draft
from attnbench.models.capture.calls import SeenCalls, merged
from attnbench.models.capture.child import FOLDER, MASKS, SAMPLES
from impls.asked import CantBeDone

SITE = Path(__file__).parent / "site"
EVERY_S, POLL_S = 2.0, 0.05
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
BY_TERMINAL = 0x80
"""``SI_KERNEL``: a signal from the terminal, which all of its programs have got."""
WAIT_S, GRACE_S = 0.5, 10.0
"""How long a program may take to end by itself before it is sent the signal, and after that before
it is killed."""


def run_program(
    command: Sequence[str], out: Path, *, samples: bool, quiet: bool = False
) -> tuple[int, SeenCalls]:
    """Run it to its end; its status, below zero the signal that ended it, and its calls.

    ``quiet``: what it prints goes to standard error.
    """
    out = out.resolve()
    _check(out)
    parts = Path(tempfile.mkdtemp(".parts", f"{out.stem}.", out.parent))
    try:
        paths = [str(SITE), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, FOLDER: str(parts), "PYTHONPATH": os.pathsep.join(paths)}
        environment[MASKS] = str(out.with_name(f"{out.stem}.masks"))
        if samples:
            environment[SAMPLES] = str(out.with_name(f"{out.stem}.samples"))
        status = _run(command, environment, parts, out, quiet=quiet)
        calls = _gathered(parts, command, over=True, status=status)
        if not calls.sites:
            raise CantBeDone(_why_nothing(command, parts, calls, status))
        calls.write(out)
    finally:
        shutil.rmtree(parts, ignore_errors=True)
    return status, calls


def _check(out: Path) -> None:
    """Raise CantBeDone where the result can't be written, before anything is run."""
    if set("+@") & set(str(out)):
        raise CantBeDone(
            f"--out {out}: masks are kept beside it, and + and @ mean something in a mask's text; "
            "choose a path without them"
        )
    try:
        if out.is_dir():
            raise CantBeDone(f"can't write {out}: it is a folder; give a file, as calls.json")
        descriptor, probe = open_draft(out)
        os.close(descriptor)
        probe.unlink()
    except OSError as error:
        raise CantBeDone(f"can't write {out}: {error.strerror}") from None


def _run(
    command: Sequence[str], environment: dict[str, str], parts: Path, out: Path, *, quiet: bool
) -> int:
    """Start the program, write again and again what was recorded, and return its status."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        program = _started(command, environment, before, quiet=quiet)
        written = time.monotonic()
        while program.poll() is None:
            found = signal.sigtimedwait(ENDING, POLL_S)
            if found is not None and found.si_code != BY_TERMINAL:
                _hand_on(found.si_signo, program)
            if time.monotonic() > written + EVERY_S:
                with suppress(CantBeDone, OSError):  # which is reported when it is written last
                    if (calls := _gathered(parts, command, over=False)).sites:
                        calls.write(out)
                written = time.monotonic()
        return program.returncode
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _started(
    command: Sequence[str], environment: dict[str, str], blocked: Iterable[int], *, quiet: bool
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            list(command),
            env=environment,
            stdout=sys.stderr.fileno() if quiet else None,
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, blocked),
        )
    except (OSError, subprocess.SubprocessError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise CantBeDone(
            f"can't run {command[0]}: {why}; give a program as you would start it, as in: "
            "attnbench capture -- python train.py"
        ) from None


def _hand_on(number: int, program: subprocess.Popen[bytes]) -> None:
    """Send a signal on, unless the program ends by itself, as where the signal was sent to both.

    A program that should end and doesn't is killed; after an interrupt it may go on.
    """
    with suppress(subprocess.TimeoutExpired):
        program.wait(WAIT_S)
    program.send_signal(number)  # nothing where it has ended
    if number != signal.SIGINT:
        with suppress(subprocess.TimeoutExpired):
            program.wait(GRACE_S)
        program.kill()


def _gathered(parts: Path, command: Sequence[str], *, over: bool, status: int = 0) -> SeenCalls:
    """What the processes have written, merged."""
    found: list[SeenCalls] = []
    for file in sorted(parts.glob("*.json"), key=lambda f: [*map(int, f.stem.split("-"))]):
        calls = SeenCalls.read(file)
        if over and not calls.complete:
            calls.unseen.append(
                f"process {file.stem.split('-')[0]} was killed, or left without its exit being "
                "noticed: the last second of its calls may be missing"
            )
        found.append(calls)
    whole = merged(found)
    whole.header = {**whole.header, "command": shlex.join(command), "status": status}
    whole.unseen += [
        f"process {file.stem} could not be watched: {file.read_text()}"
        for file in sorted(parts.glob("*.amiss"))
    ]
    if status:
        whole.unseen.append(f"the program ended with {ending(status)}: later calls are not here")
    whole.complete = over and whole.complete and status == 0
    return whole


def ending(status: int) -> str:
    """``status 3``, ``signal 9``"""
    return f"status {status}" if status >= 0 else f"signal {-status}"


def _why_nothing(command: Sequence[str], parts: Path, calls: SeenCalls, status: int) -> str:
    """Why no call was seen, as far as is known."""
    ended = f" (it ended with {ending(status)})" if status else ""
    why = "it imported torch and made no attention call that is recorded"
    if not any(parts.glob("*.python")):
        why = (
            "it started no Python that could be watched: it is not a Python program, or starts "
            "Python with -I, -E or -S"
        )
    elif not any(parts.glob("*.torch")):
        why = "it is Python, and did not import torch"
    elif any(parts.glob("*.amiss")):
        why = "nothing of it could be recorded"
    elif not calls.unseen:
        why += "; calls of other libraries' kernels and softmax by exponentials aren't seen"
    return ". ".join([f"{shlex.join(command)}{ended}: {why}", *calls.unseen])
