"""The table of variants, and one of them: yes or a reason, and texts shown as they are."""

import pytest

import impls
from attnbench.features.show import view
from impls import BrokenRow
from impls.spec import Variant

MARKUP = "[red]x[/] and [/nope] and [batch, heads]"


def row(**more):
    plain = {"name": "x", "title": "a title", "family": "f", "computes": "softmax", "build": "a:b"}
    return Variant(**{**plain, **more})


def test_the_list_has_a_line_for_every_row_with_yes_or_a_reason(shown):
    rows = [
        (r, None if n % 2 else "it lacks a thing", "get one")
        for n, r in enumerate(impls.table().rows.values())
    ]
    lines = shown(view.table, rows, []).splitlines()
    for made, reason, _ in rows:
        (line,) = [x for x in lines if x.split()[:1] == [made.name]]
        assert made.computes in line
        assert ("it lacks a thing → get one" if reason else made.title) in line
        assert ("no" if reason else "yes") in line.split()


def test_the_list_shows_broken_rows_and_texts_as_they_are(shown):
    broken = [BrokenRow("y[0]", MARKUP, "mend it")]
    text = shown(
        view.table, [(row(title=MARKUP), None, ""), (row(name="z"), MARKUP, MARKUP)], broken
    )
    assert "y[0]" in text
    assert "broken" in text
    assert text.count(MARKUP) == 4


@pytest.mark.parametrize(
    "changes",
    [
        {"title": MARKUP},
        {"family": MARKUP},
        {"paper": MARKUP},
        {"origin": MARKUP},
        {"build": f"/a/{MARKUP}/t.py:build"},
        {"options": {"way": MARKUP}},
    ],
    ids=lambda c: next(iter(c)),
)
def test_one_variant_shows_the_texts_of_its_row_as_they_are(shown, changes):
    assert MARKUP in shown(view.show_variant, row(**changes), "mathematics", None, "")


def test_the_list_shows_a_family_as_it_is(shown):
    assert MARKUP in shown(view.table, [(row(family=MARKUP), None, "")], [])


def test_long_reasons_wrap_in_a_pipe(in_a_pipe, reason):
    rows = [(row(name="a.rather.long.name"), reason, "do this"), (row(title=reason), None, "")]
    text = in_a_pipe(view.table, rows, [BrokenRow("mine.py[0]", reason, "mend it")])
    assert text.count(reason) == 3
    assert f"{reason} → do this" in text and f"{reason} → mend it" in text
    file = "/somebody" * 12 + "/rows.py[0]"
    text = in_a_pipe(view.table, rows, [BrokenRow(file, "it ends", "mend it")])
    assert text.count("/") == file.count("/")
    about = in_a_pipe(view.show_variant, row(title=reason), reason, reason, reason)
    assert about.count(reason) == 4


def test_one_variant_shows_its_mathematics_and_why_it_can_not_run(shown):
    text = shown(view.show_variant, row(), f"out = {MARKUP}", MARKUP, "pip install 'thing[cuda]'")
    assert f"out = {MARKUP}" in text
    assert f"no: {MARKUP} → pip install 'thing[cuda]'" in text
