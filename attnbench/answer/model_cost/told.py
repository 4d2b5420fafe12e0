"""What a variant's rows say in short: medians, correlations, what a step gains.

``original`` is what was found of the model as it was: the lengths of the texts in tokens, the pairs
with their kinds and similarities.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attnbench.answer.model_cost.intervals import Interval, of_median, of_rank_correlation

LONG = 128
"""Tokens from which a text is long: in a shorter one, many patterns leave nothing out."""
ENOUGH = 8
"""Long texts, where ranks go by these alone."""
ALIKE, UNLIKE = "paraphrase", "unrelated"

Row = Mapping[str, Any]


def long_texts(original: Row) -> list[int]:
    """The places of texts that ranks go by: the long ones, or all where those are few."""
    found = [place for place, length in enumerate(original["tokens"]) if length >= LONG]
    return found if len(found) >= ENOUGH else list(range(len(original["tokens"])))


def short_texts(original: Row) -> list[int]:
    """The places of all others."""
    rest = set(range(len(original["tokens"]))) - set(long_texts(original))
    return sorted(rest)


def told(row: Row, original: Row) -> dict[str, Any]:
    """The row with what it says in short."""
    more: dict[str, Any] = {}
    if row.get("cosines"):
        more["cosine"] = {
            "long": _median(row["cosines"], long_texts(original)),
            "short": _median(row["cosines"], short_texts(original)),
        }
        more["spearman"] = _sent(correlation(row["similarities"], original["similarities"]))
        more["order"] = order_kept(row["similarities"], original["pairs"])
    if row.get("layers"):
        more["by_layer"] = [_median(some, range(len(some))) for some in row["layers"]]
    if (learnt := row.get("distilled")) and "why" not in learnt:
        more["distilled"] = {**learnt, **_learnt(learnt, original)}
    return {**row, **more}


def correlation(got: Sequence[float | None], want: Sequence[float | None]) -> Interval | None:
    """Spearman's of the similarities of those pairs that both have."""
    both = [(x, y) for x, y in zip(got, want, strict=True) if x is not None and y is not None]
    return of_rank_correlation([x for x, _ in both], [y for _, y in both])


def order_kept(got: Sequence[float | None], pairs: Sequence[Row]) -> float | None:
    """How often a paraphrase is more alike than an unrelated pair; None where there are none."""
    alike, unlike = (
        [s for s, pair in zip(got, pairs, strict=True) if s is not None and pair["kind"] == kind]
        for kind in (ALIKE, UNLIKE)
    )
    if not alike or not unlike:
        return None
    return sum(a > b for a in alike for b in unlike) / (len(alike) * len(unlike))


def _learnt(learnt: Row, original: Row) -> dict[str, Any]:
    """Before, after and the change, text by text, over the long ones among those judged."""
    long = set(long_texts(original))
    places = [n for n, text in enumerate(learnt["texts"]) if text in long]
    places = places or list(range(len(learnt["texts"])))
    both = [(learnt["before"][n], learnt["after"][n]) for n in places]
    change = [after - before for before, after in both if None not in (before, after)]
    return {
        "cosine_before": _median(learnt["before"], places),
        "cosine_after": _median(learnt["after"], places), "change": _sent(of_median(change)),
    }  # fmt: skip


def _median(values: Sequence[float | None], places: Sequence[int]) -> dict[str, Any] | None:
    return _sent(of_median([x for n in places if (x := values[n]) is not None]))


def _sent(found: Interval | None) -> dict[str, Any] | None:
    return None if found is None else found.to_dict()
