"""Claims as data, what is missing to try them, the verdict; and each in a process of its own."""

import math
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import impls
from attnbench.features.claims import claim as claims
from attnbench.features.claims import view
from attnbench.features.claims.claim import ClaimRule, ClaimTable, Needs, PointStanding
from attnbench.features.claims.timing import problem_of
from attnbench.features.claims.trial import outcome
from impls.loading import load_function
from tests.claims.made import claim, point
from tests.machines import BOX, GPU, WITH_GPU

ALL = claims.claims()
TABLE = impls.table()


def test_each_claim_says_where_it_was_read_and_how_it_is_measured():
    assert len({each.name for each in ALL}) == len(ALL) == 33
    for each in ALL:
        source, names = each.source, [point.name for point in each.points]
        assert all(source[x] for x in ("title", "author", "where", "read")), each.name
        assert each.statement.endswith(".") and each.setting.endswith(".")
        assert 0 < len(names) == len(set(names))
        assert callable(load_function(each.measure))
        assert 0 < each.minutes < 60
        assert "ours" in each.setting or not any(point.ours for point in each.points)
        for one in each.points:
            assert math.isfinite(one.published) and one.tolerance >= 0
            for key in {"variant", "judged", "against"} & set(one.cell):
                problem = problem_of(one.cell["problem"])
                assert TABLE.find(one.cell[key]).supports(problem) is None


OTHER_GPU = replace(WITH_GPU, gpus=(replace(GPU, name="NVIDIA GH200 480GB"),))
OTHER, NOT_RUN = claims.ClaimVerdict.NEEDS_OTHER_HARDWARE, claims.ClaimVerdict.NOT_RUN


@pytest.mark.parametrize(
    ("needs", "machine", "verdict", "words"),
    [
        (Needs(gpu="H100"), WITH_GPU, OTHER, "H100, and this machine has NVIDIA H200 run it on"),
        (Needs(gpu="H200"), BOX, OTHER, "no NVIDIA GPU"),
        (Needs(gpu="H200"), OTHER_GPU, OTHER, "GH200"),
        (Needs(gpu="H200"), WITH_GPU, None, ""),
        (Needs(gpu="H100 or H200"), WITH_GPU, None, ""),
        (Needs(gpu="H100 or H200"), OTHER_GPU, OTHER, "an NVIDIA H100 or H200, and"),
        (Needs(gpu="H200"), replace(WITH_GPU, torch_cuda=None), NOT_RUN, "install a CUDA build"),
        (Needs(variants=("flash_attn4",)), WITH_GPU, NOT_RUN, "flash-attn-4"),
        (Needs("", ("torch>=99",), ("matmul",)), WITH_GPU, NOT_RUN, "torch>=99"),
        (Needs(variants=("matmul",)), BOX, None, ""),
    ],
)
def test_a_claim_is_left_out_for_what_is_missing(needs, machine, verdict, words):
    one = claims.lacking(claim(needs=needs), machine, TABLE)
    assert (one and one.verdict) is verdict
    assert one is None or words in f"{one.reason} {one.remedy}"


NUMBERS = st.integers(-20, 20).map(float) | st.floats(-1e9, 1e9)
POINTS = st.builds(point, st.just("one"), st.sampled_from(ClaimRule), NUMBERS, st.floats(0, 10))
FIGURES = st.lists(NUMBERS, min_size=3, max_size=3).map(
    lambda some: claims.ClaimFigure(sorted(some)[1], min(some), max(some))
)


def keeps(point, value):
    """Whether a number keeps a rule, written anew."""
    published, share = point.published, point.tolerance * abs(point.published)
    return {
        ClaimRule.NEAR: published - share <= value <= published + share,
        ClaimRule.WITHIN: published - point.tolerance <= value <= published + point.tolerance,
        ClaimRule.AT_MOST: value <= published + share,
        ClaimRule.AT_LEAST: value >= published - share,
    }[point.rule]


@given(POINTS, FIGURES, st.floats(0, 1e9))
def test_an_interval_holds_or_fails_only_as_a_whole(one, figure, more):
    low, high = figure.interval
    ends = keeps(one, low), keeps(one, high)
    state = claims.standing(one, figure)
    least, most = one.region
    if all(ends):
        assert state is PointStanding.HOLDS
    elif any(ends) or (low < least and high > most):
        assert state is PointStanding.CANT_TELL
    else:
        assert state is PointStanding.FAILS
    exact = claims.standing(one, claims.ClaimFigure(figure.value))
    assert exact is (PointStanding.HOLDS if keeps(one, figure.value) else PointStanding.FAILS)
    wider = claims.ClaimFigure(figure.value, low - more, high + more)
    assert claims.standing(one, wider) in (state, PointStanding.CANT_TELL)
    assert claims.standing(one, claims.ClaimFigure(math.nan)) is PointStanding.FAILS


@given(st.lists(st.sampled_from(PointStanding), min_size=1, max_size=5))
def test_a_claim_is_reproduced_only_where_every_point_holds(states):
    points = [point(str(n)) for n in range(len(states))]
    figure_of = {
        PointStanding.HOLDS: claims.ClaimFigure(0.5),
        PointStanding.FAILS: claims.ClaimFigure(2.0),
        PointStanding.CANT_TELL: claims.ClaimFigure(1.0, 0.5, 1.5),
        PointStanding.NO_FIGURE: claims.ClaimFigure(None, why="it has its reason"),
    }
    figures = {str(n): figure_of[state] for n, state in enumerate(states)}
    one = claims.ClaimOutcome.of(claim(*points), claims.ClaimFindings(figures))
    verdict, words = claims.ClaimVerdict.REPRODUCED, ""
    if PointStanding.FAILS in states:
        verdict = claims.ClaimVerdict.NOT_REPRODUCED
    elif PointStanding.NO_FIGURE in states:
        verdict, words = claims.ClaimVerdict.NOT_RUN, "it has its reason"
    elif PointStanding.CANT_TELL in states:
        verdict, words = claims.ClaimVerdict.NOT_REPRODUCED, "can't tell"
    assert one.verdict is verdict
    assert words in one.reason
    assert bool(one.reason) == (verdict is not claims.ClaimVerdict.REPRODUCED)


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (point("p", "near", 354.0, 0.1, unit="TFLOP/s"), "354 ± 10\N{NO-BREAK SPACE}% TFLOP/s"),
        (point("p", "within", 0.5, 0.15, ours=True), "0.5 ± 0.15*"),
        (point("p", "at most", 0.00092, 9.0), "0.00092; at most 0.0092"),
        (point("p", "at least", 20.0, 0.99), "20; at least 0.2"),
    ],
)
def test_a_rule_is_said_with_what_was_published_and_where_the_limit_lies(one, words):
    assert view.theirs(msgspec.to_builtins(one)) == words


def test_ours_stands_beside_theirs_in_a_table_with_the_count(capsys):
    behind = ClaimTable("behind it", ["what", "much"], [["x", 0.5], ["y", None], ["z", 2048]])
    figures = {"one": claims.ClaimFigure(0.5, 0.4, 0.6), "two": claims.ClaimFigure(0.1)}
    some = claim(point("one"), point("two", ClaimRule.AT_LEAST), point("six"))
    tried = claims.ClaimOutcome.of(some, claims.ClaimFindings(figures, ["a note"], [behind]), 1.0)
    cells = [(*row[2:4], row[4].value) for row in view.points(tried.to_dict()).rows]
    two, six = ("0.1", "", "does not hold"), ("–", "", "no figure")
    assert cells == [("0.5", "[0.4, 0.6]", "holds"), two, six]
    other = claims.ClaimOutcome(claim(name="other"), NOT_RUN, "[red]it[/] died", "[/bold]")
    view.table([tried.to_dict(), other.to_dict()])
    view.details(tried.to_dict())
    said = " ".join(capsys.readouterr().out.split())
    for word in ("[red]it[/] died; [/bold]", "1 not reproduced, 1 not run", "a note", "z 2,048"):
        assert word in said
    assert view.line(tried) == "made-up: not reproduced (does not hold (1 of 3 points): two) [1 s]"


DEEDS = Path(__file__).with_name("deeds.py")


@pytest.mark.parametrize(
    ("deed", "limit_s", "reason"),
    [
        ("raises", 60.0, "status 1: ZeroDivisionError: a fault of ours"),
        ("segfaults", 60.0, "SIGSEGV"),
        ("refuses", 60.0, "not UTF-8 text; give one"),
        ("hangs", 0.2, "it was still running after 1 s"),
    ],
)
def test_who_fails_is_not_run_and_says_why(deed, limit_s, reason):
    some = claim(measure=f"{DEEDS}:{deed}", timed=True)
    one = outcome(some, claims.ClaimRequest(), limit_s)
    assert one.verdict is claims.ClaimVerdict.NOT_RUN and reason in one.reason
    assert bool(one.remedy) == (deed != "refuses")


@pytest.mark.slow
def test_it_has_the_rulers_environment_and_its_own_threads():
    one = outcome(claim(measure=f"{DEEDS}:environment"), claims.ClaimRequest(seed=7, threads=1))
    seen = dict(one.findings.tables[0].rows)
    assert seen == {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "torch": "1"}
    assert one.findings.notes == ["7"]
    assert (one.verdict, one.reason) == (claims.ClaimVerdict.REPRODUCED, "")
    assert one.findings.figures["one"].value == 0.0
    assert one.took_s > 0


def test_a_claim_is_tried_at_some_of_its_points_spread_over_masks_and_phases():
    cudnn, together = claims.find(["h200-sdpa-cudnn", "one-head"])
    ten = cudnn.of_points(10)
    assert len(ten.points) == 10 and all(point in cudnn.points for point in ten.points)
    assert len({point.name.rpartition(" b")[0] for point in ten.points}) == 6
    assert ten.minutes == pytest.approx(cudnn.minutes * 10 / 27)
    assert "10 of its 27 points" in ten.setting
    assert cudnn.of_points(27) == cudnn
    assert together.of_points(1) == together, "one function measures its points together"
