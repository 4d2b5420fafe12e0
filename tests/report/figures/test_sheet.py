"""Sheets: the same bytes each time, colours by name on a page, nothing of one figure in another."""

import re
from pathlib import Path
from xml.etree import ElementTree

import matplotlib as mpl
import pytest
from matplotlib.patches import Rectangle

from attnbench.report.figures.sheet import FAMILIES, INK, NAMES, finish, sheet
from impls.loading import load_file

made = load_file(Path(__file__).with_name("staged.py"))
SVG = made.SVG
NASTY = "</text><script>alert(1)</script> & #ffffff \x00\x1b\ud83d 漢字 $x^2$ {a} \n\"'"


def figure(name="f", words="plain", title="t", told="d", **more):
    with sheet(4, 3) as fig:
        axes = fig.add_axes((0.1, 0.1, 0.8, 0.8))
        axes.plot(
            [1, 2, 3],
            [1, 2, 3],
            marker="o",
            color=FAMILIES["dense"],
            gid="v3|" + words.replace("\ud83d", "\ufffd"),
        )
        axes.plot([1], [2], marker="s", color=FAMILIES["linear"], gid="v4")
        fig.add_artist(
            Rectangle(
                (0.2, 0.2),
                0.3,
                0.3,
                facecolor="none",
                hatch="////",
                edgecolor=FAMILIES["sparse"],
                alpha=0.3,
            )
        )
        fig.text(0.5, 0.5, words.replace("\ud83d", "\ufffd"))
        return finish(fig, "s", name, title, told, [("a", "b"), (1, NASTY)], **more)


def ids(svg):
    return re.findall(r'\bid="([^"]+)"', svg)


def test_the_same_drawing_gives_the_same_bytes():
    assert figure() == figure()


def test_a_reader_s_own_settings_change_nothing():
    before = figure()
    with mpl.rc_context({"lines.linewidth": 9, "axes.facecolor": "black"}):
        assert figure() == before


def test_colours_are_names_on_a_page_and_themselves_alone():
    drawn = figure()
    styles = "".join(re.findall(r'style="([^"]*)"', drawn.inline))
    assert not re.search(r"#[0-9a-f]{6}\b", styles)
    assert {"--dense", "--linear", "--sparse", "--ink", "--paper"} <= set(
        re.findall(r"--\w+", styles)
    )
    assert "var(" not in drawn.svg
    assert FAMILIES["dense"] in drawn.svg


def test_every_reference_is_to_something_of_the_same_figure():
    for text in (figure().svg, figure().inline):
        wanted = set(re.findall(r'(?:url\(|href=")#([\w-]+)', text))
        assert wanted
        assert wanted == set(ids(text))


def test_two_figures_share_no_id_and_say_no_style_for_the_page():
    one, two = figure("one"), figure("two")
    assert not set(ids(one.inline)) & set(ids(two.inline))
    assert "<style" not in one.inline + one.svg


def test_markup_in_a_name_stays_text():
    drawn = figure(words=NASTY, title=NASTY, told=NASTY)
    for text in (drawn.svg, drawn.inline):
        root = ElementTree.fromstring(text)
        assert not [e for e in root.iter() if e.tag.endswith("script")]
        assert "#ffffff \ufffd\ufffd" in "".join(root.itertext())  # and is no colour
        assert "alert(1)" in root.get("aria-label")
    assert "\x00" not in drawn.svg


def test_a_variants_parts_have_its_class_and_its_words_come_first():
    root = ElementTree.fromstring(figure(words="sdpa: 4,096 tokens, 0.657").inline)
    (line,) = (g for g in root.iter(f"{SVG}g") if g.get("class") == "v v3")
    assert line[0].tag == f"{SVG}title"
    assert line[0].text == "sdpa: 4,096 tokens, 0.657"
    assert [g.get("class") for g in root.iter(f"{SVG}g") if g.get("class")] == ["v v3", "v v4"]


def test_numbers_in_words_keep_their_digits_and_others_lose_some():
    drawn = figure(title="a 0.6571 b", told="2.485e-7")
    root = ElementTree.fromstring(drawn.svg)
    assert root.get("aria-label") == "a 0.6571 b. 2.485e-7"
    assert all(re.search(r"\.\d\d", e.get("d", "")) is None for e in root.iter())


def test_a_marker_is_a_definition_only_where_it_is_used_again():
    root = ElementTree.fromstring(figure().svg)
    assert len(list(root.iter(f"{SVG}use"))) >= 3
    (single,) = (g for g in root.iter(f"{SVG}g") if g.get("class") == "v v4")
    shapes = [e.tag for e in single.iter() if e.tag != f"{SVG}g"]
    assert f"{SVG}path" in shapes
    assert f"{SVG}use" not in shapes
    assert any(e.get("transform", "").startswith("translate(") for e in single.iter())


def test_groups_that_say_nothing_are_gone_and_text_is_ink():
    root = ElementTree.fromstring(figure().svg)
    assert all(g.attrib for g in root.iter(f"{SVG}g"))
    assert root.get("style") == f"fill:{INK}"
    assert "plain" in [t.text for t in root.iter(f"{SVG}text")]


def test_a_picture_is_made_where_it_is_wanted():
    assert figure().png.startswith(b"\x89PNG")
    assert figure(with_png=False).png == b""


def test_numbers_and_words_are_kept_as_a_table():
    assert made.rows(figure())[0]["a"] == "1"
    assert made.rows(figure())[0]["b"].startswith("</text><script>")


@pytest.mark.parametrize("colour", NAMES)
def test_every_colour_has_a_name_on_the_page(colour):
    with sheet(1, 1) as fig:
        fig.add_artist(Rectangle((0, 0), 1, 1, facecolor=colour))
        assert f"fill:var(--{NAMES[colour]})" in finish(fig, "s", "n", "t", "d", []).inline
