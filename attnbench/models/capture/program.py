"""``attnbench capture [--out FILE] … -- PROGRAM ARGS…``: a program's attention calls.

Every Python that the program starts finds our ``sitecustomize`` and writes files of its own into a
folder beside the result. They are merged again and again while it runs, so that something readable
is left whatever is killed. A signal that reaches this process alone is handed on to the program.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from attnbench.command.terminal import INTERRUPTED, say
from attnbench.core.disk import open_draft
from attnbench.models.capture.calls import SeenCalls, Site, merged
from attnbench.models.capture.child import ADVICE, FOLDER, MASKS
from impls.errors import CantBeDone

if TYPE_CHECKING:
    import argparse

    from impls.problem import Problem

SITE = Path(__file__).parent / "site"
EVERY_S, POLL_S = 2.0, 0.05
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
BY_TERMINAL = 0x80  # ``SI_KERNEL``: a signal from the terminal, which all of its programs have got
WAIT_S, GRACE_S = 0.5, 10.0
"""Seconds in which a program may end by itself before it is sent the signal, and after that before
it is killed."""
SITES = 40  # sites that are shown; the file has all
EXAMPLE = "as in: attnbench capture -- python train.py"


def capture(arguments: argparse.Namespace) -> int:
    """``attnbench capture -- PROGRAM``"""
    if not arguments.program:
        raise CantBeDone(f"capture needs a program after --, {EXAMPLE}")
    out = Path(arguments.out)
    status, calls = run_program(
        arguments.program,
        out,
        quiet=arguments.json,
        seconds=arguments.seconds,
    )
    if arguments.json:
        print(json.dumps(calls.facts()))
    else:
        show(calls, out)
    if status:
        ending = _ending(status)
        say(f"attnbench: the program ended with {ending}; what it called until then is in {out}")
        return INTERRUPTED if status in (-2, INTERRUPTED) else 2
    return 0


def show(calls: SeenCalls, path: Path) -> None:
    """Print the sites, those of most seconds first, and what could not be seen."""
    from rich.markup import escape

    from attnbench.core.format import duration, percent
    from attnbench.report.tables import FAINT, Table, columns, console, show

    names = ("site", "problem", "via", "calls", "forward", "backward", "share")
    rows = []
    for s in calls.sites[:SITES]:
        problem = str(s.problem.with_(inputs="normal")) + ("*" if s.note else "")
        times = (duration(x) if x else "" for x in (s.seconds, s.backward_s))
        share = "" if s.share is None else percent(s.share)
        rows.append((s.site, problem, s.via, f"{s.calls:,}" if s.calls else "?", *times, share))
    if rows:
        show(Table("", columns(*names, right=names[3:], wrap=names[:3]), rows))
    out = console()
    # of calls that overlap, a sentence about what could not be seen says so
    out.print("" if calls.overlap else escape(f"\n{calls.sentence()}"))
    for s in calls.sites[:SITES]:
        out.print(escape(f"{s.site}: {describe_call(s)}"))
    lines = [f"* {note}" for note in dict.fromkeys(s.note for s in calls.sites if s.note)]
    if len(calls.sites) > SITES:
        lines.append(f"{len(calls.sites) - SITES} more sites are in the file")
    for line in (*lines, *calls.unseen):
        out.print(escape(line), style=FAINT)
    if problems := len(calls.problems()):
        out.print(escape(f"\nkept in {path}. Measure every variant on its problems ({problems}):"))
        run = f"attnbench run --problems {shlex.quote(str(path))}"
        out.print(escape(run), soft_wrap=True)


def describe_call(site: Site) -> str:
    """The kernel that ran at a place, and the form of its calls, in words."""
    if site.call is None:
        return f"{site.via}, of which no more is known"
    kernel = site.call.kernel or "a kernel that could not be seen"
    why = f", since {' and '.join(site.call.why)}" if site.call.why else ""
    mask = site.call.mask_words()
    if site.call.mask is not None or site.call.mask_type:
        holds = ["hides nothing" if site.problem.mask.plain else describe_mask(site.problem)]
        if site.changes:
            holds.append("other keys in other calls")
        if site.calls > 1 and site.new_masks == site.calls:
            holds.append("made anew for each call")
        mask += f" ({'; '.join(holds)})"
    return "; ".join([f"{kernel}{why}", mask, *site.call.words()])


def describe_mask(problem: Problem) -> str:
    """The conditions of a mask in words, without the name of a file."""
    words = {"dense": "a mask without a name", "bias": "numbers that are added"}
    kinds = [words.get(part.kind, str(part)) for part in problem.mask.parts]
    corner = ", the first query at the first key" if problem.mask.upper_left else ""
    return " and ".join(kinds) + corner


def run_program(
    command: Sequence[str],
    out: Path,
    *,
    quiet: bool = False,
    advice: Path | None = None,
    seconds: float | None = None,
) -> tuple[int, SeenCalls]:
    """Its status, below zero a signal, and its calls; ``quiet``: what it prints goes to stderr;
    ``advice``: a file of what to change in its calls.

    ``seconds``: it is ended so long after its first call, as an interrupt would, and its status is
    then 0.

    Raises CantBeDone where ``out`` can't be written, or the program can't be run or calls nothing.
    """
    out = out.resolve()
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
    parts = Path(tempfile.mkdtemp(".parts", f"{out.stem}.", out.parent))
    try:
        paths = [str(SITE), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, FOLDER: str(parts), "PYTHONPATH": os.pathsep.join(paths)}
        environment[MASKS] = str(out.with_name(f"{out.stem}.masks"))
        if advice is not None:
            environment[ADVICE] = str(advice.resolve())
        status, ended = _run(command, environment, parts, out, quiet=quiet, seconds=seconds)
        calls = _gathered(parts, command, 0 if ended else status)
        if ended:
            status, calls.complete = 0, False
            calls.unseen.append(
                f"the program was ended {seconds:g} s after its first call: later calls are not "
                "here"
            )
        if not calls.sites and not calls.header.get("met"):
            raise CantBeDone(_why_nothing(command, parts, calls, status))
        calls.write(out)
    finally:
        shutil.rmtree(parts, ignore_errors=True)
    return status, calls


def _run(
    command: Sequence[str],
    environment: dict[str, str],
    parts: Path,
    out: Path,
    *,
    quiet: bool,
    seconds: float | None,
) -> tuple[int, bool]:
    """Start the program, write again and again what was recorded, and return its status, and
    whether it was ended after its seconds.

    A signal is sent on, unless the program ends by itself, as where the signal was sent to both. A
    program that should end and doesn't is killed; after an interrupt it may go on.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        program = subprocess.Popen(
            list(command),
            env=environment,
            stdout=sys.stderr.fileno() if quiet else None,
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, before),
        )
        write_at, over_at = time.monotonic() + EVERY_S, inf
        while program.poll() is None:
            if seconds is not None and over_at == inf and any(parts.glob("*.json")):
                over_at = time.monotonic() + seconds
            if time.monotonic() > over_at:
                _end(program)
                return program.returncode, True
            received = signal.sigtimedwait(ENDING, POLL_S)
            if received is not None and received.si_code != BY_TERMINAL:
                with suppress(subprocess.TimeoutExpired):
                    program.wait(WAIT_S)
                program.send_signal(received.si_signo)  # nothing where it has ended
                if received.si_signo != signal.SIGINT:
                    with suppress(subprocess.TimeoutExpired):
                        program.wait(GRACE_S)
                    program.kill()
            if time.monotonic() > write_at:
                with suppress(CantBeDone, OSError):  # which is reported when it is written last
                    if (calls := _gathered(parts, command)).sites:
                        calls.write(out)
                write_at = time.monotonic() + EVERY_S
        return program.returncode, False
    except (OSError, subprocess.SubprocessError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise CantBeDone(
            f"can't run {command[0]}: {why}; give a program as you would start it, {EXAMPLE}"
        ) from None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end(program: subprocess.Popen[bytes]) -> None:
    """End a program that may still write down what it has, by force where it has to be."""
    for by in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        program.send_signal(by)
        with suppress(subprocess.TimeoutExpired):
            program.wait(GRACE_S)
            return


def _gathered(parts: Path, command: Sequence[str], status: int | None = None) -> SeenCalls:
    """The calls of all processes; ``status`` is None while the program runs."""
    parts_read: list[SeenCalls] = []
    for file in sorted(parts.glob("*.json"), key=lambda f: [*map(int, f.stem.split("-"))]):
        calls = SeenCalls.read(file)
        if status is not None and not calls.complete:
            calls.unseen.append(
                f"process {file.stem.split('-')[0]} was killed, or left without its exit being "
                "noticed: the last second of its calls may be missing"
            )
        parts_read.append(calls)
    whole = merged(parts_read)
    whole.header = {**whole.header, "command": shlex.join(command), "status": status}
    whole.unseen += [
        f"process {file.stem} could not be watched: {file.read_text()}"
        for file in sorted(parts.glob("*.error"))
    ]
    if status:
        whole.unseen.append(f"the program ended with {_ending(status)}: later calls are not here")
    whole.complete = whole.complete and status == 0
    return whole


def _ending(status: int) -> str:
    return f"status {status}" if status >= 0 else f"signal {-status}"


def _why_nothing(command: Sequence[str], parts: Path, calls: SeenCalls, status: int) -> str:
    ended = f" (it ended with {_ending(status)})" if status else ""
    why = "it imported torch and made no attention call that is recorded"
    if not any(parts.glob("*.python")):
        why = (
            "it started no Python that could be watched: it is not a Python program, or starts "
            "Python with -I, -E or -S"
        )
    elif not any(parts.glob("*.torch")):
        why = "it is Python, and did not import torch"
    elif any(parts.glob("*.error")):
        why = "nothing of it could be recorded"
    elif not calls.unseen:
        why += "; calls of other libraries' kernels and softmax by exponentials aren't seen"
    return ". ".join([f"{shlex.join(command)}{ended}: {why}", *calls.unseen])
