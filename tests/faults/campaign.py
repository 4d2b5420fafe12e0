"""A fault and what must hold whatever it is: the campaign against the installed command.

A row of a table is a :class:`Fault`. :func:`run` prepares a folder for it, calls ``attnbench`` as a
user does, and checks what no fault may bring about: a traceback, an exit status that means nothing,
a hang, a process or a temporary file left behind, a file written elsewhere, a control character
sent to the terminal, a socket that other machines can reach. A file of rows ends with::

    @pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
    def test_fault(bring_about, fault):
        bring_about(fault)
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from impls.loading import load_file

processes = load_file(Path(__file__).parents[1] / "processes.py")
COMMAND = Path(sys.executable).with_name("attnbench")
STATUSES = {0, 1, 2, 130, 143}
CACHE = "torchinductor_"
"""A folder of torch's own that it makes in TMPDIR for all later processes."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
MARK = "ATTNBENCH_FAULT"
CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x80-\x9f\N{LEFT-TO-RIGHT EMBEDDING}-\N{RIGHT-TO-LEFT OVERRIDE}"
    "\N{LEFT-TO-RIGHT ISOLATE}-\N{POP DIRECTIONAL ISOLATE}]"
)
"""What moves the cursor, changes colours, or turns a line round."""
TINY = (
    "--seq", "16", "--batch", "1", "--heads", "1", "--head-dim", "8", "--phase", "forward",
    "--mask", "none", "--dtype", "float32", "--budget", "0.01", "--threads", "1", "--no-report",
)  # fmt: skip
"""The options of the smallest run."""
IN_A_TERMINAL = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)"


@dataclass(frozen=True)
class Place:
    """The folders of one fault, all below one that is removed afterwards."""

    top: Path

    @property
    def here(self) -> Path:
        """Where the command is called."""
        return self.top / "here"

    @property
    def run(self) -> Path:
        """A finished run of two cells, this fault's own copy."""
        return self.here / "results" / "box" / "tiny"

    @property
    def outside(self) -> Path:
        """A folder of somebody else's, which must stay as ``prepare`` left it."""
        return self.top / "outside"

    @property
    def temporary(self) -> Path:
        """What TMPDIR says; empty before and after."""
        return self.top / "temporary"

    @property
    def home(self) -> Path:
        return self.top / "home"

    def file(self, name: str, content: str | bytes = "") -> Path:
        """A file in the folder where the command is called, and those above it."""
        path = self.here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path


@dataclass(frozen=True)
class Ended:
    """How the command ended, and what it wrote."""

    status: int
    out: str
    said: str
    took_s: float


@dataclass(frozen=True)
class Signal:
    """One that the command is sent: after so many seconds, or once something is so."""

    number: int
    when: float | Callable[[Place], bool] = 0.0
    group: bool = False
    """Whether all processes of its group get it, as a terminal's Ctrl-C does."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A row of the table. In ``words`` and ``env``, {run}, {here} and {outside} are folders."""

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
    makes: Collection[str] = ("results",)
    """Names that may be new in the folder where the command is called."""
    within_s: float = 20.0
    holds: Callable[[Place, Ended], object] = lambda place, ended: None
    """What must be so besides; it asserts."""


def run(fault: Fault, place: Place) -> Ended:
    """Bring the fault about, and assert what must hold."""
    fault.prepare(place)
    before = {
        "here": _names(place.here),
        "outside": _tree(place.outside),
        "home": _tree(place.home),
    }
    ended, listening = _called(fault, place)
    both = ended.out + ended.said
    assert "Traceback" not in both, both[-3000:]
    assert ended.status in STATUSES & set(fault.status), (ended.status, both[-3000:])
    assert re.search(fault.says, both), both[-3000:]
    if not fault.terminal:
        assert not (found := CONTROLS.search(both)), (found, both[-3000:])
    assert not listening, f"listens beyond the loopback: {listening}"
    left = {name for name in _names(place.temporary) if not name.startswith(CACHE)}
    assert not left, f"left in TMPDIR: {left}"
    assert _tree(place.outside) == before["outside"], "a file outside was changed"
    assert _tree(place.home) == before["home"], "something was written into HOME"
    new = _names(place.here) - before["here"] - set(fault.makes)
    assert not new, f"new in the folder of the call: {new}"
    fault.holds(place, ended)
    return ended


def _called(fault: Fault, place: Place) -> tuple[Ended, set[str]]:
    """How it ended, and the addresses at which it listened that others can reach."""
    mark = uuid.uuid4().hex
    names = {"run": place.run, "here": place.here, "outside": place.outside}

    def filled(text: str) -> str:
        for name, folder in names.items():
            text = text.replace(f"{{{name}}}", str(folder))
        return text

    kept = {k: v for k, v in os.environ.items() if not k.startswith(("GIT_", "PYTEST_", "COV_"))}
    env = {
        **kept,
        "HOME": str(place.home),
        "TMPDIR": str(place.temporary),
        MARK: mark,
        "MPLCONFIGDIR": str(place.top),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    for name, value in fault.env.items():
        env.pop(name, None)
        if value is not None:
            env[name] = filled(value)
    words = [str(COMMAND), *map(filled, fault.words)]
    if fault.terminal:
        words = [sys.executable, "-c", IN_A_TERMINAL, *words]
    if fault.shell:
        words = ["sh", "-c", filled(fault.shell), "sh", *words]
    begun = time.monotonic()
    with (place.top / "out").open("wb+") as out, (place.top / "said").open("wb+") as said:
        with processes.handling(lambda *_: None, *SIGNALS):  # whatever the tests were started with
            process = subprocess.Popen(
                words,
                cwd=place.here,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=said,
                start_new_session=True,
            )
        try:
            listening = _watched(fault, place, process, mark)
            took = time.monotonic() - begun
            left = [pid for pid in processes.marked(mark) if not processes.gone(pid, 3.0)]
        finally:
            for pid in processes.marked(mark):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()
        texts = [_text(each) for each in (out, said)]
    assert not left, f"processes left behind: {left}"
    status = process.returncode if process.returncode >= 0 else 128 - process.returncode
    return Ended(status, *texts, took), listening


def _watched(fault: Fault, place: Place, process: subprocess.Popen, mark: str) -> set[str]:
    """Wait for its end, sending signals on the way; the addresses at which it listened."""
    begun, waiting, listening = time.monotonic(), list(fault.signals), set[str]()
    while process.poll() is None:
        passed = time.monotonic() - begun
        assert passed < fault.within_s, (
            f"still running after {fault.within_s} s: {(place.top / 'said').read_text()[-2000:]}"
        )
        if waiting and _due(waiting[0], place, passed):
            each = waiting.pop(0)
            (os.killpg if each.group else os.kill)(process.pid, each.number)
        listening |= _reachable(mark)
        time.sleep(0.01 if waiting else 0.04)
    return listening


def _due(each: Signal, place: Place, passed: float) -> bool:
    return each.when(place) if callable(each.when) else passed >= each.when


def _reachable(mark: str) -> set[str]:
    """The addresses at which a marked process listens for other machines."""
    found: dict[str, str] = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            words = line.split()
            address = words[1].partition(":")[0]
            if words[3] == "0A" and not address.endswith(("7F", "0" * 24 + "01000000")):
                found[f"socket:[{words[9]}]"] = words[1]
    if not found:
        return set()
    held = set()
    for pid in processes.marked(mark):
        with suppress(OSError):
            for each in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    held.add(str(each.readlink()))
    return {found[name] for name in held & found.keys()}


def _text(opened) -> str:
    opened.seek(0)
    return opened.read().decode("utf-8", "backslashreplace")


def _names(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir()}


def _tree(folder: Path) -> dict[str, bytes | str]:
    """What lies in a folder, for a comparison."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else ""
        for path in folder.rglob("*")
    }


def make_run(folder: Path) -> Path:
    """A run of two cells by the installed command; its folder."""
    done = subprocess.run(
        [COMMAND, "run", "einsum", "matmul", *TINY, "--out", "results"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode in (0, 1), done.stderr[-3000:]
    (path,) = folder.glob("results/*/*/run.json")
    return path.parent


def make_place(top: Path, tiny_run: Path) -> Place:
    """Folders for a fault, the run among them."""
    place = Place(top)
    for folder in (place.outside, place.temporary, place.home):
        folder.mkdir(parents=True)
    shutil.copytree(tiny_run, place.run)
    return place
