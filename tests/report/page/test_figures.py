"""The figures of the page in a real browser: a run with a tie, a clear lead and a noisy one."""

import re
import struct
from functools import partial
from xml.etree import ElementTree

import pytest

from attnbench.features.report import page as html
from tests.report.page.reading import (
    attributes,
    figure,
    labels,
    points,
    seen,
    variants,
)
from tests.report.page.runs import CAUSAL, NEAR, OWN, at, far, filled, memory, timed, untimed

expect = pytest.importorskip("playwright.sync_api").expect
pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def duel(tmp_path_factory):
    """Forward: tied at 64, four times ahead at 128, a fifth and noisy at 256; train, no mask."""
    folder, train = tmp_path_factory.mktemp("duel"), at(256, phase="train")
    records = [timed("sdpa", 1e-3, train), untimed("cudnn", "unavailable", problem=train)]
    for n, its, flags in ((64, 1.01e-3, ()), (128, 4e-3, ()), (256, 1.2e-3, ["drifting: x"])):
        problem = at(n, mask=CAUSAL)
        sparse = {"computes": NEAR, "distance": far(0.3), "family": "sparse"}
        records += [
            timed("sdpa", 1e-3, problem, flags=flags),
            timed("matmul", its, problem),
            timed("window.blocked", 6e-3, problem, memory=memory(n << 10)),
            timed("gla", 1e-4 * n, problem, computes=OWN, distance=far(0.1), family="linear"),
            timed("lsh", 5e-4, problem, **sparse),
        ]
    (folder / "index.html").write_text(html.render(filled(folder, records)), "utf-8")
    return folder / "index.html"


@pytest.fixture
def forward(visit, duel):
    """Opens the page at its forward regime."""
    return partial(visit, duel, "#phase=forward", width=1280, height=720)


def test_the_map_tells_ties_leads_and_noise_apart(forward):
    winners = figure(tab := forward(), "map")
    assert winners.locator("rect[fill^='url(#tied']").count() == 1
    assert {"tie of 2", "4.00× ahead", "1.20× ahead ?"} <= set(labels(tab, "map"))
    opacities = attributes(winners, "rect[fill-opacity]", "fill-opacity")
    tied, far_ahead, little = map(float, opacities)
    assert tied == far_ahead > little  # by the lead over the rest


def test_a_field_of_the_map_moves_the_length_and_all_that_shows_it(forward):
    def marked():
        frame = attributes(figure(tab, "map"), "rect[stroke-width='1.2']", "x")
        return frame + attributes(figure(tab, "scaling"), "path[stroke-dasharray='2 3']", "d")

    tab = forward()
    before, slider = marked(), tab.locator("[name=at]")
    assert slider.input_value() == "2"
    figure(tab, "map").locator("rect[fill^=url]").click(position={"x": 9, "y": 9})
    assert (slider.input_value(), slider.get_attribute("aria-valuetext")) == ("0", "64 tokens")
    assert len(before) == len(marked()) == 2 and not {*before} & {*marked()}


def test_the_trade_off_follows_the_length_and_what_it_is_held_against(forward):
    tab = forward()
    assert set(points(tab, "tradeoffs").values()) == {256}
    tab.locator("[name=at]").press("Home")
    assert points(tab, "tradeoffs").items() >= {"sdpa": 64, "window.blocked": 64}.items()
    assert "Least of what is exact at 64: window.blocked" in seen(tab, "#memory figure")[0]
    tab.select_option("[name=y]", "error")
    assert set(points(tab, "tradeoffs")) == {"gla", "lsh"}
    assert "distance from softmax" in labels(tab, "tradeoffs")
    assert "lsh is nearest to softmax" in seen(tab, "#tradeoffs figcaption")[0]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("WIND", ["window.blocked"]),
        ("linear", ["gla"]),  # a family
        ("gla vs sdpa", ["sdpa", "gla"]),
        ("cudnn", []),  # it has no time: there is nothing to draw
    ],
)
def test_the_list_is_searched_by_name_and_family(forward, words, found):
    tab = forward()
    tab.click("#variants summary")
    expect(tab.locator("#find")).to_be_focused()
    tab.keyboard.type(words)
    tab.keyboard.press("Enter")
    assert tab.locator("[data-pick=found]").is_visible() == bool(found)
    if found:
        assert seen(tab, ".pick") == found and set(variants(tab)) == set(found)


def test_a_panel_says_how_times_grow_and_judges_by_the_margin(forward):
    tab = forward()
    tab.evaluate("location.hash = '#about=gla&phase=forward'")  # by its times 6.4 to 25.6 ms
    expect(tab.locator("#about-times caption")).to_contain_text("time grows as n1.00")
    note = tab.locator("#about .note")
    expect(note).to_have_text(f"Not exact softmax, but {OWN}: 10 % fidelity to softmax here.")
    assert tab.locator("#about a").first.get_attribute("href").startswith("https://arxiv.org/")
    tab.mouse.click(20, 400)  # beside it
    expect(tab.locator("#about")).to_be_hidden()
    tab.evaluate("location.hash = '#about=matmul&phase=forward'")
    expect(tab.locator("#about-title")).to_have_text("matmul")  # 1.01 is within the margin
    verdicts = [row.split("\t")[2] for row in seen(tab, "#about .times tbody tr")]
    assert verdicts == ["tied (1.01× the time)", "4.00× slower", "1.20× slower"]
    assert note.count() == 0


def test_one_length_is_bars_from_zero_and_one_kernel_one_of_them(visit, filled, tmp_path):
    flash = {"kernels": ["aten::_scaled_dot_product_flash_attention_for_cpu"]}
    records = [timed("sdpa", 1e-3, **flash), timed("sdpa.flash", 1.01e-3, **flash)]
    (tmp_path / "index.html").write_text(html.render(filled([*records, timed("matmul", 3e-3)])))
    bars = figure(tab := visit(tmp_path / "index.html"), "scaling")
    expect(bars.locator("svg text[data-v]")).to_have_text(["sdpa (flash)", "matmul"])
    caption = bars.locator("figcaption span")
    expect(caption).to_have_text("At 64: sdpa (flash), 1 ms. One length was measured.")
    widths = [float(width) for width in attributes(bars, "svg rect", "width")]
    assert widths[1] / widths[0] == pytest.approx(3, rel=0.02)
    assert variants(tab) == ["sdpa", "sdpa.flash", "matmul"]


# ---- reading points, and saving ------------------------------------------------------------------

PLACE = """f => { const p = f.points.find(p => looks[p.v].name === 'matmul' && p.c === 128);
  const box = f.querySelector('svg').getBoundingClientRect();
  return [box.left + p.x, box.top + p.y] }"""


def test_a_point_is_read_by_pointer_and_finger(small):
    lines = figure(tab := small(), "scaling")
    x, y = lines.evaluate(PLACE)
    tab.mouse.move(x + 3, y - 3)
    note = "matmul\n128 tokens: 9.60 ms [9.41, 9.79]\n1.60× the"
    assert seen(tab, ".readout")[0].startswith(note)
    assert tab.locator("#scaling .cross circle").count() == 1
    tab.mouse.move(5, 5)
    expect(tab.locator(".readout").locator("visible=true")).to_have_count(0)
    touch = {"pointerType": "touch", "clientX": x, "clientY": y, "bubbles": True}
    lines.locator(".plot").dispatch_event("pointerdown", touch)
    assert seen(tab, ".readout")[0].startswith(note)


@pytest.mark.parametrize(
    ("what", "many"), [("scaling", 4), ("tradeoffs", 2), ("memory", 4), ("map", 3)]
)
def test_points_are_read_by_keys(small, what, many):
    plot = figure(tab := small(), what).locator(".plot")
    plot.focus()
    notes = set()
    for key in ["Right", *["Left"] * 4, *["Right"] * 4, "Up", "Down", "Down"]:
        tab.keyboard.press(f"Arrow{key}")
        notes |= {seen(tab, f"#{what} .readout")[0]}
    assert len(notes) >= many and all(" MiB" in note for note in notes)
    inside, box = (p.bounding_box() for p in (plot, tab.locator(f"#{what} .readout").first))
    assert box["x"] + box["width"] <= inside["x"] + inside["width"] + 20
    tab.keyboard.press("Enter")
    expect(tab.locator("#about")).to_be_visible()
    tab.keyboard.press("Escape")
    tab.evaluate("document.activeElement.blur()")
    assert seen(tab, f"#{what} .readout") == []


def saved(tab, what, kind, folder):
    button = tab.locator(f"#{what} [data-save={kind}]").first
    button.scroll_into_view_if_needed()
    with tab.expect_download() as waiting:
        button.click()
    assert re.fullmatch(rf"{what}.*\.{kind}", waiting.value.suggested_filename)
    waiting.value.save_as(folder / kind)
    return (folder / kind).read_bytes()


def test_a_figure_is_saved_as_svg_and_png_in_light_colours(small, tmp_path):
    tab = small("#v=sdpa", color_scheme="dark")
    svg, png = (saved(tab, "scaling", kind, tmp_path) for kind in ("svg", "png"))
    root = ElementTree.fromstring(svg)
    words = {e.text for e in root.iter() if e.text}
    assert "sdpa" in words and "matmul" not in words
    assert f"Speed: {tab.text_content('#scaling figure:not([hidden]) figcaption b')}" in words
    assert b"var(--" not in svg and b'class="cross"' not in svg and b"#1c2129" in svg
    wide, high = map(float, root.attrib["viewBox"].split()[2:])
    assert png.startswith(b"\x89PNG") and len(png) > 5000
    assert struct.unpack(">II", png[16:24]) == (int(3 * wide), int(3 * high))
    assert tab.evaluate("'theme' in document.documentElement.dataset") is False
