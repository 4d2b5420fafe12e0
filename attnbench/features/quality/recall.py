"""``quality recall``: small models trained from scratch to recall the values of keys.

Accuracy after the same number of steps, and after the same time, which is what softmax attention
takes for its steps: the mean over seeds, with Student's 95 % interval.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from msgspec import convert
from numpy.random import Generator as Random

import impls
from attnbench.command.progress import Progress
from attnbench.command.terminal import say
from attnbench.core.evidence import Evidence, made_here
from attnbench.core.format import counted, duration, percent, roughly
from attnbench.core.machine import Machine, pace, this_machine
from attnbench.core.tuned import TunedOptions
from attnbench.core.wire import plain
from attnbench.features.quality.task import (
    Judgement,
    Result,
    ResultGroup,
    Row,
    TaskRun,
    TaskWorker,
    mean_figure,
    ratio_figure,
    refusal,
    status_words,
    variant_row,
)
from attnbench.sweep.plan import call_s
from attnbench.sweep.start import pinned
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
    """A setting and the variants that are trained in it."""

    setting: Setting
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
    "ssd?gates=key",
    "performer?features=64",
)
CPU = Setting(seq=96, pairs=(4, 8, 16, 32), width=32)
"""Softmax is always right in it; at twice the rate ssd and delta may learn nothing."""
GPU = Setting(
    256, (8, 16, 32, 64), 64, keys=256, values=256, batch=64, steps=4000, tests=512, device="cuda"
)
PRESETS = {
    # six variants that differ in kind, on one core in ten minutes
    "cpu": RecallPreset(CPU, SIX),
    # to see that everything works
    "cpu-quick": RecallPreset(
        replace(CPU, pairs=(4, 8), seq=48, steps=200), (BASELINE, "linear.elu")
    ),
    # not yet run on a GPU
    "gpu": RecallPreset(
        GPU, (*SIX, "topk", "hedgehog", "retention?gates=fixed", "gla?gates=key", "delta?gates=key")
    ),
}


def preset_setting(name: str, **changes: Any) -> Setting:
    """A preset's setting with the values that are not None replaced; raises CantBeDone."""
    if name not in PRESETS:
        choices = ", ".join(PRESETS)
        raise CantBeDone(f"there is no preset {name!r}; the presets are {choices}")
    changes = {key: value for key, value in changes.items() if value is not None}
    s = replace(PRESETS[name].setting, **changes)
    if min(s.pairs) < 2:
        raise CantBeDone(f"--pairs {min(s.pairs)}: every variant recalls a single pair")
    if s.seq <= 2 * s.most:
        raise CantBeDone(
            f"--seq {s.seq} has no room to ask: {s.most} pairs are {2 * s.most} tokens; give "
            "more than that, or fewer --pairs"
        )
    if s.most > s.keys:
        raise CantBeDone(f"--pairs {s.most} needs as many keys; give {s.keys} at the most")
    return s


TRAIN = "attnbench.features.quality.recall_worker:train"
LOAD_S, STEP_S = 5.0, 0.008
"""A guess: to load torch, build and test; and a step besides its attention."""
START_S = 120.0
"""To load torch, build a variant, and run the test."""
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


def run_training(job: TrainingJob) -> Row:
    """A row of evidence: how the training ended, and its checkpoints until then."""
    about = {"setting": asdict(job.setting), "seed": job.seed, "seconds": job.seconds}
    row = {**variant_row(job.variant), **about, "state_numbers": None, "curve": []}
    values = {**vars(job), "variant": plain(job.variant), "setting": asdict(job.setting)}
    question = {"device": job.setting.device, "job": values}
    with TaskWorker(job.threads) as worker:
        for stage in worker.stages(TRAIN, question, START_S + 2 * job.limit_s):
            if "checkpoint" in stage:
                row["curve"].append(stage["checkpoint"])
            else:
                row |= stage
    return row


def start(arguments: argparse.Namespace) -> TaskRun:
    """``attnbench quality recall [VARIANT …]``"""
    machine, table = this_machine(), impls.table(arguments.table)
    preset = arguments.preset or ("gpu" if "cuda" in machine.devices else "cpu")
    changes = {name: getattr(arguments, name) for name in ("seq", "width", "steps")}
    pairs = arguments.pairs and tuple(sorted(set(arguments.pairs)))
    setting = preset_setting(preset, pairs=pairs, **changes)
    if setting.device not in machine.devices:
        raise CantBeDone(f"no {setting.device.upper()} device found: give --preset cpu")
    first = arguments.seed or 0
    header = made_here(
        machine,
        baseline=BASELINE,
        seeds=list(range(first, first + (arguments.seeds or SEEDS))),
        threads=pinned(arguments.threads or 1, machine),
        budgets={},
        tuned=TunedOptions(machine).lines(setting.device),
    )
    names = (BASELINE, *(arguments.variants or PRESETS[preset].variants))
    variants = {row.label: row for row in map(table.find, names)}
    return TaskRun(
        setting.device,
        header,
        lambda progress: steps([*variants.values()], setting, machine, header, progress),
    )


def steps(
    candidates: Sequence[Variant],
    setting: Setting,
    machine: Machine,
    header: Row,
    progress: Progress,
) -> Generator[Row | None]:
    """A row of evidence a training, seed by seed, the variants of one in random order.

    First the rows of what can't be trained, and the baseline once more for the budget of time;
    raises CantBeDone where it can't be trained.
    """
    pairs = [(v, refusal(v, setting.problem, machine)) for v in candidates]
    baseline, *_ = variants = [v for v, refused in pairs if refused is None]
    for refused in (refused for _, refused in pairs if refused is not None):
        progress.tell(f"{refused['variant']} is not trained: {status_words(refused)}")
        yield {**refused, "setting": asdict(setting), "curve": []}
    seeds, threads = header["seeds"], header["threads"]
    step_s = STEP_S * pace() + call_s(setting.problem, machine)
    each_s = LOAD_S * pace() + setting.steps * step_s
    guesses = [each_s] * (1 + len(seeds) * len(variants))
    say(f"{len(guesses)} trainings: {setting.slug}; about {roughly(sum(guesses))}")
    progress.expect(guesses)
    progress.step(f"{BASELINE}, for the budget of time")
    row = run_training(TrainingJob(baseline, setting, max(seeds) + 1, None, threads))
    if row["status"] != "trained":
        raise CantBeDone(
            f"{BASELINE} could not be trained in {setting.slug}: {row['reason']}; without it "
            "there is no budget of time and nothing to compare"
        )
    budget = header["budgets"][setting.slug] = float(row["curve"][-1]["seconds"])
    progress.tell(
        f"{BASELINE} took {duration(budget)} for {setting.steps:,} steps; every variant gets the "
        "same steps and the same time"
    )
    yield None
    orders = ((n, stream(n, ORDER).permutation(len(variants))) for n in seeds)
    for seed, variant in ((n, variants[at]) for n, order in orders for at in order):
        progress.step(f"{variant.label}, seed {seed}")
        row = run_training(TrainingJob(variant, setting, seed, budget, threads))
        if row["status"] != "trained":
            progress.tell(f"{variant.label}, seed {seed}: {status_words(row)}", "yellow")
        yield row


LEVEL = 0.99
"""The accuracy that a variant should reach."""


def results(evidence: Evidence) -> list[ResultGroup]:
    """After the same steps and after the same time; nothing where the baseline wasn't trained."""
    rows, baseline = [row for row in evidence.rows if row["curve"]], evidence.made["baseline"]
    if baseline not in (row["variant"] for row in rows):
        return []
    setting, groups = convert(rows[0]["setting"], Setting), []
    budget = duration(evidence.made["budgets"][setting.slug])
    for words, by_steps in ((f"{setting.steps:,} steps", True), (budget, False)):
        some = _at_the_end(setting, rows, baseline, by_steps=by_steps)
        own = next(each.scores for each in some if each.variant == baseline)
        # what the baseline lacks too tells nothing of the others
        keeps = [name for name, x in own.items() if x.judge(LEVEL) is Judgement.KEEPS]
        judged = (keeps or [f"{setting.most} pairs"])[-1]
        about = f"after {words} each ({setting.slug})"
        groups.append(ResultGroup(about, judged, LEVEL, baseline, some))
    return groups


def _at_the_end(
    setting: Setting, rows: Sequence[Mapping[str, Any]], baseline: str, *, by_steps: bool
) -> list[Result]:
    """The variants of one setting at the checkpoints at which a budget was over."""
    by_variant: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_variant.setdefault(row["variant"], []).append(row)
    own_s = {row["seed"]: row["curve"][-1]["step_s"] for row in by_variant[baseline]}
    results = []
    for name, some in by_variant.items():
        looks = [look for row in some for look in _ends(row["curve"], by_steps, setting.steps)]
        scores = {
            f"{pairs} pairs": mean_figure([x["accuracy"][str(pairs)] for x in looks], 0.0, 1.0)
            for pairs in setting.pairs
        }
        times = {row["seed"]: float(row["curve"][-1]["step_s"]) for row in some}
        steps = mean_figure([float(look["step"]) for look in looks])
        state = next((row["state_numbers"] for row in some if row["state_numbers"]), None)
        ratio = ratio_figure([times[n] / own_s[n] for n in times.keys() & own_s.keys()])
        results.append(
            Result(
                variant=name,
                computes=some[0]["computes"],
                family=some[0]["family"],
                scores={name: score for name, score in scores.items() if score},
                step=ratio,
                step_s=statistics.fmean(times.values()),
                faster=ratio is not None and ratio.high is not None and ratio.high < 1,
                more={"state": state} if by_steps else {"steps": steps.value if steps else None},
            )
        )
    return results


def _ends(curve: Sequence[Row], by_steps: bool, steps: int) -> list[Row]:
    """The first checkpoint at which the budget was over, if it was."""
    return [x for x in curve if (x["step"] == steps if by_steps else x["in_time"])][:1]


def notes(evidence: Evidence) -> list[str]:
    """The tasks, and the words of the tables."""
    seeds = counted(len(evidence.made["seeds"]), "seed")
    s = convert(evidence.rows[0]["setting"], Setting)
    by_chance = percent(1 / s.most + (1 - 1 / s.most) / s.values)
    return [
        f"{s.slug}: {s.keys} keys, {s.values} values, batches of {s.batch}; tested on {s.tests} "
        f"sequences of each number of pairs; with {s.most} pairs {by_chance} are right by chance",
        f"share of right answers: the mean of {seeds} with Student's 95 % interval; one seed "
        "gives none: --seeds 3",
        "time: the training's own loop, one thread's on a CPU by the processor's clock, without "
        "looking at the test; state: numbers that the decoder keeps a head: its own memory, or the "
        "keys and values of all tokens, though a pattern may need fewer",
    ]
