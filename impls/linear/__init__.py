"""Linear: operators whose work grows with the length, and their kin."""

from typing import Any

from impls.masks import HIDING
from impls.spec import Variant

_CAUSAL = ("none", "causal")
_TRITON: dict[str, Any] = {
    "masks": ("causal",), "cross": False, "devices": ("cuda",),
    "dtypes": ("float32", "bfloat16", "float16"), "phases": ("forward", "train", "backward"),
    "requires": ("triton>=3.4", "sm>=80", "cc"), "install": "pip install 'attnbench[triton]'",
}  # fmt: skip
_OF_KEYS = {"seed": 0, "gates": "input"}
_CHUNKS = {"chunk": (16, 32, 64, 128, 256, 512)}


def _row(name: str, title: str, module: str, **more: Any) -> Variant:
    return Variant(**{
        "name": name, "title": title, "family": "linear", "operator": "its own operator",
        "build": f"impls.linear.{module}:build",
        "definition": f"impls.linear.{module}:definition",
        "cost": f"impls.linear.cost:{module}", "masks": _CAUSAL, "tunes": _CHUNKS, **more,
    })  # fmt: skip


def _recurrent(name: str, title: str, options: dict[str, Any], **more: Any) -> Variant:
    """A causal row of the operator of its name, which may begin with a state."""
    return _row(
        name, title, name, operator=name, masks=("causal",), cross="decode",
        options={"chunk": 64, **options}, parameters=("scale", "state"), **more,
    )  # fmt: skip


def _delta(name: str, title: str, build: str, paper: str) -> Variant:
    return _row(
        f"triton.{name}", title, "triton_delta", operator=name, paper=paper,
        build=f"impls.linear.triton_delta:{build}", cost=f"impls.linear.cost:{name}",
        definition="impls.linear.gated_delta:definition", parameters=("scale", "state"),
        head_dims=(1, 128), options={"chunk": 0}, tunes={"chunk": (16, 32, 64)}, **_TRITON,
    )  # fmt: skip


ROWS = [
    _row(
        "linear.identity", "Q (K^T V), no softmax and no features", "identity",
        options={"normalise": False, "chunk": 128},
    ),
    _row(
        "linear.elu", "linear attention with the features elu + 1", "elu",
        options={"chunk": 128}, paper="arXiv:2006.16236",
    ),
    _row(
        "cosformer", "relu features with a cosine of the distance", "cosformer",
        options={"chunk": 128}, paper="arXiv:2202.08791",
    ),
    _row(
        "linear.taylor", "Taylor series of exp to the second order, on projected channels",
        "taylor", options={"features": 16, "chunk": 128}, paper="arXiv:2402.18668",
    ),
    _row(
        "hedgehog", "softmaxes over the channels as features", "hedgehog",
        options={"init": "identity", "chunk": 128}, paper="arXiv:2402.04347",
    ),
    _row(
        "cosine", "cosines of queries and keys as scores, no softmax", "cosine", masks=HIDING,
        options={"normalise": "none", "temperature": 0.1, "chunk": 128},
    ),
    _recurrent(
        "retention", "a state that fades at a fixed rate", {"gates": "input"},
        operators={"gates=fixed": "its own operator"}, paper="arXiv:2307.08621",
    ),
    _recurrent(
        "gla", "a state whose channels fade as each token says", _OF_KEYS,
        operators={"gates=key": "its own operator"}, paper="arXiv:2312.06635",
    ),
    _recurrent(
        "delta", "a state that is corrected by the delta rule", _OF_KEYS,
        operators={"gates=key": "its own operator"}, paper="arXiv:2406.06484",
    ),
    _recurrent(
        "ssd", "a state that fades as each token says, a rate a head", _OF_KEYS,
        operators={"gates=key": "its own operator"}, paper="arXiv:2405.21060",
    ),
    _recurrent(
        "gated_delta", "a state that fades and is corrected, a rate a head", {},
        paper="arXiv:2412.06464",
    ),
    _recurrent(
        "kda", "a state whose channels fade, and that is corrected", {},
        build="impls.linear.gated_delta:build_kda", paper="arXiv:2510.26692",
        definition="impls.linear.gated_delta:definition",
    ),
    _row(
        "triton.linear", "linear.elu in Triton: the state stays on the chip", "triton_linear",
        definition="impls.linear.elu:definition", cost="impls.linear.cost:elu",
        head_dims=(1, 256), options={"chunk": 0, "segments": 0},
        tunes={"chunk": (16, 32, 64, 128), "segments": (1, 2, 4, 8, 16, 32)},
        paper="arXiv:2006.16236", **_TRITON,
    ),
    _delta("gated_delta", "gated_delta in Triton, forward: the state stays on the chip", "build",
           "arXiv:2412.06464"),
    _delta("kda", "kda in Triton, forward: the state stays on the chip", "build_kda",
           "arXiv:2510.26692"),
]  # fmt: skip
