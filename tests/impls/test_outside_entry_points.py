"""Rows of other distributions, by their entry points: a broken one costs itself."""

from importlib import import_module

import pytest

import impls
from tests.impls.row_files import HEAD, python, write

BUILT_IN = [row.name for f in impls.FAMILIES for row in import_module(f"impls.{f}").ROWS]


def install(folder, name, points, **modules):
    """A distribution as an installer leaves it: modules, and what it says about itself."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    write(info / "METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"{point} = {target}" for point, target in points.items()]
    write(info / "entry_points.txt", "[attnbench.variants]", *lines)
    for module, code in modules.items():
        write(folder / f"{module}.py", HEAD, code)
    return folder


def table_with(*folders):
    """What a process with these distributions finds in the table besides the built-in rows."""
    said = python(
        """
        import json, sys, impls
        table = impls.table()
        rows = {row.name: row.to_dict() for row in table.rows.values()}
        broken = [[b.name, b.reason, b.remedy] for b in table.broken]
        foreign = [m for m in sys.modules if m.endswith("_pkg") or m == "torch"]
        print(json.dumps({"rows": rows, "broken": broken, "imported": foreign}))
        """,
        *folders,
    )
    built_in = {name: said["rows"].pop(name) for name in BUILT_IN}
    inside = [row for row in built_in.values() if row["family"] != "external"]
    assert {row["origin"] for row in inside} == {"attnbench", "torch"}
    return said


GOOD = """
def build(problem): ...
ROWS = [row("fake.one", build="fake_pkg:build"), row("fake.two", build="fake_pkg:build")]
"""


@pytest.fixture
def good(tmp_path):
    points = {"all": "fake_pkg:ROWS"}
    return install(tmp_path / "good", "fake", points, fake_pkg=GOOD)


def test_the_rows_of_an_entry_point_are_in_the_table(good):
    said = table_with(good)
    assert list(said["rows"]) == ["fake.one", "fake.two"]
    assert {row["origin"] for row in said["rows"].values()} == {"fake 1.0"}
    assert said["rows"]["fake.one"]["build"] == "fake_pkg:build"
    assert said["broken"] == []
    assert said["imported"] == []


def test_a_row_of_an_entry_point_that_names_no_module_costs_itself(tmp_path):
    code = 'ROWS = [row("fake.here"), row("fake.one", build="here_pkg:build")]'
    said = table_with(install(tmp_path, "here", {"x": "here_pkg:ROWS"}, here_pkg=code))
    assert list(said["rows"]) == ["fake.one"]
    ((name, reason, remedy),) = said["broken"]
    assert name == "fake.here"
    assert "begins with a colon" in reason
    assert "package.module:function" in remedy


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("raise ValueError('no good')", "raised ValueError: no good"),
        ("import sys\nsys.exit(0)", "raised SystemExit: 0"),
        ("rows = []", "raised AttributeError"),
        ("def ROWS(): ...", "raised TypeError"),
    ],
    ids=["raises", "exits", "has no ROWS", "is a function"],
)
def test_an_entry_point_that_fails_costs_its_own_row(tmp_path, good, code, says):
    bad = install(tmp_path / "bad", "worse", {"worse.row": "bad_pkg:ROWS"}, bad_pkg=code)
    said = table_with(bad, good)
    assert list(said["rows"]) == ["fake.one", "fake.two"]
    ((name, reason, remedy),) = said["broken"]
    assert name == "worse.row"
    assert says in reason
    assert "bad_pkg:ROWS" in reason
    assert "worse 1.0" in remedy


def test_an_entry_point_that_dies_leaves_the_built_in_rows(tmp_path):
    code = "import os\nos._exit(0)"
    said = table_with(install(tmp_path, "dead", {"dead": "dead_pkg:ROWS"}, dead_pkg=code))
    assert said["rows"] == {}
    ((name, reason, remedy),) = said["broken"]
    assert name == "attnbench.variants"
    assert "ended with status 0" in reason
    assert remedy
