"""What may be missing from what was recorded, in sentences; and what was seen while compiled."""

from __future__ import annotations

import sys
from collections import Counter

from attnbench.models.calls import Site

WHOLE = "whole"
"""The reason under which calls are counted that do more than attention."""
KERNELS = ("flash_attn", "xformers", "sageattention", "flashinfer", "natten")
"""Libraries with attention functions of their own."""
PLACES = 3
"""Places of attention written out, at the most, that are said."""
SAID = 5
"""Reasons, at the most, that are said one by one."""


class Compiled:
    """Calls that torch's compiler met: which, but not how often they ran."""

    def __init__(self) -> None:
        self.sites: list[Site] = []
        self.met = 0

    def add(self, site: Site | None) -> None:
        """One more; the site where it could be told."""
        self.met += 1
        if site is not None and site not in self.sites and len(self.sites) < 256:
            self.sites.append(site)


def sentences(compiled: Compiled, amiss: Counter[str], written: Counter[str], *,
              skipped: bool) -> list[str]:  # fmt: skip
    """What may be missing, and why.

    ``written``: attention written out, by its place; ``skipped``: samples of a place were, for want
    of room.
    """
    found = []
    if written:
        places = [place for place, _ in written.most_common(PLACES)]
        more = f" and {len(written) - PLACES} more places" * (len(written) > PLACES)
        found.append(
            f"attention that is written out as products and a softmax was met "
            f"{_many(sum(written.values()), 'time')} and is not recorded, nor in the share: "
            f"{', '.join(places)}{more}; written with F.scaled_dot_product_attention it would be"
        )
    if compiled.met:
        found.append(
            f"torch.compile compiled {_many(compiled.met, 'attention call')} into larger code: "
            "which problems is known, but not how often they ran, nor for how long; run without "
            "compiling to have their share"
        )
    if (whole := amiss.get(WHOLE, 0)) > 0:
        found.append(
            f"{_many(whole, 'call')} of torch's fast path for nn.MultiheadAttention and "
            "TransformerEncoder computed projections, or a whole layer, in the same operator: "
            "counted, but their seconds are not in the share"
        )
    others = Counter({k: n for k, n in amiss.items() if k != WHOLE})
    for reason, n in others.most_common(SAID):
        found.append(f"{_many(n, 'call')} could not be put as a problem: {reason}")
    if len(others) > SAID:
        found.append(f"{len(others) - SAID} more reasons why a call could not be put")
    imported = [name for name in KERNELS if name in sys.modules]
    if imported:
        found.append(
            f"the program imported {', '.join(imported)}: calls of their own functions are seen "
            "only where transformers makes them"
        )
    if skipped:
        found.append("there was no room for samples of all places: the first were kept")
    return found


def _many(n: int, what: str) -> str:
    return f"{n:,} {what}" + "s" * (n != 1)
