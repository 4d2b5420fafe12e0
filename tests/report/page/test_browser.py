"""The page of a small run in a real browser: answers, filters, table, panels."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

from attnbench.core import format
from attnbench.core.record import Energy
from attnbench.features.report import page as html
from tests.report.page import runs
from tests.report.page.reading import address, figure, labels, names, seen, settle, variants

expect = pytest.importorskip("playwright.sync_api").expect  # it waits for what a click does
pytestmark = pytest.mark.slow
WIDE = "document.documentElement.scrollWidth"
LEVELS = "all => all.filter(h => !h.closest('dialog')).map(h => Number(h.tagName[1]))"


def test_the_length_moves_the_answers_and_the_table(small):
    tab = small()
    tab.locator("[name=at]").press("Home")
    assert address(tab) == "#n=64" and tab.inner_text("#tokens") == "64 tokens"
    assert seen(tab, ".headline")[0].startswith("To train at 64 tokens, use matmul: 2.40 ms")
    assert seen(tab, ".verdicts tr[data-n] .use .name") == ["matmul", "matmul"]
    tab.check("[name=one]")
    assert set(seen(tab, "#cells tbody td:nth-child(2)")) == {"64"}
    assert small("#n=100").inner_text("#tokens") == "256 tokens"  # 100 was not measured


def test_a_filter_of_regimes_leaves_out_all_of_the_others_and_is_in_the_address(small):
    tab = small()
    tab.select_option("[name=phase]", "forward")
    assert address(tab) == "#phase=forward" and len(seen(tab, ".verdicts tbody")) == 1
    assert [line.split()[1] for line in seen(tab, ".headline")] == ["run"]
    assert set(seen(tab, "#cells tbody td:last-child")) == {"forward"}
    assert tab.inner_text("#count") == "15 rows"
    assert seen(tab, "#scaling figcaption b") == ["Forward"]
    tab.click("nav a[href='#table']")  # a place on the page keeps what was chosen
    assert tab.input_value("[name=phase]") == "forward"
    assert 60 < tab.locator("#h-table").bounding_box()["y"] < 200
    tab.click("#clear")
    assert "=" not in address(tab)
    assert len(seen(tab, ".verdicts tbody")) == len(seen(tab, ".headline")) == 2


def test_any_set_of_variants_is_drawn_alone_on_axes_of_its_own(small):
    tab, exact = small(), {"sdpa", "matmul"}
    usual = labels(tab)
    assert names(tab) == exact and tab.inner_text("#few") == "the fastest five"
    tab.click("#variants summary")
    assert tab.locator("[name=pick]:checked").count() == 2
    tab.get_by_role("checkbox", name="window?size=8").check()
    tab.get_by_role("checkbox", name="sdpa").uncheck()
    assert names(tab) == set(variants(tab)) == {"matmul", "window?size=8"}
    assert set(address(tab)[3:].split(",")) == {"matmul", "window%3Fsize%3D8"}
    assert (
        "At 256 matmul is 16.0× slower than window?size=8." in seen(tab, "#scaling figcaption")[0]
    )
    tab.click("[data-pick=all]")
    assert len(names(tab)) == 4 and tab.inner_text("#few") == "all" and labels(tab) != usual
    tab.click("[data-pick=exact]")  # the others, which are faster, are pale and stretch no axis
    assert labels(tab) == usual and set(variants(tab)) >= {"sdpa"}
    tab.click("[data-pick=five]")
    assert labels(tab) == usual and address(tab) == ""


def test_an_address_brings_everything_back_and_nonsense_shows_everything(small):
    tab = small("#v=window%3Fsize%3D8,sdpa&phase=train&unit=tflops&n=128&y=error")
    for name, value in {"phase": "train", "unit": "tflops", "y": "error"}.items():
        assert tab.input_value(f"[name={name}]") == value
    assert set(variants(tab)) == {"window?size=8", "sdpa"}
    odd = "#phase=sideways&v=nobody&unit=furlongs&cell=99999&constructor=1&about=none&run=%ff"
    tab = small(odd)
    assert len(seen(tab, ".verdicts tbody")) == 2 and len(set(variants(tab))) == 6
    assert tab.input_value("[name=unit]") == "ms" and tab.locator("dialog[open]").count() == 0


UNITS = {
    "ms": ("time, ms", "median time", 9.6e-3, (0.98, 1.02)),
    "tflops": ("TFLOP/s", "TFLOP/s", 512 * 128**2 / 9.6e9, (1 / 1.02, 1 / 0.98)),
    "share": ("% of ceiling", "share of the ceiling", 0.42, (1 / 1.02, 1 / 0.98)),
}
"""The head of the table, the axis, and by hand what training with matmul at 128 tokens is."""


@pytest.mark.parametrize("unit", UNITS)
def test_the_unit_changes_figures_table_and_answers(small, unit):
    head, axis, value, ends = UNITS[unit]
    tab = small()
    tab.select_option("[name=unit]", unit)
    assert axis in labels(tab) and head in seen(tab, "#cells thead")[0]
    assert address(tab) == ("" if unit == "ms" else f"#unit={unit}")
    beside = 2 if unit == "ms" else 1  # a time and its share of the ceiling
    assert len(seen(tab, ".taken .u")) == beside * len(seen(tab, ".taken"))
    line = f"seriesOf(0, UNITS.{unit}.value).find(l => l.look.name === 'matmul').points[1]"
    point = [tab.evaluate(f"{line}.{end}") for end in ("y", "low", "high")]
    assert [x / value for x in point] == pytest.approx([1, *ends], 1e-4)


VALUES = (3.27e-9, 0.0000999, 0.0123, 0.5, 0.99951, 1, 9.995, 12.34, 99.96, 1234.6, 1.5e6, 3.3e10)


def test_numbers_are_worded_as_everywhere_else(small):
    words = {"figures": "figures", "three": "three", "seconds": "duration", "nbytes": "size"}
    words |= {"joules": "joules", "percent": "percent", "times": "ratio"}
    tab = small()
    for function, python in words.items():
        texts = tab.evaluate(f"{list(VALUES)}.map({function})")
        assert texts == [getattr(format, python)(value) for value in VALUES], function


def test_a_number_leads_to_its_record_and_the_command_that_repeats_it(small):
    tab = small()
    tab.locator("#cells tbody tr", has_text="matmul").first.locator("a").press("Enter")
    tab.wait_for_selector("dialog[open]")
    raw = tab.inner_text("#json")
    assert '"variant": "matmul"' in raw and "samples_s" not in raw
    command = tab.inner_text("#repeat")
    assert command.startswith("attnbench run matmul --seq 256")
    assert tab.get_attribute("#file", "href") == "../records.jsonl"
    tab.click("#record [data-copy]")
    expect(tab.locator("#told")).to_have_text("copied")
    assert tab.evaluate("navigator.clipboard.readText()") == command
    opened = address(tab)
    assert re.fullmatch(r"#cell=\d+", opened)
    tab.keyboard.press("Escape")
    settle(tab)
    assert tab.locator("dialog[open]").count() == 0 and address(tab) == ""
    expect(small(opened).locator("#record-title")).to_contain_text("matmul at 256 tokens")
    tab.locator(".verdicts tr:not([hidden]) .taken").first.click()
    expect(tab.locator("#record-title")).to_contain_text("sdpa at 256 tokens")


@pytest.mark.parametrize(
    "source", [".verdicts .use .name", ".headline button", "#cells .name", "#scaling text"]
)
def test_a_name_opens_the_panel_of_its_variant_wherever_it_stands(small, source):
    tab = small()
    name = tab.locator(source, has_text=re.compile("^sdpa$")).locator("visible=true").first
    name.scroll_into_view_if_needed()
    settle(tab)  # what comes near is laid out, and may move it
    name.click()
    expect(tab.locator("#about-title")).to_have_text("sdpa")
    assert address(tab) == "#about=sdpa"
    tab.go_back()
    assert address(tab) == "" and not tab.is_visible("#about")


def test_a_panel_says_what_a_variant_is_how_it_does_and_how_it_is_used(small):
    tab = small("#about=matmul&n=128")
    tab.wait_for_selector("#about[open]")
    text = tab.inner_text("#about")
    for words in ("4 n m d FLOPs", "Needs", 'attention("matmul")', '_implementation("eager")'):
        assert words in text, words
    assert tab.eval_on_selector("#rival", "list => nameOf(list.value)") == "sdpa"
    assert tab.inner_text("#about .against").startswith("At 128 tokens, compared with")
    assert seen(tab, "#about-here li")[0] == "train: 1.60× slower [1.54, 1.67], 1.00× the memory"
    times = [row.split("\t") for row in seen(tab, "#about .times tbody tr")[:3]]
    assert [row[0] for row in times] == ["64", "128", "256"]
    assert [row[2] for row in times] == ["1.25× faster", "1.60× slower", "3.20× slower"]
    assert seen(tab, "#about .times .here th") == ["128", "128"]
    command = tab.locator("#about-use code").last
    expect(command).to_have_text("attnbench compare matmul sdpa --seq 128 --heads 2 --phase train")
    tab.select_option("#rival", label="window?size=8")
    expect(command).to_contain_text("compare matmul 'window?size=8'")
    assert "8.00× slower" in seen(tab, "#about-here li")[0]


def test_print_is_light_has_the_answers_and_the_figures_and_few_pages(visit):
    tab = visit(Path(__file__).parents[3] / "reports" / "cpu" / "index.html", color_scheme="dark")
    tab.emulate_media(media="print", color_scheme="dark")
    for gone in ("#controls", "nav", ".save", "#table", "#missing"):
        assert not tab.locator(gone).first.is_visible(), gone
    paper = "getComputedStyle(document.querySelector('.verdicts')).backgroundColor"
    assert tab.evaluate(paper) == "rgb(255, 255, 255)"
    assert len(re.findall(rb"/Type\s*/Page\b(?!s)", tab.pdf(format="A4"))) <= 12  # sheets
    figures = tab.locator("figure[data-key]")
    assert all(figures.evaluate_all("all => all.map(f => f.querySelector('svg') !== null)"))


@pytest.mark.parametrize("width", [390, 1024, 1440])
def test_nothing_is_wider_than_the_window(small, width):
    tab = small(width=width)
    figure(tab, "scaling")
    assert tab.evaluate(WIDE) == width
    tab.click("#variants summary")
    box = tab.locator(".list").bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= width
    for panel in ("openRecord(1)", "change({about: 'sdpa'}); openAbout(looks[0])"):
        tab.evaluate(panel)
        tab.wait_for_selector("dialog[open]")
        assert tab.evaluate(WIDE) == width
        assert tab.evaluate("all('dialog[open]').every(d => d.scrollWidth <= d.clientWidth)")
        tab.evaluate("$('dialog[open]').close()")


@pytest.mark.parametrize(("width", "theme"), [(390, "dark"), (1440, "light")])
def test_axe_finds_nothing(small, width, theme):
    import axe_playwright_python

    tab = small(width=width, color_scheme=theme)
    tab.evaluate((Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text("utf-8"))
    tab.evaluate("more(innerWidth < 700); $('#variants').open = true; $('#find').focus()")
    whole = "{exclude: [['#cells tbody tr:nth-child(n+4)']]}"
    for state, part in (("unit=ms", whole), ("about=sdpa", "'#about'")):
        tab.evaluate(f"location.hash = '{state}'")
        tab.wait_for_timeout(200)
        found = tab.evaluate(f"axe.run({part}, {{resultTypes: ['violations']}})")["violations"]
        assert not found, [(v["id"], [n["html"][:200] for n in v["nodes"][:3]]) for v in found]
    levels = tab.eval_on_selector_all("h1, h2, h3, h4", LEVELS)
    assert levels[0] == 1 and all(after <= before + 1 for before, after in pairwise(levels))


JOULES = Energy(joules=0.5, method="rapl counter")
BROKE = runs.untimed("sdpa", "failed", "it broke")
LATER = dict.fromkeys(("memory", "error", "cost", "share_of_ceiling", "distance"))
"""The fields that an older attnbench left out."""
ODD = {
    "nothing measured": lambda: [[BROKE]],
    "an older record": lambda: [[runs.timed("x" * 80, family="", **LATER)]],
    "nothing exact, energy": lambda: [[runs.other("gla", n, n, energy=JOULES) for n in (64, 128)]],
    "two hundred variants": lambda: [runs.many(200, (64, 128))],
    "markup": lambda: [
        runs.crowd(12),
        [*map(runs.timed, ("a,b&c=d#'\"%", "*all"), (1e-3, 2e-3))],
        [BROKE],
    ],
}


@pytest.mark.parametrize("odd", ODD)
def test_whatever_was_measured_there_is_a_page_and_no_empty_frame(visit, filled, odd, tmp_path):
    records = ODD[odd]()
    (tmp_path / "index.html").write_text(html.render(filled(*records)), "utf-8")
    tab = visit(tmp_path / "index.html", width=1280)
    timed = any(record.time for some in records for record in some)
    assert timed == (len(seen(tab, ".verdicts tbody")) > 0) and seen(tab, ".headline") != []
    assert timed or ("it broke" in tab.inner_text("#missing") and seen(tab, "#controls") == [])
    assert (tab.locator("#energy figure").count() > 0) == ("joules" in str(records))
    for plot in tab.locator("section.drawn .plot").all():
        plot.scroll_into_view_if_needed()
        expect(plot.locator("svg").first).to_be_visible()
    for name in tab.evaluate("timed.slice(-3).map(({ name }) => name)"):
        tab.evaluate("name => pick(looks.filter((look) => look.name === name))", name)
        assert tab.evaluate("read(), only.map(({ name }) => name)") == [name]
    tab.set_viewport_size({"width": 360, "height": 800})
    assert tab.evaluate(WIDE) == 360


def test_a_table_of_too_much_says_so_and_without_its_script_the_page_answers(
    browser, filled, monkeypatch, tmp_path
):
    monkeypatch.setattr(html, "MOST", 7)
    contents = filled(runs.small())
    page = html.render(contents)
    assert page == html.render(contents)  # to the last byte
    (tmp_path / "index.html").write_text(page, "utf-8")
    context = browser.new_context(java_script_enabled=False)
    tab = context.new_page()
    tab.goto((tmp_path / "index.html").as_uri())
    assert "the first 7 of 31 measurements" in tab.inner_text("#table")
    assert tab.locator(".verdicts tr[data-n]").locator("visible=true").count() == 6  # all lengths
    headline = tab.locator(".headlines:not([hidden]) .headline").first.inner_text()
    assert headline.startswith("To train at 256 tokens, use sdpa")
    assert "drawn by the page's script" in tab.inner_text("#scaling")
    assert not tab.is_visible("#controls")
    context.close()
