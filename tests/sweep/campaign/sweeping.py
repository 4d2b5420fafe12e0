"""One sweep over hostile kinds with somebody honest after each, and what it left behind."""

import os
import shutil
import signal
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import impls
from attnbench.core import process
from attnbench.core.machine import this_machine
from attnbench.core.run_folder import RunFolder
from attnbench.core.settings import Settings
from attnbench.core.store import read_records
from attnbench.sweep import sweep
from attnbench.sweep.engine import LocalEngine
from attnbench.sweep.plan import make_plan
from attnbench.sweep.presets import Preset
from attnbench.sweep.start import RunRecords
from attnbench.sweep.sweep import Slot
from impls.loading import load_file
from tests import processes

HERE = Path(__file__).parent
TABLES = ["table_raising.py", "table_changing.py", "table_dying.py", "table_standing.py"]
KINDS = [kind for table in TABLES for kind in load_file(HERE / table).kind.all]
MODULES = {
    "broken_syntax.py": "def build(problem:\n",
    "fails_at_import.py": "raise ValueError('fails_at_import')\n",
    "exits_at_import.py": "import os\nos._exit(7)\n",
    "never_imported.py": "import time\nwhile True: time.sleep(1)\n",
}
"""What lies beside the tables and can't lie in a house that is kept in order."""
GRID = Preset(
    "one small problem", seq=("16",), heads=(1,), head_dim=(8,), phase=("forward",), budget=0.01
)
KNOWN = {"nodes": {"": {"ceilings": {}}}}
MARK = "ATTNBENCH_CAMPAIGN"
MEMORY = 4 << 30
"""What a worker may hold: more than any kind that is honest about it needs."""
HANG_S, PATIENCE_S = 4.0, 120.0
GONE_S = 20.0
"""So long what is left of a killed process may take to go."""


class Hasty(LocalEngine):
    """Gives those that hang a short time, and everybody else enough on a busy machine."""

    def __init__(self, hasty):
        super().__init__(Settings())
        self._hasty, self.workers = set(hasty), 0

    def _start(self):
        self.workers += 1
        return super()._start()

    def ask(self, question, limit_s):
        if "job" in question:
            hasty = question["job"]["variant"]["name"] in self._hasty
            limit_s = HANG_S if hasty else PATIENCE_S
        return super().ask(question, limit_s)


@dataclass
class Swept:
    """What is there when all is over."""

    kinds: list
    order: list = field(default_factory=list)
    records: list = field(default_factory=list)
    grown: int = 0
    """Bytes by which this process was at its largest above what it was before."""
    workers: int = 0
    left: list = field(default_factory=list)

    def of(self, label):
        return next(r for r in self.records if r.variant == label)


def laid_out(folder):
    """The tables and what lies beside them, in a folder of their own."""
    for file in ["campaign_rows.py", "table_honest.py", *TABLES]:
        shutil.copy(HERE / file, folder / file)
    for name, text in MODULES.items():
        (folder / name).write_text(text)
    return [folder / file for file in ["table_honest.py", *TABLES]]


@contextmanager
def marked():
    """A word in the environment, and the commands, of everything started meanwhile."""
    word = f"campaign-{os.getpid()}-{os.urandom(4).hex()}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARK, word)
        yield word


def left_behind(word):
    """The processes that carry the word in their environment or in their command."""
    found = set(processes.marked(word))
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and processes.alive(entry.name):
            try:
                if word.encode() in (entry / "cmdline").read_bytes():
                    found.add(int(entry.name))
            except OSError:
                continue
    return sorted(found - {os.getpid()})


def ended_by_itself(word, how_long=GONE_S):
    """Wait for what carries the word to go; what stays, in words, is ended here."""
    end = time.monotonic() + how_long
    while (left := left_behind(word)) and time.monotonic() < end:
        time.sleep(0.05)
    stayed = []
    for one in left:
        with suppress(OSError):
            said = Path(f"/proc/{one}/cmdline").read_bytes().replace(b"\0", b" ")
            stayed.append(f"{one}: {said[:100].decode(errors='replace')}")
            os.kill(one, signal.SIGKILL)
    return stayed


def swept(kinds, folder):
    """Sweep over the kinds, each followed by somebody honest."""
    tables = laid_out(folder)
    done = Swept(kinds, ["c.honest"])
    for number, kind in enumerate(kinds, 1):
        done.order += [kind.label, f"c.honest?n={number}"]
    plan = make_plan(impls.table(tables), done.order, GRID, this_machine())
    out = RunFolder.create(folder / "results", "box", {"seed": 0, "budget_s": 0.01, **KNOWN})
    with pytest.MonkeyPatch.context() as patch, marked() as word:
        patch.setattr(sweep, "MARGIN", 1e9)  # the machine that tests run on is busy
        patch.setattr(process, "free_memory", lambda: MEMORY)
        hasty = Hasty(kind.label for kind in kinds if kind.hangs)
        before = _told("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # its largest is counted from now
        try:
            sweep.sweep(plan, RunRecords(), out, [Slot(hasty)], _Quiet(), sweep.Interrupt(print))
        finally:
            hasty.close()
            out.close()
        done.grown, done.workers = _told("VmHWM") - before, hasty.workers
        done.left = ended_by_itself(word)
    done.records = list(read_records(out.path))
    return done


class _Quiet:
    def cell(self, record, done, total, left_s):
        pass

    def tell(self, sentence):
        pass


def _told(name):
    with Path("/proc/self/status").open() as lines:
        return next(int(x.split()[1]) * 1024 for x in lines if x.startswith(name))
