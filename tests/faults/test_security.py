"""Folders from elsewhere, folders that others write to, texts that others wrote, other machines."""

import json
from pathlib import Path

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
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault(bring_about, fault):
    bring_about(fault)
