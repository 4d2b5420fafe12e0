"""``quality caches``: a causal language model that decodes with each cache in turn.

A cache is a row whose ``build(problem, **options)`` gives the memory of one layer: ``prefill(q, k,
v)`` takes the prompt, ``step(q, k, v) -> out`` a token; ``positions`` [kv_heads, n] are the tokens
that the last step attended to (None: all), ``bytes`` what it holds. Where it holds numbers other
than it was given, its ``definition(problem, **options)`` is the plain form of that: a function of
all keys, or all values, so far.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from attnbench.core.evidence import Evidence
from attnbench.core.machine import pace
from attnbench.core.stats import CONFIDENCE, LEAST_MARGIN, VERDICT_CONFIDENCE
from attnbench.features.quality.lm import (
    LEVEL,
    TIED,
    LmOptions,
    VariantPassages,
    earlier_rows,
    likelihood,
    model_and_texts,
    needle_scores,
    open_lm,
    powers,
)
from attnbench.features.quality.passages import CONTINUATION
from attnbench.features.quality.task import (
    QualityFigure,
    Result,
    ResultGroup,
    TaskRun,
    mean_figure,
    ratio_figure,
)
from attnbench.features.quality.trial import TrialPlan, trial_steps
from impls import Table
from impls.errors import CantBeDone
from impls.masks import Mask
from impls.operators import KV_SCALES
from impls.outside import file_rows
from impls.problem import Problem
from impls.spec import Variant

WORKER_MODULE = "attnbench.features.quality.cache_worker"
USUAL, SMALL_USUAL = (2048,), (256,)
"""The usual lengths, and those of the small model."""
DECODED = 128
"""Tokens of text after the prompt, and no more than a quarter of the passage."""
STEPS, STEP = 270, 1 / 40
"""Tokens that are decoded for a passage, about, and a step as a share of a pass over 512 tokens."""
BASELINE = "the full cache"
FEW_BITS = {"int8": "a byte a number", "int4": "half a byte a number", "fp8": "e4m3 numbers"}
KEEPS = {
    "sinks": "the first tokens and the latest",
    "h2o": "the latest tokens, and those with the most weight so far",
    "snapkv": "what the end of the prompt attends to",
    "quest": "everything, of which each step reads some pages",
    "random": "the latest tokens, and others by chance: the control",
}
LEAST = {"sinks": 5, "h2o": 2, "snapkv": 33, "quest": 32, "random": 2}
"""The smallest budget of each; 0 stands for a quarter of the prompt."""
HERE = "attnbench.features.quality.memories"
ROWS = (
    *(
        Variant(
            name=name,
            title=title,
            family="few bits",
            operator="approximates softmax",
            build=f"{HERE}:{name}",
            definition=f"{HERE}:plain_{name}",
            options={"scale": "token"},
            phases=("decode",),
        )
        for name, title in FEW_BITS.items()
    ),
    *(
        Variant(
            name=name,
            title=title,
            family="eviction",
            operator="softmax on its own pattern",
            build=f"{HERE}:{name}",
            definition=f"{HERE}:as_they_are",
            options={"budget": 0},
            phases=("decode",),
        )
        for name, title in KEEPS.items()
    ),
)
DEFAULT = (
    *FEW_BITS,
    *KEEPS,
    *(f"{name}?scale={scale}" for scale in KV_SCALES[1:] for name in FEW_BITS),
)


def cache_table(files: Sequence[str | Path] = ()) -> Table:
    """The caches here, and those of the files named."""
    table = Table()
    for row in (*ROWS, *file_rows(files)):
        table.add(row) if isinstance(row, Variant) else table.broken.append(row)
    return table


def find_cache(table: Table, text: str) -> Variant:
    """A cache by its name and options; raises CantBeDone for what there is not or can't work."""
    name = text.partition("?")[0]
    if name not in table.rows and not any(row.name == name for row in table.broken):
        raise CantBeDone(f"there is no cache {name!r}: give {', '.join(table.rows)}")
    row = table.find(text)
    if row.build.startswith(HERE):
        scale, budget = row.chosen.get("scale", KV_SCALES[0]), row.chosen.get("budget", 0)
        if scale not in KV_SCALES:
            raise CantBeDone(f"{text}: scale is {', '.join(KV_SCALES[:-1])} or {KV_SCALES[-1]}")
        if budget and budget < LEAST[name]:
            raise CantBeDone(f"{text}: the budget is too small: {name} takes {LEAST[name]} or more")
    return row


def start(arguments: argparse.Namespace) -> TaskRun:
    """``attnbench quality caches [CACHE …]``."""
    table = cache_table(arguments.table)
    caches = [find_cache(table, name) for name in arguments.variants or DEFAULT]
    lm = open_lm(arguments, USUAL, SMALL_USUAL)
    session, threads = lm.session, lm.session.settings.threads
    more = session.dtype, session.device, lm.lengths, arguments.passages, arguments.seed
    options = LmOptions(*more)
    header = session.header(arguments, asdict(options))
    plan = cache_plan(options.plan(lm.files, lm.book, arguments.table, threads), threads)
    if arguments.resume:
        plan = replace(plan, earlier=earlier_rows("caches", Path(arguments.resume), header))
    return TaskRun(
        session.device,
        header,
        lambda progress: trial_steps(plan, caches, session.machine, threads, header, progress),
    )


def cache_plan(plan: TrialPlan, threads: int) -> TrialPlan:
    """A plan of ``lm`` for its passages, of which a part is decoded token by token."""
    asked, p = plan.question, plan.problem
    pass_s = asked["model"]["passage_s"] * pace() / threads**0.5
    step_s = STEP * pass_s * asked["passages"]
    each_s = sum(STEPS * step_s * (1 + seq / 8192) for seq in asked["seq"])
    sizes = (1, p.heads, p.kv_heads, 1, p.kv_len, p.head_dim, p.head_dim)
    problem = Problem(*sizes, p.dtype, Mask(), device=p.device, phase="decode")
    original_s = asked["model"]["original_s"] * pace()
    original_s += sum(pass_s * asked["passages"] * seq / 512 for seq in asked["seq"]) + each_s / 6
    return replace(
        plan,
        worker_module=WORKER_MODULE,
        problem=problem,
        original_s=original_s,
        variant_s=each_s,
        limit_s=plan.limit_s + 10 * (each_s + original_s),
    )


# ---- results -------------------------------------------------------------------------------------


def results(evidence: Evidence) -> list[ResultGroup]:
    """A table for each length."""
    passages = evidence.made["original"].get("passages", [])
    rows = [row for row in evidence.rows if row["status"] == "measured" and row["passages"]]
    groups = []
    for seq in evidence.made["wanted"]["seq"]:
        own = [each for each in passages if each["seq"] == seq]
        some = [each for row in rows if (each := CachePassages(row, own, seq)).pairs]
        if not some:
            continue
        full = CachePassages(full_row(own), own, seq)
        every = {BASELINE: full, **{each.row["variant"]: each for each in some}}
        better = {name: [n for n in every if every[n].beats(each)] for name, each in every.items()}
        base = full.about(more=full.figures, memory=1.0, beaten_by=better[BASELINE])
        likely = [base, *(each.cache_result(better[each.row["variant"]]) for each in some)]
        at = f"decoded after {seq:,} tokens"
        groups.append(ResultGroup(at, "likelihood", LEVEL, BASELINE, likely))
    return groups


def full_row(own: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The full cache as one of the caches."""
    passages = [{**each, "kl": 0.0, "token_s": [[1.0, 1.0]]} for each in own]
    return {"variant": BASELINE, "computes": "softmax", "family": "", "passages": passages}


@dataclass(frozen=True)
class CachePassages(VariantPassages):
    """A cache's passages of one length, and the full cache's of the same."""

    @property
    def token_ratios(self) -> list[float]:
        """A decoded token's time over the full cache's, passage by passage."""
        return [
            math.exp(statistics.fmean(math.log(b / a) for a, b in each["token_s"]))
            for each in self.rows
        ]

    @property
    def memory(self) -> float:
        """The bytes that it holds, over the full cache's after the same tokens."""
        return statistics.fmean(each["bytes"] / own["bytes"] for each, own in self.pairs)

    @property
    def figures(self) -> dict[str, QualityFigure | float | None]:
        """The columns beside the likelihood and the time."""
        return {
            "perplexity": powers([each["loss"] for each in self.rows]),
            "needles": needle_scores(self.rows)["found"],
            "same": mean_figure(
                [each["same"] for each in self.rows], 0.0, CONTINUATION, rerun=True
            ),
            "bytes a token": statistics.fmean(each["bytes"] for each in self.rows),
        }

    def cache_result(self, beaten_by: Sequence[str]) -> Result:
        """Its line of the table."""
        step = ratio_figure(self.token_ratios, confidence=VERDICT_CONFIDENCE)
        times = [statistics.median(b for _, b in each["token_s"]) for each in self.rows]
        return self.about(
            scores=likelihood(self.lost),
            step=step,
            step_s=statistics.fmean(times),
            faster=step is not None and step.high is not None and step.high < 1 - LEAST_MARGIN,
            more=self.figures,
            memory=self.memory,
            beaten_by=beaten_by,
        )

    def beats(self, other: CachePassages) -> bool:
        """Whether its mean is worse in no figure, and its interval better in one."""
        better = self.memory < other.memory * (1 - LEAST_MARGIN)
        if self.memory > other.memory * (1 + LEAST_MARGIN):
            return False
        for apart, slack, confidence in self._losses_beyond(other):
            if statistics.fmean(apart) > slack:
                return False
            mean = mean_figure(apart, confidence=confidence)
            better |= mean is not None and mean.high is not None and mean.high < -slack
        return better

    def _losses_beyond(self, other: CachePassages) -> Iterator[tuple[list[float], float, float]]:
        """By how much it is worse, by passage, how much of that is none, and the confidence of an
        interval: in loss, needles, continuation and time.
        """
        theirs = {each["passage"]: each for each in other.rows}
        both = [(each, theirs[each["passage"]]) for each in self.rows if each["passage"] in theirs]
        yield [a["loss"] - b["loss"] for a, b in both], TIED, CONFIDENCE
        yield [float(sum(b["found"]) - sum(a["found"])) for a, b in both], 0.0, CONFIDENCE
        yield [float(b["same"] - a["same"]) for a, b in both], 0.0, CONFIDENCE
        times = zip(self.token_ratios, other.token_ratios, strict=False)
        yield [math.log(a / b) for a, b in times], LEAST_MARGIN, VERDICT_CONFIDENCE


def notes(evidence: Evidence) -> Iterator[str]:
    """The model and its text, and the meaning of the words in the tables."""
    yield f"{model_and_texts(evidence)}; the full cache is transformers' own, in the model's dtype"
    yield (
        "the prompt is the original's; text, a continuation and questions after it are decoded "
        "token by token with the cache in place. likelihood: of a token of that text, over the "
        "full cache's; with same, the interval that a rerun with as many other passages "
        "falls into"
    )
    yield (
        "needles: 'The code of the river is 4071.', asked for at the end, Wilson's 95 % interval; "
        f"same: of {CONTINUATION} tokens of the full cache's greedy continuation, how many before "
        "the first that differs"
    )
    yield (
        "of the time: of a decoded token with the full cache, in pairs, Student's 99 % interval; "
        "bytes a token: of all tensors that the cache keeps, over the tokens so far, all layers; "
        "beaten by: what is worse by its mean in none of likelihood, needles, same, time and "
        "bytes, and better in one by its interval, paired by passage, 95 %, for time 99 %"
    )
