"""Controls of the page in a real browser: a run with a tie, a clear lead and a noisy one."""

import re

import pytest

from attnbench.features.report import page as html
from tests.report.page.runs import CAUSAL, NEAR, OWN, at, far, filled, memory, timed, untimed

expect = pytest.importorskip("playwright.sync_api").expect


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    """Forward: tied at 64, four times ahead at 128, a fifth and noisy at 256; train, no mask."""
    folder, train = tmp_path_factory.mktemp("duel"), at(256, phase="train")
    found = [timed("sdpa", 1e-3, train), untimed("cudnn", "unavailable", problem=train)]
    for n, its, flags in ((64, 1.01e-3, ()), (128, 4e-3, ()), (256, 1.2e-3, ["drifting: x"])):
        problem = at(n, mask=CAUSAL)
        sparse = {"computes": NEAR, "distance": far(0.3), "family": "sparse"}
        found += [
            timed("sdpa", 1e-3, problem, flags=flags),
            timed("matmul", its, problem),
            timed("window.blocked", 6e-3, problem, memory=memory(n << 10)),
            timed("gla", 1e-4 * n, problem, computes=OWN, distance=far(0.1), family="linear"),
            timed("lsh", 5e-4, problem, **sparse),
        ]
    (folder / "index.html").write_text(html.render(filled(folder, found)), "utf-8")
    return folder / "index.html"


@pytest.fixture
def d(opened):
    """The page as it was opened: its forward regime."""
    opened.as_at_first(1280, 720, "#phase=forward")
    yield opened
    amiss, opened.amiss = opened.amiss, []
    assert not amiss


def near(d, what):
    """A section's first figure, brought near so that it is drawn."""
    figure = d.page.locator(f"#{what} figure").locator("visible=true").first
    figure.scroll_into_view_if_needed()
    expect(figure.locator("svg")).to_be_attached()
    d.settle()
    return figure


def points(d, what):
    """By variant, the length of its point in the section's first figure."""
    of = "f => Object.fromEntries(f.points.map(p => [looks[p.v].name, p.cell.length]))"
    return near(d, what).evaluate(of)


def attributes(figure, what, name):
    return figure.locator(what).evaluate_all(f"all => all.map(e => e.getAttribute('{name}'))")


def test_the_map_tells_ties_leads_and_noise_apart(d):
    figure = near(d, "map")
    assert figure.locator("rect[fill^='url(#tied']").count() == 1
    told = figure.locator("text").all_text_contents()
    assert {"tie of 2", "4.00× ahead", "1.20× ahead ?"} <= set(told)
    tied, far_ahead, little = map(float, attributes(figure, "rect[fill-opacity]", "fill-opacity"))
    assert tied == far_ahead > little  # how far the rest are behind


def test_on_a_phone_the_maps_rows_are_named_above_their_fields(d):
    wide = near(d, "map").locator("text").all_text_contents()
    assert "tokens" in wide and "forward" in wide
    d.page.set_viewport_size({"width": 300, "height": 844})
    expect(near(d, "map").locator("text", has_text="forward · causal")).to_be_attached()
    name, fields = near(d, "map").evaluate(
        "f => [[...f.querySelectorAll('text')].find(t => t.textContent === 'forward · causal'),"
        " [...f.querySelectorAll('rect[rx=\"5\"]')]].map(e => [e].flat().map(e => e.getBBox().y))"
    )
    assert fields and max(name) < min(fields)


def test_a_field_of_the_map_moves_the_length_and_all_that_shows_it(d):
    def marked():
        frame = attributes(near(d, "map"), "rect[stroke-width='1.2']", "x")
        return frame, attributes(near(d, "scaling"), "path[stroke-dasharray='2 3']", "d")

    before, slider = marked(), d.page.locator("[name=at]")
    assert slider.input_value() == "2"
    near(d, "map").locator("rect[fill^=url]").click(position={"x": 9, "y": 9})
    assert (slider.input_value(), slider.get_attribute("aria-valuetext")) == ("0", "64 tokens")
    after = marked()
    assert all(len(some) == 1 for some in (*before, *after))
    assert before[0] != after[0] and before[1] != after[1]


def test_the_trade_off_follows_the_length_and_what_it_is_held_against(d):
    assert set(points(d, "tradeoffs").values()) == {256}
    d.page.locator("[name=at]").focus()
    d.page.keyboard.press("Home")
    there = points(d, "tradeoffs")
    assert set(there.values()) == {64} and {"sdpa", "window.blocked"} <= set(there)
    said = d.seen("#tradeoffs figcaption")[0]
    assert "Half of sdpa’s 256 KiB: window.blocked at 6.00× the time" in said
    least = near(d, "memory").locator("figcaption").inner_text()  # said there too
    assert "Half of sdpa’s 256 KiB" in least
    needs = """kib => {
      const exact = cells.filter((cell) => looks[cell.variant].exact);
      const before = exact.map(({ peak }) => peak);
      for (const cell of exact) cell.peak = nameOf(cell.variant) === "sdpa" ? 2 ** 18 : kib * 1024;
      const said = half(shown[0]);
      exact.forEach((cell, k) => { cell.peak = before[k]; });
      return said; }"""
    assert "nothing exact. The least is 200 KiB, " in d.page.evaluate(needs, 200)
    assert "nothing exact, and nothing exact needs less than sdpa" in d.page.evaluate(needs, 300)
    beyond = """() => regimes.flatMap((r) => timed.flatMap((a) => timed.filter((b) => {
      if (!at(r, a.v) || !at(r, b.v)) return false;
      const [said] = verdict(r, a.v, b.v).match(/[\\d.]+/g);
      const [low, high] = reach(r, a.v, b.v).match(/[\\d.]+/g);
      return Number(said) < Number(low) || Number(said) > Number(high); })))"""
    assert d.page.evaluate(beyond) == []
    assert "batch 1" in d.page.inner_text(".machine")
    noisy = [row.split() for row in d.seen("#cells tbody tr") if re.search(r"\] \?", row)]
    assert [row[:2] for row in noisy] == [["sdpa", "256"]]
    d.page.select_option("[name=y]", "error")
    assert set(points(d, "tradeoffs")) == {"gla", "lsh"}
    assert "distance from softmax" in near(d, "tradeoffs").locator("text").all_text_contents()
    assert "lsh is nearest to softmax" in d.seen("#tradeoffs figcaption")[0]
    points_ = "[{x: 1, y: 3}, {x: 2, y: 4}, {x: 3, y: 1}]"
    assert d.page.evaluate(f"frontier({points_}).map(p => p.x)") == [1, 3]


def test_filters_that_leave_nothing_say_so_and_are_taken_back(d):
    assert not d.page.is_visible("#nothing")
    d.page.select_option("[name=mask]", "none")
    assert d.seen("#nothing span") == ["No regime has phase forward and mask none."]
    assert d.seen(".verdicts tbody") == [] and not d.page.is_visible("#scaling")
    d.page.click("#nothing button")
    assert len(d.seen(".verdicts tbody")) == 2 and not d.page.is_visible("#nothing")


def test_the_list_is_searched_by_name_and_family_and_offers_the_nearest(d):
    d.page.click("#variants summary")
    only = d.page.locator("[data-pick=found]")
    assert not only.is_visible()
    d.page.fill("#find", "WIND")
    assert d.seen(".pick") == ["window.blocked"]
    d.page.keyboard.press("Enter")
    assert len(set(d.rows())) == 1 and d.hash == "#phase=forward&v=window.blocked"
    d.page.fill("#find", "cudnn")  # which has no time: there is nothing to draw
    d.page.keyboard.press("Enter")
    assert d.hash == "#phase=forward&v=window.blocked" and not only.is_visible()
    d.page.fill("#find", "linear")  # a family
    assert d.seen(".pick") == ["gla"] and len(d.seen("#boxes fieldset")) == 1
    only.click()
    assert d.hash == "#phase=forward&v=gla"
    d.page.evaluate("looks.find(l => l.name === 'lsh').name = 'sdpa.lsh'")  # which holds one
    d.page.fill("#find", "gla vs sdpa")
    assert sorted(d.seen(".pick")) == ["gla", "sdpa"]
    only.click()
    assert d.seen("#pair") == [
        "sdpa against gla at 256 tokens: forward · causal 25.6× faster. gla is not exact softmax."
    ]
    d.page.evaluate("change({ v: '' })")
    assert d.seen("#pair") == []
    d.page.evaluate("looks.find(l => l.name === 'sdpa.lsh').name = 'lsh'")
    d.page.fill("#find", "lhs")
    assert d.seen("#near")[0].startswith("No variant is called “lhs”. Did you mean lsh")
    assert d.seen("#near button")[0] == "lsh"
    d.page.fill("#find", "<b>zzzzzzzz")
    assert d.seen("#near") == ["No variant is called “<b>zzzzzzzz”."]
    d.page.fill("#find", "blokced")  # a part of a name
    assert d.seen("#near button") == ["window.blocked"]
    d.page.click("#near button")
    assert d.page.evaluate("document.activeElement.id") == "find"
    assert d.seen(".pick") == ["window.blocked"]
    d.page.keyboard.press("Escape")
    assert not d.page.is_visible("#find")


def test_a_panel_says_how_times_grow_and_judges_by_the_margin(d):
    near(d, "scaling").locator(".plot").focus()
    d.page.keyboard.press("ArrowRight")
    name = d.seen("#scaling .readout")[0].split("\n")[0]
    d.page.keyboard.press("Enter")
    d.page.wait_for_selector("#about[open]")
    assert d.page.inner_text("#about-title") == name
    d.close()
    d.page.evaluate("location.hash = '#about=gla&phase=forward'")  # by its times 6.4 to 25.6 ms
    d.page.wait_for_selector("#about[open]")
    assert "time grows as n1.00" in d.page.inner_text("#about-times caption")
    d.page.evaluate("location.hash = '#about=matmul&phase=forward'")
    expect(d.page.locator("#about-title")).to_have_text("matmul")  # 1.01 is within the margin
    told = [row.split("\t")[2] for row in d.seen("#about .times tbody tr")]
    assert told == ["tied (1.01× the time)", "4.00× slower", "1.20× slower"]


def test_the_readout_goes_up_and_down_stays_within_its_figure_and_goes_with_the_focus(d):
    figure = near(d, "scaling")
    plot, readout = figure.locator(".plot"), figure.locator(".readout")
    plot.focus()
    for key in ("ArrowRight", "ArrowDown"):
        d.page.keyboard.press(key)
    for key, up in (("ArrowUp", True), ("ArrowDown", False)):
        before = figure.evaluate("f => f.at.y")
        d.page.keyboard.press(key)
        after = figure.evaluate("f => f.at.y")
        assert after < before if up else after > before
    for _ in range(4):
        d.page.keyboard.press("ArrowRight")
    inside, box = figure.bounding_box(), readout.bounding_box()
    assert inside["x"] <= box["x"] and box["x"] + box["width"] <= inside["x"] + inside["width"]
    d.page.evaluate("document.activeElement.blur()")
    expect(readout).to_be_hidden()


def test_saving_leaves_the_theme_and_a_sheet_has_no_formula(d):
    figure = near(d, "scaling")
    figure.locator(".plot").focus()
    d.page.keyboard.press("ArrowRight")
    saved = d.page.evaluate("standalone($('#scaling figure')).said")
    assert "<circle" in saved and 'class="cross"' not in saved
    assert d.page.evaluate("'theme' in document.documentElement.dataset") is False
    d.page.evaluate("looks.forEach(look => look.name = '=1+1,\"x\"')")
    _, *lines = d.page.evaluate("numbers($('#scaling figure:not([hidden])'))").splitlines()
    assert lines and all(line.startswith('"\'=1+1,""x""",') for line in lines)
    d.go()


def test_a_band_is_as_high_as_the_interval_and_holds_its_line(d):
    d.page.evaluate("change({ v: 'sdpa' })")
    figure = near(d, "scaling")
    (band,) = attributes(figure, "path[opacity='0.14']", "d")
    corners = [tuple(map(float, p)) for p in re.findall(r"([\d.]+)[ ,]([\d.]+)", band)]
    over, under = corners[: len(corners) // 2], corners[len(corners) // 2 :][::-1]
    middle = figure.evaluate("f => f.points.map(p => [p.x, p.y]).sort((a, b) => a[0] - b[0])")
    assert len(over) == len(under) == len(middle) == 3
    for (x, y), top, bottom in zip(middle, over, under, strict=True):
        assert top[0] == bottom[0] == pytest.approx(x, abs=0.1)
        assert top[1] < y - 0.3 and y + 0.3 < bottom[1]


def test_the_head_stays_in_sight_and_figures_are_drawn_for_the_window_and_for_paper(d):
    wide = near(d, "scaling").locator("svg").get_attribute("viewBox")
    assert d.page.locator("nav").bounding_box()["y"] >= 0
    d.page.pdf(format="A4")
    expect(near(d, "scaling").locator("svg")).to_have_attribute("viewBox", wide)
    d.page.set_viewport_size({"width": 800, "height": 900})
    expect(near(d, "scaling").locator("svg")).not_to_have_attribute("viewBox", wide)
    figure = near(d, "scaling")
    across = float(figure.locator("svg").get_attribute("viewBox").split()[2])
    assert abs(across - figure.locator(".plot").bounding_box()["width"]) < 2
    d.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    figures = d.page.locator("main figure[data-key]").locator("visible=true")
    widths = figures.evaluate_all("a => a.map(f => f.querySelector('svg').viewBox.baseVal.width)")
    assert len(widths) > 3 and {470} <= set(widths) <= {470, 860}
    d.go()


def test_an_open_list_takes_what_is_typed_and_the_next_click_closes_it_and_no_more(d):
    d.page.click("#variants summary")
    expect(d.page.locator("#find")).to_be_focused()
    d.page.keyboard.type("gla")
    assert d.page.input_value("#find") == "gla"
    name = d.page.locator(".verdicts button.name").locator("visible=true").last
    name.click()
    assert not d.page.evaluate("document.querySelector('#variants').open")
    assert d.page.locator("dialog[open]").count() == 0
    name.click()
    expect(d.page.locator("dialog[open]")).to_be_visible()


def test_a_panel_says_at_once_what_is_not_exact_and_a_badge_leads_to_what_it_means(d):
    d.page.evaluate("location.hash = '#about=gla'")
    note = d.page.locator("#about .note")
    expect(note).to_have_text(f"Not exact softmax, but {OWN}: 10 % fidelity to softmax here.")
    assert d.page.locator("#about a").first.get_attribute("href").startswith("https://arxiv.org/")
    d.page.mouse.click(20, 400)  # beside it
    expect(d.page.locator("#about")).to_be_hidden()
    expect(d.page).not_to_have_url(re.compile("about="))
    d.page.evaluate("location.hash = '#about=sdpa'")
    expect(d.page.locator("#about-title")).to_have_text("sdpa")
    expect(note).to_have_count(0)
    d.page.keyboard.press("Escape")
    d.page.locator("a.sure").locator("visible=true").first.click()
    expect(d.page.locator("#sure")).to_be_in_viewport()
