"""Low rank: softmax attention approximated by a product of thin matrices."""

from impls.spec import Variant

ROWS = [
    Variant(
        name="mean_v",
        title="the mean of the values a row may see",
        family="lowrank",
        computes="approximates softmax",
        build="impls.lowrank.mean_v:build",
        definition="impls.lowrank.mean_v:definition",
        cost="impls.cost:mean",
    ),
]
