"""What a probe found: does a variant take a problem, how long does a call take, how much memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from attnbench.parts import Part
from attnbench.record import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed(Part):
    """One look at one problem. Figures stand only where what was computed is right."""

    status: Status
    reason: str = ""
    remedy: str = ""
    detail: str = ""
    """The end of a traceback."""
    time_s: float | None = None
    """The median of the calls below."""
    samples_s: list[float] = field(default_factory=list)
    clock: str = ""
    peak_bytes: int | None = None
    """Live above the inputs at the worst instant; None where the time alone had told enough."""
    method: str = ""
    flags: list[str] = field(default_factory=list)
    rows: int = 0
    """How many rows were held against what they should be."""
    spent_s: dict[str, float] = field(default_factory=dict)
    """Where the probe's own wall time went."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "status", Status(self.status))
