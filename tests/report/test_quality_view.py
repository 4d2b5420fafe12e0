"""What a variant costs a model, in tables, in a picture and on a page: made-up evidence."""

import pytest

from attnbench.core.evidence import Evidence
from attnbench.features.quality import pictures
from attnbench.features.quality.view import line, model_said, show_model, show_real
from tests.models.quality.made_up import evidence, flat, real_row, row, step


@pytest.fixture
def found():
    learnt = {"before": flat(0.5), "after": flat(0.7), "losses": [0.4, 0.2], "texts": [4, 5, 6]}
    return evidence(
        row("einsum", flat(1.0), "softmax", 1.1),
        row("broken", flat(0.3), "softmax", status="wrong", reason="it is off the original's"),
        row(
            "topk[x]",
            flat(0.98, 0.001),
            "softmax on its own pattern",
            0.9,
            together=False,
            layers=[flat(0.995), flat(0.9)],
            distilled=learnt,
        ),
        row("nystrom", flat(0.5, 0.01), ratio=0.8, distilled={"why": "it has no backward"}),
        row("bigbird", flat(1.0), "softmax on its own pattern", equal=True),
        row("cosine", flat(0.6), "its own operator", 0.95, amiss=["crashed: it died"]),
        {
            "variant": "retention",
            "family": "linear",
            "computes": "its own operator",
            "status": "refused",
            "reason": "it takes causal",
            "remedy": "",
        },
    )


def test_exact_ranked_and_other_operators_stand_in_tables_of_their_own(found, capsys):
    show_model(found)
    said = capsys.readouterr().out
    at = [
        said.index(words)
        for words in (
            "exact softmax",
            "near softmax",
            "operators of their own",
            "what a step takes",
            "at the same quality",
            "each layer",
            "after distillation",
        )
    ]
    assert at == sorted(at)
    near = said[at[1] : at[2]]
    assert near.index("bigbird") < near.index("topk[x]") < near.index("nystrom")
    assert "0.9800 [0.9780, 0.9820]" in near and "alone" in near
    assert "cosine" in said[at[2] : at[3]] and "NO" in said[at[0] : at[1]]
    assert "no attention at all" in said and "0.800" in said


def test_what_has_no_figures_says_why_beneath(found, capsys):
    show_model(found)
    said = capsys.readouterr().out
    for words in (
        "! broken: wrong: it is off",
        "! retention: refused: it takes causal",
        "! cosine: crashed: it died",
        "! nystrom: it has no backward",
        "same rank: can't be told apart",
        "need not be: bigbird",
        "Without any attention a step of 256 tokens takes 0.800",
    ):
        assert words in said


def test_each_variant_is_a_line_as_it_ends(found):
    lines = [line(each) for each in found.rows]
    assert lines[2] == "topk[x]: cosine 0.9800 [0.9780, 0.9820]; step 0.900 at 256"
    assert lines[6] == "retention: refused: it takes causal"


def test_the_picture_has_every_point_with_its_words_and_lies_beside_the_file(found, tmp_path):
    file = tmp_path / "20260102-030405-model.json"
    picture = pictures.beside(found, file)
    assert picture.read_bytes().startswith(b"\x89PNG")
    svg = file.with_suffix(".svg").read_text()
    for words in ("topk[x]: cosine 0.9800, 0.9×", "nystrom", "no attention at all", "the original"):
        assert words in svg
    assert "broken" not in svg  # what is wrong has no time


def test_the_picture_says_who_is_fastest_at_a_cosine_of_0_99(found):
    drawn = pictures.draw_quality(found)
    assert "nobody is faster than the original; next to it: einsum (1.100" in drawn.svg
    assert drawn.csv.splitlines()[0].startswith("variant,computes,cosine")
    assert len(drawn.csv.splitlines()) == 5


def test_a_row_of_the_picture_is_who_is_as_the_original_and_the_corner_says_who_gains(found):
    svg = pictures.draw_quality(found).svg
    assert "as the original, to 0.0001" in svg and "0.99 or more:" in svg and "nobody" in svg
    quick = evidence(row("quick", flat(1.0), "softmax", 0.9), row("far", flat(0.5), ratio=1.1))
    assert "1 of all" in pictures.draw_quality(quick).svg


def test_nearer_is_higher_and_the_far_end_is_not_lost():
    at = [pictures.up(x) for x in (-0.1, 0.0, 0.2, 0.5, 0.9, 0.99, 0.999)]
    assert at == sorted(at)
    assert at[3] - at[1] > 0.5 * (at[5] - at[4])


def test_what_is_both_faster_and_as_near_is_said(capsys):
    show_model(evidence(row("quick", flat(0.995), "softmax on its own pattern", 0.9)))
    said = capsys.readouterr().out
    assert (
        "Nothing is both faster than the original beyond doubt and keeps a median cosine of "
        "0.999." in said
    )
    assert "Only quick keeps 0.99: 0.900 [0." in said


def test_of_what_is_faster_the_nearest_to_the_original_is_said():
    rows = [
        row("exact", flat(1.0), "softmax", 1.2),
        row("near", flat(0.6), ratio=0.8),
        row("far", flat(0.3), ratio=0.5),
    ]
    first, second, third = model_said(evidence(*rows))
    assert first.startswith("nothing is both") and "0.999, 0.99, 0.95 or 0.9; only exact" in first
    assert "is near: a cosine of 0.600 [" in second
    assert third.startswith("without any attention a step of 256 tokens takes 0.800")


def test_without_times_there_is_no_picture(tmp_path):
    assert pictures.beside(evidence(row("x", flat(0.5))), tmp_path / "x.json") is None


@pytest.fixture
def real(found):
    rows = [
        real_row(v, s, skill)
        for v, skill in (("worse", -0.2), ("better", 0.7))
        for s in ("normal", "layer 0", "layer 1")
    ]
    rows.append(
        {
            **real_row("gone", "layer 0", 0.0),
            "status": "crashed",
            "reason": "it died",
            "skill": None,
        }
    )
    made = {**found.made, "wanted": {"seq": 256, "batch": 4}, "command": "attnbench quality real"}
    return Evidence("real", made, rows)


def test_skill_stands_by_source_the_best_on_real_inputs_first(real, capsys):
    show_real(real)
    said = capsys.readouterr().out
    skill = said[said.index("near softmax: skill") : said.index("near softmax: distance")]
    assert skill.index("better") < skill.index("worse")
    assert "0.700" in skill and "-0.200" in skill and "crashed" in skill
    assert "! gone on layer 0: crashed: it died" in said
    assert "0.400" in said[: said.index("near softmax: skill")]


def test_a_step_that_was_refused_is_said(capsys):
    show_model(
        evidence(row("x", flat(0.5), steps=[{"seq": 256, "why": "x: not that"}, step(1, 128)]))
    )
    assert "! x: step at 256: x: not that" in capsys.readouterr().out
