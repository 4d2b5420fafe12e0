"""Faults of run folders: what must not be mixed, what must not be lost, what must not be told."""

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import attnbench
from attnbench.core import checkout
from impls.loading import load_file

campaign = load_file(Path(__file__).with_name("campaign.py"))
Fault, TINY = campaign.Fault, campaign.TINY
pytestmark = pytest.mark.slow
RESUME = ("run", "--resume", "{run}", "--no-report", "--json")
ONE = ("run", "einsum", *TINY, "--json")
CELL = ("--seq", "16", "--heads", "1", "--head-dim", "8", "--phase", "forward", "--mask", "none")
COMPARE = ("compare", "{run}", "{run}", "--json")
TABLE = """
from impls.spec import Variant
def build(problem):
    raise RuntimeError("it was broken by hand in " + __file__)
ROWS = [Variant(name="mine", title="mine", family="mine", build=":build", computes="softmax")]
"""
ONCE = "while ! [ -s $(echo results/a*/*/records.jsonl) ]; do sleep 0.05; done 2>/dev/null; "


def records(run):
    return [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]


def header(run):
    return json.loads((run / "run.json").read_text())


def only_run(place):
    (path,) = (p.parent for p in place.here.glob("results/*/*/run.json") if p.parent != place.run)
    return path


def cut(place):
    """Of the two records the last is gone, so that something is left to be measured."""
    file = place.run / "records.jsonl"
    file.write_text(file.read_text().splitlines(keepends=True)[0])


def told(**changes):
    """The header with values by their way in it, ``machine__python``, and a cell to measure."""

    def prepare(place):
        cut(place)
        found = header(place.run)
        for way, value in changes.items():
            *rooms, last = way.split("__")
            inner = found
            for room in rooms:
                inner = inner[room]
            inner[last] = value(place) if callable(value) else value
        (place.run / "run.json").write_text(json.dumps(found))

    return prepare


def rewritten(change):
    """The lines of the records as a function makes them of those that there are."""

    def prepare(place):
        file = place.run / "records.jsonl"
        file.write_bytes(b"".join(change(file.read_bytes().splitlines(keepends=True))))

    return prepare


def code(place):
    """A copy of the code, which PYTHONPATH puts before the one that is installed."""
    top, ignore = Path(attnbench.__file__).parents[1], shutil.ignore_patterns("__pycache__")
    for package in ("attnbench", "impls"):
        shutil.copytree(top / package, place.here / "code" / package, ignore=ignore)


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
    return folder


def has(count):
    """So many records, each of a cell of its own."""

    def holds(place, ended):
        found = records(
            place.run if len(list(place.here.glob("results/*/*"))) == 1 else only_run(place)
        )
        assert len({r["variant"] for r in found}) == len(found) == count

    return holds


def untouched(place, ended):
    assert len(records(place.run)) == 1
    assert "legs" not in header(place.run)


def in_legs(place, ended):
    first, second = records(place.run)
    assert [*map(str, header(place.run)["legs"][0]["changes"])]
    assert second["node"] == first["node"] + "#2"
    answers = json.loads(ended.out)["answers"]
    assert [a["node"] for a in answers] == [first["node"], second["node"]]
    assert not any(a["equal"] or a["next"] for a in answers)


def no_commit(place, ended):
    assert header(only_run(place))["code"]["commit"] is None


def of_this_code(place, ended):
    assert header(only_run(place))["code"]["commit"] == checkout.code()["commit"]


def kept_elsewhere(place, ended):
    (kept,) = place.here.glob("results/*/*-kept-*")
    assert header(kept)["seed"] == 0
    assert len(records(kept)) == 2
    assert f"--resume {kept.relative_to(place.here)}" in ended.said


def renamed(place, ended):
    (kept,) = place.here.glob("results/*/moved")
    assert len(records(kept)) == 2


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


def home(place):
    import numpy as np

    (place.outside / "zaphod").mkdir()
    (place.outside / "zaphod" / "mine.py").write_text(TABLE)
    np.save(place.outside / "zaphod" / "mask.npy", np.ones((16, 16), bool))


def results_elsewhere(place):
    (place.here / "results").rename(place.here / "far")
    (place.here / "results").symlink_to("far")


GPU = {"name": "H", "uuid": "u", "capability": 9.0, "memory_bytes": 1, "driver": "570.1"}
CHANGED = {
    "another torch": ({"machine__versions__torch": "2.0.0"}, r"torch was 2\.0\.0 and is"),
    "another Python": ({"machine__python": "3.9.1"}, r"python was 3\.9\.1 and is"),
    "another kernel": ({"machine__system": "Linux 2.6"}, r"system was Linux 2\.6 and is"),
    "another driver": ({"machine__gpus": [GPU]}, "GPU 0 was H with driver 570.1"),
    "a distribution that a row needs": ({"requires": {"xformers": "0.1"}}, r"xformers was 0\.1"),
    "other code": ({"code__impls": "0" * 16}, "code of the variants is not that of"),
    "another ruler": ({"code__ruler": "0" * 16}, "code that measures is not that of"),
    "an earlier attnbench": ({"code": {"commit": "a" * 40, "dirty": False}}, "earlier attnbench"),
    "threads": ({"settings__threads": 64}, "64 on [0-9]+ cores"),
    "another machine": ({"machine__name": "elsewhere"}, "measured on elsewhere"),
    "another protocol": ({"protocol": 99}, "protocol 99"),
    "a later header": ({"schema": 99}, "update attnbench"),
}


def with_table(place):
    place.file("mine.py", TABLE)
    told(tables=[str(place.here / "mine.py")], files={str(place.here / "mine.py"): "0" * 16})(place)


def with_an_import(place):
    place.file("mine.py", "import aid\n" + TABLE)
    place.file("aid.py", "")
    tables = [str(place.here / "mine.py")]
    told(tables=tables, files=dict.fromkeys([*tables, str(place.here / "aid.py")], "0" * 16))(place)


def with_file(axis, name):
    def prepare(place):
        import numpy as np

        if name.endswith("npy"):
            np.save(place.here / name, np.ones((16, 16), bool))
        else:
            np.savez(place.here / name, **dict.fromkeys("qkv", np.ones((1, 1, 16, 8))))
        kind = "dense" if axis == "mask" else "captured"
        told(
            **{f"grid__{axis}": [f"{kind}:{name}"]},
            folder=str(place.here),
            files={str(place.here / name): "0" * 16},
        )(place)

    return prepare


RESUMED = [
    *(Fault(name=f"resumed with {name}", words=RESUME, prepare=told(**changes), says=says,
            holds=untouched)
      for name, (changes, says) in CHANGED.items()),
    Fault(name="resumed with another table", words=[*RESUME, "--table", "{here}/mine.py"],
          says=r"mine\.py holds something else", holds=untouched, makes=["mine.py"],
          prepare=with_table),
    Fault(name="resumed with another module beside its table", prepare=with_an_import,
          words=[*RESUME, "--table", "{here}/mine.py"], says=r"aid\.py holds something else",
          holds=untouched, makes=["mine.py", "aid.py"]),
    Fault(name="resumed with another mask", words=RESUME, prepare=with_file("mask", "m.npy"),
          says=r"m\.npy holds something else", holds=untouched, makes=["m.npy"]),
    Fault(name="resumed with other inputs", words=RESUME, prepare=with_file("inputs", "i.npz"),
          says=r"i\.npz holds something else", holds=untouched, makes=["i.npz"]),
    Fault(name="resumed from another folder", words=RESUME, says="resume it from /far/away",
          prepare=told(grid__mask=["dense:m.npy"], folder="/far/away"), holds=untouched),
    Fault(name="code edited between", words=RESUME, prepare=edited, holds=untouched,
          says="code of the variants is not that of", env={"PYTHONPATH": "{here}/code"}),
    Fault(name="code edited between, and gone on with", words=[*RESUME, "--anyway"], prepare=edited,
          status=[0, 1], says="another leg of the run", holds=in_legs,
          env={"PYTHONPATH": "{here}/code"}),
    Fault(name="other code, and nothing left to measure", words=RESUME, status=[0, 1],
          prepare=lambda place: (edited(place), told(variants=["einsum"])(place)),
          env={"PYTHONPATH": "{here}/code"}),
    Fault(name="--anyway of a new run", words=[*ONE, "--anyway"], says="--resume RUN"),
    Fault(name="code edited while it goes on", words=["run", "einsum", "matmul", *TINY],
          prepare=code, env={"PYTHONPATH": "{here}/code"}, holds=has(1),
          shell=f'({ONCE} echo "# x" >> code/impls/dense/einsum.py) & "$@"; s=$?; wait; exit $s',
          says=r"impls/dense/einsum\.py was changed while the run went on"),
    Fault(name="two runs on one folder", words=RESUME, prepare=cut, holds=untouched,
          shell='exec flock {run}/records.jsonl "$@"', says="is writing to"),
]  # fmt: skip
COMMITS = [
    Fault(
        name="GIT_DIR of another repository",
        words=ONE,
        prepare=repository,
        status=[0, 1],
        env={"GIT_DIR": "{here}/other/.git", "GIT_WORK_TREE": "{here}/other"},
        holds=of_this_code,
    ),
    Fault(
        name="below another repository's tree",
        words=ONE,
        status=[0, 1],
        holds=no_commit,
        prepare=lambda place: (code(place), repository(place, "code")),
        env={"PYTHONPATH": "{here}/code"},
        says="in no git checkout of its own",
    ),
    Fault(
        name="no git",
        words=ONE,
        status=[0, 1],
        env={"PATH": "/nonexistent"},
        holds=no_commit,
        says="in no git checkout of its own",
    ),
]


def while_it_runs(deed):
    """A shell's line that does something to the run once it has a record."""
    return f'({ONCE} cd results/a*/2*; {deed}) & "$@"; s=$?; wait; exit $s'


TWO = ("run", "einsum", "matmul", *TINY, "--json")
LOST = [
    Fault(name="the folder deleted", words=TWO, shell=while_it_runs('rm -r "$PWD"'),
          says="moved or deleted while the run went on", holds=kept_elsewhere),
    Fault(name="the folder renamed", words=TWO, shell=while_it_runs('mv "$PWD" ../moved'),
          says=r"--resume \S*/moved goes on", holds=renamed),
    Fault(name="the records deleted", words=TWO, shell=while_it_runs("rm records.jsonl"),
          says="moved or deleted while the run went on", holds=kept_elsewhere),
    Fault(name="the records replaced", words=TWO, holds=kept_elsewhere,
          shell=while_it_runs("cp records.jsonl x; mv x records.jsonl"),
          says="moved or deleted while the run went on"),
    Fault(name="the header deleted", words=TWO, shell=while_it_runs("rm run.json"), status=[0, 1],
          holds=has(2)),
    Fault(name="no standard input", words=ONE, shell='exec "$@" <&-', status=[0, 1],
          holds=json_alone),
    Fault(name="a full error stream", words=ONE, shell='exec "$@" 2>/dev/full', status=[0, 1],
          holds=json_alone),
    Fault(name="a closed error stream", words=ONE, shell='exec "$@" 2>&-', status=[0, 1],
          holds=json_alone),
    Fault(name="an error stream that nobody reads", words=ONE, status=[0, 1], holds=json_alone,
          shell='{ "$@" 2>&1 >&3 | true; } 3>&1'),
    Fault(name="every stream closed", words=ONE, shell='exec "$@" <&- >&- 2>&-', status=[0, 1],
          holds=has(1)),
    Fault(name="a full output", words=ONE, shell='exec "$@" >/dev/full', holds=has(1),
          says="can't write to the output"),
    Fault(name="a full disk in the middle of a record", words=TWO, holds=has(1),
          shell='ulimit -f 8; exec "$@"', says="what was measured before is kept"),
    Fault(name="results that are a link", words=RESUME, status=[0, 1], makes=["far"],
          prepare=lambda place: (cut(place), results_elsewhere(place)), holds=has(2)),
    Fault(name="a torn last line", words=RESUME, status=[0, 1], says="set aside in torn.txt",
          prepare=rewritten(lambda lines: [lines[0], lines[1][:-40]]), holds=has(2)),
    Fault(name="a user's name", status=[1], holds=nobody_named, env={"HOME": "{outside}/zaphod"},
          words=["run", "einsum", "mine", *(w for w in TINY if w != "--no-report"), "--table",
                 "{outside}/zaphod/mine.py", "--mask", "dense:{outside}/zaphod/mask.npy"],
          prepare=home, makes=["results"], within_s=60),
]  # fmt: skip


def scaled(line, factor, *, samples=True, work=1):
    """A record whose time is so many times as long; its figures alone, or its samples too.

    Its work is ``work`` times as much.
    """
    record = json.loads(line)
    record["cost"]["flops"] *= work
    time = record["time"]
    for name in ("median_s", "low_s", "high_s", "q25_s", "q75_s", "min_s"):
        time[name] *= factor
    if samples:
        time["samples_s"] = [s * factor for s in time["samples_s"]]
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


READ = {
    "a median that is not its samples'": (
        lambda lines: [scaled(lines[0], 0.01, samples=False), lines[1]], [0, 1, 2],
        "line 1 of .* computed from them anew"),
    "samples of femtoseconds": (
        lambda lines: [scaled(lines[0], 1e-12), lines[1]], [0, 1, 2], "line 1 of .*can't be true"),
    "faster than the ceilings": (
        lambda lines: [scaled(lines[0], 1, work=10**6), lines[1]], [0, 1, 2],
        "line 1 of .*can't be true"),
    "doubled lines": (lambda lines: lines * 2, [0, 1, 2], "lines 3, 4 of .*counts once"),
    "a second record of a cell": (
        lambda lines: [*lines, scaled(lines[0], 0.1)], [0, 1, 2],
        "lines 1, 3 of .* say different things of the same cell"),
    "a block of NUL": (
        lambda lines: [lines[0], b"\0" * 4096 + b"\n", lines[1]], [0, 1, 2],
        "line 2 of .* can't be read"),
    "half a line": (
        lambda lines: [lines[0], lines[0][:200] + b"\n", lines[1]], [0, 1, 2],
        "line 2 of .* can't be read"),
    "a later form": (
        lambda lines: [lines[0], lines[1].replace(b'"schema":3', b'"schema":99')], [2],
        "update attnbench"),
}  # fmt: skip
BELIEVED = [
    Fault(
        name=f"compared with {name}",
        words=COMPARE,
        prepare=rewritten(change),
        status=status,
        says=says,
    )
    for name, (change, status, says) in READ.items()
] + [
    Fault(
        name="resumed with a block of NUL",
        words=RESUME,
        status=[0, 1],
        prepare=rewritten(READ["a block of NUL"][0]),
        holds=has(2),
        says="line 2 of .* set aside in torn.txt",
    ),
    Fault(
        name="resumed with a second record of a cell",
        words=RESUME,
        status=[0, 1],
        holds=has(2),
        prepare=rewritten(READ["a second record of a cell"][0]),
        says="set aside in torn.txt",
    ),
]


@pytest.mark.parametrize(
    "fault", [*RESUMED, *BELIEVED, *COMMITS, *LOST], ids=lambda fault: fault.name
)
def test_fault(bring_about, fault):
    new = {"code", "other"} if fault.env else set()
    within = max(fault.within_s, 90)  # on a machine that is busy with other things
    bring_about(replace(fault, makes={*fault.makes, "results", *new}, within_s=within))
