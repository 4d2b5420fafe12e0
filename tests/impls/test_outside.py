"""Files of rows from outside the tree: whatever their code does, it does it to itself."""

import os
import time

import pytest

import impls
from impls import outside
from impls.loading import load_function
from impls.outside import BrokenTable
from impls.problem import Problem
from tests.impls.row_files import HEAD, python, rows_of, write
from tests.processes import alive


@pytest.fixture
def hurry(monkeypatch):
    monkeypatch.setattr(outside, "PATIENCE_S", 2)


# ---- a file that is well -------------------------------------------------------------------------

WELL = """
import torch

def build(problem, twice=False):
    return lambda q, k, v: torch.full_like(q, 2.0 if twice else 1.0)

def define(problem, twice=False):
    return None

ROWS = [
    row("mine.plain"),
    row("mine.own", computes="its own operator", definition=":define", cost="impls.cost:softmax",
        options={"twice": False}, dtypes=("float32",), head_dims=(8, 64)),
]
"""


@pytest.fixture
def well(tmp_path):
    return write(tmp_path / "my_rows.py", HEAD, WELL)


def test_a_file_that_imports_torch_is_read_without_torch_in_the_parent(well):
    said = python(
        f"""
        import json, sys, impls
        table = impls.table([{str(well)!r}])
        ours = {{n: r.to_dict() for n, r in table.rows.items() if n.startswith("mine.")}}
        torch_here = "torch" in sys.modules
        print(json.dumps([ours, len(table.rows), len(table.broken), torch_here]))
        """
    )
    ours, count, broken, torch_here = said
    assert list(ours) == ["mine.plain", "mine.own"]
    assert (count, broken) == (len(impls.table().rows) + 2, 0)
    assert not torch_here
    assert {row["origin"] for row in ours.values()} == {str(well)}


def test_a_row_of_a_file_is_built_from_the_file_as_any_other(well):
    table = impls.table([well])
    plain, own = table.find("mine.plain"), table.find("mine.own?twice=yes")
    assert (own.dtypes["cpu"], own.head_dims) == (("float32",), (8, 64))
    assert own.cost == "impls.cost:softmax"
    assert load_function(own.definition)(Problem(), **own.chosen) is None
    import torch

    q = torch.zeros(1, 1, 2, 4)
    assert load_function(plain.build)(Problem(), **plain.chosen)(q, q, q).eq(1).all()
    assert load_function(own.build)(Problem(), **own.chosen)(q, q, q).eq(2).all()


def test_a_relative_path_is_read_where_the_reader_stands(tmp_path, monkeypatch):
    write(tmp_path / "near.py", HEAD, 'def build(problem): ...\nROWS = [row("near")]')
    monkeypatch.chdir(tmp_path)
    (row,) = rows_of("near.py")
    monkeypatch.chdir("/")
    assert load_function(row.build)(Problem()) is None


def test_rows_come_in_the_order_of_the_files_and_a_taken_name_costs_its_row(tmp_path):
    one = write(tmp_path / "one.py", HEAD, 'ROWS = [row("einsum"), row("zeta")]')
    two = write(tmp_path / "two.py", HEAD, 'ROWS = (row(n) for n in ("zeta", "alpha"))')
    table = impls.table([one, two])
    assert list(table.rows)[-2:] == ["zeta", "alpha"]
    assert table.rows["einsum"].origin == "attnbench"
    assert table.rows["zeta"].origin == str(one)
    reasons = {row.name: row.reason for row in table.broken}
    assert reasons == {
        "einsum": "the name einsum is taken by a row of attnbench",
        "zeta": f"the name zeta is taken by a row of {one}",
    }


def test_a_file_may_name_what_lies_elsewhere_and_import_what_lies_beside_it(tmp_path):
    write(tmp_path / "beside_the_rows.py", "def build(problem): return 'from beside'")
    far = 'row("far", build="impls.dense.einsum:build")'
    code = f'from beside_the_rows import build\nROWS = [row("helped"), {far}]'
    helped, other = rows_of(write(tmp_path / "helped.py", HEAD, code))
    assert load_function(helped.build)(Problem()) == "from beside"
    assert other.build == "impls.dense.einsum:build"


def test_the_interface_read_is_the_readers_own_wherever_it_stands(tmp_path):
    """A folder called impls where the reader stands is not the package that reads."""
    well = write(tmp_path / "rows.py", HEAD, 'ROWS = [row("mine")]')
    decoy = tmp_path / "impls"
    decoy.mkdir()
    write(decoy / "__init__.py", "raise ImportError('this is not the package')")
    said = python(
        f"""
        import sys
        sys.path = [p for p in sys.path if p]  # as an installed command is started
        import json, impls
        print(json.dumps([r.name for r in impls.table([{str(well)!r}]).rows.values()][-1]))
        """,
        cwd=tmp_path,
    )
    assert said == "mine"


# ---- a file that costs itself --------------------------------------------------------------------

ENDINGS = {
    "raises": ("raise ValueError('no good')", ["bad.py raised ValueError: no good"]),
    "does not parse": ("def :", ["bad.py raised SyntaxError"]),
    "exits": ("import sys\nsys.exit(0)", ["bad.py raised SystemExit: 0"]),
    "dies with 0": ("import os\nos._exit(0)", ["ended with status 0", "it said nothing"]),
    "dies with 7 and last words": (
        "import os\nos.write(1, b'first\\nlast words\\n')\nos._exit(7)",
        ["ended with status 7 at import (last words)"],
    ),
    "is killed": (
        "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", ["ended with status -9"],
    ),
    "is interrupted": ("raise KeyboardInterrupt", ["KeyboardInterrupt"]),
    "defines no ROWS": ("rows = []", ["bad.py defines no ROWS"]),
    "raises while its rows are listed": ("ROWS = (1 // 0 for _ in [1])", ["ZeroDivisionError"]),
    "holds a row that no row may be": ("ROWS = [row('Bad Name')]", ["InvalidRow", "Bad Name"]),
    "holds an option that is no plain value": (
        "ROWS = [row('one', options={'sizes': {1, 2}})]", ["InvalidRow", "one", "sizes"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_file_that_ends_badly_is_a_sentence(tmp_path, ending):
    code, says = ENDINGS[ending]
    file = write(tmp_path / "bad.py", HEAD, code)
    with pytest.raises(BrokenTable) as caught:
        rows_of(file)
    message = str(caught.value)
    assert message.startswith(f"{file} could not be read: ")
    assert "a table file defines ROWS, a list of impls.spec.Variant" in message
    for words in says:
        assert words in message


def test_what_is_no_python_file_says_what_it_should_be(tmp_path):
    with pytest.raises(BrokenTable, match=r"there is no table file .*absent\.py"):
        rows_of(tmp_path / "absent.py")
    with pytest.raises(BrokenTable, match=r"\.py"):
        rows_of(write(tmp_path / "rows.txt", HEAD, "ROWS = []"))


def test_a_file_that_hangs_is_ended(tmp_path, hurry):
    note = tmp_path / "pid"
    code = f"""
        import os, pathlib, time
        pathlib.Path({str(note)!r}).write_text(str(os.getpid()))
        time.sleep(600)
        """
    began = time.monotonic()
    with pytest.raises(BrokenTable, match=r"slow\.py was still importing after 2 s"):
        rows_of(write(tmp_path / "slow.py", code))
    assert time.monotonic() - began < 20
    assert not alive(int(note.read_text()))


def test_a_file_that_prints_is_read_all_the_same(tmp_path):
    code = """
        import os, sys
        print('{"rows": [], "broken": []}')
        print("x" * 300_000)
        print("and on stderr", file=sys.stderr)
        os.write(1, b"past Python's own buffer")
        ROWS = [row("loud")]
        """
    (row,) = rows_of(write(tmp_path / "loud.py", HEAD, code))
    assert row.name == "loud"


def test_a_file_that_reads_its_input_does_not_wait_for_anyone(tmp_path):
    code = "import sys\nassert sys.stdin.read() == ''\nROWS = [row('reader')]"
    file = write(tmp_path / "reader.py", HEAD, code)
    read, write_end = os.pipe()  # an input that stays open and silent, as a terminal does
    try:
        said = python(
            f"""
            import json
            from impls import outside
            outside.PATIENCE_S = 5
            print(json.dumps([row.name for row in outside.file_rows([{str(file)!r}])]))
            """,
            stdin=read,
        )
    finally:
        os.close(read)
        os.close(write_end)
    assert said == ["reader"]


# ---- a row that costs itself ---------------------------------------------------------------------

BAD_ROWS = {
    "a number": ("5", "row 1 of {file} is int, not a Variant"),
    "the class": ("Variant", "row 1 of {file} is type, not a Variant"),
    "a paper that is code": ("row('bad', paper=print)", "row bad of {file} is not plain data"),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_a_bad_row_costs_only_itself(tmp_path, case):
    bad, says = BAD_ROWS[case]
    file = write(tmp_path / "mixed.py", HEAD, f"ROWS = [row('first'), {bad}, row('last')]")
    table = impls.table([file])
    assert list(table.rows)[-2:] == ["first", "last"]
    (broken,) = table.broken
    assert says.format(file=file) in broken.reason
