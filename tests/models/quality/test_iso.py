"""Who is fastest at the same quality, on made-up figures."""

from attnbench.features.quality import words
from attnbench.features.quality.words import told, with_verdicts
from tests.models.quality.made_up import flat, original, row


def points(*rows):
    return words.points([told(each, original()) for each in rows], 256)


def test_at_each_level_the_fastest_of_those_that_keep_it_is_named():
    found = points(
        row("exact", flat(1.0), "softmax", 1.0),
        row("good", flat(0.992), ratio=0.9),
        row("rough", flat(0.96), ratio=0.7),
    )
    named = {level.cosine: level.fastest.variant for level in words.levels_of(found)}
    assert named == {0.999: "exact", 0.99: "good", 0.95: "rough", 0.9: "rough"}


def test_a_level_that_lies_in_the_interval_is_in_doubt_and_not_kept():
    wavering = [0.98, 1.0] * 7
    (level,) = words.levels_of(points(row("wavering", wavering, ratio=0.5)), (0.99,))
    assert level.fastest is None and [p.variant for p in level.doubtful] == ["wavering"]


def test_those_whose_times_overlap_the_fastest_are_named_beside_it():
    found = points(
        row("a", flat(1.0), ratio=0.900),
        row("b", flat(1.0), ratio=0.901),
        row("c", flat(1.0), ratio=1.2),
    )
    (level,) = words.levels_of(found, (0.99,))
    assert level.fastest.variant == "a" and [p.variant for p in level.tied] == ["b"]
    assert level.keep == 3 and level.gains


def test_a_fastest_that_is_not_faster_than_the_original_gains_nothing():
    (level,) = words.levels_of(points(row("a", flat(1.0), ratio=1.05)), (0.99,))
    assert level.fastest.variant == "a" and not level.gains


def test_an_interval_below_one_without_the_verdict_gains_nothing():
    """Many variants are held against the original: Holm's correction may leave one undecided."""
    unsure = row("a", flat(1.0), ratio=0.95)
    unsure["steps"][0]["comparison"]["verdict"] = "INCONCLUSIVE"
    (level,) = words.levels_of(points(unsure), (0.99,))
    assert level.fastest.ratio[2] < 1 and not level.gains


def test_the_frontier_leaves_out_whoever_is_slower_and_further_off():
    found = points(
        row("near", flat(0.999), ratio=1.0),
        row("fast", flat(0.9), ratio=0.8),
        row("neither", flat(0.89), ratio=0.9),
    )
    assert words.best(found) == ["fast", "near"]


def test_who_was_not_timed_or_is_wrong_is_no_point():
    assert (
        points(
            row("untimed", flat(1.0)),
            row("wrong", flat(1.0), ratio=1.0, status="wrong"),
            row("why", flat(1.0), steps=[{"seq": 256, "why": "refused"}]),
        )
        == []
    )


def test_one_lucky_verdict_among_many_does_not_survive():
    lucky = row("lucky", flat(1.0), ratio=1.0)
    said = lucky["steps"][0]["comparison"]
    lucky["steps"][0]["comparison"] = {**said, "verdict": "FASTER", "p": 0.004}
    others = [row(f"v{n}", flat(1.0), ratio=1.0) for n in range(9)]
    found = with_verdicts([lucky, *others])
    assert found[0]["steps"][0]["comparison"]["verdict"] == "INCONCLUSIVE"
    alone = with_verdicts([lucky])
    assert alone[0]["steps"][0]["comparison"]["verdict"] == "FASTER"
