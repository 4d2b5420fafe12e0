"""Folders from elsewhere, folders that others write to, texts that others wrote, other machines."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest

from impls.loading import load_file

campaign = load_file(Path(__file__).with_name("campaign.py"))
Fault, TINY = campaign.Fault, campaign.TINY
pytestmark = pytest.mark.slow

EVIL = "from pathlib import Path\nPath({outside!r}, 'ran').touch()\nROWS = []\n"


def header(place, **changes):
    """Change what the run's header says."""
    file = place.run / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def names_a_table(place, folder="received"):
    """A run whose header names a file of rows that does harm."""
    table = place.file(f"{folder}/mine.py", EVIL.format(outside=str(place.outside)))
    header(place, tables=[str(table)], variants=["einsum", "mine"])


def link(name, target="victim"):
    """A name in the run's folder that leads to a file outside."""

    def prepare(place):
        (place.outside / "victim").write_text("mine")
        path = place.run / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(place.outside / target)

    return prepare


def torn_link(place):
    link("torn.txt")(place)
    with (place.run / "records.jsonl").open("a") as records:
        records.write('{"status":"mea')


NASTY = "\x1b]0;title\x07\x1b[2J\x9b31m[/b][bold]\u202egnp.\u2066"
"""A title, an empty screen, red, markup that closes what is not open, and a line turned round."""
ROW = """
from impls.spec import Variant
def build(problem):
    raise ValueError({nasty!r})
ROWS = [Variant(name="mine", title={nasty!r}, family="mine", build=":build", computes="softmax",
                paper={nasty!r}), {nasty!r}]
"""
FORMULA = "=cmd|'/C calc'!A0"


def nasty_rows(place):
    place.file("mine.py", ROW.format(nasty=NASTY))


def nasty_records(place, text=NASTY):
    """Records whose texts are not what a run would write."""
    lines = [json.loads(line) for line in (place.run / "records.jsonl").read_text().splitlines()]
    for number, values in enumerate(lines):
        values |= {"variant": f"{values['variant']}{text}", "family": text, "node": text}
        values["time"]["flags"] = [text, f"contended{text}"]
        values["kernels"] = [text]
        if number:
            values |= {"status": "failed", "reason": text, "remedy": text, "time": None}
    (place.run / "records.jsonl").write_text("".join(json.dumps(v) + "\n" for v in lines))
    said = json.loads((place.run / "run.json").read_text())
    header(
        place,
        machine={**said["machine"], "cpu": text, "versions": {text: text}},
        command=text,
        code={"commit": text, "dirty": False},
        selfcheck={"line": text},
    )


def no_formula(place, ended):
    sheets = [*(place.run / "report").glob("*.csv"), *(place.run / "report/figures").glob("*.csv")]
    assert sheets
    for sheet in sheets:
        for row in csv.reader(sheet.read_text().splitlines()):
            assert not [cell for cell in row if cell.startswith("=")], sheet


def no_escape(ended):
    """Of what a terminal obeys, only colours and the cursor's moves that are rich's own."""
    both = ended.out + ended.said
    assert not re.search("\x1b]|\x1b\\[2J|\x07|\x9b|\u202e|\u2066", both), both


def bracket_mask(place):
    (place.here / "a[").mkdir()
    np.save(place.here / "a[" / "b].npy", np.tri(16, dtype=bool))


MASK = [word if word != "none" else "dense:a[/b].npy" for word in TINY]
RESUME = ("run", "--resume", "{run}", "--no-report")
FAULTS = [
    Fault(name="a run from elsewhere names a file of rows", words=RESUME,
          prepare=names_a_table, says=r"--table .*received/mine\.py"),
    Fault(name="a run from elsewhere that holds its file of rows", words=RESUME,
          prepare=lambda place: names_a_table(place, "results/box/tiny"), says="--table"),
    Fault(name="another file of rows than the run had", words=(*RESUME, "--table", "other.py"),
          prepare=lambda place: (names_a_table(place), place.file("other.py", "ROWS = []")),
          says="--table"),
    Fault(name="a file of rows for a run that had none", words=(*RESUME, "--table", "mine.py"),
          prepare=lambda place: place.file("mine.py", EVIL.format(outside=str(place.outside))),
          says="without --table"),
    Fault(name="a report of a run that names a file of rows", words=("report", "{run}"),
          prepare=names_a_table, status=(0,)),
    Fault(name="a choice from a run that names a file of rows", status=(0, 1, 2),
          words=("choose", "--from", "{run}", "--seq", "16"), prepare=names_a_table),
    Fault(name="two runs that name a file of rows", status=(0, 1),
          words=("compare", "{run}", "{run}"), prepare=names_a_table),
    Fault(name="ranks", words=("run", "ring", *TINY, "--world", "2"), status=(0, 1),
          within_s=150, says="ring"),
    *(
        Fault(name=f"{name} is a link to a file outside", words=("report", "{run}"),
              prepare=link(f"report/{name}"), status=(0, 2))
        for name in ("index.html.new", "index.html", "data.csv.new", "summary.md", "table.tex",
                     "figures/figures.json", "figures/figures.json.new")
    ),
    Fault(name="a link to nothing in a report", words=("report", "{run}"), status=(0, 2),
          prepare=link("report/index.html.new", "not-there")),
    *(
        Fault(name=f"{name} of a run is a link to a file outside", words=RESUME,
              prepare=link(name), status=(0, 1, 2))
        for name in ("records.jsonl", "run.json.new", "records.jsonl.new")
    ),
    Fault(name="what is torn goes to a link", words=RESUME, prepare=torn_link),
    Fault(name="a picture's name is a link", status=(0, 2),
          words=("show", "einsum", "--text", "a b", "--out", "map.png"),
          prepare=lambda place: (
              (place.outside / "victim").write_text("mine"),
              (place.here / "map.png").symlink_to(place.outside / "victim"),
          )),
    Fault(name="escapes in a plugin's row, listed", words=("list", "--table", "mine.py"),
          prepare=nasty_rows, status=(0,), says="mine"),
    Fault(name="escapes in a plugin's row, shown", words=("show", "mine", "--table", "mine.py"),
          prepare=nasty_rows, status=(0,), says="mine"),
    Fault(name="escapes in a plugin's messages", status=(1,), within_s=90, says="ValueError",
          words=("run", "mine", *TINY, "--table", "mine.py"), prepare=nasty_rows),
    Fault(name="escapes in a plugin's messages, in a terminal", status=(1,), within_s=90,
          words=("run", "mine", *TINY, "--table", "mine.py"), prepare=nasty_rows, terminal=True,
          says="ValueError", holds=lambda place, ended: no_escape(ended)),
    Fault(name="escapes in a plugin's row, in a terminal", words=("list", "--table", "mine.py"),
          prepare=nasty_rows, status=(0,), says="mine", terminal=True,
          holds=lambda place, ended: no_escape(ended)),
    Fault(name="escapes in records, reported", words=("report", "{run}"), prepare=nasty_records,
          status=(0, 1, 2)),
    Fault(name="escapes in records, compared", words=("compare", "{run}", "{run}"),
          prepare=nasty_records, status=(0, 1, 2)),
    Fault(name="escapes in records, compared in a terminal", words=("compare", "{run}", "{run}"),
          prepare=nasty_records, status=(0, 1, 2), terminal=True,
          holds=lambda place, ended: no_escape(ended)),
    Fault(name="escapes in records, chosen from", status=(0, 1, 2), prepare=nasty_records,
          words=("choose", "--from", "{run}", "--seq", "16", "--batch", "1", "--heads", "1",
                 "--head-dim", "8", "--phase", "forward", "--mask", "none", "--dtype", "float32")),
    Fault(name="escapes on the command line", words=("run", NASTY)),
    Fault(name="escapes in an option", words=("run", f"chunked?block={NASTY}")),
    Fault(name="escapes in a mask", words=("run", "einsum", "--mask", NASTY)),
    Fault(name="escapes in a file's name", words=("report", f"{{here}}/{NASTY}")),
    Fault(name="markup in a mask's name", words=("run", "einsum", *MASK), within_s=90,
          status=(0, 1), prepare=bracket_mask, says="einsum"),
    Fault(name="markup in a mask's name, in a terminal", words=("run", "einsum", *MASK),
          status=(0, 1), within_s=90, prepare=bracket_mask, says="einsum", terminal=True),
    Fault(name="formulas in records", words=("report", "{run}"), status=(0,),
          prepare=lambda place: nasty_records(place, FORMULA), holds=no_formula),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault(bring_about, fault):
    bring_about(fault)
