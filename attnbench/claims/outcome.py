"""What became of a claim: its verdict, and each of its points beside what was published."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from attnbench.claims.claim import Claim
from attnbench.claims.figures import Figure, Found
from attnbench.claims.verdict import Verdict, held, judged

NOT_FINITE = "it is no finite number"


@dataclass(frozen=True)
class Outcome:
    """A claim and its verdict."""

    claim: Claim
    verdict: Verdict
    reason: str = ""
    """Why it is not reproduced, or was not run."""
    remedy: str = ""
    found: Found = Found({})  # noqa: RUF009  a frozen one
    took_s: float = 0.0

    @classmethod
    def of(cls, claim: Claim, found: Found, took_s: float = 0.0) -> Outcome:
        """Of a claim that was run: the verdict is what its points say."""
        verdict, reason = judged(claim, found.figures)
        remedy = AGAIN if verdict is Verdict.NOT_RUN else ""
        return cls(claim, verdict, reason, remedy, found, took_s)

    def figure(self, point: str) -> Figure | None:
        """Ours."""
        return self.found.figures.get(point)

    def to_dict(self) -> dict[str, Any]:
        """As plain values, with the claim's own."""
        points = [
            {**point.to_dict(), "held": str(held(point, self.figure(point.name))),
             "ours": _plain(self.figure(point.name))}
            for point in self.claim.points
        ]  # fmt: skip
        found = self.found.to_dict()
        return {
            **self.claim.to_dict(), "verdict": str(self.verdict), "reason": self.reason,
            "remedy": self.remedy, "took_s": round(self.took_s, 2), "points": points,
            "notes": list(found["notes"]), "tables": [_finite(t) for t in found["tables"]],
            "maps": list(found["maps"]),
        }  # fmt: skip


AGAIN = "give it more time with --budget, or see why by its name: 'attnbench reproduce NAME'"


def _plain(figure: Figure | None) -> Mapping[str, Any] | None:
    if figure is None:
        return None
    numbers = (figure.value, figure.low, figure.high)
    if any(x is not None and not math.isfinite(x) for x in numbers):
        figure = replace(figure, value=None, low=None, high=None, why=figure.why or NOT_FINITE)
    return asdict(figure)


def _finite(table: Mapping[str, Any]) -> dict[str, Any]:
    rows = [[None if isinstance(x, float) and not math.isfinite(x) else x for x in row]
            for row in table["rows"]]  # fmt: skip
    return {**table, "rows": rows}
