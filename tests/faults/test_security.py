"""Folders from elsewhere, folders that others write to, texts that others wrote, other machines."""

import csv
import json
import re

import pytest

from tests.faults.campaign import TINY, Fault

EVIL = "from pathlib import Path\nPath({outside!r}, 'ran').touch()\nROWS = []\n"
NASTY = "\x1b]0;title\x07\x1b[2J\x9b31m[/b][bold]\u202egnp.\u2066"
"""A title, an empty screen, red, markup that closes what is not open, and a line turned round."""
ROW = f"""
from impls.spec import Variant
def build(problem):
    raise ValueError({NASTY!r})
ROWS = [Variant(name="mine", title={NASTY!r}, family="mine", build=":build", computes="softmax",
                paper={NASTY!r}), {NASTY!r}]
"""
FORMULA = "=cmd|'/C calc'!A0"
RESUME, REPORT = ("run", "--resume", "{run}", "--no-report"), ("report", "{run}")
COMPARE, TABLE = ("compare", "{run}", "{run}"), ("--table", "mine.py")
CHOOSE = ("choose", "--from", "{run}", *TINY[:14])


def evil(place, name="mine.py"):
    return place.file(name, EVIL.format(outside=str(place.outside)))


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


def torn_link(place):
    link("torn.txt")(place)
    place.records(lambda lines: [*lines, b'{"status":"mea'])


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
    sheets = [*(place.run / "report").glob("*.csv"), *(place.run / "report/figures").glob("*.csv")]
    assert sheets
    for sheet in sheets:
        for row in csv.reader(sheet.read_text().splitlines()):
            assert not [cell for cell in row if cell.startswith("=")], sheet


def no_escape(place, ended):
    """Of what a terminal obeys, only colours and the cursor's moves that are rich's own."""
    both = ended.out + ended.said
    assert not re.search("\x1b]|\x1b\\[2J|\x07|\x9b|\u202e|\u2066", both), both


SHOWN = {"terminal": True, "holds": no_escape}
FAULTS = [
    Fault("a run from elsewhere names a file of rows", RESUME, names_a_table,
          says=r"--table .*received/mine\.py"),
    Fault("a run from elsewhere that holds its file of rows", RESUME,
          lambda place: names_a_table(place, "results/box/tiny"), says="--table"),
    Fault("a run that names a file of rows, reported", REPORT, names_a_table, (0, 1, 2)),
    Fault("ranks", ("run", "ring", *TINY, "--world", "2"), status=(0, 1), within_s=150,
          says="ring"),
    *(Fault(f"{name} is a link to a file outside", REPORT, link(f"report/{name}", target), (0, 2))
      for name, target in (("index.html", "victim"), ("data.csv.new", "not-there"))),
    Fault("a run's records are a link to a file outside", RESUME, link("records.jsonl"), (0, 1, 2)),
    Fault("what is torn goes to a link", RESUME, torn_link),
    Fault("a picture's name is a link", ("show", "einsum", "--text", "a b", "--out", "map.png"),
          link("map.png", of_run=False), (0, 2)),
    Fault("escapes in a plugin's row, in a terminal", ("list", *TABLE), nasty_rows, (0,), "mine",
          **SHOWN),
    Fault("escapes in a plugin's messages, in a terminal", ("run", "mine", *TINY, *TABLE),
          nasty_rows, (1,), "ValueError", **SHOWN),
    Fault("escapes in records, of which one is chosen", CHOOSE, nasty_records, (0, 1, 2)),
    Fault("escapes in records, in a terminal", COMPARE, nasty_records, (0, 1, 2), **SHOWN),
    Fault("escapes in a mask", ("run", "einsum", "--mask", NASTY)),
    Fault("formulas in records", REPORT, lambda place: nasty_records(place, FORMULA), (0,),
          holds=no_formula),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault(bring_about, fault):
    bring_about(fault)
