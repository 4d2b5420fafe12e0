"""What a report says of its runs: headlines, baseline, figures and the sentences in their place."""

import re
from pathlib import Path

import pytest

from attnbench.features.report import build
from attnbench.features.report import build as drawn
from attnbench.features.report.contents import beside, headlines, sentences
from attnbench.report.scenes import gather, scenes
from impls.loading import load_file

runs = load_file(Path(__file__).with_name("runs.py"))
timed, at = runs.timed, runs.at


@pytest.fixture
def filled_(monkeypatch, gathered, tmp_path):
    """Contents without figures, which take their time."""

    def made(*records, **header):
        monkeypatch.setattr(build, "draw_all", lambda *_: ([], {}))
        return build.contents_of(gathered(*records, **header), tmp_path / "m" / "run0" / "report")

    return made


# ---- headlines -----------------------------------------------------------------------------------


def told(gathered, *records):
    return headlines(scenes(gathered(list(records))), several_runs=False)


def test_a_clear_lead_is_said_with_its_interval(gathered):
    (line,) = told(gathered, timed("sdpa", 1e-3), timed("matmul", 2e-3))
    assert line == (
        "To run forward at 64 tokens, use sdpa: 1.00 ms [0.980, 1.02], 2.00× "
        "[1.92, 2.08] faster than matmul. Nothing else that was measured is faster for sure, exact "
        "or not."
    )


def test_of_a_tie_one_is_recommended_and_the_rest_is_beside_it(gathered):
    (line,) = told(
        gathered,
        timed("a", 1e-3),
        timed("b", 1.03e-3),
        timed("c", 1.04e-3),
        timed("d", 1.05e-3),
        timed("e", 3e-3),
    )
    assert "use a: 1.00 ms [0.980, 1.02], 3.00× [2.88, 3.12] faster than e; b, c and d can" in line
    assert "b, c and d can't be told from it." in line


@pytest.mark.parametrize(
    ("ties", "said"),
    [
        (1, "; v1 can't be told from it."),
        (2, "; v1 and v2 can't be told from it."),
        (5, "; v1, v2, v3 and 2 more can't be told from it."),
    ],
)
def test_many_that_tie_are_counted(gathered, ties, said):
    (line,) = told(gathered, *(timed(f"v{n}", 1e-3) for n in range(ties + 1)))
    assert f"use v0: 1.00 ms [0.980, 1.02]{said}" in line


def test_what_was_amiss_puts_it_in_doubt(gathered):
    (line,) = told(gathered, timed("sdpa", 1e-3, flags=["contended: 3 of 9"]), timed("b", 2e-3))
    assert re.search(r"faster than b; in doubt: sdpa\b.*\bcontended\.", line)


def test_the_only_exact_variant_is_said_to_be_that(gathered):
    (line,) = told(gathered, timed("sdpa", 1e-3), timed("w", 2e-3, computes="approximates softmax"))
    assert "sdpa takes 1.00 ms [0.980, 1.02]; it is the only exact variant measured" in line


def test_nothing_exact_and_nothing_at_all_are_said(gathered, tmp_path):
    (line,) = told(gathered, timed("w", 1e-3, computes="its own operator"))
    assert line == ("To run forward at 64 tokens, nothing that is exactly softmax has a time.")
    path = runs.written(tmp_path / "none", [runs.untimed("a", "failed")])
    assert headlines(scenes(gather([path])), several_runs=False)[0].startswith("Nothing was meas")


def test_training_comes_first_and_each_phase_once(gathered):
    records = [
        timed("sdpa", 1e-3, at(n, phase=phase, mask=mask))
        for phase in ("forward", "train", "backward")
        for mask in (runs.CAUSAL, runs.PROBLEM.mask)
        for n in (64, 128)
    ]
    lines = told(gathered, *records)
    assert [line[:22] for line in lines] == ["To train at 128 tokens", "To run forward at 128 "]


def test_of_several_regimes_the_longest_is_the_headline_and_named(gathered):
    none, causal = runs.PROBLEM.mask, runs.CAUSAL
    records = [
        timed(name, median, runs.at(n, mask=mask))
        for n, mask, fast in ((64, none, "sdpa"), (128, causal, "matmul"))
        for name, median in (("sdpa", 1e-3), ("matmul", 3e-3 if fast == "sdpa" else 3e-4))
    ]
    (line,) = told(gathered, *records)
    assert line.startswith("To run forward at 128 tokens (causal; 1 other below), use matmul:")


def test_of_several_runs_each_answers_for_itself(gathered):
    found = scenes(gathered(runs.small(), runs.small()))
    lines = headlines(found, several_runs=True)
    assert len(lines) == 2
    assert "run0 on slow-box-2c" in lines[0]
    assert "run1 on slow-box-2c" in lines[1]


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ([("w", 1e-4, 0.7)], "Faster, but not exact: w, 10.0× as fast, keeps 70\u00a0% ("),
        (
            [("w", 1e-4, 0.2), ("x", 2e-4, 0.4)],
            "Nothing faster keeps half of what softmax does. "
            "Nearest: x, 5.00× as fast, keeps 40\u00a0%.",
        ),
        ([("w", 1e-4, -3.0)], "Nothing faster keeps even 5\u00a0% of what softmax does."),
        ([("w", 1e-4, 0.04), ("x", 2e-4, 0.05)], "Nearest: x, 5.00× as fast, keeps 5\u00a0%."),
        ([("w", 1e-4, None)], "not measured: w, 10.0× as fast (approximates softmax)."),
        ([], "Nothing else that was measured is faster for sure, exact or not."),
    ],
)
def test_what_is_faster_and_not_exact_is_said_with_what_it_loses(gathered, others, said):
    more = [
        timed(
            name,
            median,
            computes="approximates softmax",
            distance=None if skill is None else runs.far(skill),
        )
        for name, median, skill in others
    ]
    (scene,) = scenes(gathered([timed("sdpa", 1e-3), *more]))
    assert said in str(beside(scene.standings[0]))


def test_a_regime_is_told_stretch_by_stretch_with_its_crossovers(gathered):
    train, _ = scenes(gathered(runs.small()))
    lines = list(sentences(train))
    assert lines[0].startswith("128 to 256: at 256 use sdpa: 12.0 ms [11.8, 12.2], 3.20× [3.07, ")
    assert lines[1].startswith("64: use matmul: 2.40 ms")
    assert "70\u00a0%" in lines[2]
    assert lines[3].startswith("sdpa overtakes matmul between 64 and 128 (about 80)")


def test_a_stretch_is_in_doubt_where_any_of_its_lengths_is(gathered):
    (scene,) = scenes(
        gathered(
            [
                timed("sdpa", 1e-3, flags=["contended: 3 of 9"]),
                timed("matmul", 2e-3),
                timed("sdpa", 2e-3, at(128)),
                timed("matmul", 4e-3, at(128)),
            ]
        )
    )
    first, *_ = sentences(scene)
    assert first.startswith("64 to 128: at 128 use sdpa: 2.00 ms")
    assert first.endswith("in doubt: sdpa contended")


# ---- contents ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "base"),
    [
        (["einsum", "matmul", "sdpa"], "sdpa"),
        (["einsum", "matmul"], "matmul"),
        (["x", "einsum"], "einsum"),
        (["x", "y", "y"], "y"),
        (["y", "x"], "x"),
        ([], ""),
    ],
)
def test_the_baseline_is_the_first_known_or_the_one_most_timed(gathered, names, base):
    records = [timed(name, 1e-3, at(64 * (n + 1))) for n, name in enumerate(names)]
    records.append(timed("near", 1e-3, computes="approximates softmax"))
    records.append(runs.untimed("sdpa.math", "failed"))
    assert build.baseline(scenes(gathered(records))) == base


def test_contents_lead_to_the_run_by_a_relative_address(filled_):
    found = filled_(runs.small(), runs.small())
    assert found.to_run == {0: "..", 1: "../../run1"}
    assert found.title == "Which attention to use on slow-box-2c: 2 runs side by side"
    assert [scene.run.number for scene in found.scenes] == [0, 0, 1, 1]


def test_runs_are_compared_with_the_first_by_name(filled_):
    found = filled_(runs.small(), runs.small())
    (one,) = found.comparisons
    assert (one.a, one.b) == ("run0 on slow-box-2c", "run1 on slow-box-2c")
    assert len(one.cells) == 24
    assert not found.incomparable


def test_runs_that_share_nothing_are_refused_without_a_path(filled_, tmp_path):
    found = filled_([timed("sdpa", 1e-3)], [timed("matmul", 1e-3)])
    (sentence,) = found.incomparable
    assert "run0 on slow-box-2c and run1 on slow-box-2c have no cell in common" in sentence
    assert str(tmp_path) not in sentence


# ---- figures -------------------------------------------------------------------------------------

FIGURES = ("winner_map", "scaling", "tradeoffs", "roofline", "closeness", "memory")


@pytest.fixture
def hollow(monkeypatch):
    """Figures that draw nothing, and what each was asked."""
    asked = {}
    for name in FIGURES:

        def draw(*given, name=name):
            asked.setdefault(name, []).append(given)
            return [] if name in ("scaling", "tradeoffs") else None

        monkeypatch.setattr(getattr(drawn, name), "draw", draw)
    return asked


def draw_all(gathered, records):
    ran = gathered(records)
    found = scenes(ran)
    return drawn.draw_all(ran, found, build.looks(records), "sdpa")


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_that_fails_is_a_sentence_in_its_place(monkeypatch, hollow, gathered, name):
    def fail(*_):
        raise ValueError("it has no room\nfor it")

    monkeypatch.setattr(getattr(drawn, name), "draw", fail)
    figures, absent = draw_all(gathered, runs.small())
    section = {"winner_map": "map"}.get(name, name)
    assert figures == []
    for sentence in absent[section]:
        assert sentence.startswith("the figure of ")
        assert sentence.endswith("could not be drawn (ValueError: it has no room)")
    others = set(drawn.SECTIONS) - {section}
    assert all(absent[other] == [drawn.WHY_NOT[other]] for other in others)


def test_only_the_first_regimes_have_figures_and_the_rest_is_said(monkeypatch, hollow, gathered):
    records = [timed("sdpa", 1e-3, at(64, heads=heads, kv_heads=heads)) for heads in range(1, 12)]
    records.append(runs.untimed("sdpa", "failed", problem=at(64, heads=12, kv_heads=12)))
    one = object.__new__(drawn.Drawn)
    object.__setattr__(one, "section", "scaling")
    monkeypatch.setattr(drawn.scaling, "draw", lambda *_: [one])
    figures, absent = draw_all(gathered, records)
    assert len(figures) == drawn.SCENES == len(hollow["memory"]) == 8
    (of_map, of_closeness) = (hollow[name] for name in ("winner_map", "closeness"))
    assert [len(found) for _, found, _ in (*of_map, *of_closeness)] == [12, 12]
    (energy, rest) = absent["scaling"]
    assert "--energy" in energy
    assert rest.startswith("3 further regimes of the run are in the table without figures: forward")


@pytest.mark.parametrize(("variants", "shown"), [(499, 2), (501, 1), (1001, 1), (100, 3)])
def test_very_many_lines_leave_room_for_few_regimes(hollow, gathered, variants, shown):
    records = [
        timed(f"v{n}", 1e-3, at(64, phase=phase))
        for phase in ("train", "forward", "decode")
        for n in range(variants)
    ]
    draw_all(gathered, records)
    assert len(hollow["memory"]) == shown


def test_profiles_and_maps_beside_a_run_are_drawn_or_said_to_be_damaged(hollow, gathered):
    ran = gathered(runs.small())
    folder = ran[0].path
    (folder / "profiles" / "x").mkdir(parents=True)
    (folder / "profiles" / "x" / "profile.json").write_text("{")
    (folder / "maps.json").write_text("no json")
    _, absent = drawn.draw_all(ran, scenes(ran), build.looks(runs.small()), "sdpa")
    assert absent["shares"] != [drawn.WHY_NOT["shares"]]
    assert "profile.json" in absent["shares"][0]
    assert absent["attention"] == ["maps.json is damaged, so no map is shown"]
    assert str(folder) not in str(absent)
