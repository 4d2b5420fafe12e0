"""Files, folders, signals, machines and texts that are not what they should be; and that the driver
of these faults notices what it must."""

import csv
import json
import os
import re
import shutil
import time
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGTERM

import numpy as np
import pytest

import attnbench
from tests.faults.campaign import TINY, Fault, Signal, records
from tests.repositories import copied

pytestmark = pytest.mark.slow
ANY = (0, 1, 2)
DEEP = "[" * 100_000 + "]" * 100_000
RESUME = ("run", "--resume", "{run}", "--no-report", "--json")
RUN, LIST, TABLE = ("run", "einsum", *TINY), ("list",), ("--table", "mine.py")
ONE, TWO = (*RUN, "--json"), ("run", "einsum", "matmul", *TINY, "--json")
REPORT, COMPARE = ("report", "{run}"), ("compare", "{run}", "{run}")
CHOOSE = ("choose", "--from", "{run}", *TINY[:14])
ROWS = "\nfrom impls.spec import Variant\nROWS = []\n"
HANGS = "\nimport time\nfrom pathlib import Path\nPath({here!r}, 'begun').touch()\ntime.sleep(99)\n"
IGNORES = "import signal\nfor one in (2, 15): signal.signal(one, signal.SIG_IGN)"
FORKS = "import os, time\nif os.fork() == 0:\n    time.sleep(99)"
EVIL = "from pathlib import Path\nPath({outside!r}, 'ran').touch()\n"
ONCE = "while ! [ -s $(echo results/[!b]*/*/records.jsonl) ]; do sleep 0.05; done 2>/dev/null; "
OWN = {"env": {"PYTHONPATH": "{here}/code"}, "makes": ["code"]}
NO_PROC = """
unshare -rm true || exit 2
exec unshare -rm sh -c 'mount -t tmpfs none /proc && exec "$@"' sh "$@"
"""
NASTY = "\x1b]0;title\x07\x1b[2J\x9b31m[/b][bold]\u202egnp.\u2066"
"""A title, an empty screen, red, markup that closes what is not open, and a line turned round."""
ROW = f"""
from impls.spec import Variant
def build(problem):
    raise ValueError({NASTY!r})
ROWS = [Variant(name="mine", title={NASTY!r}, family="mine", build=":build", operator="softmax",
                paper={NASTY!r}), {NASTY!r}]
"""


def header(path):
    return json.loads((path / "run.json").read_text())


def only_run(place):
    """The run that the command made."""
    (path,) = (p.parent for p in place.here.glob("results/*/*/run.json") if p.parent != place.run)
    return path


def has_one(place, ended):
    assert len({each["variant"] for each in records(only_run(place))}) == 1


def code(place):
    """A copy of the code, which PYTHONPATH puts before the one that is installed."""
    top, ignore = Path(attnbench.__file__).parents[1], shutil.ignore_patterns("__pycache__")
    for package in ("attnbench", "impls"):
        copied(top / package, place.here / "code" / package, ignore=ignore)


def edited(place):
    """Of the two records the last is gone, and the code is other than it was."""
    place.records(lambda lines: lines[:1])
    code(place)
    with (place.here / "code" / "impls" / "dense" / "einsum.py").open("a") as more:
        more.write("# changed\n")


def untouched(place, ended):
    assert len(records(place.run)) == 1 and "legs" not in header(place.run)


def in_legs(place, ended):
    first, *later = records(place.run)  # two where the machine was noisy: a cell is measured again
    assert header(place.run)["legs"][0]["changes"]
    second = first["node"] + "#2"
    assert {record["node"] for record in later} == {second}
    answers = json.loads(ended.out)["answers"]
    assert [a["node"] for a in answers] == [first["node"], second]


def has_begun(place):
    return (place.here / "begun").exists()


def run_begun(place):
    """Whether a run made its folder a second ago: by then it has said what it will do."""
    made = (place.here / "results").glob("[!b]*/*/records.jsonl")
    return any(time.time() - file.stat().st_mtime > 1.0 for file in made)


def hangs(more=""):
    return lambda place: place.file("mine.py", more + HANGS.format(here=str(place.here)))


def table(text):
    return lambda place: place.file("mine.py", text + ROWS)


def of_run(name, content):
    return lambda place: place.file(str(place.run / name), content)


def named_like_ours(place):
    """Modules in the folder of the call that have names of what is imported."""
    for name in ("torch", "rich", "numpy", "json", "impls/__init__", "attnbench/__init__",
                 "sitecustomize", "msgspec"):  # fmt: skip
        place.file(f"{name}.py", EVIL.format(outside=str(place.outside)))


def names_a_table(place):
    """A run whose header names a file of rows that does harm."""
    rows = place.file("received/mine.py", EVIL.format(outside=str(place.outside)) + "ROWS = []\n")
    facts = header(place.run) | {"tables": [str(rows)], "variants": ["einsum", "mine"]}
    (place.run / "run.json").write_text(json.dumps(facts))


def told(text):
    """A run whose records' texts are not what a run would write."""

    def prepare(place):
        lines = records(place.run)
        for number, values in enumerate(lines):
            values |= {"variant": f"{values['variant']}{text}", "family": text, "node": text}
            values["time"]["flags"] = [text, f"contended{text}"]
            if number:
                values |= {"status": "failed", "reason": text, "remedy": text, "time": None}
        place.records(lambda _: [json.dumps(values).encode() + b"\n" for values in lines])

    return prepare


def no_formula(place, ended):
    sheets = [*(place.run / "report").glob("*.csv")]
    rows = [row for sheet in sheets for row in csv.reader(sheet.read_text().splitlines())]
    assert rows and not [cell for row in rows for cell in row if cell.startswith("=")]


def no_escape(place, ended):
    """Of what a terminal obeys, only colours and the cursor's moves that are rich's own."""
    both = ended.out + ended.said
    assert not re.search("\x1b]|\x1b\\[2J|\x07|\x9b|\u202e|\u2066", both), both


SHOWN = {"terminal": True, "holds": no_escape}
MASKED = [word if word != "none" else "dense:a[/b].npy" for word in TINY]
LOST = {
    "the folder is renamed": 'mv "$PWD" ../moved',
    "the records are replaced": "cp records.jsonl x; mv x records.jsonl",
}
STREAMS = {
    "no standard input": 'exec "$@" <&-', "a full error stream": 'exec "$@" 2>/dev/full',
    "an error stream that nobody reads": '{ "$@" 2>&1 >&3 | true; } 3>&1',
}  # fmt: skip
VARIABLES = (
    ("COLUMNS", "1", LIST), ("TERM", "bogus", LIST), ("PYTHONOPTIMIZE", "2", ("show", "einsum")),
    ("PYTHONWARNINGS", "error", LIST), ("PATH", "", RUN), ("OMP_NUM_THREADS", "banana", RUN),
    ("LC_ALL", "xx_XX.UTF-8", LIST), ("GIT_DIR", "/none", RUN), ("TZ", "Nowhere/None", REPORT),
)  # fmt: skip
FAULTS = [
    Fault("a header nested deep", RESUME, of_run("run.json", DEEP)),
    Fault("a record nested deep", REPORT, of_run("records.jsonl", f"{DEEP}\n{{}}\n"), (1, 2)),
    Fault("a line of 30 MB", COMPARE, of_run("records.jsonl", b"x" * 30_000_000 + b"\n"), ANY),
    Fault("the facts of the machine nested deep", COMPARE, of_run("../env.json", DEEP), (0, 1)),
    Fault("calls nested deep", ("run", "--problems", "c.json"), lambda p: p.file("c.json", DEEP)),
    Fault("a table that is a device", ("list", "--table", "/dev/zero")),
    Fault("code edited between", RESUME, edited, holds=untouched,
          says="code of the variants has changed", **OWN),
    Fault("code edited between, and gone on with", [*RESUME, "--anyway"], edited, [0, 1],
          "another leg of the run", holds=in_legs, **OWN),
    Fault("code edited while it goes on", ["run", "einsum", "matmul", *TINY], code, holds=has_one,
          shell=f'({ONCE} echo "# x" >> code/impls/dense/einsum.py) & "$@"; s=$?; wait; exit $s',
          says=r"impls/dense/einsum\.py was changed while the run went on", **OWN),
    *(Fault(f"while a run goes on, {name}", TWO,
            says="moved or deleted while the run went on",
            shell=f'({ONCE} cd results/[!b]*/2*; {deed}) & "$@"; s=$?; wait; exit $s')
      for name, deed in LOST.items()),
    Fault("a full disk in the middle of a record", TWO, holds=has_one,
          shell='ulimit -f 8; exec "$@"', says="what was measured before is kept"),
    Fault("a full output", ONE, holds=has_one, shell='exec "$@" >/dev/full',
          says="can't write to the output"),
    *(Fault(name, ONE, shell=shell, status=[0, 1], holds=has_one)
      for name, shell in STREAMS.items()),
    Fault("every stream closed", ONE, shell='exec "$@" <&- >&- 2>&-', status=[0, 1],
          holds=has_one),
    *(Fault(f"a plugin that hangs at import{how}, {number.name}", ("list", *TABLE), hangs(more),
            (130,), makes=("begun",), signals=[Signal(number, has_begun)])
      for how, more, number in (("", "", SIGHUP), (" and ignores signals", IGNORES, SIGTERM))),
    Fault("a process that an import forked", ("list", *TABLE), table(FORKS), (0, 2)),
    *(Fault(f"a run, {number.name}{' to its group' * group}",
            ("run", "einsum", "matmul", "bmm", *TINY, "--budget", "20"), status=(130,),
            says="--resume", signals=[Signal(number, run_begun, group)])
      for number, group in ((SIGTERM, False), (SIGINT, True))),
    Fault("no /proc", RUN, status=ANY, shell=NO_PROC),
    Fault("ulimit -n 12", RUN, status=ANY, shell='ulimit -n 12; exec "$@"'),
    *(Fault(f"a terminal of ASCII, {words[0]}", words, status=(0, 1),
            env={"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
      for words in (REPORT, RUN)),
    Fault("results whose path is not UTF-8", (*RUN[:-1], "--out", "re\udcffsults"), status=(0, 1),
          makes=("re\udcffsults",),
          holds=lambda place, ended: next(place.here.glob("re*/*/*/report/*.html"))),
    Fault("modules in the current folder", RUN, named_like_ours, (0, 1)),
    *(Fault(f"{name}={value!r}, {words[0]}", words, status=ANY, env={name: value})
      for name, value, words in VARIABLES),
    Fault("a run from elsewhere names a file of rows", RESUME, names_a_table,
          says=r"--table .*received/mine\.py"),
    Fault("a run that names a file of rows, reported", REPORT, names_a_table, (0, 1, 2)),
    Fault("ranks", ("run", "ring", *TINY, "--world", "2"), status=(0, 1), within_s=150,
          says="ring"),
    Fault("what is exported to is no file", (*CHOOSE[:3], "--export", "{here}/fifo"),
          lambda place: os.mkfifo(place.here / "fifo"), says="it is there, and no file",
          holds=lambda place, ended: (place.here / "fifo").is_fifo()),
    Fault("escapes in a plugin's row, in a terminal", ("list", *TABLE),
          lambda place: place.file("mine.py", ROW), (0,), "mine", **SHOWN),
    Fault("escapes in a plugin's messages, in a terminal", ("run", "mine", *TINY, *TABLE),
          lambda place: place.file("mine.py", ROW), (1,), "ValueError", **SHOWN),
    Fault("escapes in records, of which one is chosen", CHOOSE, told(NASTY), (0, 1, 2)),
    Fault("escapes in records, in a terminal", COMPARE, told(NASTY), (0, 1, 2), **SHOWN),
    Fault("markup in a mask's name, in a terminal", ("run", "einsum", *MASKED),
          lambda place: np.save(place.file("a[/b].npy"), np.tri(16, dtype=bool)), (0, 1), **SHOWN),
    Fault("formulas in records", REPORT, told("=cmd|'/C calc'!A0"), (0,), holds=no_formula),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault(bring_about, fault):
    bring_about(fault)
