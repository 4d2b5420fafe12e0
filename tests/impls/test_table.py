"""The table; rows by files and by entry points, whose code does to itself whatever it does."""

import inspect
import json
import os
import subprocess
import sys
import textwrap

import pytest
import torch

import impls
from impls import outside
from impls.loading import load_function
from impls.outside import BrokenTable
from impls.problem import Problem
from tests.calling import ROOT
from tests.processes import alive

ROWS = impls.table().rows

HEAD = """
from impls.spec import Variant

def row(name, **more):
    plain = {"title": "mine", "family": "mine", "operator": "softmax", "build": ":build"}
    return Variant(name=name, **{**plain, **more})
"""


def write(file, *parts):
    file.write_text("\n".join(textwrap.dedent(part) for part in parts))
    return file


def rows_of(file):
    return list(outside.file_rows([file]))


def python(code, *paths, cwd=ROOT):
    """The JSON that a fresh interpreter prints, with these folders on its path."""
    path = os.pathsep.join(str(p) for p in (ROOT, *paths))
    options = {"cwd": cwd, "env": {**os.environ, "PYTHONPATH": path}, "timeout": 60}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_code_that_a_row_names_exists_and_takes_its_options():
    assert impls.table().broken == []
    for row in ROWS.values():
        for path in filter(None, (row.build, row.definition, row.cost)):
            arguments, options = ["the problem"], row.chosen
            if row.ranks and path == row.build:  # the others say how many there are
                arguments.append("the others")
                options = {name: value for name, value in options.items() if name != "world"}
            inspect.signature(load_function(path)).bind(*arguments, **options)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("einsun", "einsum"),
        ("sdpa.flsh", "sdpa.flash"),
        ("flash", "sdpa.flash"),
        ("pre", "matmul.prescale"),  # less alike than is asked, and a part of it
    ],
)
def test_an_unknown_name_suggests_the_nearest(name, near):
    with pytest.raises(impls.UnknownVariant) as caught:
        impls.table().find(f"{name}?block=3")
    message, _, rest = str(caught.value).partition("; did you mean ")
    suggested = rest.partition("?")[0].split(" or ")
    assert message == f"there is no variant {name!r}"
    assert near in suggested and set(suggested) <= set(ROWS)


def test_a_broken_row_says_why_it_is_broken():
    broken = [impls.BrokenRow("far", "its module is gone")]
    for rows in ({}, {"far": impls.table().find("sdpa")}):  # also where another has the name
        table = impls.Table(rows, broken)
        with pytest.raises(
            impls.UnknownVariant, match="the row 'far' is broken: its module is gone"
        ):
            table.find("far")


WELL = """
import colorsys  # which nothing else imports
print("loud", "x" * 300_000)

def build(problem, twice=False):
    return lambda q, k, v: 0 * q + (2.0 if twice else 1.0)

ROWS = [row("mine.own", options={"twice": False}, dtypes=("float32",), head_dims=(8, 64))]
"""


def test_a_row_of_a_file_is_built_from_the_file_and_its_imports_stay_out_of_the_parent(tmp_path):
    """Nor is a folder called impls where the reader stands the package that reads."""
    well = write(tmp_path / "my_rows.py", HEAD, WELL)
    (tmp_path / "impls").mkdir()
    write(tmp_path / "impls" / "__init__.py", "raise ImportError('this is not the package')")
    output = python(
        f"""
        import sys
        sys.path = [p for p in sys.path if p]  # as an installed command is started
        import json, impls
        table = impls.table([{str(well)!r}])
        row = table.rows["mine.own"]
        print(json.dumps([row.origin, len(table.rows), "colorsys" in sys.modules]))
        """,
        cwd=tmp_path,
    )
    assert output == [str(well), len(ROWS) + 1, False]
    own = impls.table([well]).find("mine.own?twice=yes")
    assert (own.dtypes["cpu"], own.head_dims) == (("float32",), (8, 64))
    q = torch.zeros(1, 1, 2, 4)
    assert load_function(own.build)(Problem(), **own.chosen)(q, q, q).eq(2).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "says"),
    [("fake_pkg:build", ""), (":build", "leave --table out, or uninstall fake to try the file's")],
)
def test_a_row_both_installed_and_in_a_file_is_one_where_its_code_is_one(tmp_path, build, says):
    """Else the sentence says what to do about it."""
    code = 'def build(problem): ...\nROWS = [row("fake.one", build="{}")]'
    site = install(tmp_path / "site", "fake", code.format("fake_pkg:build"))
    write(tmp_path / "mine.py", HEAD, code.format(build))
    tables = f"""
        import json, impls
        table = impls.table([{str(tmp_path / "mine.py")!r}])
        print(json.dumps([[b.remedy for b in table.broken], len(table.rows)]))
        """
    remedies, rows = python(tables, site)
    assert rows == len(ROWS) + 1
    assert len(remedies) == bool(says) and says in "".join(remedies)


def test_rows_come_in_the_order_of_the_files_and_a_taken_name_costs_its_row(tmp_path):
    bad = "5, row('bad', paper=print)"
    one = write(tmp_path / "one.py", HEAD, f'ROWS = [{bad}, row("einsum"), row("zeta")]')
    two = write(tmp_path / "two.py", HEAD, 'ROWS = (row(n) for n in ("zeta", "alpha"))')
    table = impls.table([one, two])
    assert list(table.rows)[-2:] == ["zeta", "alpha"]
    assert (table.rows["einsum"].origin, table.rows["zeta"].origin) == ("attnbench", str(one))
    reasons = sorted(broken.reason for broken in table.broken)
    taken = f"the name zeta is taken by a row of {one}"
    starts = [f"row 0 of {one} is int, not", f"row bad of {one} is not plain data"]
    starts = sorted([*starts, taken, "the name einsum is taken by a row of attnbench"])
    assert [one.startswith(two) for one, two in zip(reasons, starts, strict=True)] == [True] * 4


def test_a_file_by_a_relative_path_may_name_what_lies_elsewhere_and_import_what_lies_beside_it(
    tmp_path, monkeypatch
):
    write(tmp_path / "beside_the_rows.py", "def build(problem): return 'from beside'")
    far = 'row("far", build="impls.dense.einsum:build")'
    code = f'from beside_the_rows import build\nROWS = [row("helped"), {far}]'
    write(tmp_path / "helped.py", HEAD, code)
    monkeypatch.chdir(tmp_path)
    helped, other = rows_of("helped.py")
    monkeypatch.chdir("/")
    assert load_function(helped.build)(Problem()) == "from beside"
    assert other.build == "impls.dense.einsum:build"


def test_a_file_is_a_module_of_its_own_and_is_read_again_after_it_raised(tmp_path):
    for folder in "ab":
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / "rows.py", f"def f(): return {folder!r}")
    assert [load_function(f"{tmp_path}/{x}/rows.py:f")() for x in "ab"] == ["a", "b"]
    file = write(tmp_path / "mended.py", "raise ValueError")
    with pytest.raises(ValueError):
        load_function(f"{file}:f")
    write(file, "def f(): return 'mended now'")
    assert load_function(f"{file}:f")() == "mended now"


@pytest.mark.slow
def test_a_file_that_hangs_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(outside, "PATIENCE_S", 1)
    note = tmp_path / "pid"
    code = f"""
        import os, pathlib, time
        pathlib.Path({str(note)!r}).write_text(str(os.getpid()))
        time.sleep(600)
        """
    with pytest.raises(BrokenTable, match=r"slow\.py was still importing after 1 s"):
        rows_of(write(tmp_path / "slow.py", code))
    process = note.read_text() if note.exists() else ""  # a busy machine may not have come so far
    assert not process or not alive(int(process))


GOOD = """
def build(problem): ...
ROWS = [row("fake.one", build="fake_pkg:build"), row("fake.two", build="fake_pkg:build")]
"""


def install(folder, name, code):
    """A distribution as an installer leaves it: a module, and what it says about itself."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    write(info / "METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    write(info / "entry_points.txt", "[attnbench.variants]", f"{name}.all = {name}_pkg:ROWS")
    write(folder / f"{name}_pkg.py", HEAD, code)
    return folder


@pytest.mark.slow
def test_an_entry_point_that_fails_costs_its_own_rows(tmp_path):
    """An import that exits, or ends its process."""
    exits, dies = "import sys\nsys.exit(0)", "import os\nos._exit(0)"
    good, exits, dies = (
        install(tmp_path / name, name, code)
        for name, code in (("fake", GOOD), ("worse", exits), ("dead", dies))
    )
    tables = """
        import json, sys, impls
        table = impls.table()
        rows = {row.name: row.origin for row in table.rows.values()}
        broken = [[b.name, b.reason, b.remedy] for b in table.broken]
        foreign = [m for m in sys.modules if m.endswith("_pkg") or m == "torch"]
        print(json.dumps([rows, broken, foreign]))
        """
    own = {name: row.origin for name, row in ROWS.items()}
    rows, ((name, reason, remedy),), foreign = python(tables, exits, good)
    assert rows == own | {"fake.one": "fake 1.0", "fake.two": "fake 1.0"} and foreign == []
    assert name == "worse.all" and "worse 1.0" in remedy and "raised SystemExit: 0" in reason
    rows, ((name, reason, _),), _ = python(tables, dies)
    assert (rows, name) == (own, "attnbench.variants") and "ended with status 0" in reason
