"""Signals, plugins that hang, machines that lack what others have; folders from elsewhere, folders
that others write to, texts that others wrote."""

import csv
import json
import os
import re
import time
from signal import SIGHUP, SIGINT, SIGTERM

import numpy as np
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
THREE = ("run", "einsum", "matmul", "bmm", *TINY)
RUN, LIST, SHOW = ("run", "einsum", *TINY), ("list",), ("show", "einsum")
REPORT, COMPARE = ("report", "{run}"), ("compare", "{run}", "{run}")
COMMITS, TABLE = ("compare", "HEAD", "HEAD"), ("--table", "mine.py")
ASCII = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
SITE = {"PYTHONPATH": "{here}/site"}
IMPORTED = {"attnbench.command.terminal": LIST, "impls": LIST, "numpy": COMPARE}
VARIABLES = (
    ("COLUMNS", "1", LIST), ("COLUMNS", "x", LIST), ("TERM", "bogus", LIST),
    ("PYTHONOPTIMIZE", "2", SHOW), ("PYTHONWARNINGS", "error", LIST), ("PATH", "", RUN),
    ("OMP_NUM_THREADS", "banana", RUN), ("LC_ALL", "xx_XX.UTF-8", LIST), ("GIT_DIR", "/none", RUN),
    ("TZ", "Nowhere/None", REPORT), ("MPLBACKEND", "module://evil", REPORT),
)  # fmt: skip
LONG = [b"x" * 30_000_000 + b"\n"]
ANY = (0, 1, 2)


def has_begun(place):
    return (place.here / "begun").exists()


def run_begun(place):
    """Whether a run made its folder a second ago: by then it has said what it will do."""
    made = (place.here / "results").glob("[!b]*/*/records.jsonl")
    return any(time.time() - file.stat().st_mtime > 1.0 for file in made)


def compare_begun(place):
    return any(place.temporary.glob("attnbench-*"))


def hangs(more=""):
    return lambda place: place.file("mine.py", more + HANGS.format(here=str(place.here)))


def table(code):
    return lambda place: place.file("mine.py", code + ROWS)


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
    *(Fault(f"a run, {number.name}{' to its group' * group}", (*THREE, "--budget", "20"),
            status=(130,), says="--resume", signals=[Signal(number, run_begun, group)])
      for number, group in ((SIGTERM, True), (SIGTERM, False), (SIGINT, True))),
    *(Fault(f"Ctrl-C while {module} is imported", words,
            customised(INTERRUPTS.format(module=module)), (130,), env=SITE,
            makes=("site", "mine.py"))
      for module, words in IMPORTED.items()),
    *(Fault(f"no folder for temporary files, {words[0]}", words, customised(NO_TEMPORARY), ANY,
            env={**SITE, "TMPDIR": None})
      for words in (RUN, COMMITS)),
    Fault("no /proc", RUN, status=ANY, shell=NO_PROC),
    *(Fault(f"ulimit {limit}", RUN, status=ANY, shell=f'ulimit {limit}; exec "$@"')
      for limit in ("-n 12", "-f 1")),
    *(Fault(f"a terminal of ASCII, {words[0]}", words, status=(0, 1), env=ASCII)
      for words in (REPORT, RUN, SHOW)),
    Fault("the C locale", LIST, status=(0, 1), env=C_LOCALE),
    Fault("no current folder", RUN, status=ANY, shell=NO_FOLDER),
    Fault("results whose path is not UTF-8", (*RUN[:-1], "--out", "re\udcffsults"), status=(0, 1),
          makes=("re\udcffsults",),
          holds=lambda place, ended: next(place.here.glob("re*/*/*/report/*.html"))),
    Fault("modules in the current folder", RUN, named_like_ours, (0, 1)),
    Fault("a hostile repository", RUN, hostile_repository, ANY),
    *(Fault(f"{name}={value!r}, {words[0]}", words, status=ANY, env={name: value})
      for name, value, words in VARIABLES),
    Fault("a broken matplotlibrc", REPORT, status=(0, 1),
          prepare=lambda place: place.file("matplotlibrc", b"\xff\nbackend: nowhere\n")),
    Fault("a machine's folder that is a file", ("report", "results"), status=(0, 1, 2),
          prepare=lambda place: place.file("results/other", "x")),
    Fault("a link that leads to itself", ("report", "loop"),
          lambda place: (place.here / "loop").symlink_to("loop")),
    Fault("a line of 30 MB", COMPARE, lambda place: place.records(lambda _: LONG), ANY),
]  # fmt: skip


NASTY = "\x1b]0;title\x07\x1b[2J\x9b31m[/b][bold]\u202egnp.\u2066"
"""A title, an empty screen, red, markup that closes what is not open, and a line turned round."""
ROW = f"""
from impls.spec import Variant
def build(problem):
    raise ValueError({NASTY!r})
ROWS = [Variant(name="mine", title={NASTY!r}, family="mine", build=":build", operator="softmax",
                paper={NASTY!r}), {NASTY!r}]
"""
FORMULA = "=cmd|'/C calc'!A0"
RESUME = ("run", "--resume", "{run}", "--no-report")
CHOOSE = ("choose", "--from", "{run}", *TINY[:14])


def evil(place, name="mine.py"):
    return place.file(name, EVIL.format(outside=str(place.outside)) + "ROWS = []\n")


def names_a_table(place, folder="received"):
    """A run whose header names a file of rows that does harm."""
    table = evil(place, f"{folder}/mine.py")
    place.told(tables=[str(table)], variants=["einsum", "mine"])


def link(name, target="victim", of_run=True):
    """A name in the run's folder that leads to a file outside."""

    def prepare(place):
        (place.outside / "victim").write_text("mine")
        path = (place.run if of_run else place.here) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(place.outside / target)

    return prepare


def nasty_rows(place):
    place.file("mine.py", ROW)


def nasty_records(place, text=NASTY):
    """Records whose texts are not what a run would write."""
    lines = [json.loads(line) for line in (place.run / "records.jsonl").read_text().splitlines()]
    for number, values in enumerate(lines):
        values |= {"variant": f"{values['variant']}{text}", "family": text, "node": text}
        values["time"]["flags"] = [text, f"contended{text}"]
        values["kernels"] = [text]
        if number:
            values |= {"status": "failed", "reason": text, "remedy": text, "time": None}
    place.records(lambda _: [json.dumps(values).encode() + b"\n" for values in lines])
    place.told(machine__cpu=text, machine__versions={text: text}, command=text)
    place.told(code={"commit": text, "dirty": False}, selfcheck={"line": text})


def no_formula(place, ended):
    sheets = [*(place.run / "report").glob("*.csv")]
    assert sheets
    for sheet in sheets:
        for row in csv.reader(sheet.read_text().splitlines()):
            assert not [cell for cell in row if cell.startswith("=")], sheet


def no_escape(place, ended):
    """Of what a terminal obeys, only colours and the cursor's moves that are rich's own."""
    both = ended.out + ended.said
    assert not re.search("\x1b]|\x1b\\[2J|\x07|\x9b|\u202e|\u2066", both), both


MARKUP = [word if word != "none" else "dense:a[/b].npy" for word in TINY]
SHOWN = {"terminal": True, "holds": no_escape}
FAULTS += [
    Fault("a run from elsewhere names a file of rows", RESUME, names_a_table,
          says=r"--table .*received/mine\.py"),
    Fault("a run from elsewhere that holds its file of rows", RESUME,
          lambda place: names_a_table(place, "results/box/tiny"), says="--table"),
    Fault("a run that names a file of rows, reported", REPORT, names_a_table, (0, 1, 2)),
    Fault("ranks", ("run", "ring", *TINY, "--world", "2"), status=(0, 1), within_s=150,
          says="ring"),
    *(Fault(f"{name} is a link to a file outside", REPORT, link(f"report/{name}", target), (0, 2))
      for name, target in (("index.html", "victim"), ("data.csv.new", "not-there"))),
    Fault("what is exported to is no file", (*CHOOSE[:3], "--export", "{here}/fifo"),
          lambda place: os.mkfifo(place.here / "fifo"), says="it is there, and no file",
          holds=lambda place, ended: (place.here / "fifo").is_fifo()),
    Fault("a picture's name is a link", ("show", "einsum", "--text", "a b", "--out", "map.png"),
          link("map.png", of_run=False), (0, 2)),
    Fault("escapes in a plugin's row, in a terminal", ("list", *TABLE), nasty_rows, (0,), "mine",
          **SHOWN),
    Fault("escapes in a plugin's messages, in a terminal", ("run", "mine", *TINY, *TABLE),
          nasty_rows, (1,), "ValueError", **SHOWN),
    Fault("escapes in records, of which one is chosen", CHOOSE, nasty_records, (0, 1, 2)),
    Fault("escapes in records, in a terminal", COMPARE, nasty_records, (0, 1, 2), **SHOWN),
    Fault("escapes in an option", ("run", f"chunked?block={NASTY}")),
    Fault("escapes in a file's name", ("report", f"{{here}}/{NASTY}")),
    Fault("markup in a mask's name, in a terminal", ("run", "einsum", *MARKUP),
          lambda place: np.save(place.file("a[/b].npy"), np.tri(16, dtype=bool)), (0, 1), **SHOWN),
    Fault("escapes in a mask", ("run", "einsum", "--mask", NASTY)),
    Fault("formulas in records", REPORT, lambda place: nasty_records(place, FORMULA), (0,),
          holds=no_formula),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault(bring_about, fault):
    bring_about(fault)
