"""What a reader can choose, light and sort, in a real browser: each control does what it says."""

import re
from pathlib import Path

import pytest

from impls.loading import load_file

runs = load_file(Path(__file__).with_name("runs.py"))
WIDTHS = (360, 768, 1440)


def test_the_first_screen_answers(reader):
    page = reader().page
    for text in ("To train at 256 tokens, use sdpa", "3.20×"):
        box = page.get_by_text(text).first.bounding_box()
        assert box["y"] + box["height"] < 500, text
    card = page.locator(".card").first
    assert card.locator("h2").inner_text().startswith("Train")
    first = card.locator("li").first
    assert first.locator(".use .name").all_inner_texts() == ["sdpa"]
    assert "faster than matmul" in first.inner_text() and "clear" in first.inner_text()
    assert "window?size=8" in first.inner_text() and "70\u00a0%" in first.inner_text()


def test_a_phase_chosen_leaves_only_that_phase_and_is_in_the_address(reader):
    r = reader()
    assert len(r.seen(".card .regime")) == 2
    r.page.select_option("[name=phase]", "forward")
    assert [t[:7] for t in r.seen(".card .regime")] == ["Forward"]
    assert set(r.seen("#cells tbody td:last-child")) == {"forward"}
    assert r.hash == "#phase=forward"
    assert "15 cells" in r.seen("#count")[0]
    r.page.select_option("[name=phase]", "")
    assert (r.hash, len(r.seen(".card .regime"))) == ("", 2)


def test_a_length_chosen_leaves_its_rows_and_the_stretches_that_hold_it(reader):
    r = reader()
    r.page.select_option("[name=n]", "64")
    assert set(r.seen("#cells tbody td:nth-child(2)")) == {"64"}
    assert all("64" in text for text in r.seen(".card .span"))
    assert r.hash == "#n=64"


def test_searching_leaves_variants_and_families_of_that_name(reader, number):
    r = reader()
    r.page.fill("[name=q]", "MATM")
    assert set(r.rows()) == {number["matmul"]}
    assert f"1 of {len(number)} variants" in r.seen("#count")[0]
    hidden = r.page.eval_on_selector(
        f"#scaling .v{number['sdpa']}", "e => getComputedStyle(e).display"
    )
    assert hidden == "none"
    r.page.fill("[name=q]", "sparse")
    assert set(r.rows()) == {number["window?size=8"]}
    r.page.click("#clear")
    assert len(set(r.rows())) == len(number) and r.hash == ""
    assert r.page.input_value("[name=q]") == ""


def test_a_family_can_be_left_out_and_taken_in_again(reader, number):
    r = reader()
    r.page.click("#legend summary")
    r.page.uncheck("[name=family][value=dense]")
    assert set(r.rows()) == {number["window?size=8"], number[runs.MARKUP]}
    assert r.hash == "#family=sparse,linear"
    r.page.check("[name=family][value=dense]")
    assert len(set(r.rows())) == len(number) and r.hash == ""


def test_what_a_variant_computes_can_be_chosen(reader, number):
    r = reader()
    r.page.select_option("[name=computes]", "its own operator")
    assert set(r.rows()) == {number[runs.MARKUP]}


def test_a_filter_changes_no_answer(reader):
    r = reader()
    before = r.seen(".card li")
    r.page.fill("[name=q]", "matmul")
    assert r.seen(".card li") == before


def test_the_first_screen_says_how_sure_it_is_and_what_to_take_alone(reader):
    page = reader().page
    sure, only = page.locator("#answer .how-sure").all_inner_texts()
    assert sure.startswith("How sure: of 6 answers 6 are clear; 9 samples a time at the median; ")
    assert page.locator(".how-sure a").get_attribute("href") == "#trust"
    assert only.startswith("If you may choose only one: sdpa, within 1.25× of the best on 6 of 6")
    assert page.inner_text("#closeness .lead").startswith("sdpa, within 1.25× of the best on 6 of")
    assert re.search(r"Clear: at least 5\s% faster", page.inner_text(".how"))


@pytest.mark.parametrize("changes", [{"q": "zzz"}, {"family": "none"}])
def test_where_nothing_is_left_that_is_said_and_can_be_undone(reader, number, changes):
    r = reader()
    assert not r.page.is_visible("#nothing")
    ((key, value),) = changes.items()
    r.go(f"#{key}={value}")
    assert r.seen("#nothing") == [
        {
            "q": "No variant matches “zzz”. Show all",
            "family": "No variant matches family none. Show all",
        }[key]
    ]
    assert r.seen("figure") == [] and not r.page.is_visible("#table")
    assert r.seen(".card .regime") != []  # no filter of variants changes an answer
    r.page.click("#nothing [data-clear]")
    assert r.hash == "" and len(set(r.rows())) == len(number)
    assert r.seen("figure") != [] and not r.page.is_visible("#nothing")


def test_a_click_on_a_name_lights_it_everywhere_and_escape_ends_it(reader, number):
    r = reader()
    r.page.locator(".card .use .name", has_text="sdpa").first.click()
    assert r.hash == "#v=sdpa" and r.seen("#lit") == ["sdpa ✕"]
    dimmed = "e => Number(getComputedStyle(e).opacity)"
    r.page.wait_for_timeout(200)  # it fades
    assert r.page.eval_on_selector(f"#scaling .v{number['matmul']}", dimmed) < 0.2
    assert r.page.eval_on_selector(f"#scaling .v{number['sdpa']}", dimmed) == 1
    pressed = r.page.locator("[aria-pressed=true]").evaluate_all("all => all.map(b => b.dataset.v)")
    assert set(pressed) == {number["sdpa"]}
    r.page.keyboard.press("Escape")
    assert r.hash == "" and r.seen("#lit") == []


def test_a_line_and_a_row_light_their_variant_too(reader, number):
    r = reader()
    r.page.eval_on_selector(
        f"#scaling .v{number['matmul']}",
        "e => e.dispatchEvent(new MouseEvent('click', {bubbles: true}))",
    )
    assert r.seen("#lit") == ["matmul ✕"]
    r.page.locator("#cells tbody tr .name", has_text="window").first.click()
    assert r.seen("#lit") == ["window?size=8 ✕"]
    r.page.click("#lit")
    assert r.seen("#lit") == []


@pytest.mark.parametrize(
    ("unit", "head"),
    [
        ("ms", "time, ms"),
        ("tflops", "TFLOP/s"),
        ("share", "% of ceiling"),
        ("baseline", "× sdpa"),
    ],
)
def test_the_unit_changes_figures_table_and_cards(reader, unit, head):
    r = reader()
    r.page.select_option("[name=unit]", unit)
    shown = r.page.locator("figure[data-unit]").locator("visible=true")
    assert set(shown.evaluate_all("all => all.map(f => f.dataset.unit)")) == {unit}
    for figure in shown.all():
        figure.locator("svg").first.wait_for(state="visible")
    assert head in r.seen("#cells thead")[0]
    assert r.hash == ("" if unit == "ms" else f"#unit={unit}")
    assert len(r.seen(".taken .u")) == len(r.seen(".taken"))


def test_an_address_brings_everything_back(reader, number):
    r = reader()
    r.go("#v=window%3Fsize%3D8&phase=train&unit=tflops&family=sparse,linear&n=128")
    assert r.page.input_value("[name=phase]") == "train"
    assert r.page.input_value("[name=unit]") == "tflops"
    assert not r.page.is_checked("[name=family][value=dense]")
    assert r.seen("#lit") == ["window?size=8 ✕"]
    assert set(r.rows()) == {number["window?size=8"], number[runs.MARKUP]}
    r.page.select_option("[name=n]", "")
    for part in ("v=window%3Fsize%3D8", "phase=train", "unit=tflops", "family=sparse,linear"):
        assert part in r.hash
    assert "n=" not in r.hash.replace("unit=", "")


def test_an_address_that_says_nonsense_shows_everything(reader, number):
    r = reader()
    r.go("#phase=sideways&v=nobody&unit=furlongs&cell=99999&constructor=1")
    assert len(r.seen(".card .regime")) == 2 and len(set(r.rows())) == len(number)
    assert r.page.input_value("[name=unit]") == "ms" and r.seen("#lit") == []


def test_a_place_on_the_page_keeps_what_was_chosen(reader):
    r = reader()
    r.page.select_option("[name=phase]", "train")
    r.page.click("nav a[href='#table']")
    assert r.page.input_value("[name=phase]") == "train"
    assert [t[:5] for t in r.seen(".card .regime")] == ["Train"]


def test_columns_sort_both_ways_and_what_has_no_number_comes_last(reader):
    from playwright.sync_api import expect  # it waits until the page has got to a click

    r = reader()
    time = r.page.locator("#cells thead th", has_text="time, ms")
    numbers = "rows => rows.map(r => parseFloat(r.querySelector('td a i')?.textContent))"

    def column():
        return [n for n in r.page.eval_on_selector_all("#cells tbody tr", numbers) if n == n]

    time.locator("button").click()
    expect(time).to_have_attribute("aria-sort", "ascending")
    assert column() == sorted(column())
    assert r.page.locator("#cells tbody tr").last.locator(".why").count() == 1
    time.locator("button").click()
    expect(time).to_have_attribute("aria-sort", "descending")
    assert column() == sorted(column(), reverse=True)
    assert r.page.locator("#cells tbody tr").last.locator(".why").count() == 1
    name = r.page.locator("#cells thead th", has_text="variant")
    name.locator("button").press("Enter")
    expect(name).to_have_attribute("aria-sort", "ascending")
    assert r.page.locator("#cells th[aria-sort]").count() == 1
    found = r.seen("#cells tbody th")
    assert found == sorted(found, key=str.lower)
