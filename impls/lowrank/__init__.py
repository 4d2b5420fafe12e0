"""Low rank: softmax attention approximated by a product of thin matrices."""

from typing import Any

from impls.masks import HIDING
from impls.spec import Variant

_NEAR, _OWN = "approximates softmax", "its own operator"
_CHUNKS = {"chunk": (16, 32, 64, 128, 256, 512)}


def _row(name: str, title: str, **more: Any) -> Variant:
    return Variant(**{
        "name": name, "title": title, "family": "lowrank", "operator": _NEAR,
        "build": f"impls.lowrank.{name}:build", "definition": f"impls.lowrank.{name}:definition",
        "cost": f"impls.lowrank.cost:{name}", "masks": ("none",), **more,
    })  # fmt: skip


ROWS = [
    _row(
        "mean_v", "the mean of the values a row may see", cost="impls.cost:mean",
        masks=HIDING,
    ),
    _row(
        "linformer", "softmax to a few mixtures of the keys",
        options={"rank": 256, "projection": "mean", "seed": 0}, paper="arXiv:2006.04768",
    ),
    _row(
        "nystrom", "softmax through landmarks and a pseudo-inverse",
        options={"landmarks": 64, "iterations": 6}, paper="arXiv:2102.03902",
    ),
    _row(
        "performer", "softmax through positive random features", masks=("none", "causal"),
        options={"features": 256, "seed": 0, "chunk": 128}, paper="arXiv:2009.14794",
        tunes=_CHUNKS,
    ),
    _row(
        "rfa", "attention to directions through random Fourier features", operator=_OWN,
        masks=("none", "causal"), paper="arXiv:2103.02143",
        options={"features": 128, "sigma": 1.0, "floor": 0.01, "seed": 0, "chunk": 128},
        tunes=_CHUNKS,
    ),
    _row(
        "skyformer", "a Gaussian kernel through landmarks", operator=_OWN,
        options={"landmarks": 128, "iterations": 6, "gamma": 0.1, "seed": 0},
        paper="arXiv:2111.00035",
    ),
]  # fmt: skip
