"""The table; rows by files and by entry points, whose code does to itself whatever it does."""

import inspect
import json
import os
import subprocess
import sys
import textwrap
import time

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


def test_the_table_and_its_costs_are_read_without_torch_and_without_a_kernel():
    code = """
        import json, sys
        sys.modules['torch'] = None  # importing it raises
        import impls
        from impls.loading import load_function
        rows = impls.table().rows.values()
        loaded = list(sys.modules)
        for row in rows:
            load_function(row.cost)
        print(json.dumps(loaded))
        """
    loaded = python(code)
    assert "impls.dense" in loaded
    assert not [m for m in loaded if any(m.startswith(f"impls.{f}.") for f in impls.FAMILIES)]


def test_a_row_is_found_with_the_options_asked_for():
    table = impls.table()
    for text, label, options in (
        ("chunked?", "chunked", {"block": 256}),
        ("online?q_block=4&k_block=8", "online?k_block=8&q_block=4", {"q_block": 4, "k_block": 8}),
    ):
        row = table.find(text)
        assert (row.label, row.chosen) == (label, options)
        assert table.find(label) == row
        assert table.rows[row.name].chosen == table.rows[row.name].options == row.options


def test_an_unknown_name_suggests_the_nearest_and_a_broken_row_says_why_it_is_broken():
    table = impls.table()
    for name, near in (
        ("einsun", "einsum"), ("sdpa.flsh", "sdpa.flash"), ("flash", "sdpa.flash"),
        ("prescal", "matmul.prescale"),
    ):  # fmt: skip
        with pytest.raises(impls.UnknownVariant) as caught:
            table.find(f"{name}?block=3")
        message, _, rest = str(caught.value).partition("; did you mean ")
        suggested = rest.partition("?")[0].split(" or ")
        assert message == f"there is no variant {name!r}"
        assert near in suggested and set(suggested) <= set(ROWS)
    table = impls.Table(broken=[impls.BrokenRow("far", "its module is gone")])
    with pytest.raises(impls.UnknownVariant, match="the row 'far' is broken: its module is gone"):
        table.find("far")


WELL = """
import colorsys  # which nothing else imports

def build(problem, twice=False):
    return lambda q, k, v: 0 * q + (2.0 if twice else 1.0)

def define(problem, twice=False):
    return None

ROWS = [
    row("mine.plain"),
    row("mine.own", operator="its own operator", definition=":define", cost="impls.cost:softmax",
        options={"twice": False}, dtypes=("float32",), head_dims=(8, 64)),
]
"""


def test_what_a_file_imports_is_not_imported_in_the_parent_wherever_it_stands(tmp_path):
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
        ours = {{n: r.origin for n, r in table.rows.items() if n.startswith("mine.")}}
        print(json.dumps([ours, len(table.rows), len(table.broken), "colorsys" in sys.modules]))
        """,
        cwd=tmp_path,
    )
    ours = {"mine.plain": str(well), "mine.own": str(well)}
    assert output == [ours, len(impls.table().rows) + 2, 0, False]


def test_a_row_of_a_file_is_built_from_the_file_as_any_other(tmp_path):
    table = impls.table([write(tmp_path / "my_rows.py", HEAD, WELL)])
    plain, own = table.find("mine.plain"), table.find("mine.own?twice=yes")
    assert (own.dtypes["cpu"], own.head_dims) == (("float32",), (8, 64))
    assert own.cost == "impls.cost:softmax"
    assert load_function(own.definition)(Problem(), **own.chosen) is None
    q = torch.zeros(1, 1, 2, 4)
    assert load_function(plain.build)(Problem(), **plain.chosen)(q, q, q).eq(1).all()
    assert load_function(own.build)(Problem(), **own.chosen)(q, q, q).eq(2).all()


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


@pytest.mark.parametrize("value", ["build", "row"])
def test_an_entry_point_that_names_no_list_of_rows_says_what_one_names(tmp_path, value):
    site = install(tmp_path / "site", "fake", GOOD)
    info = site / "fake-1.0.dist-info"
    write(info / "entry_points.txt", "[attnbench.variants]", f"a = fake_pkg:{value}")
    broken = "import json, impls; print(json.dumps([b.reason for b in impls.table().broken]))"
    (reason,) = python(broken, site)
    assert "has to be a list of impls.spec.Variant, as package.module:ROWS" in reason


def test_rows_come_in_the_order_of_the_files_and_a_taken_name_costs_its_row(tmp_path):
    bad = "5, row('bad', paper=print)"
    one = write(tmp_path / "one.py", HEAD, f'ROWS = [{bad}, row("einsum"), row("zeta")]')
    two = write(tmp_path / "two.py", HEAD, 'ROWS = (row(n) for n in ("zeta", "alpha"))')
    table = impls.table([one, two])
    assert list(table.rows)[-2:] == ["zeta", "alpha"]
    assert (table.rows["einsum"].origin, table.rows["zeta"].origin) == ("attnbench", str(one))
    messages = (
        f"row 0 of {one} is int, not",
        f"row bad of {one} is not plain data",
        "the name einsum is taken by a row of attnbench",
        f"the name zeta is taken by a row of {one}",
    )
    assert len(table.broken) == len(messages)
    assert all(any(says in broken.reason for broken in table.broken) for says in messages)


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


def test_a_file_that_prints_and_reads_its_input_is_read_all_the_same(tmp_path, monkeypatch):
    code = """
        import os, sys
        print('{"rows": [], "broken": []}')
        print("x" * 300_000)
        print("and on stderr", file=sys.stderr)
        os.write(1, b"past Python's own buffer")
        assert sys.stdin.read() == ''
        ROWS = [row("loud")]
        """
    file = write(tmp_path / "loud.py", HEAD, code)
    monkeypatch.setattr(outside, "PATIENCE_S", 5)
    stdin, (read, write_end) = os.dup(0), os.pipe()
    os.dup2(read, 0)  # an input that stays open and silent, as a terminal does
    try:
        assert [row.name for row in rows_of(file)] == ["loud"]
    finally:
        os.dup2(stdin, 0)
        for end in (stdin, read, write_end):
            os.close(end)


def test_a_file_is_run_once_and_again_after_it_raised_and_is_a_module_of_its_own(tmp_path):
    file = write(tmp_path / "once.py", "def f(): ...\ndef g(): return f")
    assert load_function(f"{file}:g")() is load_function(f"{file}:f")
    file = write(tmp_path / "mended.py", "raise ValueError")
    with pytest.raises(ValueError):
        load_function(f"{file}:f")
    write(file, "def f(): return 'mended now'")
    assert load_function(f"{file}:f")() == "mended now"
    for folder in "ab":
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / "rows.py", f"def f(): return {folder!r}")
    assert [load_function(f"{tmp_path}/{x}/rows.py:f")() for x in "ab"] == ["a", "b"]


def test_a_file_that_ends_badly_is_a_sentence(tmp_path):
    dies = "import os\nos.write(1, b'first\\nlast words\\n')\nos._exit(7)"
    for code, says in (
        (dies, "ended with status 7 at import (last words)"),
        ("ROWS = (1 // 0 for _ in [1])", "ZeroDivisionError"),
        ("ROWS = [row('Bad Name')]", "Bad Name"),
        ("ROWS = [row('one', options={'sizes': {1, 2}})]", "sizes"),
    ):
        file = write(tmp_path / "bad.py", HEAD, code)
        with pytest.raises(BrokenTable) as caught:
            rows_of(file)
        assert str(caught.value).startswith(f"{file} could not be read: ")
        assert says in str(caught.value)


def test_a_file_that_hangs_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(outside, "PATIENCE_S", 1)
    note = tmp_path / "pid"
    code = f"""
        import os, pathlib, time
        pathlib.Path({str(note)!r}).write_text(str(os.getpid()))
        time.sleep(600)
        """
    began = time.monotonic()
    with pytest.raises(BrokenTable, match=r"slow\.py was still importing after 1 s"):
        rows_of(write(tmp_path / "slow.py", code))
    assert time.monotonic() - began < 20
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


def test_what_is_installed_meanwhile_is_found(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(outside, "_child_rows", lambda *_: ["a row"])
    assert not list(outside.entry_point_rows())
    (info := tmp_path / "own-1.dist-info").mkdir()
    write(info / "entry_points.txt", "[attnbench.variants]", "a = b:ROWS")
    write(info / "METADATA", "Metadata-Version: 2.1", "Name: own")
    assert list(outside.entry_point_rows()) == ["a row"]


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
