"""Claims that others made of attention, put to the test: rows of data, and the verdicts on them.

A row is data and names its measuring function by dotted path, as the table of variants does, so
that reading the rows imports no torch.
"""

from __future__ import annotations

import importlib

from attnbench.claims.claim import Claim
from impls.asked import CantBeDone

SOURCES = (
    "biases", "one_head", "from_scratch", "transformers", "efficient", "words", "sdpa_h200",
    "llama_h200", "flash3_paper", "flash2_h100", "single",
)  # fmt: skip
"""The files of rows, in the order in which they are shown."""


class UnknownClaim(CantBeDone, LookupError):
    """No claim has this name; a sentence."""


def claims() -> list[Claim]:
    """All of them."""
    return [row for source in SOURCES
            for row in importlib.import_module(f"attnbench.claims.rows.{source}").ROWS]  # fmt: skip


def find(names: list[str]) -> list[Claim]:
    """Those of some names, in the order of the names; all if there is none."""
    known = {claim.name: claim for claim in claims()}
    for name in names:
        if name not in known:
            raise UnknownClaim(_unknown(name, list(known)))
    return [known[name] for name in dict.fromkeys(names)] or list(known.values())


def _unknown(name: str, known: list[str]) -> str:
    import difflib

    near = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)
    near = near or [each for each in known if name in each][:3]
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return f"there is no claim {name!r}; {hint}'attnbench reproduce --list' shows all {len(known)}"
