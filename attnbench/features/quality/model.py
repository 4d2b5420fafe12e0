"""``quality model``: a trained model with each variant in it: its embeddings, and a step's time."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from attnbench.core import stats
from attnbench.core.evidence import Evidence, stored_margin
from attnbench.core.machine import pace
from attnbench.core.stats import Comparison, Verdict
from attnbench.features.quality.pretrained import WORKER_MODULE, open_session
from attnbench.features.quality.task import QualityFigure, Result, ResultGroup, TaskRun
from attnbench.features.quality.trial import TrialPlan, chosen_variants, trial_steps
from attnbench.models import wrong_level
from impls.problem import Problem

ORIGINAL_S, USUAL_S, LIMIT_S = 28.0, 6.0, 240.0
"""Seconds of the original model; what a variant usually takes besides its pairs, and may take."""


@dataclass(frozen=True)
class ModelOptions:
    """The measurements of each variant."""

    dtype: str = "float32"
    device: str = "cpu"
    seq: tuple[int, ...] = (256,)
    pairs_s: float = 3.0
    """Seconds of pairs a length, after which no further look begins."""
    margin: float = 0.01

    @property
    def guess_s(self) -> float:
        """For one variant, about."""
        return pace() * USUAL_S + self.pairs_s * len(self.seq)

    @property
    def limit_s(self) -> float:
        """For one variant."""
        return LIMIT_S + 4 * self.pairs_s * len(self.seq)

    @property
    def problem(self) -> Problem:
        """The attention call of a text."""
        return Problem(q_len=8, kv_len=8, dtype=self.dtype, device=self.device)

    def plan(self, texts: Sequence[str], tables: Sequence[str]) -> TrialPlan:
        """What the process is asked."""
        return TrialPlan(
            worker_module=WORKER_MODULE,
            question=asdict(self) | {"tables": list(tables)},
            original_only={"texts": list(texts)},
            problem=self.problem,
            original_s=ORIGINAL_S * pace(),
            variant_s=self.guess_s,
            limit_s=self.limit_s,
            lists={"step": "steps"},
            figures="cosines",
        )


def start(arguments: argparse.Namespace) -> TaskRun:
    """``attnbench quality model [VARIANT …]``: the exact variants first."""
    variants = chosen_variants(arguments, wrong_level)
    lengths = tuple(sorted(set(arguments.seq or ModelOptions.seq)))
    session = open_session(arguments, lengths)
    options = ModelOptions(
        dtype=session.dtype,
        device=session.device,
        seq=lengths,
        pairs_s=arguments.budget,
        margin=stored_margin(Path(arguments.out), session.machine, session.settings),
    )
    header = session.header(arguments, asdict(options)) | {"original": {"floor": []}}
    plan = options.plan(session.texts, arguments.table)
    threads = session.settings.threads
    return TaskRun(
        session.device,
        header,
        lambda progress: trial_steps(plan, variants, session.machine, threads, header, progress),
    )


LONG, ENOUGH = 128, 8
"""Tokens from which a text is long (in a shorter one, many patterns leave nothing out), and how
many long texts there must be for scores to go by these alone."""
LEVEL = 0.99
"""The cosine that an embedding should keep."""
NO_ATTENTION = "no attention at all"


def long_texts(original: Mapping[str, Any]) -> list[int]:
    """The places of texts that scores go by: the long ones, or all where those are few."""
    long = [place for place, length in enumerate(original["tokens"]) if length >= LONG]
    return long if len(long) >= ENOUGH else list(range(len(original["tokens"])))


def median_of(cosines: Sequence[float | None]) -> dict[str, QualityFigure]:
    """The median with its 95 % interval, and the worst; neither of no numbers."""
    numbers = [x for x in cosines if x is not None]
    if not numbers:
        return {}
    ends = stats.median_interval(numbers, stats.CONFIDENCE)
    worst = min(numbers)
    return {
        "cosine": QualityFigure(statistics.median(numbers), *ends),
        "worst text": QualityFigure(worst, worst, worst),
    }


def comparison_of(step: Mapping[str, Any]) -> Comparison:
    """A step's pairs with the original; in older files the samples stand beside the verdict."""
    samples = step.get("samples_s") or {"a_s": step.get("a_s"), "b_s": step.get("b_s")}
    both = {side: some for side, some in zip(("a_s", "b_s"), samples.values(), strict=True) if some}
    return msgspec.convert({**both, **step["comparison"]}, Comparison)


def results(evidence: Evidence) -> list[ResultGroup]:
    """A group a length of a step, with Holm's correction over all variants and lengths."""
    original = evidence.made["original"]
    places = long_texts(original)
    rows = [row for row in evidence.rows if row["status"] == "measured"]
    timed = [
        (row["variant"], step["seq"], comparison_of(step))
        for row in rows
        for step in row["steps"]
        if "why" not in step
    ]
    verdicts = stats.holm([pairs for *_, pairs in timed])
    steps = {
        (name, seq): (pairs, corrected is not None and corrected.verdict is Verdict.FASTER)
        for (name, seq, pairs), corrected in zip(timed, verdicts, strict=True)
    }
    for step in original["floor"]:
        pairs = comparison_of(step)
        steps[NO_ATTENTION, step["seq"]] = pairs, pairs.verdict is Verdict.FASTER
    floor = {"variant": NO_ATTENTION, "computes": "", "family": "", "cosines": []}
    groups = []
    for seq in sorted({seq for _, seq in steps}):
        some = [_result(row, places, steps.get((row["variant"], seq))) for row in [floor, *rows]]
        setting = f"a step of {seq:,} tokens"
        groups.append(ResultGroup(setting, "cosine", LEVEL, "the original", some))
    return groups


def _result(
    row: Mapping[str, Any], places: Sequence[int], step: tuple[Comparison, bool] | None
) -> Result:
    about = {name: row[name] for name in ("variant", "computes", "family")}
    scores = median_of([row["cosines"][n] for n in places]) if row["cosines"] else {}
    if step is None:
        return Result(**about, scores=scores)
    pairs, faster = step
    ratio = QualityFigure(*(getattr(pairs, end) for end in ("ratio", "low", "high")))
    step_s = statistics.median_high(pairs.b_s)
    return Result(**about, scores=scores, step=ratio, step_s=step_s, faster=faster)


def notes(evidence: Evidence) -> Iterator[str]:
    """The model and its texts, and the meaning of the words in the tables."""
    original, texts, options = (evidence.made[name] for name in ("original", "texts", "wanted"))
    if tokens := original.get("tokens"):
        long = sum(length >= LONG for length in tokens)
        few = long < len(long_texts(original))
        yield (
            f"{evidence.made['model']['name']}, {options['dtype']} on {options['device']}; "
            f"{texts['texts']} texts ({texts['source']}, {texts['digest']}) of {min(tokens)} to "
            f"{max(tokens)} tokens, {long} of them long ({LONG} and more)"
            + ("; too few, so what is said of long texts is of all" if few else "")
        )
    yield (
        "cosine: with the original's embedding in float64; median over long texts, its 95 % "
        "interval"
    )
    yield (
        "of the time: of the original's step, one text, no padding, no gradients, 99 % interval; "
        f"green: faster after Holm's correction over all; {NO_ATTENTION}: what a variant can gain "
        "ends there"
    )
