"""The order among ties: which of several variants that can't be told apart to advise.

First torch's own, which needs nothing besides torch: scaled_dot_product_attention, then that with a
backend forced, then torch's other functions. Then what needs least memory, then the fastest. A tie
may come of wide intervals alone: what is slower than the fastest by more than the margin is not
preferred to it.
"""

from __future__ import annotations

from impls import own_rows

NOT_TORCHS = 3


def torch_rank(variant: str) -> int:
    """How near to torch's own choice a variant is, by its label: 0 is ``sdpa``."""
    row = own_rows().get(variant.partition("?")[0])
    if row is None or row.origin != "torch":
        return NOT_TORCHS
    return 2 if row.family != "dense" else int(bool(row.runs))


def preference(
    variant: str, memory_bytes: float | None, median_s: float, most_s: float
) -> tuple[float, ...]:
    """Among ties the one with the least of these is advised.

    ``most_s``: the time of the fastest and the margin.
    """
    memory = float("inf") if memory_bytes is None else memory_bytes
    return median_s > most_s, torch_rank(variant), memory, median_s
