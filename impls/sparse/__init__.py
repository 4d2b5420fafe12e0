"""Sparse: softmax attention over some of the pairs."""

from typing import Any

from impls.masks import HIDING
from impls.spec import COMPILED, DEVICES, MASK_KINDS, NO_GRADIENT, PHASES, Variant

_OWN = "softmax on its own pattern"
_NEAR = "approximates softmax"
_WHOLE = ("forward", "train", "backward")
_ALL = ("scale", "softcap", "sinks", "lse")
_HALF = ("bfloat16", "float16")


def _row(name: str, title: str, operator: str = _OWN, **more: Any) -> Variant:
    code = {"build": f"impls.sparse.{name}:build", "cost": "impls.cost:softmax"}
    if operator != "softmax":
        code["definition"] = f"impls.sparse.{name}:definition"
        code["cost"] = f"impls.sparse.cost:{name}"
    settings = {**code, **more}
    return Variant(name=name, title=title, family="sparse", operator=operator, **settings)


def _pattern(name: str, title: str, **more: Any) -> Variant:
    """A row with a fixed pattern of its own, on whole sequences of tokens that see each other."""
    return _row(name, title, masks=("none", "causal"), cross="decode", **more)


def _selecting(name: str, title: str, operator: str = _OWN, **more: Any) -> Variant:
    """A causal row that selects keys by what they hold."""
    more |= {"masks": ("causal",), "cross": "decode", "parts": ("selector", "attention")}
    return _row(name, title, operator, **more)


def _evict(policy: str, title: str, truth: str, **more: Any) -> Variant:
    """A row whose memory forgets, for causal decoding; ``truth``: its definition's class."""
    build, cost = f"impls.sparse.evict:{policy}", f"impls.sparse.cost:{policy}"
    return _row(
        f"evict.{policy}", title, build=build, cost=cost, definition=f"impls.sparse.evict:{truth}",
        phases=("decode",), masks=("causal",), **more,
    )  # fmt: skip


def _flex(name: str, title: str, build: str, operator: str = "softmax", **more: Any) -> Variant:
    """A row of torch's compiled FlexAttention, which has no backward and no float64 on the CPU."""
    settings: dict[str, Any] = {
        "origin": "torch", "dtypes": ("float32", *_HALF), "paper": "arXiv:2412.05496",
        "phases": {"cpu": NO_GRADIENT, "cuda": PHASES}, "requires": ("c++",),
        "runs": dict.fromkeys(DEVICES, COMPILED), "build": f"impls.sparse.{build}", **more,
    }  # fmt: skip
    return _row(name, title, operator, **settings)


ROWS: list[Variant] = [
    _row(
        "window.blocked", "a window, in blocks of queries against spans of keys", "softmax",
        build="impls.sparse.window:build", options={"block": 0}, parameters=_ALL,
        tunes={"block": (16, 32, 64, 128, 256)}, paper="arXiv:2004.05150",
        masks=(*(kind for kind in HIDING if kind not in ("none", "dense")), "alibi"),
    ),
    _pattern(
        "strided", "a stride's length of neighbours, and every stride-th key",
        options={"stride": 0}, paper="arXiv:1904.10509",
    ),
    _pattern(
        "fixed", "its own block, and the last columns of every block",
        options={"stride": 0, "summary": 8}, paper="arXiv:1904.10509",
    ),
    _pattern(
        "dilated", "neighbours a few keys apart", options={"dilation": 4, "width": 64},
        paper="arXiv:2004.05150, arXiv:2307.02486",
    ),
    _pattern(
        "longformer", "a window, and first tokens that see all and are seen by all",
        options={"window": 256, "globals": 16}, paper="arXiv:2004.05150",
    ),
    _pattern(
        "bigbird", "neighbouring, global and random blocks",
        options={"block": 64, "globals": 2, "random": 3, "seed": 0}, paper="arXiv:2007.14062",
    ),
    _flex(
        "flex", "FlexAttention under any mask", "flex:build", parameters=_ALL,
    ),
    _flex(
        "flex.flash", "FlexAttention on FlashAttention-4's kernels", "flex:build_flash",
        origin="torch, flash-attn-4", devices=("cuda",), dtypes=_HALF,
        phases=PHASES, head_dims=(8, 256),
        requires=("torch>=2.11", "flash-attn-4>=4.0.0b36", "sm>=90"),
        install="pip install 'flash-attn-4>=4.0.0b36'", runs={"cuda": COMPILED}, untried=True,
    ),
    _flex(
        "window.flex", "FlexAttention, its blocks fitted to a window", "flex:build_window",
        options={"block": 0}, parameters=_ALL,
        tunes={"block": (16, 32, 64, 128, 256, 512)},
        masks=tuple(kind for kind in MASK_KINDS if kind != "none"),
    ),
    _flex(
        "blocksparse.flex", "FlexAttention on a layout of blocks", "blocksparse:build", _OWN,
        cost="impls.sparse.cost:blocksparse", definition="impls.sparse.blocksparse:definition",
        options={"layout": "", "block": 128},
    ),
    _row(
        "topk", "the k largest scores of each row", options={"k": 32},
        paper="arXiv:2106.06899",
    ),
    _selecting(
        "moba", "its own block, and those whose mean key a query likes (MoBA)",
        options={"block": 64, "top": 4}, paper="arXiv:2502.13189",
    ),
    _selecting(
        "nsa", "compressed blocks, selected blocks and a window (NSA)", operator="nsa",
        options={"block": 32, "top": 8, "window": 128}, paper="arXiv:2502.11089",
    ),
    _selecting(
        "dsa", "keys that an indexer selects (DeepSeek-V3.2)", operator="dsa",
        options={"top": 128}, paper="arXiv:2512.02556",
    ),
    _evict(
        "sinks", "a memory of the first tokens and the latest (StreamingLLM)", "Definition",
        options={"budget": 512, "sinks": 4}, paper="arXiv:2309.17453",
    ),
    _evict(
        "h2o", "a memory of the latest tokens and the heaviest (H2O)", "H2oDefinition",
        operator="evict", options={"budget": 512}, paper="arXiv:2306.14048",
    ),
    _evict(
        "snapkv", "a memory of what a prompt's last queries choose (SnapKV)", "SnapKvDefinition",
        operator="evict", options={"budget": 512, "window": 32}, paper="arXiv:2404.14469",
    ),
    _evict(
        "quest", "a memory of all tokens, read by pages that a query likes (Quest)",
        "QuestDefinition", options={"budget": 512, "page": 16}, paper="arXiv:2406.10774",
    ),
    _evict(
        "random", "a memory of the latest tokens and a sample, the control", "RandomDefinition",
        options={"budget": 512},
    ),
    _row(
        "lsh", "queries and keys that hash alike (Reformer)", _NEAR, masks=("none",),
        phases=_WHOLE, cross=False,
        options={"rounds": 4, "bucket": 64, "seed": 0, "shared": False}, paper="arXiv:2001.04451",
    ),
    _row(
        "routing", "clusters of queries and keys (Routing Transformer)", _NEAR, masks=("none",),
        phases=_WHOLE, options={"clusters": 0, "window": 0, "seed": 0}, paper="arXiv:2003.05997",
    ),
]  # fmt: skip
