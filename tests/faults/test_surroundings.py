"""Signals, plugins that hang or start processes, and machines that lack what others have."""

from signal import SIGHUP, SIGTERM

import pytest

from tests.faults.campaign import TINY, Fault, Signal

ROWS = "\nfrom impls.spec import Variant\nROWS = []\n"
HANGS = "\nimport time\nfrom pathlib import Path\nPath({here!r}, 'begun').touch()\ntime.sleep(99)\n"
IGNORES = "import signal\nfor one in (2, 15): signal.signal(one, signal.SIG_IGN)"
FORKS = "import os, time\nif os.fork() == 0:\n    time.sleep(99)"
INTERRUPTS = """
import os, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), 2)
sys.meta_path.insert(0, Finder())
"""
NO_TEMPORARY = "import tempfile\ntempfile._candidate_tempdir_list = lambda: ['/proc/none']\n"
NO_PROC = """
unshare -rm true || exit 2
exec unshare -rm sh -c 'mount -t tmpfs none /proc && exec "$@"' sh "$@"
"""
NO_FOLDER = 'mkdir gone && cd gone && rmdir ../gone && exec "$@"'
EVIL = "from pathlib import Path\nPath({outside!r}, 'ran').touch()\n"
RUN, LIST, SHOW = ("run", "einsum", *TINY), ("list",), ("show", "einsum")
REPORT, COMPARE = ("report", "{run}"), ("compare", "{run}", "{run}")
COMMITS, TABLE = ("compare", "HEAD", "HEAD"), ("--table", "t.py")
ASCII = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
SITE = {"PYTHONPATH": "{here}/site"}
IMPORTED = {"attnbench.command.terminal": LIST, "impls": LIST, "numpy": COMPARE}
VARIABLES = (
    ("COLUMNS", "1", LIST), ("PYTHONOPTIMIZE", "2", SHOW), ("PATH", "", RUN),
    ("MPLBACKEND", "module://evil", REPORT),
)  # fmt: skip
LONG = [b"x" * 30_000_000 + b"\n"]
ANY = (0, 1, 2)


def has_begun(place):
    return (place.here / "begun").exists()


def run_begun(place):
    """Whether a run has made its folder."""
    return any((place.here / "results").glob("[!b]*/*/records.jsonl"))


def compare_begun(place):
    return any(place.temporary.glob("attnbench-*"))


def hangs(more=""):
    return lambda place: place.file("t.py", more + HANGS.format(here=str(place.here)))


def table(code):
    return lambda place: place.file("t.py", code + ROWS)


def customised(code):
    """What Python runs at its start."""
    return lambda place: (place.file("site/sitecustomize.py", code), table("")(place))


def named_like_ours(place):
    """Modules in the folder of the call that have names of what is imported."""
    for name in ("torch", "rich", "numpy", "json", "impls/__init__", "attnbench/__init__",
                 "sitecustomize", "msgspec", "asv/__init__"):  # fmt: skip
        place.file(f"{name}.py", EVIL.format(outside=str(place.outside)))


def hostile_repository(place):
    place.file(".git/HEAD", "ref: refs/heads/main\n")
    place.file(".git/objects/x")
    place.file(".git/refs/x")
    deed = f"touch {place.outside}/ran"
    place.file(".git/config", f"[core]\nfsmonitor = {deed}\n[diff]\nexternal = {deed}\n")


FAULTS = [
    *(Fault(f"a plugin that hangs at import{how}, {number.name}", ("list", *TABLE), hangs(more),
            (130,), makes=("begun",), signals=[Signal(number, has_begun)])
      for how, more, number in (("", "", SIGHUP), (" and ignores signals", IGNORES, SIGTERM))),
    Fault("a process that an import forked", ("list", *TABLE), table(FORKS), (0, 2)),
    Fault("commits compared, SIGTERM", COMMITS, status=(2, 130),
          signals=[Signal(SIGTERM, compare_begun)]),
    Fault("a run, SIGTERM to its group", ("run", "einsum", "matmul", "bmm", *TINY, "--budget",
          "20"), status=(130,), says="--resume", signals=[Signal(SIGTERM, run_begun, True)]),
    *(Fault(f"Ctrl-C while {module} is imported", words,
            customised(INTERRUPTS.format(module=module)), (130,), env=SITE, makes=("site", "t.py"))
      for module, words in IMPORTED.items()),
    *(Fault(f"no folder for temporary files, {words[0]}", words, customised(NO_TEMPORARY), ANY,
            env={**SITE, "TMPDIR": None})
      for words in (RUN, COMMITS)),
    Fault("no /proc", RUN, status=ANY, shell=NO_PROC),
    *(Fault(f"ulimit {limit}", RUN, status=ANY, shell=f'ulimit {limit}; exec "$@"')
      for limit in ("-n 12", "-f 1")),
    Fault("a terminal of ASCII", REPORT, status=(0, 1), env=ASCII),
    Fault("the C locale", LIST, status=(0, 1), env=C_LOCALE),
    Fault("no current folder", RUN, status=ANY, shell=NO_FOLDER),
    Fault("results whose path is not UTF-8", (*RUN, "--out", "re\udcffsults"), status=ANY,
          makes=("re\udcffsults",)),
    Fault("modules in the current folder", RUN, named_like_ours, (0, 1)),
    Fault("a hostile repository", RUN, hostile_repository, ANY),
    *(Fault(f"{name}={value!r}, {words[0]}", words, status=ANY, env={name: value})
      for name, value, words in VARIABLES),
    Fault("a link that leads to itself", ("report", "loop"),
          lambda place: (place.here / "loop").symlink_to("loop")),
    Fault("a line of 30 MB", COMPARE, lambda place: place.records(lambda _: LONG), ANY),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault(bring_about, fault):
    bring_about(fault)
