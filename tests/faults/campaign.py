"""A fault and what must hold whatever it is: the campaign against the installed command.

A row of a table is a :class:`Fault`. :func:`run` prepares a folder for it, calls ``attnbench`` as a
user does, and checks what no fault may bring about: a traceback, an exit status that means nothing,
a hang, a process or a temporary file left behind, a file written elsewhere, a control character
sent to the terminal.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests import processes

COMMAND = Path(sys.executable).with_name("attnbench")
STATUSES = {0, 1, 2, 130, 143}
CACHE = "torchinductor_"
"""A folder of torch's own that it makes in TMPDIR for all later processes."""
MARK = "ATTNBENCH_FAULT"
"""In the environment of everything that is started here."""
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x80-\x9f\u202a-\u202e\u2066-\u2069]")
"""What moves the cursor, changes colours, or turns a line round."""
SMALL = ("--heads", "1", "--head-dim", "8", "--phase", "forward", "--mask", "none")
SMALL += ("--budget", "0.01", "--threads", "1", "--no-report")
TINY = ("--seq", "16", "--batch", "1", "--dtype", "float32", *SMALL)
"""The options of the smallest run."""
IN_A_TERMINAL = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)"


class Place:
    """The folders of one fault, all below one that is removed afterwards."""

    def __init__(self, top: Path, tiny_run: Path) -> None:
        self.top = top
        self.here = top / "here"
        """Where the command is called."""
        self.run = self.here / "results" / "box" / "tiny"
        """A finished run of two cells, this fault's own copy."""
        self.outside = top / "outside"
        """A folder of somebody else's, which must stay as ``prepare`` left it."""
        self.temporary = top / "temporary"
        """What TMPDIR says; empty before and after."""
        self.home = top / "home"
        self.fonts = tiny_run.parents[2]
        """Where Matplotlib keeps a list of fonts, which it takes seconds to make."""
        for folder in (self.outside, self.temporary, self.home):
            folder.mkdir(parents=True)
        shutil.copytree(tiny_run, self.run)

    def file(self, name: str, content: str | bytes = "") -> Path:
        """A file in the folder where the command is called, and those above it."""
        path = self.here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def records(self, change: Callable[[list[bytes]], list[bytes]]) -> None:
        """Change the lines of the run's records."""
        file = self.run / "records.jsonl"
        file.write_bytes(b"".join(change(file.read_bytes().splitlines(keepends=True))))


@dataclass(frozen=True)
class Ended:
    """How the command ended, and what it wrote."""

    status: int
    out: str
    said: str


@dataclass(frozen=True)
class Signal:
    """One that the command is sent once something is so."""

    number: int
    when: Callable[[Place], bool]
    group: bool = False
    """Whether all processes of its group get it, as a terminal's Ctrl-C does."""


@dataclass(frozen=True)
class Fault:
    """A row of the table. In ``words``, ``shell`` and ``env``, {run}, {here} and {outside} are
    folders.
    """

    name: str
    words: Sequence[str]
    prepare: Callable[[Place], object] = lambda place: None
    status: Collection[int] = (2,)
    says: str = ""
    """A regular expression that is found in what the command wrote."""
    env: Mapping[str, str | None] = field(default_factory=dict)
    """Added to the environment; None takes a variable away."""
    shell: str = ""
    """A shell's line in place of the bare call, which is "$@": ``ulimit -n 12; exec "$@"``."""
    terminal: bool = False
    """Whether it is called in a terminal, where colours and the cursor's moves are its own."""
    signals: Sequence[Signal] = ()
    makes: Collection[str] = ()
    """Names that may be new in the folder where the command is called, besides the results'."""
    within_s: float = 90.0
    holds: Callable[[Place, Ended], object] = lambda place, ended: None
    """What must be so besides; it asserts."""


def run(fault: Fault, place: Place) -> None:
    """Bring the fault about, and assert what must hold."""
    fault.prepare(place)
    names, before = {each.name for each in place.here.iterdir()}, _elsewhere(place)
    ended = _called(fault, place)
    both = ended.out + ended.said
    assert "Traceback" not in both, both[-3000:]
    assert ended.status in STATUSES & set(fault.status), (ended.status, both[-3000:])
    assert re.search(fault.says, both), both[-3000:]
    assert fault.terminal or not CONTROLS.search(both), ascii(both[-3000:])
    left = [each.name for each in place.temporary.iterdir() if not each.name.startswith(CACHE)]
    assert not left, f"left in TMPDIR: {left}"
    assert _elsewhere(place) == before, "a file outside or in HOME was changed"
    new = {each.name for each in place.here.iterdir()} - names - {"results", *fault.makes}
    assert not new, f"new in the folder of the call: {new}"
    fault.holds(place, ended)


def _elsewhere(place: Place) -> dict[Path, bytes]:
    """What lies where nothing may be written."""
    paths = (path for folder in (place.outside, place.home) for path in folder.rglob("*"))
    return {path: path.read_bytes() if path.is_file() else b"" for path in paths}


def _called(fault: Fault, place: Place) -> Ended:
    """How it ended, with nothing left of it."""

    def filled(text: str) -> str:
        for name in ("run", "here", "outside"):
            text = text.replace(f"{{{name}}}", str(getattr(place, name)))
        return text

    env = {k: v for k, v in os.environ.items() if not k.startswith(("GIT_", "PYTEST_", "COV_"))}
    env |= {"HOME": str(place.home), "TMPDIR": str(place.temporary)}
    env |= {"MPLCONFIGDIR": str(place.fonts), "PYTHONDONTWRITEBYTECODE": "1"}
    env = {k: v for k, v in {**env, **fault.env}.items() if v is not None}
    words = [str(COMMAND), *map(filled, fault.words)]
    if fault.terminal:
        words = [sys.executable, "-c", IN_A_TERMINAL, *words]
    if fault.shell:
        words = ["sh", "-c", filled(fault.shell), "sh", *words]
    env = {name: filled(value) for name, value in env.items()}
    with (place.top / "out").open("wb") as out, (place.top / "said").open("wb") as said:
        streams = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": said}
        with started(words, cwd=place.here, env=env, **streams) as process:
            _wait(fault, place, process)
    texts = [(place.top / n).read_text("utf-8", "backslashreplace") for n in ("out", "said")]
    status = process.returncode if process.returncode >= 0 else 128 - process.returncode
    return Ended(status, *texts)


@contextmanager
def started(words, env=os.environ, **more):
    """A process; when the block is over, it and all that it started must have ended."""
    mark = uuid.uuid4().hex
    # whatever the tests were started with
    with processes.handling(lambda *_: None, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        process = subprocess.Popen(words, env={**env, MARK: mark}, start_new_session=True, **more)
    try:
        yield process
        left = [pid for pid in processes.marked(mark) if not processes.gone(pid, 20.0)]
    finally:
        for pid in processes.marked(mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        for stream in filter(None, (process.stdout, process.stderr)):
            stream.close()
    assert not left, f"processes left behind: {left}"


def _wait(fault: Fault, place: Place, process: subprocess.Popen) -> None:
    """Wait for its end, sending signals on the way."""
    begun, waiting = time.monotonic(), list(fault.signals)
    while process.poll() is None:
        assert time.monotonic() - begun < fault.within_s, (
            f"still running after {fault.within_s} s: {(place.top / 'said').read_text()[-2000:]}"
        )
        if waiting and waiting[0].when(place):
            each = waiting.pop(0)
            (os.killpg if each.group else os.kill)(process.pid, each.number)
        time.sleep(0.02)


def records(run: Path) -> list[dict]:
    """The records of a run's whole lines, as JSON has them."""
    file = run / "records.jsonl"
    data = file.read_bytes() if file.exists() else b""
    return [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]
