"""The table: every row stands on code that exists, and listing it costs nothing."""

import inspect
import sys

import pytest

import impls
from impls.loading import load_function
from tests.impls.row_files import python

ROWS = impls.table().rows
PATHS = [
    (name, what, path)
    for name, row in ROWS.items()
    for what in ("build", "definition", "cost")
    if (path := getattr(row, what)) is not None
]


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
    loaded = python("import json, sys, impls; impls.table(); print(json.dumps(list(sys.modules)))")
    assert "impls.dense" in loaded
    assert "torch" not in loaded
    kernels = [m for m in loaded if any(m.startswith(f"impls.{f}.") for f in impls.FAMILIES)]
    assert kernels == []


def test_a_cost_is_read_without_torch():
    code = """
        import sys
        sys.modules['torch'] = None  # from here on, importing it raises
        import impls
        from impls.loading import load_function
        for row in impls.table().rows.values():
            load_function(row.cost)
        print("[]")
        """
    assert python(code) == []


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
