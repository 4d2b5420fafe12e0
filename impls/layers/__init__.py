"""Layers: projections around a core, and whole transformer blocks."""

from typing import Any

from impls.spec import DEVICES, Variant

_WHOLE = ("forward", "train", "backward")


def _row(name: str, title: str, place: str, cost: str, **more: Any) -> Variant:
    code, _, ending = place.partition(":")
    settings = {"operator": "softmax", "level": "layer", "value_dim": False, **more}
    return Variant(
        name=name, title=title, family="layers", build=f"impls.layers.{code}:build{ending}",
        definition=f"impls.layers.{code}:definition{ending}", cost=f"impls.layers.cost:{cost}",
        **settings,
    )  # fmt: skip


def _fast(operator: str) -> dict[str, str]:
    """The operators that must run where torch's inference fast path is asked for."""
    return {f"{device}?fastpath=true": operator for device in DEVICES}


ROWS: list[Variant] = [
    _row(
        "mha", "projections around a core", "mha", "mha", paper="arXiv:1706.03762",
        options={"core": "sdpa", "key_bias": True, "bias": True},
    ),
    _row(
        "mha.native", "nn.MultiheadAttention", "native", "mha", origin="torch", gqa=False,
        phases=_WHOLE, options={"need_weights": False, "fastpath": False},
        runs=_fast("aten::_native_multi_head_attention"),
    ),
    _row("mha.einsum", "einsum over weights by heads", "mha_einsum", "mha"),
    _row(
        "mla", "keys and values from one latent vector", "mla", "mla", gqa=False, cross="decode",
        operator="its own operator", options={"latent": 0, "rope": 0, "absorbed": False},
        paper="arXiv:2405.04434",
    ),
    _row(
        "mixed", "scores with an edge for every pair", "mixed", "mixed",
        operator="its own operator",
        options={"form": "graph", "edges": 8, "hidden": 16, "seed": 0},
        paper="arXiv:2310.17936, arXiv:2106.11113",
    ),
    _row(
        "block", "a transformer block around a core", "block", "block", level="block",
        cross="decode",
        options={"core": "sdpa", "norm": "pre", "activation": "gelu", "ff": 4},
        paper="arXiv:1706.03762, arXiv:2002.04745",
    ),
    _row(
        "block.native", "nn.TransformerEncoderLayer", "native:_block", "block",
        origin="torch", level="block", gqa=False, cross=False, phases=_WHOLE,
        options={"norm": "pre", "activation": "gelu", "ff": 4, "fastpath": False},
        runs=_fast("aten::_transformer_encoder_layer_fwd"),
    ),
]  # fmt: skip
