"""What is trained: presets, the scan, who takes part, and in which order. Without torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from time import monotonic
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator

from attnbench.core.machine import Machine, why_not
from attnbench.core.process import Worker, WorkerLost
from impls import Table
from impls.asked import CantBeDone
from impls.masks import Mask
from impls.problem import Problem
from impls.spec import Variant

NOTHING = -100
"""The target of a place that asks for nothing: what torch's cross entropy leaves out."""
TRAINING, TESTING = 1, 2
"""What sets a test's sequences apart from those that a model is trained on."""


class Batch(NamedTuple):
    """Some sequences, and at each place which value is asked for."""

    tokens_bn: np.ndarray
    targets_bn: np.ndarray


@dataclass(frozen=True)
class Task:
    """What a sequence may be. Tokens are the keys, then the values."""

    seq: int
    pairs: tuple[int, ...]
    """A batch has as many sequences of each number of them."""
    keys: int
    values: int

    @property
    def tokens(self) -> int:
        """How many there are."""
        return self.keys + self.values

    def drawn(self, pairs: int, rows: int, generator: Generator) -> Batch:
        """Sequences with so many pairs."""
        keys_bK = generator.random((rows, self.keys)).argsort(1)[:, :pairs]
        values_bK = generator.integers(self.values, size=(rows, pairs))
        asked = generator.integers(pairs, size=(rows, self.seq - 2 * pairs))
        tokens = np.empty((rows, self.seq), np.int64)
        tokens[:, 0 : 2 * pairs : 2] = keys_bK
        tokens[:, 1 : 2 * pairs : 2] = self.keys + values_bK
        tokens[:, 2 * pairs :] = np.take_along_axis(keys_bK, asked, 1)
        targets = np.full_like(tokens, NOTHING)
        targets[:, 2 * pairs :] = np.take_along_axis(values_bK, asked, 1)
        return Batch(tokens, targets)

    def mixed(self, rows: int, generator: Generator) -> Batch:
        """A batch to train on: of each number of pairs as many, the first of them one more."""
        share, more = divmod(rows, len(self.pairs))
        parts = [
            self.drawn(pairs, share + (place < more), generator)
            for place, pairs in enumerate(self.pairs)
        ]
        return Batch(*(np.concatenate(x) for x in zip(*parts, strict=True)))


def stream(seed: int, purpose: int) -> Generator:
    """Where sequences are drawn from: another stream for each seed and purpose."""
    return np.random.default_rng([seed, purpose])


def chance(pairs: int, values: int) -> float:
    """How often somebody is right who names the value of any of the pairs: 1/K + (1 - 1/K) / V.

    It is the right pair's once in K times; another pair's value is the right one once in V.
    """
    return 1 / pairs + (1 - 1 / pairs) / values


CAUSAL = Mask.parse("causal")
SLACK = 5.0
"""A training that has taken so many times the budget of time ends before it has all its steps."""
LONGEST_S = 120.0
"""The least that may take: it may be the first calls, which build and compile."""


@dataclass(frozen=True)
class Setting:
    """Everything that all variants share."""

    seq: int
    pairs: tuple[int, ...]
    width: int
    heads: int = 1
    layers: int = 1
    keys: int = 64
    values: int = 64
    batch: int = 32
    rate: float = 5e-3
    """Of learning, constant after ``warmup`` steps: every checkpoint is the end of a training."""
    warmup: int = 50
    steps: int = 800
    tests: int = 128
    """Sequences of each number of pairs in the test."""
    looks: int = 12
    """Checkpoints on the way to the last step."""
    device: str = "cpu"

    @property
    def task(self) -> Task:
        """What is learned."""
        return Task(self.seq, self.pairs, self.keys, self.values)

    @property
    def most(self) -> int:
        """The hardest number of pairs."""
        return max(self.pairs)

    @property
    def problem(self) -> Problem:
        """What the core is asked at a step of training."""
        head_dim = self.width // self.heads
        return Problem(
            batch=self.batch,
            heads=self.heads,
            kv_heads=self.heads,
            q_len=self.seq,
            kv_len=self.seq,
            head_dim=head_dim,
            v_head_dim=head_dim,
            mask=CAUSAL,
            phase="train",
            device=self.device,
        )

    @property
    def slug(self) -> str:
        """``n96 w32 h1 d32 l1``, and the rate of learning."""
        head_dim = self.width // self.heads
        return (
            f"n{self.seq} w{self.width} h{self.heads} d{head_dim} l{self.layers} "
            f"lr{self.rate:g} {self.device}"
        )

    def with_(self, **changes: Any) -> Setting:
        """This one with some values replaced."""
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {**asdict(self), "pairs": list(self.pairs)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Setting:
        """Back from :meth:`to_dict`."""
        return cls(**{**values, "pairs": tuple(values["pairs"])})


@dataclass(frozen=True)
class TrainingJob:
    """One training."""

    variant: Variant
    setting: Setting
    seed: int
    seconds: float | None = None
    """It goes on until it has its steps and these; None: only its steps count."""
    threads: int = 1

    @property
    def limit_s(self) -> float:
        """What its loop may take at the most."""
        return max(LONGEST_S, SLACK * (self.seconds or 0.0))

    def to_dict(self) -> dict[str, Any]:
        """To send to its process."""
        return {
            "variant": self.variant.to_dict(),
            "setting": self.setting.to_dict(),
            "seed": self.seed,
            "seconds": self.seconds,
            "threads": self.threads,
        }

    @classmethod
    def from_dict(cls, sent: Mapping[str, Any]) -> TrainingJob:
        """As it was sent."""
        variant, setting = Variant.from_dict(sent["variant"]), Setting.from_dict(sent["setting"])
        return cls(**{**sent, "variant": variant, "setting": setting})


BASELINE = "sdpa"
"""Softmax attention: what the others are held against, and whose time is the budget."""
ORDER = 3
"""The stream that the order of trainings is drawn from."""


class NotTrainable(CantBeDone):
    """What was asked can't be trained; a sentence."""


@dataclass(frozen=True)
class RecallPreset:
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
    seq=256,
    pairs=(8, 16, 32, 64),
    width=64,
    keys=256,
    values=256,
    batch=64,
    steps=4000,
    tests=512,
    device="cuda",
)
PRESETS = {
    "cpu": RecallPreset(
        "six variants that differ in kind, on one core in ten minutes", (CPU,), SIX
    ),
    "cpu-quick": RecallPreset(
        "softmax and linear attention, to see that everything works",
        (CPU.with_(pairs=(4, 8), seq=48, steps=200),),
        (BASELINE, "linear.elu"),
    ),
    "gpu": RecallPreset(
        "eleven variants at two lengths; not yet run on a GPU",
        (GPU, GPU.with_(seq=512)),
        (*SIX, "topk", "hedgehog", "retention", "gla", "delta"),
    ),
}
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
            "variant": self.variant.label,
            "computes": self.variant.computes,
            "family": self.variant.family,
            "setting": self.setting.to_dict(),
            "seed": None,
            "seconds": None,
            "status": self.status,
            "reason": self.reason,
            "remedy": self.remedy,
            "parameters": None,
            "state_numbers": None,
            "curve": [],
        }


@dataclass(frozen=True)
class TrainingPlan:
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

    def jobs(self, setting: Setting, seconds: float | None) -> Iterator[TrainingJob]:
        """The trainings of a setting, seed by seed, the variants of one in random order."""
        for seed in self.seeds:
            variants = self.taking_part[setting]
            order = np.random.default_rng([seed, ORDER]).permutation(len(variants))
            for place in order:
                yield TrainingJob(variants[place], setting, seed, seconds, self.threads)

    def timing(self, setting: Setting) -> TrainingJob:
        """The training whose time is the budget of all others; its seed is nobody else's."""
        return TrainingJob(self.baseline, setting, max(self.seeds) + 1, None, self.threads)


def settings_of(
    preset: RecallPreset, *, seq: Sequence[int] = (), width: Sequence[int] = (), **changes: Any
) -> tuple[Setting, ...]:
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
        raise NotTrainable(
            f"--pairs {min(setting.pairs)}: a single pair is recalled by everybody; give 2 or more"
        )
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


def made(
    table: Table,
    names: Sequence[str],
    preset: RecallPreset,
    settings: Sequence[Setting],
    machine: Machine,
    *,
    seeds: Sequence[int],
    threads: int,
) -> TrainingPlan:
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
    return TrainingPlan(tuple(settings), taking_part, left_out, tuple(seeds), baseline, threads)


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
        return LeftOut(
            row,
            setting,
            "unsupported",
            refusal,
            "what trains is causal, has a gradient and takes float32: 'attnbench show NAME' says",
        )
    return None


START_S = 120.0
"""For torch to be loaded, a variant to be built, and the test to be looked at."""


def run(job: TrainingJob) -> dict[str, Any]:
    """One row of evidence: what was asked, how it ended, and its checkpoints."""
    row: dict[str, Any] = {
        "variant": job.variant.label,
        "computes": job.variant.computes,
        "family": job.variant.family,
        "setting": job.setting.to_dict(),
        "seed": job.seed,
        "seconds": job.seconds,
        "status": "",
        "reason": "",
        "remedy": "",
        "parameters": None,
        "state_numbers": None,
        "curve": [],
    }
    limit = START_S + 2 * job.limit_s
    module = "attnbench.features.quality.recall_child"
    with Worker(module, job.threads, limited=False) as worker:
        try:
            for message in worker.messages(job.to_dict(), limit):
                if "checkpoint" in message:
                    row["curve"].append(message["checkpoint"])
                else:
                    row.update(message)
        except WorkerLost as lost:
            if lost.timed_out:
                row["status"], row["reason"] = "timed_out", f"it was ended after {limit:.0f} s"
            else:
                row["status"], row["reason"] = "failed", str(lost)
    return row


Say = Callable[[str], None]
Train = Callable[[TrainingJob], dict[str, Any]]


class TrainingProgress:
    """What has been trained so far: ``rows`` are whole whenever it is stopped."""

    def __init__(self, plan: TrainingPlan, say: Say, train: Train | None = None) -> None:
        self.plan, self._say, self._train = plan, say, train or run
        self.rows = [each.row() for each in plan.left_out]
        self.budgets: dict[str, float] = {}
        """Seconds, by the setting's slug."""
        self._ended, self._start = 0, monotonic()

    def run(self, *, seconds: float | None = None, timed: bool = True) -> None:
        """All of it. ``seconds``: the budget of time, if given; ``timed``: whether there is one."""
        for each in self.plan.left_out:
            remedy = f"; {each.remedy}" if each.remedy else ""
            self._say(f"not trained: {each.reason}{remedy}")
        for setting in self.plan.settings:
            budget = seconds
            if timed and budget is None:
                budget = self._budget(setting)
            if budget is not None:
                self.budgets[setting.slug] = budget
            self._trainings(setting, budget)

    def _budget(self, setting: Setting) -> float:
        job = self.plan.timing(setting)
        row = self._train(job)
        if row["status"] != "trained":
            raise NotTrainable(
                f"{job.variant.label} could not be trained in {setting.slug}: {row['reason']}; "
                "without it there is no budget of time and nothing to compare"
            )
        took = float(row["curve"][-1]["seconds"])
        self._say(
            f"{setting.slug}: {job.variant.label} took {took:.1f} s for {setting.steps:,} "
            "steps; everybody gets as many steps, and as much time"
        )
        return took

    def _trainings(self, setting: Setting, seconds: float | None) -> None:
        refused: set[str] = set()
        for job in self.plan.jobs(setting, seconds):
            if job.variant.label in refused:
                continue
            row = self._train(job)
            self.rows.append(row)
            self._ended += 1
            self._say(f"[{self._ended}/{self.plan.trainings}, {self._left()} left] {told(row)}")
            if row["status"] == "unsupported":
                refused.add(job.variant.label)

    def _left(self) -> str:
        each = (monotonic() - self._start) / self._ended
        left = each * (self.plan.trainings - self._ended)
        return f"{left:.0f} s" if left < 90 else f"{left / 60:.0f} min"


def told(row: dict[str, Any]) -> str:
    """A training in a line: ``linear.elu seed 1: 600 steps in 12.3 s: 99 60 41 % right``."""
    name = f"{row['variant']} seed {row['seed']}"
    if not row["curve"]:
        return f"{name}: {row['status'].replace('_', ' ')}: {row['reason']}"
    last = row["curve"][-1]
    right = " ".join(f"{100 * share:.0f}" for share in last["accuracy"].values())
    pairs = ", ".join(last["accuracy"])
    said = f"{name}: {last['step']:,} steps in {last['seconds']:.1f} s"
    return f"{said}: {right} % right with {pairs} pairs" + f"; {row['reason']}" * bool(
        row["reason"]
    )
