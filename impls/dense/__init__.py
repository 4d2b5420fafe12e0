"""Dense: exact softmax attention over every pair the mask lets meet."""

from typing import Any

from impls.spec import COMPILED, DEVICES, DTYPES, MASK_KINDS, NO_GRADIENT, Variant

_HALF = ("bfloat16", "float16")
_SDPA = "aten::_scaled_dot_product"
_ALL = ("scale", "softcap", "sinks", "lse")
_TRITON: dict[str, Any] = {
    "devices": ("cuda",), "dtypes": ("float32", *_HALF), "masks": ("none", "causal", "window"),
    "value_dim": False, "head_dims": (1, 256), "requires": ("triton>=3.4", "sm>=80", "cc"),
    "install": "pip install 'attnbench[triton]'",
}  # fmt: skip
_CACHE: dict[str, Any] = {
    "operator": "approximates softmax", "definition": "impls.dense.cache:definition",
    "phases": ("decode",), "masks": ("none", "causal", "window"),
    "parameters": ("scale", "kv_dtype", "kv_scale"), "paper": "arXiv:2402.02750",
}  # fmt: skip


def _row(name: str, title: str, build: str, cost: str, operator: str = "softmax",
         **more: Any) -> Variant:  # fmt: skip
    """``cost``: a function of the family's, or empty where the memory is not known."""
    return Variant(
        name=name, title=title, family="dense", operator=operator, build=f"impls.dense.{build}",
        cost=f"impls.dense.cost:{cost}" if cost else "impls.cost:softmax", **more,
    )  # fmt: skip


ROWS = [
    _row(
        "einsum", "two einsums around a softmax", "einsum:build", "einsum", dropout=True,
        parameters=_ALL,
    ),
    _row("bmm", "bmm over flattened heads", "bmm:build", "two_matrices", dropout=True),
    _row(
        "baddbmm", "scale and mask folded into the product", "bmm:build_folded", "two_matrices",
        dropout=True,
    ),
    _row(
        "matmul", "broadcasting matmul, scores scaled after", "matmul:build", "two_matrices",
        dropout=True, parameters=_ALL,
    ),
    _row(
        "matmul.prescale", "broadcasting matmul, queries scaled before",
        "matmul:build_prescale", "two_matrices_prescale", dropout=True, parameters=_ALL,
    ),
    _row(
        "inplace", "one matrix of scores, overwritten by its softmax", "inplace:build",
        "one_matrix", phases=NO_GRADIENT,
    ),
    _row(
        "exp.naive", "exponentials without subtracting the maximum", "exp_naive:build",
        "one_matrix_divided",
    ),
    _row(
        "numpy", "NumPy on the CPU", "numpy_:build", "one_matrix", devices=("cpu",),
        dtypes=("float32", "float64"), phases=NO_GRADIENT, requires=("numpy>=1.24",),
    ),
    _row(
        "compiled", "torch.compile of the scores-softmax-values chain", "compiled:build",
        "", requires=("c++",), runs=dict.fromkeys(DEVICES, COMPILED),
    ),
    _row(
        "chunked", "a block of queries at a time", "chunked:build", "chunked",
        options={"block": 256}, dropout=True, tunes={"block": (64, 128, 256, 512, 1024)},
        parameters=_ALL,
    ),
    _row(
        "online", "running maximum and sum over blocks of keys", "online:build", "online",
        options={"q_block": 512, "k_block": 512}, paper="arXiv:2112.05682", parameters=_ALL,
        tunes={"q_block": (128, 256, 512, 1024, 2048), "k_block": (128, 256, 512, 1024, 2048)},
    ),
    _row(
        "sdpa", "scaled_dot_product_attention, torch's own choice", "sdpa:build", "",
        origin="torch", dropout=True, parameters=("scale", "sinks"),
    ),
    _row(
        "sdpa.math", "scaled_dot_product_attention, MATH forced", "sdpa:build_math", "sdpa_math",
        origin="torch", dropout=True,
        runs=dict.fromkeys(DEVICES, f"{_SDPA}_attention_math"),
    ),
    _row(
        "sdpa.flash", "scaled_dot_product_attention, FLASH_ATTENTION forced", "sdpa:build_flash",
        "flash", origin="torch", masks={"cpu": MASK_KINDS, "cuda": ("none", "causal")},
        dtypes={"cpu": DTYPES, "cuda": _HALF}, value_dim=False, parameters=("scale", "lse"),
        runs={"cpu": f"{_SDPA}_flash_attention_for_cpu", "cuda": f"{_SDPA}_flash_attention"},
        paper="arXiv:2205.14135, arXiv:2307.08691",
    ),
    _row(
        "sdpa.efficient", "scaled_dot_product_attention, EFFICIENT_ATTENTION forced",
        "sdpa:build_efficient", "fused", origin="torch", gqa=False, devices=("cuda",),
        dtypes=("float32", *_HALF), runs={"cuda": f"{_SDPA}_efficient_attention"},
    ),
    _row(
        "sdpa.cudnn", "scaled_dot_product_attention, CUDNN_ATTENTION forced", "sdpa:build_cudnn",
        "fused", origin="torch", devices=("cuda",), dtypes=_HALF, requires=("sm>=80",),
        runs={"cuda": f"{_SDPA}_cudnn_attention"},
    ),
    _row(
        "triton.flash", "FlashAttention in Triton: no score leaves the chip", "triton_flash:build",
        "triton_flash", phases=("forward", "train", "backward"), parameters=_ALL,
        options={"q_block": 0, "k_block": 0, "warps": 0, "stages": 0, "keys": "", "queries": "",
                 "fused": False},
        tunes={
            "q_block k_block warps stages": "impls.dense.tiles:forward",
            "keys": "impls.dense.tiles:keys", "queries": "impls.dense.tiles:queries",
        },
        paper="arXiv:2205.14135, arXiv:2307.08691", **_TRITON,
    ),
    _row(
        "triton.decode", "few queries, the keys split over programs, in Triton",
        "triton_decode:build", "", phases=("decode",), options={"splits": 0},
        tunes={"splits": (1, 2, 4, 8, 16, 32, 64)}, **_TRITON,
    ),
    _row(
        "gluon.flash", "FlashAttention for Hopper in Gluon: products in flight under the softmax",
        "gluon_flash:build", "gluon_flash", phases=("forward", "train", "backward"),
        options={"stages": 2, "lazy": 8.0}, paper="arXiv:2407.08608", untried=True,
        **_TRITON | {
            "dtypes": _HALF, "head_dims": (64, 128), "requires": ("triton>=3.6", "sm=90", "cc"),
        },
    ),
    _row(
        "triton.decode8", "triton.decode over a cache in 8 bits", "triton_decode:build8",
        "few_bits", operator="approximates softmax",
        definition="impls.dense.triton_decode:definition8", phases=("decode",),
        options={"splits": 0}, untried=True, parameters=("scale", "kv_dtype"), **_TRITON,
    ),
    _row(
        "cache.sdpa", "a cache in few bits, widened whole for scaled_dot_product_attention",
        "cache:build_sdpa", "few_bits", **_CACHE,
    ),
    _row(
        "cache.online", "a cache in few bits, widened block by block under a running sum",
        "cache:build_online", "few_bits", options={"k_block": 512}, **_CACHE,
    ),
]  # fmt: skip
