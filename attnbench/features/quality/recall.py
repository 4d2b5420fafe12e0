"""Small models trained from scratch to recall the values of keys: the task, and its trainings."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator as Random

from attnbench.command.progress import Progress
from attnbench.core.format import duration
from attnbench.core.machine import Machine, pace
from attnbench.core.process import Worker
from attnbench.features.quality.rows import WORKER, Row, answers, refusal, status_words, variant_row
from attnbench.sweep.plan import call_s
from impls import Table
from impls.errors import CantBeDone
from impls.masks import Mask
from impls.problem import Problem
from impls.spec import Variant

CAUSAL = Mask.parse("causal")
NOTHING = -100
"""The target of a place that asks for nothing: what torch's cross entropy leaves out."""
TRAINING, TESTING, ORDER = 1, 2, 3
"""Streams of random numbers: of sequences to train on, of those of the test, and of the order of
trainings."""


@dataclass(frozen=True)
class Setting:
    """Everything that all variants share: the task, the model and its training."""

    seq: int
    pairs: tuple[int, ...]
    """A batch has as many sequences of each number of them."""
    width: int
    heads: int = 1
    layers: int = 1
    keys: int = 64
    values: int = 64
    batch: int = 32
    rate: float = 5e-3
    """The learning rate, constant after ``warmup`` steps: a checkpoint is a training's end."""
    warmup: int = 50
    steps: int = 800
    tests: int = 128
    device: str = "cpu"

    @property
    def most(self) -> int:
        """The hardest number of pairs."""
        return max(self.pairs)

    @property
    def problem(self) -> Problem:
        """The attention call of a training step."""
        head_dim = self.width // self.heads
        sizes = self.batch, self.heads, self.heads, self.seq, self.seq, head_dim, head_dim
        return Problem(*sizes, mask=CAUSAL, phase="train", device=self.device)

    @property
    def slug(self) -> str:
        """``n96 w32 h1 d32 l1 lr0.005 cpu``"""
        return (
            f"n{self.seq} w{self.width} h{self.heads} d{self.width // self.heads} l{self.layers} "
            f"lr{self.rate:g} {self.device}"
        )

    def draw(self, rows: int, generator: Random, *pairs: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens [b, n], keys first, then values; and at each place which value is asked for.

        A sequence has some pairs, each key once, then questions for some of them.
        """
        pairs = pairs or self.pairs
        share, more = divmod(rows, len(pairs))
        parts = []
        for place, count in enumerate(pairs):
            some = share + (place < more)
            keys_bK = generator.random((some, self.keys)).argsort(1)[:, :count]
            values_bK = generator.integers(self.values, size=(some, count))
            questions = generator.integers(count, size=(some, self.seq - 2 * count))
            tokens = np.empty((some, self.seq), np.int64)
            tokens[:, 0 : 2 * count : 2] = keys_bK
            tokens[:, 1 : 2 * count : 2] = self.keys + values_bK
            tokens[:, 2 * count :] = np.take_along_axis(keys_bK, questions, 1)
            targets = np.full_like(tokens, NOTHING)
            targets[:, 2 * count :] = np.take_along_axis(values_bK, questions, 1)
            parts.append((tokens, targets))
        tokens, targets = (np.concatenate(x) for x in zip(*parts, strict=True))
        return tokens, targets


def stream(seed: int, purpose: int) -> Random:
    """Random numbers, different for each seed and purpose."""
    return np.random.default_rng([seed, purpose])


BASELINE = "sdpa"
"""Softmax attention: what the others are compared with, and whose time is the budget."""


class RecallPreset(NamedTuple):
    """Settings and the variants that are trained in each."""

    settings: tuple[Setting, ...]
    variants: tuple[str, ...]


SEEDS = 3
"""Trainings of a variant: fewer than two give no interval."""


# a plain window of 32 keys and its own place; performer with a quarter of the features of its row,
# with which it would keep more numbers than softmax attention here
SIX = (
    BASELINE,
    "dilated?dilation=1&width=32",
    "linear.elu",
    "linear.taylor",
    "ssd",
    "performer?features=64",
)
CPU = Setting(seq=96, pairs=(4, 8, 16, 32), width=32)
"""Softmax is always right in it; at twice the rate ssd and delta may learn nothing."""
GPU = Setting(
    256, (8, 16, 32, 64), 64, keys=256, values=256, batch=64, steps=4000, tests=512, device="cuda"
)
PRESETS = {
    # six variants that differ in kind, on one core in ten minutes
    "cpu": RecallPreset((CPU,), SIX),
    # to see that everything works
    "cpu-quick": RecallPreset(
        (replace(CPU, pairs=(4, 8), seq=48, steps=200),), (BASELINE, "linear.elu")
    ),
    # two lengths; not yet run on a GPU
    "gpu": RecallPreset(
        (GPU, replace(GPU, seq=512)), (*SIX, "topk", "hedgehog", "retention", "gla", "delta")
    ),
}


def preset_settings(
    preset: RecallPreset,
    *,
    seq: Sequence[int] | None = None,
    width: Sequence[int] | None = None,
    **changes: Any,
) -> tuple[Setting, ...]:
    """A preset's settings with some values replaced; raises CantBeDone for bad ones."""
    changes = {key: value for key, value in changes.items() if value is not None}
    settings = [
        replace(setting, seq=n, width=w, **changes)
        for setting in preset.settings
        for n in seq or (setting.seq,)
        for w in width or (setting.width,)
    ]
    for s in settings:
        if min(s.pairs) < 2:
            raise CantBeDone(f"--pairs {min(s.pairs)}: every variant recalls a single pair")
        if s.seq <= 2 * s.most:
            raise CantBeDone(
                f"--seq {s.seq} has no room to ask: {s.most} pairs are {2 * s.most} tokens; give "
                "more than that, or fewer --pairs"
            )
        if s.most > s.keys:
            raise CantBeDone(f"--pairs {s.most} needs as many keys; give {s.keys} at the most")
    return tuple(dict.fromkeys(settings))


LOAD_S, STEP_S = 5.0, 0.008
"""A guess: to load torch, build and test; and a step besides its attention."""
SLACK, LONGEST_S = 5.0, 120.0
"""A training ends before it has all its steps when it has taken so many times the budget of time;
the limit is no less than this, since the first calls may build and compile."""


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
        """The longest that its loop may take."""
        return max(LONGEST_S, SLACK * (self.seconds or 0.0))


@dataclass
class Trainings:
    """The variants that are trained in each setting, and the budgets of time."""

    settings: tuple[Setting, ...]
    variants: dict[Setting, list[Variant]]
    """The baseline first."""
    left_out: list[Row]
    """Rows of evidence of what can't be trained."""
    machine: Machine
    seeds: Sequence[int]
    threads: int
    seconds: float | None = None
    """The budget of time; None: what the baseline takes, which is then trained first."""
    budgets: dict[str, float] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """The number of trainings."""
        return len(self.seeds) * sum(map(len, self.variants.values()))

    def guesses(self) -> list[float]:
        """Seconds of each training, and before those of a setting of the one for its budget."""
        guesses = []
        for setting in self.settings:
            trained_s = setting.steps * (STEP_S * pace() + call_s(setting.problem, self.machine))
            guesses += [LOAD_S * pace() + trained_s] * (self.seconds is None)
            each = LOAD_S * pace() + max(trained_s, self.seconds or 0.0)
            guesses += [each] * len(self.seeds) * len(self.variants[setting])
        return guesses

    def steps(self, progress: Progress) -> Generator[Row | None]:
        """A row of evidence a training, seed by seed, the variants of one in random order.

        First the rows of what can't be trained; a None where one may stop besides. Raises
        CantBeDone where the baseline's time is the budget and it can't be trained.
        """
        for row in self.left_out:
            why = "; ".join(filter(None, [f"not trained: {row['reason']}", row["remedy"]]))
            progress.tell(why)
            yield row
        progress.expect(self.guesses())
        for setting in self.settings:
            budget = self.seconds or self._measure_budget(setting, progress)
            self.budgets[setting.slug] = budget
            yield None
            variants = self.variants[setting]
            orders = ((n, stream(n, ORDER).permutation(len(variants))) for n in self.seeds)
            for seed, variant in ((n, variants[at]) for n, order in orders for at in order):
                progress.step(f"{variant.label}, seed {seed}")
                row = run_training(TrainingJob(variant, setting, seed, budget, self.threads))
                if row["status"] != "trained":
                    progress.tell(f"{variant.label}, seed {seed}: {status_words(row)}", "yellow")
                yield row

    def _measure_budget(self, setting: Setting, progress: Progress) -> float:
        progress.step(f"{BASELINE}, for the budget of time")
        baseline, seed = self.variants[setting][0], max(self.seeds) + 1
        row = run_training(TrainingJob(baseline, setting, seed, None, self.threads))
        if row["status"] != "trained":
            raise CantBeDone(
                f"{BASELINE} could not be trained in {setting.slug}: {row['reason']}; without it "
                "there is no budget of time and nothing to compare"
            )
        took = float(row["curve"][-1]["seconds"])
        progress.tell(
            f"{setting.slug}: {BASELINE} took {duration(took)} for {setting.steps:,} steps; "
            "every variant gets the same steps and the same time"
        )
        return took


def plan_trainings(
    table: Table, names: Sequence[str], settings: Sequence[Setting], machine: Machine, **how: Any
) -> Trainings:
    """The trainings of variants that can be; ``how``: the other fields.

    Raises CantBeDone for a missing device.
    """
    device = settings[0].device
    if device.split(":")[0] not in machine.devices:
        raise CantBeDone(f"no {device.partition(':')[0].upper()} device found: give --preset cpu")
    candidates = {row.label: row for row in map(table.find, (BASELINE, *names))}
    left_out, variants = [], dict[Setting, list[Variant]]()
    for setting in settings:
        variants[setting] = []
        for row in candidates.values():
            if (why := refusal(row, [setting.problem], machine)) is None:
                variants[setting].append(row)
            else:
                left_out.append(training_row(row, setting) | why)
    return Trainings(tuple(settings), variants, left_out, machine, **how)


def training_row(
    variant: Variant, setting: Setting, seed: int | None = None, seconds: float | None = None
) -> Row:
    """A row of evidence without figures."""
    job = {"setting": asdict(setting), "seed": seed, "seconds": seconds}
    end = {"status": "", "reason": "", "remedy": ""}
    return {**variant_row(variant), **job, **end, "state_numbers": None, "curve": []}


START_S = 120.0
"""To load torch, build a variant, and run the test."""


def run_training(job: TrainingJob) -> Row:
    """A row of evidence: how the training ended, and its checkpoints until then."""
    row = training_row(job.variant, job.setting, job.seed, job.seconds)
    values = {**vars(job), "variant": job.variant.to_dict(), "setting": asdict(job.setting)}
    question = {"do": "train", "device": job.setting.device, "job": values}
    with Worker(WORKER, job.threads, limited=False) as worker:
        for stage in answers(worker, question, START_S + 2 * job.limit_s):
            if "checkpoint" in stage:
                row["curve"].append(stage["checkpoint"])
            else:
                row |= stage
    return row
