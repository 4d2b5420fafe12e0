"""What a reader does with a page in a browser."""

import json


def settle(tab):
    """Wait until what was done has been drawn."""
    frame = "requestAnimationFrame(() => requestAnimationFrame(done))"
    tab.evaluate(f"new Promise(done => {frame})")


def seen(tab, what):
    """The texts of all parts of this kind that are shown; rows are laid out when they are near."""
    if what.startswith("#cells"):
        tab.locator("#cells").scroll_into_view_if_needed()
        settle(tab)
    return tab.locator(what).locator("visible=true").all_inner_texts()


def variants(tab):
    """The variants of the rows that are shown, in their order."""
    rows = "rows => rows.filter(r => !r.hidden).map(r => looks[r.dataset.v].name)"
    return tab.eval_on_selector_all("#cells tbody tr", rows)


def address(tab):
    return tab.evaluate("location.hash")


def figure(tab, what):
    """A section's first figure, brought near so that it is drawn."""
    found = tab.locator(f"#{what} figure").locator("visible=true").first
    found.scroll_into_view_if_needed()
    found.locator("svg").wait_for(state="attached")
    settle(tab)
    return found


def names(tab, what="scaling"):
    """The variants that a figure names."""
    return set(figure(tab, what).locator("text[data-v]").all_text_contents())


def labels(tab, what="scaling"):
    """All words of a figure."""
    return figure(tab, what).locator("text").all_text_contents()


def attributes(place, what, name):
    return place.locator(what).evaluate_all(f"all => all.map(e => e.getAttribute('{name}'))")


def points(tab, what):
    """By variant, the length of its point in a section's first figure."""
    of = "f => Object.fromEntries(f.points.map(p => [looks[p.v].name, p.cell.length]))"
    return figure(tab, what).evaluate(of)


def script(tab, call, *given):
    """The value of a function of the page's script."""
    return tab.evaluate(f"{call}({', '.join(map(json.dumps, given))})")
