"""Faults of run folders: what must not be mixed, what must not be lost, what must not be told."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import attnbench
from attnbench.core import checkout
from attnbench.core.record import SCHEMA
from tests.faults.campaign import TINY, Fault
from tests.repositories import copied

RESUME = ("run", "--resume", "{run}", "--no-report", "--json")
ONE = ("run", "einsum", *TINY, "--json")
COMPARE = ("compare", "{run}", "{run}", "--json")
TABLE = """
from impls.spec import Variant
def build(problem):
    raise RuntimeError("it was broken by hand in " + __file__)
ROWS = [Variant(name="mine", title="mine", family="mine", build=":build", operator="softmax")]
"""
ONCE = "while ! [ -s $(echo results/[!b]*/*/records.jsonl) ]; do sleep 0.05; done 2>/dev/null; "
OWN = {"env": {"PYTHONPATH": "{here}/code"}, "makes": ["code"]}


def records(run):
    return [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]


def header(run):
    return json.loads((run / "run.json").read_text())


def only_run(place):
    """The run that the command made."""
    (path,) = (p.parent for p in place.here.glob("results/*/*/run.json") if p.parent != place.run)
    return path


def cut(place):
    """Of the two records the last is gone, so that something is left to be measured."""
    place.records(lambda lines: lines[:1])


def told(**changes):
    """A header that says something else, and a cell to measure."""
    return lambda place: (cut(place), place.told(**changes))


def code(place):
    """A copy of the code, which PYTHONPATH puts before the one that is installed."""
    top, ignore = Path(attnbench.__file__).parents[1], shutil.ignore_patterns("__pycache__")
    for package in ("attnbench", "impls"):
        copied(top / package, place.here / "code" / package, ignore=ignore)


def edited(place):
    cut(place)
    code(place)
    with (place.here / "code" / "impls" / "dense" / "einsum.py").open("a") as more:
        more.write("# changed\n")


def repository(place, name="other"):
    folder = place.here / name
    folder.mkdir(exist_ok=True)
    named = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    for words in (["init", "-q"], [*named, "commit", "-q", "--allow-empty", "-m", "other"]):
        subprocess.run(["git", *words], cwd=folder, check=True, env={"PATH": "/usr/bin:/bin"})


def with_tables(place):
    """A run with a table of rows and what that imports, which held something else."""
    table = place.file("mine.py", "import aid\n" + TABLE)
    told(tables=[str(table)], files={str(place.file("aid.py")): "0" * 16})(place)


def with_mask(place):
    """A run with a mask in a file that held something else."""
    file = place.here / "m.npy"
    np.save(file, np.ones((16, 16), bool))
    changes = {"grid__mask": ["dense:m.npy"], "files": {str(file): "0" * 16}}
    told(folder=str(place.here), **changes)(place)


def home(place):
    (place.outside / "zaphod").mkdir()
    (place.outside / "zaphod" / "mine.py").write_text(TABLE)
    np.save(place.outside / "zaphod" / "mask.npy", np.ones((16, 16), bool))


def rewritten(change):
    return lambda place: place.records(lambda lines: change(*lines))


def has(count):
    """So many records, each of a cell of its own."""

    def holds(place, ended):
        several = len(list(place.here.glob("results/*/*"))) > 1
        found = records(only_run(place) if several else place.run)
        assert len({r["variant"] for r in found}) == len(found) == count

    return holds


def untouched(place, ended):
    assert len(records(place.run)) == 1
    assert "legs" not in header(place.run)


def in_legs(place, ended):
    first, second = records(place.run)
    assert header(place.run)["legs"][0]["changes"]
    assert second["node"] == first["node"] + "#2"
    answers = json.loads(ended.out)["answers"]
    assert [a["node"] for a in answers] == [first["node"], second["node"]]
    assert not any(a["equal"] or a["next"] for a in answers)


def of_commit(commit):
    def holds(place, ended):
        assert header(only_run(place))["code"]["commit"] == commit

    return holds


def json_alone(place, ended):
    assert len(json.loads(ended.out)["records"]) == 1
    has(1)(place, ended)


def nobody_named(place, ended):
    run = only_run(place)
    assert (run / "report" / "index.html").exists()
    assert "failed" in {record["status"] for record in records(run)}
    for file in run.rglob("*"):
        assert not file.is_file() or b"zaphod" not in file.read_bytes(), file
    assert header(run)["tables"] == ["~/mine.py"]
    assert header(run)["grid"]["mask"][-1] == "dense:~/mask.npy"


GPU = {"name": "H", "uuid": "u", "capability": 9.0, "memory_bytes": 1, "driver": "570.1"}
CHANGED = {
    "another torch": ({"machine__versions__torch": "2.0.0"}, r"torch was 2\.0\.0 and is"),
    "another Python": ({"machine__python": "3.9.1"}, r"python was 3\.9\.1 and is"),
    "another driver": ({"machine__gpus": [GPU]}, "GPU 0 was H with driver 570.1"),
    "a distribution that a row needs": ({"requires": {"xformers": "0.1"}}, r"xformers was 0\.1"),
    "another ruler": ({"code__ruler": "0" * 16}, "code that measures is not that of"),
    "another machine": ({"machine__name": "elsewhere"}, "measured on elsewhere"),
    "another protocol": ({"protocol": 99}, "protocol 99"),
    "a later header": ({"schema": 99}, "update attnbench"),
    "threads": ({"settings__threads": 64}, "64 on [0-9]+ cores?"),
    "another folder": ({"grid__mask": ["dense:m.npy"], "folder": "/far/away"},
                       "resume it from /far/away"),
}  # fmt: skip
READ = {
    "doubled lines": (lambda a, b: [a, b] * 2, "lines 3, 4 of .*has a record already"),
    "a second record of a measurement": (
        lambda a, b: [a, b, a[:-2] + b', "note": "other"}\n'], "line 3 of .*has a record already"),
    "a block of NUL": (lambda a, b: [a, bytes(4096) + b"\n", b], "line 2 of .* can't be read"),
    "half a line": (lambda a, b: [a, a[:200] + b"\n", b], "line 2 of .* can't be read"),
    "a record of another run": (
        lambda a, b: [a, b.replace(b'"run":"', b'"run":"x')], "line 2 of .*of another run"),
    "a record of a later form": (
        lambda a, b: [a, b.replace(b'"schema":%d' % SCHEMA, b'"schema":99')], "update attnbench"),
}  # fmt: skip
SET_ASIDE = {
    "a block of NUL": READ["a block of NUL"][0], "a torn last line": lambda a, b: [a, b[:-40]],
    "a second record of a measurement": READ["a second record of a measurement"][0],
}  # fmt: skip
TWO = ("run", "einsum", "matmul", *TINY, "--json")
LOST = {
    "the folder is deleted": 'rm -r "$PWD"', "the folder is renamed": 'mv "$PWD" ../moved',
    "the records are deleted": "rm records.jsonl",
    "the records are replaced": "cp records.jsonl x; mv x records.jsonl",
}  # fmt: skip
STREAMS = {
    "no standard input": 'exec "$@" <&-', "a full error stream": 'exec "$@" 2>/dev/full',
    "a closed error stream": 'exec "$@" 2>&-',
    "an error stream that nobody reads": '{ "$@" 2>&1 >&3 | true; } 3>&1',
}  # fmt: skip
FAULTS = [
    *(Fault(f"resumed with {name}", RESUME, told(**changes), says=says, holds=untouched)
      for name, (changes, says) in CHANGED.items()),
    Fault("resumed with another aid of a table", [*RESUME, "--table", "{here}/mine.py"],
          with_tables, says="aid.py holds something else", holds=untouched),
    Fault("resumed with another mask", RESUME, with_mask, says="m.npy holds something else",
          holds=untouched),
    Fault("code edited between", RESUME, edited, holds=untouched,
          says="code of the variants is not that of", **OWN),
    Fault("code edited between, and gone on with", [*RESUME, "--anyway"], edited, [0, 1],
          "another leg of the run", holds=in_legs, **OWN),
    Fault("code edited while it goes on", ["run", "einsum", "matmul", *TINY], code, holds=has(1),
          shell=f'({ONCE} echo "# x" >> code/impls/dense/einsum.py) & "$@"; s=$?; wait; exit $s',
          says=r"impls/dense/einsum\.py was changed while the run went on", **OWN),
    Fault("two runs on one folder", RESUME, cut, holds=untouched, says="is writing to",
          shell='exec flock {run}/records.jsonl "$@"'),
    *(Fault(f"compared with {name}", COMPARE, rewritten(change), [0, 1, 2], says)
      for name, (change, says) in READ.items()),
    *(Fault(f"resumed with {name}", RESUME, rewritten(change), [0, 1], "set aside in",
            holds=has(2)) for name, change in SET_ASIDE.items()),
    *(Fault(f"while a run goes on, {name}", TWO,
            says="moved or deleted while the run went on",
            shell=f'({ONCE} cd results/[!b]*/2*; {deed}) & "$@"; s=$?; wait; exit $s')
      for name, deed in LOST.items()),
    Fault("a full disk in the middle of a record", TWO, holds=has(1),
          shell='ulimit -f 8; exec "$@"', says="what was measured before is kept"),
    Fault("a full output", ONE, holds=has(1), shell='exec "$@" >/dev/full',
          says="can't write to the output"),
    Fault("no git", ONE, status=[0, 1], env={"PATH": "/nonexistent"}, holds=of_commit(None),
          says="in no git checkout of its own"),
    Fault("GIT_DIR of another repository", ONE, repository, [0, 1], makes=["other"],
          env={"GIT_DIR": "{here}/other/.git", "GIT_WORK_TREE": "{here}/other"},
          holds=of_commit(checkout.code()["commit"])),
    Fault("below another repository's tree", ONE,
          lambda place: (code(place), repository(place, "code")), [0, 1],
          "in no git checkout of its own", holds=of_commit(None), **OWN),
    *(Fault(name, ONE, shell=shell, status=[0, 1], holds=json_alone)
      for name, shell in STREAMS.items()),
    Fault("every stream closed", ONE, shell='exec "$@" <&- >&- 2>&-', status=[0, 1],
          holds=has(1)),
    Fault("a user's name", ["run", "einsum", "mine", *TINY[:-1], "--table",
          "{outside}/zaphod/mine.py", "--mask", "dense:{outside}/zaphod/mask.npy"], home, [1],
          env={"HOME": "{outside}/zaphod"}, holds=nobody_named),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault(bring_about, fault):
    bring_about(fault)
