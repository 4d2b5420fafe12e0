"""Parallel: exact softmax attention over sequences that several processes hold a share of each."""

from typing import Any

from impls.spec import Variant

_WHOLE = ("forward", "train", "backward")


def _row(name: str, title: str, **more: Any) -> Variant:
    return Variant(
        name=name, title=title, family="parallel", operator="softmax",
        build=f"impls.parallel.{name}:build", cost="impls.cost:softmax",
        shares=f"impls.parallel.shares:{name}", ranks=True, phases=_WHOLE, cross=False, **more,
    )  # fmt: skip


ROWS = [
    _row(
        "ring", "keys and values travel round a ring of processes, balanced under a causal mask",
        masks=("none", "causal"), options={"world": 1, "block": 512}, paper="arXiv:2310.01889",
        parameters=("scale", "lse"),
    ),
    _row(
        "ulysses", "tokens exchanged for heads, whole sequences, and back", options={"world": 1},
        paper="arXiv:2309.14509",
    ),
]  # fmt: skip
