"""``quality lm``: a causal language model with each variant in it.

Perplexity and KL to the original, sentences to be found again, how long a greedy continuation stays
the same, and what a pass and a decoded token take, passage by passage in pairs with the original.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from attnbench.command.terminal import say
from attnbench.core.disk import from_json, short_in
from attnbench.core.evidence import Evidence, read_evidence
from attnbench.core.format import counted
from attnbench.core.machine import pace, this_machine
from attnbench.core.record import Status
from attnbench.core.stats import LEAST_MARGIN, VERDICT_CONFIDENCE, share_interval
from attnbench.features.quality.causal import (
    INSTALL,
    SMALL,
    ModelFiles,
    built_in_book,
    find_model,
)
from attnbench.features.quality.passages import CONTINUATION, DEPTHS
from attnbench.features.quality.pretrained import ModelSession, read_utf8, session_with
from attnbench.features.quality.task import (
    MOST_LOG,
    QualityFigure,
    Result,
    ResultGroup,
    Row,
    TaskRun,
    mean_figure,
    ratio_figure,
)
from attnbench.features.quality.trial import TrialPlan, chosen_variants, trial_steps
from attnbench.models import wrong_level
from impls.errors import CantBeDone
from impls.spec import listed

WORKER_MODULE = "attnbench.features.quality.lm_worker"
LIMIT_S, SLOWER = 240.0, 40.0
"""Seconds that a variant may take in any case, and so many times the original's passes."""
SHORT = (512,)
SMALL_SHORT = (256,)
"""The usual lengths, and those of the small model."""
FEWEST = 3
"""Passages of a length: fewer give no interval worth the name."""


@dataclass(frozen=True)
class LmOptions:
    """The measurements of each variant."""

    dtype: str
    device: str
    seq: tuple[int, ...]
    passages: int
    """Of each length."""
    seed: int
    layers: tuple[int, ...] = ()
    """Which are also measured with the variant in that one alone."""
    distil_s: float = 0.0
    """Seconds of distillation of each that isn't exact."""
    hybrid: tuple[int, ...] = ()
    """Each that isn't exact is also measured with one layer in so many left exact."""

    def plan(
        self, files: ModelFiles, book: str, tables: Sequence[str], threads: int = 1
    ) -> TrialPlan:
        """What the process is asked."""
        once_s = files.passage_s * self.passages * sum(self.seq) / 512 * pace()
        once_s /= threads**0.8  # more of them help less
        passes = 2.4 * (1 + len(self.hybrid)) + 1.3 / self.passages + len(self.layers)
        each_s = passes * once_s + self.distil_s
        return TrialPlan(
            worker_module=WORKER_MODULE,
            question=asdict(self) | {"tables": list(tables), "model": files.to_dict()},
            original_only={"book": book},
            problem=files.problem(max(self.seq), self.dtype, self.device),
            original_s=files.original_s * pace() + 4 * once_s,
            variant_s=each_s,
            limit_s=LIMIT_S + SLOWER * (each_s + files.original_s),
            lists={"passages": "passages", "amiss": "amiss"},
            figures="passages",
        )


@dataclass(frozen=True)
class LmSession:
    """A model, a text and the lengths of passages, before anything runs."""

    files: ModelFiles
    book: str
    lengths: tuple[int, ...]
    session: ModelSession


def open_lm(arguments: argparse.Namespace, usual: Sequence[int], small: Sequence[int]) -> LmSession:
    """Raises CantBeDone for a bad model, text, length or number of passages.

    ``usual``, ``small``: the lengths if none are given, and those of the small model.
    """
    files = find_model(arguments.model)
    if files.name == SMALL and arguments.model is None:
        say(f"SmolLM2 is not installed, so the small model stands in; {INSTALL}")
    book = read_utf8(Path(arguments.texts)) if arguments.texts else built_in_book()
    lengths = tuple(sorted(set(arguments.seq or (small if files.name == SMALL else usual))))
    files.check_length(max(lengths))
    if arguments.passages < FEWEST:
        raise CantBeDone(f"--passages {arguments.passages}: intervals need {FEWEST} or more")
    arguments.threads = arguments.threads or this_machine().cores
    return LmSession(files, book, lengths, session_with(arguments, files.facts(), [book]))


def start(arguments: argparse.Namespace) -> TaskRun:
    """``attnbench quality lm [VARIANT …]``: the exact variants first."""
    variants = chosen_variants(arguments, wrong_level)
    lm = open_lm(arguments, SHORT, SMALL_SHORT)
    session = lm.session
    layers = tuple(sorted(set(arguments.layers or ())))
    ratios = tuple(sorted(set(arguments.hybrid or ())))
    if ratios and ratios[0] < 2:
        raise CantBeDone(f"--hybrid {ratios[0]}: all layers would be exact; give 2 or more")
    options = LmOptions(
        session.dtype,
        session.device,
        lm.lengths,
        arguments.passages,
        arguments.seed,
        layers,
        arguments.distil or 0.0,
        ratios,
    )
    header = session.header(arguments, asdict(options))
    threads = session.settings.threads
    plan = options.plan(lm.files, lm.book, arguments.table, threads)
    if arguments.resume:
        plan = replace(plan, earlier=earlier_rows("lm", Path(arguments.resume), header))
    return TaskRun(
        session.device,
        header,
        lambda progress: trial_steps(plan, variants, session.machine, threads, header, progress),
    )


ASKED = {
    "machine": "machine",
    "protocol": "protocol",
    "model": "model",
    "texts": "text",
    "wanted": "choice of lengths, passages, seed, layers or hybrids",
    "settings": "number of threads",
    "tuned": "tuning",
}
"""Facts that a call which goes on must share with the earlier one, and a word for each."""


def earlier_rows(kind: str, file: Path, header: Row) -> dict[str, Row]:
    """The rows of an earlier call that was asked the same, by variant; raises CantBeDone where it
    was asked something else.
    """
    evidence = read_evidence(file)
    if evidence.kind != kind:
        raise CantBeDone(f"--resume {file} is evidence of {evidence.kind}, not of {kind}")
    plain = from_json(json.dumps(short_in(msgspec.to_builtins(header))))
    made = {**evidence.made, "wanted": {"hybrid": []} | evidence.made.get("wanted", {})}
    other = [word for name, word in ASKED.items() if made.get(name) != plain.get(name)]
    if other:
        raise CantBeDone(
            f"--resume {file} was made with another {listed(other)}: what it holds can't stand "
            "beside what would be measured now; leave --resume out"
        )
    finished = ("measured", Status.WRONG)
    return {row["variant"]: row for row in evidence.rows if row["status"] in finished}


# ---- results -------------------------------------------------------------------------------------

LEVEL, NEEDLE_LEVEL = 0.99, 0.5
"""The likelihood of a token, and the share of needles, that a variant should keep."""
TIED = 1e-4
"""Logarithms of perplexity no further apart are one."""
BASELINE = "the original"
PassageRow = Mapping[str, Any]


def results(evidence: Evidence) -> list[ResultGroup]:
    """By length: what is predicted, with the times; then what is found; then layer by layer."""
    passages = evidence.made["original"].get("passages", [])
    rows = [row for row in evidence.rows if row["status"] == "measured" and row["passages"]]
    groups = []
    for seq in evidence.made["wanted"]["seq"]:
        own = [each for each in passages if each["seq"] == seq]
        some = [VariantPassages(row, own, seq) for row in rows]
        some = [each for each in some if each.pairs]
        if not some:
            continue
        groups.append(likelihood_group(f"passages of {seq:,} tokens", own, some))
        ratios = evidence.made["wanted"].get("hybrid", ())
        mixed = [each.hybrid(n) for each in some for n in ratios if each.has_hybrids]
        if mixed:
            groups.append(likelihood_group(f"hybrids, {seq:,} tokens", own, mixed))
        needles = [Result(BASELINE, "softmax", "", scores=needle_scores(own))]
        needles += [each.about(scores=needle_scores(each.rows)) for each in (*some, *mixed)]
        at = f"needles in {seq:,} tokens"
        groups.append(ResultGroup(at, "found", NEEDLE_LEVEL, BASELINE, needles))
        if layers := evidence.made["wanted"]["layers"]:
            alone = [each.about(scores=each.by_layer(layers)) for each in some]
            at = f"in one layer alone, {seq:,} tokens"
            groups.append(ResultGroup(at, f"layer {layers[0]}", LEVEL, BASELINE, alone))
    return groups


def likelihood_group(
    setting: str, own: Sequence[PassageRow], some: Sequence[VariantPassages]
) -> ResultGroup:
    """What is predicted, with the times, and the ranks."""
    confidence = 1 - (1 - VERDICT_CONFIDENCE) / (2 * len(some))
    ranks = rank_by_loss(some)
    likely = [original_result(own), *(each.result(ranks, confidence) for each in some)]
    return ResultGroup(setting, "likelihood", LEVEL, BASELINE, likely)


@dataclass(frozen=True)
class VariantPassages:
    """A variant's passages of one length, and the original's of the same."""

    row: PassageRow
    own: Sequence[PassageRow]
    seq: int

    @property
    def rows(self) -> list[PassageRow]:
        """The variant's."""
        return [each for each in self.row["passages"] if each["seq"] == self.seq]

    @property
    def pairs(self) -> list[tuple[PassageRow, PassageRow]]:
        """The variant's and the original's of each passage."""
        by_number = {each["passage"]: each for each in self.own}
        return [(each, by_number[each["passage"]]) for each in self.rows]

    @property
    def has_hybrids(self) -> bool:
        """Whether it was measured with some layers exact."""
        return bool(self.rows[0].get("hybrids"))

    def hybrid(self, ratio: int) -> VariantPassages:
        """The passages of the variant with one layer in ``ratio`` left exact."""
        passages = [each | each["hybrids"][str(ratio)] for each in self.rows]
        name = f"{self.row['variant']}, 1 in {ratio} exact"
        row = {**self.row, "variant": name, "passages": passages, "distilled": None}
        return VariantPassages(row, self.own, self.seq)

    @property
    def lost(self) -> list[float]:
        """The loss beyond the original's, passage by passage."""
        return [each["loss"] - own["loss"] for each, own in self.pairs]

    @property
    def distilled(self) -> dict[str, QualityFigure]:
        """The likelihood after a distillation, if there was one."""
        distillation = self.row.get("distilled") or {"losses": []}
        by_place = zip(self.row["passages"], distillation["losses"], strict=False)
        after = {each["passage"]: loss for each, loss in by_place if each["seq"] == self.seq}
        pairs = [(after.get(own["passage"]), own["loss"]) for own in self.own]
        return likelihood([loss - own for loss, own in pairs if loss is not None], "distilled")

    def about(self, **more: Any) -> Result:
        """A result under the variant's name."""
        return Result(*(self.row[name] for name in ("variant", "computes", "family")), **more)

    def result(self, ranks: Mapping[str, int], confidence: float) -> Result:
        """``confidence``: at which it is faster, which is corrected for how many were looked at."""
        passes = [each["step_s"] for each in self.rows]
        tokens = [pairs for each in self.rows if (pairs := each["token_s"])]
        step = ratio_figure([b / a for a, b in passes], confidence=VERDICT_CONFIDENCE)
        sure = ratio_figure([b / a for a, b in passes], confidence=confidence)
        ratios = [math.exp(statistics.fmean(math.log(b / a) for a, b in some)) for some in tokens]
        token_s = [statistics.median(b for _, b in some) for some in tokens]
        more: dict[str, QualityFigure | float | None] = {
            "rank": ranks.get(self.row["variant"]),
            "perplexity": powers([each["loss"] for each in self.rows]),
            "KL": mean_figure([each["kl"] for each in self.rows], 0.0, rerun=True),
            "same": mean_figure(
                [each["same"] for each in self.rows], 0.0, CONTINUATION, rerun=True
            ),
            "token ms": 1e3 * statistics.fmean(token_s) if token_s else None,
            "of a token": ratio_figure(ratios, confidence=VERDICT_CONFIDENCE),
        }
        return self.about(
            scores=likelihood(self.lost) | self.distilled,
            step=step,
            step_s=statistics.fmean(b for _, b in passes),
            faster=sure is not None and sure.high is not None and sure.high < 1 - LEAST_MARGIN,
            more=more,
        )

    def by_layer(self, layers: Sequence[int]) -> dict[str, QualityFigure]:
        """The likelihood with the variant in each of these layers alone."""
        scores: dict[str, QualityFigure] = {}
        for number in layers:
            pairs = [(each["layers"].get(str(number)), own["loss"]) for each, own in self.pairs]
            lost = [a - b for a, b in pairs if a is not None]
            scores |= likelihood(lost, f"layer {number}")
        return scores


def likelihood(lost: Sequence[float], name: str = "likelihood") -> dict[str, QualityFigure]:
    """A token's, over the original's: the geometric mean over passages, and a rerun's interval."""
    mean = mean_figure([-x for x in lost], rerun=True)
    return {} if mean is None else {name: mean.powers}


def powers(losses: Sequence[float]) -> float:
    """The perplexity."""
    return math.exp(min(statistics.fmean(losses), MOST_LOG))


def original_result(own: Sequence[PassageRow]) -> Result:
    """The original's perplexity, and how long a pass takes."""
    more = {"rank": None, "perplexity": powers([each["loss"] for each in own])}
    return Result(BASELINE, "softmax", "", more=more)


def needle_scores(rows: Sequence[PassageRow]) -> dict[str, QualityFigure]:
    """The share of needles that are found, with Wilson's interval; in all, and by depth."""
    flags = [each["found"] for each in rows]
    columns = {f"at {depth:.0%}": [row[n] for row in flags] for n, depth in enumerate(DEPTHS)}
    columns = {"found": [flag for row in flags for flag in row], **columns}
    return {
        name: QualityFigure(sum(some) / len(some), *share_interval(sum(some), len(some)))
        for name, some in columns.items()
    }


def rank_by_loss(some: Sequence[VariantPassages]) -> dict[str, int]:
    """The place of each that is not exact, by its loss; those that can't be told from the first of
    a place share it.
    """
    others = [each for each in some if each.row["computes"] != "softmax"]
    others.sort(key=lambda each: statistics.fmean(each.lost))
    ranks: dict[str, int] = {}
    first: VariantPassages | None = None
    for place, each in enumerate(others, 1):
        if first is None or not share_rank(first, each):
            first, rank = each, place
        ranks[each.row["variant"]] = rank
    return ranks


def share_rank(a: VariantPassages, b: VariantPassages) -> bool:
    """Whether passages can't tell b's loss from a's, which is less."""
    by_number = {each["passage"]: each["loss"] for each in a.rows}
    apart = [x["loss"] - by_number[x["passage"]] for x in b.rows if x["passage"] in by_number]
    mean = mean_figure(apart)
    return mean is None or mean.low is None or mean.low <= TIED


def model_and_texts(evidence: Evidence) -> str:
    """The model that was asked, where, and the passages."""
    made, options = evidence.made, evidence.made["wanted"]
    threads = counted(made["settings"]["threads"], "thread")
    return (
        f"{made['model']['name']}, {options['dtype']} on {options['device']}, {threads}; "
        f"{options['passages']} passages of each length ({made['texts']['source']}, "
        f"{made['texts']['digest']}, seed {options['seed']}), the same for all"
    )


def notes(evidence: Evidence) -> Iterator[str]:
    """The model and its text, and the meaning of the words in the tables."""
    yield model_and_texts(evidence)
    yield (
        "likelihood: of a token of text, over the original's (one over the ratio of perplexities); "
        "with KL and same, the interval that a rerun with as many other passages falls into, "
        "95 times in 100; rank: of what isn't exact, those that passages can't tell apart together"
    )
    distillations = [row["distilled"] for row in evidence.rows if row.get("distilled")]
    if distillations:
        least, most = (f(each["tokens"] for each in distillations) for f in (min, max))
        seconds = evidence.made["wanted"]["distil_s"]
        yield (
            f"distilled: after {seconds:,.0f} s in which the projections of q, k, v "
            f"and the output learned the original's predictions, on {least:,} to {most:,} tokens "
            "of the text that are in no passage"
        )
    yield (
        f"KL: from the original's predictions, nats a token; same: of {CONTINUATION} tokens of its "
        "greedy continuation, how many before the first that differs"
    )
    yield (
        "needles: 'The code of the river is 4071.' at four depths of each passage, asked for at "
        "its end; every token of the answer must be the most probable; Wilson's 95 % interval"
    )
    yield (
        "of the time: of the original's pass over a passage with all its logits; of a token: of "
        "one that is decoded after it, from keys and values as transformers keeps them, of which a "
        "variant with a state makes its own anew; passage by passage, Student's 99 % interval; "
        "green: faster, corrected for all that were looked at"
    )
