"""The table of limits, and its picture."""

import re

import pytest

from attnbench.features.limits import view

BUDGET = {"peak_bytes": 2 << 30, "seconds": 0.2}


def look(size, why="", ran=True, time_s=0.15, peak_bytes=100 << 20, reason="", flags=()):
    return {
        "size": size,
        "why": why,
        "reason": reason,
        "time_s": time_s,
        "peak_bytes": peak_bytes,
        "ran": ran,
        "probe": {"flags": list(flags)},
    }


def row(variant="einsum", held=None, fails=None, **more):
    given = {
        "variant": variant,
        "computes": "softmax",
        "family": "dense",
        "phase": "forward",
        "mask": "causal",
        "by": "seq",
        "held": held,
        "fails": fails,
        "limited_by": fails["why"] if fails else "time",
        "predicted": {},
        "formula": False,
        "gate": "measured",
        "why": "",
        "looks": [],
    }
    return {**given, **more}


def cells(text, name):
    (line,) = (x for x in text.splitlines() if x.startswith(name))
    return re.split(r"\s{2,}", line)


def show(shown, *rows, by="seq"):
    return shown(view.show, rows, BUDGET, by)


def test_a_line_says_what_held_what_holds_it_back_and_what_did_not_hold(shown):
    one = row(held=look(3072), fails=look(3264, "time", time_s=0.516), predicted={"memory": 8192})
    assert cells(show(shown, one), "einsum") == [
        "einsum",
        "3,072",
        "time",
        "150 ms",
        "100 MiB",
        "3,264 (516 ms)",
        "≈ 8,192",
    ]


def test_what_was_not_run_is_said_to_be_predicted(shown):
    ruled = row(held=look(8192), fails=look(8256, "memory", ran=False, peak_bytes=2081 << 20))
    assert "8,256 (2.03 GiB, predicted)" in show(shown, ruled)
    wide = row(held=look(3072), predicted={"time": 5000, "memory": 8192})
    line = cells(show(shown, wide), "einsum")
    assert line[2] == "time ≈" and line[5] == "≈ above 5,000 (time, predicted)"


def test_a_call_that_was_given_up_says_after_how_long(shown):
    one = row(held=look(64), fails=look(128, "time", time_s=None, reason="given up after 24 s"))
    assert "128 (given up after 24 s)" in show(shown, one)


def test_who_could_not_be_asked_says_why(shown):
    why = "not looked at: the wall clock was spent first"
    one = row(why=why, limited_by="")
    assert cells(show(shown, one), "einsum")[1:4] == ["none", "–", why]


def test_a_budget_that_holds_nothing_says_what_the_shortest_took(shown):
    one = row(fails=look(64, "memory", peak_bytes=5 << 20))
    line = cells(show(shown, one), "einsum")
    assert line[1:3] == ["none", "memory"] and "64 (5 MiB)" in line


def test_what_crashed_or_was_wrong_is_told_below(shown):
    one = row(held=look(2048), fails=look(4096, "crashed", reason="it died [x]", time_s=None))
    text = show(shown, one)
    assert "! einsum forward at 4,096: crashed: it died [x]" in text
    assert cells(text, "einsum")[2] == "crashed"


def test_what_the_meters_say_is_told_once_for_all(shown):
    flags = "it holds {} bytes from call to call: they are not in its peak"
    rows = [
        row(name, look(64, flags=[flags.format(n)]), look(128, "time"))
        for n, name in enumerate(("a", "b"), 1)
    ]
    text = show(shown, *rows)
    assert text.count("from call to call") == 1
    assert "! it holds … bytes from call to call: they are not in its peak: a forward, b fo" in text


def test_phases_and_masks_have_tables_of_their_own(shown):
    rows = [
        row(phase=phase, mask=mask, held=look(64), fails=look(128, "time"))
        for phase, mask in (("forward", "none"), ("forward", "causal"), ("train", "causal"))
    ]
    text = show(shown, *rows)
    for heading in ("forward · mask none", "forward · mask causal", "train · mask causal"):
        assert heading in text


def test_the_foot_says_what_the_numbers_are(shown):
    one = row(held=look(64), fails=look(128, "time"), computes="its own operator")
    text = show(shown, one)
    assert "einsum*" in text and "* not softmax attention" in text
    assert "2 GiB and 200 ms a call" in text
    assert "bytes live above the inputs at the worst instant, output included" in text
    assert "multiples of 64" in text and "multiples of 64" not in show(shown, one, by="batch")
    assert "largest batch that held" in show(shown, one, by="batch")


def test_long_reasons_wrap_in_a_pipe(in_a_pipe, reason):
    rows = [
        row("a", held=look(64), fails=look(128, "crashed", reason=reason)),
        row("b", why=f"unavailable: {reason}", limited_by=""),
    ]
    text = in_a_pipe(view.show, rows, BUDGET, "seq")
    assert text.count("[word 59]") == 2


@pytest.mark.parametrize("by", ["seq", "batch"])
def test_the_picture_shows_every_variant_and_why_it_is_held_back(tmp_path, by):
    rows = [
        row("a.time", look(3072), look(3264, "time"), predicted={"memory": 8192}),
        row("b.memory", look(8192), look(8256, "memory", ran=False)),
        row("c.crash", look(2048), look(4096, "crashed"), computes="its own operator"),
        row("d.none", why="not looked at: the wall clock was spent first", limited_by=""),
        row("a.time", look(1024), None, phase="train", predicted={"time": 2000}),
    ]
    files = [tmp_path / "limits.svg", tmp_path / "limits.png"]
    assert view.draw(rows, BUDGET, by, "the title", files)
    text = files[0].read_text()
    for words in (
        "a.time",
        "b.memory",
        "c.crash*",
        "d.none",
        "not looked at",
        "not asked",
        "3,072",
        "8,192",
        "held back by time",
        "held back by memory",
        "run there, and did not",
        "exact formula",
        "2 GiB alone, predicted",
        "the title",
        "train · mask causal",
        "sequence length" if by == "seq" else "batch",
    ):
        assert words in text
    assert files[1].stat().st_size > 10_000


def test_where_nothing_held_there_is_no_picture(tmp_path):
    file = tmp_path / "limits.png"
    assert not view.draw([row(fails=look(64, "memory"))], BUDGET, "seq", "t", [file])
    assert not file.exists()


def test_bars_end_where_they_held_and_ticks_stand_where_they_did_not(monkeypatch, tmp_path):
    from matplotlib.axes import Axes

    bars, lines = [], []
    monkeypatch.setattr(Axes, "barh", lambda self, at, width, left, **_: bars.append((left, width)))
    monkeypatch.setattr(Axes, "plot", lambda self, x, y, **_: lines.append(x))
    rows = [row(held=look(3072), fails=look(3264, "time"), predicted={"memory": 8192})]
    view.draw(rows, BUDGET, "seq", "t", [tmp_path / "x.svg"])
    assert [left + width for left, width in bars] == [3072, 3264]
    assert lines == [[3264, 3264], [8192]]
