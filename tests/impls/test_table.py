"""The table: every row stands on code that exists, and listing it costs nothing."""

import inspect

import pytest

import impls
from impls.loading import load_function
from tests.impls.row_files import python

ROWS = impls.table().rows


def test_nothing_in_the_table_is_broken():
    assert impls.table().broken == []


def test_the_code_that_a_row_names_exists_and_takes_its_options():
    for row in ROWS.values():
        for path in filter(None, (row.build, row.definition, row.cost)):
            given, options = ["the problem"], row.chosen
            if row.ranks and path == row.build:  # the others say how many there are
                given.append("the others")
                options = {name: value for name, value in options.items() if name != "world"}
            inspect.signature(load_function(path)).bind(*given, **options)


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


@pytest.mark.parametrize(
    ("text", "label", "options"),
    [
        ("chunked?", "chunked", {"block": 256}),
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
