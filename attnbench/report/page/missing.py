"""What has no time, and why: each reason once, with who it stopped and where. Nothing is blank."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from attnbench.record import Record, Status
from attnbench.report.page.contents import Missing
from attnbench.report.scenes import Scene

NOT_RUN = "not run"
NO_RECORD = "there is no record of it: the run ended before it, or left it out"
GO_ON = "attnbench run --resume, with the run's folder, measures what is missing"
ONLY_CHECKED = "it passed its checks, and no time was taken"
NUMBER = re.compile(r"\d[\d,.]*")
ORDER = [
    Status.WRONG, Status.IMPLAUSIBLE, Status.FAILED, Status.CRASHED, Status.TIMED_OUT,
    Status.OUT_OF_MEMORY, NOT_RUN, Status.MEASURED, Status.UNSUPPORTED, Status.UNAVAILABLE,
]  # fmt: skip
"""What says most about a variant comes first, what any machine lacks comes last."""


@dataclass
class _Group:
    """Cells that one reason stopped, while they are collected."""

    reason: str
    remedy: str
    alike: bool = True
    """Whether all said the same to the letter; else numbers in the reasons differ."""
    variants: dict[str, None] = field(default_factory=dict)
    lengths: dict[int, dict[int, None]] = field(default_factory=dict)
    """By the number of a regime."""
    cells: int = 0


def missing(scenes: Sequence[Scene]) -> list[Missing]:
    """All cells without a time, by reason."""
    groups: dict[tuple[str, str, str], _Group] = {}
    for scene in scenes:
        for length, variant, status, reason, remedy in _untimed(scene):
            said = _without_name(reason, variant)
            cured = _without_name(remedy, variant)
            key = status, NUMBER.sub("#", said), NUMBER.sub("#", cured)
            group = groups.setdefault(key, _Group(said, cured))
            group.alike &= (group.reason, group.remedy) == (said, cured)
            group.variants[variant] = None
            group.lengths.setdefault(scene.number, {})[length] = None
            group.cells += 1
    found = [_made(key[0], group, scenes) for key, group in groups.items()]
    return sorted(found, key=lambda m: (ORDER.index(m.status), -m.cells))


def _untimed(scene: Scene) -> Iterator[tuple[int, str, str, str, str]]:
    """Length, variant, status, reason and remedy of each cell of a regime that has no time."""
    variants = dict.fromkeys(r.variant for r in scene.regime.records)
    for length, cells in scene.regime.cells.items():
        for variant in variants:
            record = cells.get(variant)
            if record is None:
                yield length, variant, NOT_RUN, NO_RECORD, GO_ON
            elif record.time is None:
                yield length, variant, str(record.status), _reason(record), record.remedy


def _reason(record: Record) -> str:
    return record.reason or record.note or ONLY_CHECKED


def _without_name(text: str, variant: str) -> str:
    """``runs on cuda`` of ``sdpa.efficient runs on cuda``: others may say the same."""
    for name in (variant, variant.partition("?")[0]):
        if text.startswith(f"{name} "):
            return text[len(name) + 1 :]
    return text


def _made(status: str, group: _Group, scenes: Sequence[Scene]) -> Missing:
    reason = group.reason + " (with other numbers elsewhere)" * (not group.alike)
    several = len({scene.run.number for scene in scenes}) > 1
    by_number = {scene.number: scene for scene in scenes}
    where = [(f"{by_number[number].run.name}: " * several) + _where(by_number[number], lengths)
             for number, lengths in group.lengths.items()]  # fmt: skip
    if group.cells == len(group.variants) * sum(len(s.regime.lengths) for s in scenes):
        where = ["everywhere"]
    return Missing(status, reason, group.remedy, tuple(group.variants), tuple(where), group.cells)


def _where(scene: Scene, lengths: Iterable[int]) -> str:
    some = sorted(lengths)
    if some == sorted(scene.regime.lengths):
        return f"{scene.regime}: all lengths"
    return f"{scene.regime}: {'; '.join(f'{n:,}' for n in some)}"
