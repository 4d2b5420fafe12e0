"""Who is in which place, who shares one, and who has none."""

from attnbench.features.quality.words import long_texts, order_kept, ranks, told, with_ranks
from tests.models.quality.made_up import flat, original, row

LONG = list(range(4, 14))


def test_the_nearest_comes_first_and_a_clear_difference_is_a_place():
    rows = [row("far", flat(0.8, 0.01)), row("near", flat(0.99, 0.001))]
    assert ranks(rows, LONG) == {"near": 1, "far": 2}


def test_a_constant_lead_that_is_smaller_than_the_spread_of_texts_is_still_seen_text_by_text():
    near, far = flat(0.9, 0.03), [x - 0.001 for x in flat(0.9, 0.03)]
    assert ranks([row("far", far), row("near", near)], LONG) == {"near": 1, "far": 2}


def test_leads_that_change_sides_from_text_to_text_are_a_shared_place():
    one = [0.9 + 0.01 * (-1) ** n for n in range(14)]
    other = [0.9 - 0.01 * (-1) ** n for n in range(14)]
    found = ranks([row("a", one), row("b", other), row("c", flat(0.5))], LONG)
    assert found == {"a": 1, "b": 1, "c": 3}


def test_other_operators_and_exact_softmax_are_in_no_order():
    rows = [
        row("sdpa", flat(1.0), "softmax"),
        row("elu", flat(0.9), "its own operator"),
        row("topk", flat(0.9), "softmax on its own pattern"),
    ]
    found = {each["variant"]: each["rank"] for each in with_ranks(rows, original())}
    assert found == {"sdpa": None, "elu": None, "topk": 1}


def test_who_refused_a_text_that_others_were_given_has_no_place():
    cosines = flat(0.99)
    cosines[7] = None
    assert ranks([row("picky", cosines), row("b", flat(0.9))], LONG) == {"b": 1}


def test_ranks_go_by_long_texts_where_there_are_enough():
    assert long_texts(original()) == LONG
    assert long_texts(original(tokens=(20,) * 12 + (300,) * 2)) == list(range(14))


def test_the_short_figures_are_medians_and_correlations_of_the_raw_ones():
    whole = original(tokens=(20,) * 4 + (200,) * 10)
    cosines = [0.9, 0.7, 0.8, None, *[0.5] * 5, *[0.6] * 5]
    found = told(row("x", cosines), whole)
    assert found["cosine"]["short"]["value"] == 0.8 and found["cosine"]["short"]["n"] == 3
    assert found["cosine"]["long"]["value"] == 0.55 and found["cosine"]["long"]["worst"] == 0.5
    assert found["spearman"] is None  # two pairs
    assert found["order"] == 1.0


def test_order_is_the_share_of_couples_in_their_right_order():
    pairs = [{"kind": kind} for kind in ("paraphrase", "paraphrase", "unrelated", "related")]
    assert order_kept([0.9, 0.2, 0.5, 0.0], pairs) == 0.5
    assert order_kept([0.9, 0.2, None, 0.0], pairs) is None
