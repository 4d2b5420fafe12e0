"""What is trained: presets, the scan, who takes part, and in which order. Without torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from attnbench.machine import Machine, why_not
from attnbench.models.quality.recall.setting import Job, Setting
from impls import Table
from impls.asked import CantBeDone
from impls.spec import Variant

BASELINE = "sdpa"
"""Softmax attention: what the others are held against, and whose time is the budget."""
ORDER = 3
"""The stream that the order of trainings is drawn from."""


class NotTrainable(CantBeDone):
    """What was asked can't be trained; a sentence."""


@dataclass(frozen=True)
class Preset:
    """Settings, who takes part (everybody who can, if nobody is named), and how many seeds."""

    title: str
    settings: tuple[Setting, ...]
    variants: tuple[str, ...] = ()
    seeds: int = 3


WINDOW = "dilated?dilation=1&width=32"
"""A plain window: 32 keys and its own place."""
FEATURES = "performer?features=64"
"""A quarter of the row's own, which would keep more numbers than softmax attention here."""
SIX = (BASELINE, WINDOW, "linear.elu", "linear.taylor", "ssd", FEATURES)
CPU = Setting(seq=96, pairs=(4, 8, 16, 32), width=32)
"""Found by the scan (two cores of a shared AMD EPYC, one thread, 2026-11-22; one seed, 800 steps,
32 pairs): softmax attention is right every time at each width and rate; linear.elu 41 % of the time
at width 16, 86 % at 32 and 99.7 % at 64, at the best of its rates, which is this one or as good. At
a rate of 0.01 a seed of three left ssd (1,000 steps) and delta (500) at what chance gives; here
they learn."""
GPU = Setting(
    seq=256, pairs=(8, 16, 32, 64), width=64, keys=256, values=256, batch=64, steps=4000,
    tests=512, device="cuda",
)  # fmt: skip
PRESETS = {
    "cpu": Preset("six variants that differ in kind, on one core in ten minutes", (CPU,), SIX),
    "cpu-quick": Preset(
        "softmax and linear attention, to see that everything works",
        (CPU.with_(pairs=(4, 8), seq=48, steps=200),), (BASELINE, "linear.elu"),
    ),
    "gpu": Preset(
        "eleven variants at two lengths; not yet run on a GPU",
        (GPU, GPU.with_(seq=512)),
        (*SIX, "topk", "hedgehog", "retention", "gla", "delta"),
    ),
}  # fmt: skip
SCANNED = {"width": (16, 32, 64), "rate": (2.5e-3, 5e-3, 1e-2)}
"""What the scan tries, everything with everything."""


@dataclass(frozen=True)
class LeftOut:
    """A variant that can't be trained in a setting: why, and what to do."""

    variant: Variant
    setting: Setting
    status: str
    reason: str
    remedy: str = ""

    def row(self) -> dict[str, Any]:
        """As evidence has it."""
        return {
            "variant": self.variant.label, "computes": self.variant.computes,
            "family": self.variant.family, "setting": self.setting.to_dict(), "seed": None,
            "seconds": None, "status": self.status, "reason": self.reason, "remedy": self.remedy,
            "parameters": None, "state_numbers": None, "curve": [],
        }  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """Who is trained in which settings, and who is not."""

    settings: tuple[Setting, ...]
    taking_part: dict[Setting, list[Variant]]
    left_out: list[LeftOut]
    seeds: tuple[int, ...]
    baseline: Variant
    threads: int = 1

    @property
    def trainings(self) -> int:
        """How many there are."""
        return len(self.seeds) * sum(map(len, self.taking_part.values()))

    def jobs(self, setting: Setting, seconds: float | None) -> Iterator[Job]:
        """The trainings of a setting, seed by seed, the variants of one in random order."""
        for seed in self.seeds:
            variants = self.taking_part[setting]
            order = np.random.default_rng([seed, ORDER]).permutation(len(variants))
            for place in order:
                yield Job(variants[place], setting, seed, seconds, self.threads)

    def timing(self, setting: Setting) -> Job:
        """The training whose time is the budget of all others; its seed is nobody else's."""
        return Job(self.baseline, setting, max(self.seeds) + 1, None, self.threads)


def settings_of(preset: Preset, *, seq: Sequence[int] = (), width: Sequence[int] = (),
                **changes: Any) -> tuple[Setting, ...]:  # fmt: skip
    """A preset's settings with some values replaced; raises a sentence for what can't be."""
    first = {key: value for key, value in changes.items() if value is not None}
    grid = {
        (n, w): setting.with_(seq=n, width=w, **first)
        for setting in preset.settings
        for n in seq or (setting.seq,)
        for w in width or (setting.width,)
    }
    for setting in grid.values():
        _check(setting)
    return tuple(grid.values())


def scan_of(settings: Sequence[Setting]) -> tuple[Setting, ...]:
    """Around each setting, all that the scan tries."""
    found = {
        setting.with_(**dict(zip(SCANNED, values, strict=True)))
        for setting in settings
        for values in product(*SCANNED.values())
    }
    return tuple(sorted(found, key=lambda s: (s.seq, s.width, s.rate)))


def _check(setting: Setting) -> None:
    if min(setting.pairs) < 2:
        raise NotTrainable(f"--pairs {min(setting.pairs)}: a single pair is recalled by everybody; "
                           "give 2 or more")  # fmt: skip
    if setting.seq <= 2 * setting.most:
        raise NotTrainable(
            f"--seq {setting.seq} has no room to ask: {setting.most} pairs are "
            f"{2 * setting.most} tokens; give more than that, or fewer --pairs"
        )
    if setting.most > setting.keys:
        raise NotTrainable(
            f"--pairs {setting.most} needs as many keys, and the preset has {setting.keys}; give "
            f"{setting.keys} at the most"
        )
    if setting.batch < len(setting.pairs):
        raise NotTrainable(
            f"--pairs names {len(setting.pairs)} numbers, and a batch has {setting.batch} "
            "sequences; give fewer"
        )
    if setting.width % setting.heads:
        raise NotTrainable(
            f"--width {setting.width} is not a multiple of the preset's {setting.heads} heads"
        )


def made(table: Table, names: Sequence[str], preset: Preset, settings: Sequence[Setting],
         machine: Machine, *, seeds: Sequence[int], threads: int) -> Plan:  # fmt: skip
    """Who is trained; the baseline always is, and raises a sentence where it can't be."""
    device = settings[0].device
    if device.split(":")[0] not in machine.devices:
        raise NotTrainable(
            f"device {device} is not here; this machine has {', '.join(machine.devices)}: give "
            "--preset cpu"
        )
    baseline = table.find(BASELINE)
    asked = [table.find(name) for name in names or preset.variants]
    asked = asked or [row for row in table.rows.values() if _taken(row, settings[0], machine)]
    variants = list({row.label: row for row in (baseline, *asked)}.values())
    left_out, taking_part = [], {}
    for setting in settings:
        refused = {row.label: _refused(row, setting, machine) for row in variants}
        if (why := refused[baseline.label]) is not None:
            raise NotTrainable(f"{why.reason}; without it nothing can be compared")
        taking_part[setting] = [row for row in variants if refused[row.label] is None]
        left_out += [why for why in refused.values() if why is not None]
    return Plan(tuple(settings), taking_part, left_out, tuple(seeds), baseline, threads)


def _taken(row: Variant, setting: Setting, machine: Machine) -> bool:
    """Whether a row takes part unnamed: not if it computes what the baseline does, another way."""
    return row.computes != "softmax" and _refused(row, setting, machine) is None


def _refused(row: Variant, setting: Setting, machine: Machine) -> LeftOut | None:
    """None for a variant that can be trained here, else why not."""
    others = "'attnbench list' shows which are cores; they stand in a layer here already"
    if row.ranks:
        what = f"{row.label} runs over several processes, and a model here is trained in one"
        return LeftOut(row, setting, "unsupported", what, others)
    if row.level != "core":
        what = f"{row.label} is a {row.level}, and what is trained here is a core in a model"
        return LeftOut(row, setting, "unsupported", what, others)
    if (missing := why_not(row, machine)) is not None:
        return LeftOut(row, setting, "unavailable", missing.reason, missing.remedy)
    if (refusal := row.supports(setting.problem)) is not None:
        return LeftOut(row, setting, "unsupported", refusal, "what trains is causal, has a "
                       "gradient and takes float32: 'attnbench show NAME' says")  # fmt: skip
    return None
