"""Every variant in the model, each in a process of its own: asked here, without torch.

The original goes first and leaves its tokens and its embeddings in a folder; what it costs to lose
a process is one variant. Each variant's row is whole when the next one begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from attnbench.answer.model_cost.told import long_texts, told
from attnbench.machine import Machine, why_not
from attnbench.models.quality.apart import Apart
from attnbench.models.quality.pretrained.texts import Texts
from attnbench.sweep.aside import Lost
from impls import Table
from impls.asked import CantBeDone
from impls.masks import Mask
from impls.problem import Problem
from impls.spec import Variant

WORKER = "attnbench.models.quality.pretrained.worker"
LIMIT_S, A_STEP_S = 240.0, 20.0
"""For a variant to be asked everything, and more for each step of distillation."""
ORDER = ("softmax", "softmax on its own pattern", "approximates softmax", "its own operator")
Say = Callable[[str], None]


class NoOriginal(CantBeDone):
    """Without the model as it was nothing can be said of any variant."""


@dataclass(frozen=True)
class Wanted:
    """What is asked of each variant."""

    dtype: str = "float32"
    device: str = "cpu"
    seq: tuple[int, ...] = (256,)
    pairs_s: float = 3.0
    """Seconds of pairs a length, after which no further look begins."""
    margin: float = 0.01
    layers: int = 0
    """On how many of the long texts each layer is tried alone; 0: it is not."""
    distil: int = 0
    """Steps."""
    train: str = "projections"
    seed: int = 0

    @property
    def limit_s(self) -> float:
        """For one variant."""
        return LIMIT_S + A_STEP_S * self.distil + 4 * self.pairs_s * len(self.seq)


def rows_of(table: Table, names: Sequence[str]) -> list[Variant]:
    """The variants named, or every core in one process: the exact ones first."""
    found = [table.find(name) for name in names] or [
        row for row in table.rows.values() if row.level == "core" and not row.ranks
    ]
    return sorted(found, key=lambda row: ORDER.index(row.computes))


def refused(row: Variant, wanted: Wanted, machine: Machine) -> dict[str, Any] | None:
    """None for a variant that may be tried, else its row, with the reason."""
    if (missing := why_not(row, machine)) is not None:
        return {"status": "unavailable", "reason": missing.reason, "remedy": missing.remedy}
    masks = [Mask(), Mask.parse("padding:4,8")]
    problems = [
        Problem(batch=2, q_len=8, kv_len=8, mask=mask, dtype=wanted.dtype, device=wanted.device)
        for mask in masks
    ]
    whys = [row.supports(problem) for problem in problems]
    if row.level != "core" or row.ranks:
        what = "runs over several processes" if row.ranks else f"is a {row.level}"
        return {"status": "refused", "reason": f"{row.label} {what}; a layer calls a core"}
    return None if None in whys else {"status": "refused", "reason": whys[0]}


class Trial:
    """The model, the texts and what is wanted: the original first, then variant after variant."""

    def __init__(self, texts: Texts, wanted: Wanted, apart: Apart, tables: Sequence[str],
                 folder: Path) -> None:  # fmt: skip
        self._texts, self._wanted, self._apart = texts, wanted, apart
        self._tables, self._folder = list(tables), folder
        self.original: dict[str, Any] = {}

    def begin(self) -> None:
        """What the model does as it was; raises :class:`NoOriginal` where it does nothing."""
        kinds = [asdict(pair) for pair in self._texts.pairs]
        found: dict[str, Any] = {"pairs": kinds, "floor": []}
        try:
            for stage in self._asked({"do": "original", "texts": list(self._texts.texts)}):
                if why := stage.get("refused") or stage.get("failed"):
                    raise NoOriginal(f"the original model could not be run: {why}")
                found |= stage.get("original", {})
                found["floor"] += [stage["floor"]] if "floor" in stage else []
        except Lost as lost:
            raise NoOriginal(f"the original model could not be run: {lost}") from None
        self.original = found

    def variant(self, row: Variant) -> dict[str, Any]:
        """All that was found of one variant, whatever becomes of its process."""
        learn, judged = self._texts.halves()
        question = {
            "do": "variant", "variant": row.label, "plain": self.original["plain"],
            "layers": bool(self._wanted.layers), "distil": self._wanted.distil,
            "layer_texts": long_texts(self.original)[: self._wanted.layers],
            "train": self._wanted.train, "seed": self._wanted.seed, "learn": learn,
            "judged": judged,
        }  # fmt: skip
        start, made = perf_counter(), _blank(row)
        try:
            for stage in self._asked(question):
                _take(made, stage)
        except Lost as lost:
            _lose(made, "timed_out" if "still running" in str(lost) else "crashed", str(lost))
        made["took_s"] = round(perf_counter() - start, 2)
        return told(made, self.original)

    def _asked(self, question: dict[str, Any]) -> Iterator[dict[str, Any]]:
        wanted = self._wanted
        shared = {
            "tables": self._tables, "folder": str(self._folder), "dtype": wanted.dtype,
            "device": wanted.device, "seq": list(wanted.seq), "margin": wanted.margin,
            "pairs_s": wanted.pairs_s, "pairs": [[p.a, p.b] for p in self._texts.pairs],
        }  # fmt: skip
        return self._apart.stages({**shared, **question}, wanted.limit_s)


def _blank(row: Variant) -> dict[str, Any]:
    return {
        "variant": row.label, "family": row.family, "computes": row.computes,
        "status": "failed", "reason": "nothing was said", "remedy": "", "steps": [], "amiss": [],
    }  # fmt: skip


def _take(made: dict[str, Any], stage: dict[str, Any]) -> None:
    """One stage of what a process says."""
    if "quality" in stage:
        found = dict(stage["quality"])
        wrong = found.pop("wrong")
        made |= {**found, "status": "wrong" if wrong else "measured", "reason": wrong}
    elif "step" in stage:
        made["steps"].append(stage["step"])
    elif "refused" in stage or "failed" in stage:
        what = "refused" if "refused" in stage else "failed"
        _lose(made, what, stage[what])
    else:
        made |= stage


def _lose(made: dict[str, Any], status: str, why: str) -> None:
    """How it ended: all of it, or what came after the embeddings."""
    if "cosines" in made:
        made["amiss"].append(f"{status.replace('_', ' ')}: {why}")
    else:
        made |= {"status": status, "reason": why}
