"""External: adapters for kernels of other distributions.

Written against their documentation and sources; what no run has attested is ``untried``.
"""

from typing import Any

from impls.spec import DEVICES, NO_GRADIENT, Variant

_HALF = ("bfloat16", "float16")
_FLASH = ("none", "causal", "window", "document")
_LSE = ("scale", "lse")
_WHOLE = ("forward", "train", "backward")
_FSA = ("flash-sparse-attn>=2.0.6", "triton>=3.6", "sm>=80")
_SWAPS = tuple(
    f"aten::{name}" for name in (
        "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_backward",
        "_flash_attention_forward", "_flash_attention_backward",
    )
)  # fmt: skip
BUILD_FA3 = (
    "git clone https://github.com/Dao-AILab/flash-attention && cd flash-attention/hopper && "
    "python setup.py install"
)
_FA3 = f"on a machine with CUDA 12.3 or later: {BUILD_FA3}"


def _row(name: str, title: str, build: str, origin: str, **more: Any) -> Variant:
    settings: dict[str, Any] = {
        "operator": "softmax", "cost": "impls.cost:softmax", "devices": ("cuda",),
        "dtypes": _HALF, "untried": True, **more,
    }  # fmt: skip
    return Variant(
        name=name, title=title, family="external", build=f"impls.external.{build}", origin=origin,
        **settings,
    )  # fmt: skip


def _fla(
    name: str, title: str, cost: str, paper: str, operator: str = "its own operator"
) -> Variant:
    gated = operator != "its own operator"
    return _row(
        f"fla.{name}", title, f"fla:build_{name}", "fla-core", operator=operator,
        definition=f"impls.external.fla:define_{'gated' if gated else name}",
        cost=f"impls.external.cost:{cost}", parameters=("scale", "state") if gated else ("scale",),
        masks=("causal",), phases=_WHOLE, gqa=operator in ("gated_delta", "kda"),
        cross=False, head_dims=(16, 256), paper=paper,
        requires=("fla-core>=0.6", "triton>=3.0"), untried=name not in ("linear", "retention"),
    )  # fmt: skip


ROWS = [
    _row(
        "flash_attn2", "FlashAttention-2", "flash_attn2:build", "flash-attn",
        parameters=_LSE, masks=(*_FLASH, "alibi"), value_dim=False, head_dims=(1, 256),
        requires=("flash-attn>=2.6", "sm>=80"), paper="arXiv:2307.08691",
    ),
    _row(
        "flash_attn3", "FlashAttention-3 for Hopper, built from source", "flash_attn3:build",
        "flash-attn-3", parameters=_LSE, masks=_FLASH, head_dims=(8, 256),
        requires=("flash-attn-3", "sm>=90"), install=_FA3, paper="arXiv:2407.08608",
    ),
    _row(
        "flash_attn4", "FlashAttention-4 in CuTe DSL, a pre-release", "flash_attn4:build",
        "flash-attn-4", parameters=_LSE, masks=_FLASH, head_dims=(8, 256),
        requires=("flash-attn-4>=4.0.0b36", "sm>=90"),
    ),
    _row(
        "hub.flash_attn2", "FlashAttention-2 from the hub of kernels", "flash_attn2:build_hub",
        "kernels-community/flash-attn2", parameters=_LSE, masks=(*_FLASH, "alibi"), value_dim=False,
        head_dims=(1, 256), requires=("kernels>=0.17", "sm>=80"), paper="arXiv:2307.08691",
    ),
    _row(
        "hub.flash_attn3", "FlashAttention-3 from the hub of kernels", "flash_attn3:build_hub",
        "kernels-community/flash-attn3", parameters=_LSE, masks=_FLASH, head_dims=(8, 256),
        requires=("kernels>=0.17", "sm>=90"), paper="arXiv:2407.08608",
    ),
    _row(
        "cudnn_frontend", "cuDNN's attention, asked for as a graph", "cudnn_frontend:build",
        "nvidia-cudnn-frontend", parameters=_LSE, masks=("none", "causal", "window"),
        head_dims=(8, 256), requires=("nvidia-cudnn-frontend>=1.12", "sm>=80"),
    ),
    _row(
        "fsa.dense", "flash-sparse-attn's dense kernel", "flash_sparse:build_dense",
        "flash-sparse-attn", masks=("none", "causal"), phases=_WHOLE, value_dim=False,
        head_dims=(16, 512), requires=_FSA, paper="arXiv:2307.08691",
    ),
    _row(
        "fsa.sparse", "flash-sparse-attn: tiles of small weights are skipped",
        "flash_sparse:build", "flash-sparse-attn", operator="approximates softmax",
        definition="impls.external.flash_sparse:definition", masks=("none", "causal"),
        phases=("forward",), value_dim=False, head_dims=(16, 512), options={"threshold": 1.0},
        requires=_FSA,
    ),
    _row(
        "torch.varlen", "torch's variable-length attention", "torch_varlen:build", "torch",
        masks=_FLASH, value_dim=False, head_dims=(8, 256), requires=("torch>=2.11", "sm>=80"),
        untried=False, runs={"cuda": "aten::_flash_attention_forward"}, paper="arXiv:2307.08691",
    ),
    _row(
        "torch.fa3", "scaled_dot_product_attention on FlashAttention-3", "torch_flash:build_fa3",
        "torch, flash-attn-3", parameters=_LSE, masks=("none", "causal"), value_dim=False,
        head_dims=(8, 256),
        requires=("torch>=2.11", "flash-attn-3", "sm>=90"), install=_FA3,
        runs={"cuda": "flash_attn_3::fwd"}, swaps=_SWAPS, paper="arXiv:2407.08608",
    ),
    _row(
        "torch.fa4", "scaled_dot_product_attention on FlashAttention-4", "torch_flash:build_fa4",
        "torch, flash-attn-4", parameters=_LSE, masks=("none", "causal"), value_dim=False,
        head_dims=(8, 256),
        requires=("torch>=2.11", "flash-attn-4>=4.0.0b36", "sm>=90"), swaps=_SWAPS,
    ),
    _row(
        "xformers", "xFormers' memory_efficient_attention", "xformers:build", "xformers",
        masks=_FLASH, value_dim=False, head_dims=(8, 256), options={"op": "fa2"},
        requires=("xformers>=0.0.35", "sm>=80"), paper="arXiv:2112.05682",
    ),
    _row(
        "flashinfer", "FlashInfer's prefill and decode kernels", "flashinfer:build",
        "flashinfer-python", parameters=_LSE, masks=_FLASH, phases=NO_GRADIENT, value_dim=False,
        head_dims=(64, 256), options={"backend": "fa2"},
        requires=("flashinfer-python>=0.7", "sm>=80"), paper="arXiv:2501.01005",
    ),
    _row(
        "transformer_engine", "Transformer Engine's DotProductAttention",
        "transformer_engine:build", "transformer-engine", masks=_FLASH, head_dims=(8, 256),
        options={"backend": "fused"}, requires=("transformer-engine>=2.0", "sm>=80"),
    ),
    _row(
        "sageattention", "SageAttention: scores of 8-bit integers", "sageattention:build",
        "sageattention", operator="approximates softmax",
        definition="impls.external.sageattention:definition", masks=("none",),
        phases=NO_GRADIENT, value_dim=False, head_dims=(64, 128),
        requires=("sageattention>=1.0.6", "triton>=2.3", "sm>=80"), paper="arXiv:2410.02367",
    ),
    _row(
        "natten", "NATTEN: the nearest keys, the window pushed inwards at the ends",
        "natten:build", "natten", operator="softmax on its own pattern",
        definition="impls.external.natten:definition", cost="impls.external.cost:near",
        devices=DEVICES, dtypes=("float32", *_HALF), masks=("none", "causal"),
        phases={"cpu": ("forward",), "cuda": ("forward", "train", "backward")},
        cross=False, head_dims=(8, 256), options={"window": 128, "backend": ""},
        requires=("natten>=0.21",),
        install="pip install --no-build-isolation 'natten>=0.21'", paper="arXiv:2204.07143",
    ),
    _fla("linear", "linear attention, elu + 1", "state_of_features", "arXiv:2006.16236"),
    _fla("retention", "retention, a fixed decay a head", "state", "arXiv:2307.08621"),
    _fla("gla", "gated linear attention", "state", "arXiv:2312.06635", "gla"),
    _fla("simple_gla", "a decay a token, Mamba-2's form", "state", "arXiv:2405.21060",
         "retention"),
    _fla("delta", "the delta rule", "delta", "arXiv:2406.06484", "delta"),
    _fla("gated_delta", "the gated delta rule", "delta", "arXiv:2412.06464", "gated_delta"),
    _fla("kda", "the delta rule with a decay a channel", "delta", "arXiv:2510.26692", "kda"),
    _row(
        "onnxruntime", "ONNX Runtime's attention on a CPU", "onnxruntime:build", "onnxruntime",
        devices=("cpu",), dtypes=("float32", "float16"), phases=NO_GRADIENT,
        parameters=("scale", "softcap"), options={"op": "attention"},
        cost="impls.external.cost:onnxruntime", requires=("onnx>=1.19", "onnxruntime>=1.32"),
        untried=False,
    ),
]  # fmt: skip
