"""The table: every row stands on code that exists, and listing it costs nothing."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import impls
from impls.loading import load_function

ROOT = Path(impls.__file__).parents[1]
ROWS = impls.table().rows
PATHS = [
    (name, what, path)
    for name, row in ROWS.items()
    for what in ("build", "definition", "cost")
    if (path := getattr(row, what)) is not None
]


def python(code):
    """What a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_nothing_in_the_table_is_broken():
    assert impls.table().broken == []


def test_a_row_belongs_to_the_family_whose_plate_it_is_on():
    for family in impls.FAMILIES:
        module = sys.modules[f"impls.{family}"]
        assert {row.family for row in module.ROWS} == {family}


@pytest.mark.parametrize(("name", "what", "path"), PATHS, ids=[f"{n}-{w}" for n, w, _ in PATHS])
def test_the_code_that_a_row_names_exists_and_takes_its_options(name, what, path):
    function = load_function(path)
    row = ROWS[name]
    if row.ranks and what == "build":  # the others say how many there are
        options = {option: value for option, value in row.chosen.items() if option != "world"}
        inspect.signature(function).bind("the problem", "the others", **options)
    else:
        inspect.signature(function).bind("the problem", **row.chosen)


def test_reading_the_table_imports_no_torch_and_no_kernel():
    loaded = python("import sys, impls; impls.table(); print(*sys.modules)")
    assert "impls.dense" in loaded
    assert "torch" not in loaded
    kernels = [m for m in loaded if any(m.startswith(f"impls.{f}.") for f in impls.FAMILIES)]
    assert kernels == []


def test_a_cost_is_read_without_torch():
    rows_that_need_torch = python(
        "import sys\n"
        "sys.modules['torch'] = None  # from here on, importing it raises\n"
        "import impls\n"
        "from impls.outside import load_function\n"
        "for row in impls.table().rows.values():\n"
        "    try:\n"
        "        load_function(row.cost)\n"
        "    except ImportError:\n"
        "        print(row.name)\n"
        "    except AttributeError:\n"
        "        pass  # a path that leads nowhere is another test's finding\n"
    )
    assert rows_that_need_torch == []


# ---- asking for a row ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "label", "options"),
    [
        ("chunked?", "chunked", {"block": 256}),
        ("chunked?block=256", "chunked", {"block": 256}),
        ("online?q_block=4&k_block=8", "online?k_block=8&q_block=4", {"q_block": 4, "k_block": 8}),
    ],
)
def test_a_row_is_found_with_the_options_asked_for(text, label, options):
    table = impls.table()
    row = table.find(text)
    assert row.chosen == options
    assert row.label == label
    assert table.find(row.label) == row
    assert table.rows[row.name].chosen == table.rows[row.name].options == row.options


@pytest.mark.parametrize(
    ("asked", "near"),
    [("einsun", "einsum"), ("sdpa.flsh", "sdpa.flash"), ("flash", "sdpa.flash"),
     ("prescal", "matmul.prescale")],
)  # fmt: skip
def test_an_unknown_name_suggests_the_nearest(asked, near):
    with pytest.raises(impls.UnknownVariant) as caught:
        impls.table().find(f"{asked}?block=3")
    message = str(caught.value)
    assert message.startswith(f"there is no variant {asked!r}; did you mean ")
    suggested = message.partition("did you mean ")[2].partition("?")[0].split(" or ")
    assert near in suggested
    assert set(suggested) <= set(ROWS)


def test_asking_for_a_broken_row_says_why_it_is_broken():
    table = impls.Table(broken=[impls.BrokenRow("far", "its module is gone")])
    with pytest.raises(impls.UnknownVariant, match="the row 'far' is broken: its module is gone"):
        table.find("far")
