"""What torch, NumPy, Python and the system let every variant set for all others, as it stands."""

from __future__ import annotations

import gc
import os
import random
import re
import signal
import sys
from functools import lru_cache
from typing import Any

import torch
from numpy.random import mtrand
from torch.utils._device import DeviceContext

KERNELS = re.compile(r"^(?:CPU|CUDA|Autograd\S*|Composite\S*|catchall): .*$", re.MULTILINE)
OPERATORS = tuple(
    f"aten::{name}" for name in (
        "abs", "add.Tensor", "all", "amax", "any", "baddbmm", "bernoulli_.float", "bmm", "clone",
        "convolution", "copy_", "div.Tensor", "eq.Tensor", "equal", "exp", "index_select",
        "isfinite", "linear", "linalg_vector_norm", "logsumexp", "masked_fill.Scalar", "matmul",
        "max", "maximum", "mm", "mul.Scalar", "mul.Tensor", "native_layer_norm", "ne.Tensor",
        "roll", "scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_backward",
        "_flash_attention_forward", "_flash_attention_backward",
        "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
        "_softmax", "_softmax_backward_data", "square",
        "sub.Tensor", "sum", "sum.dim_IntList", "_to_copy", "where.self", "zero_",
    )
)  # fmt: skip
"""What variants and ruler are made of: nobody may put other kernels in place of torch's."""
KERNELS_OF = "torch's kernels"
TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
TINY = 1e-40
"""A number that is zero where such numbers are."""


def now() -> dict[str, Any]:
    """Settings, by the words in which a change is told."""
    cuda = torch.backends.cuda
    matmul = cuda.matmul
    return {
        "threads": torch.get_num_threads(),
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "gradient mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"),
        "float32 product precision": torch.get_float32_matmul_precision(),
        "half-precision sums": (
            matmul.allow_fp16_reduced_precision_reduction,
            matmul.allow_bf16_reduced_precision_reduction,
        ),
        "deterministic mode": torch.are_deterministic_algorithms_enabled(),
        "modes around torch's functions": _modes(),
        "garbage collection": (gc.isenabled(), gc.get_threshold(), [id(f) for f in gc.callbacks]),
        "anomaly detection": torch.is_anomaly_enabled(),
        "what sdpa may use": (
            cuda.flash_sdp_enabled(), cuda.math_sdp_enabled(), cuda.mem_efficient_sdp_enabled(),
            cuda.cudnn_sdp_enabled(),
        ),
        "oneDNN": torch.backends.mkldnn.enabled,
        "tiny numbers": float(torch.tensor(TINY, device="cpu", dtype=torch.float32) * 1.0) > 0.0,
        "its priority": os.getpriority(os.PRIO_PROCESS, 0),
        "its processors": sorted(os.sched_getaffinity(0)),
        "its timers": [signal.getitimer(timer)[0] > 0 for timer in TIMERS],
        KERNELS_OF: {name: _kernels(torch._C._dispatch_dump(name)) for name in OPERATORS},
        "tracing": (sys.gettrace() is not None, sys.getprofile() is not None),
        "thread switching": sys.getswitchinterval(),
        "current GPU and stream": _current(),
    }  # fmt: skip


@lru_cache(maxsize=4 * len(OPERATORS))
def _kernels(dump: str) -> tuple[str, ...]:
    return tuple(KERNELS.findall(dump))


def _modes() -> int:
    """How many stand between a caller and torch; the default device has one of its own."""
    core = torch._C
    functions = map(core._get_function_stack_at, range(core._len_torch_function_stack()))
    plain = sum(isinstance(mode, DeviceContext) for mode in functions)
    return core._len_torch_function_stack() - plain + core._len_torch_dispatch_stack()


def _current() -> tuple[int, int]:
    """Where kernels are launched for whoever does not say where."""
    if not torch.cuda.is_initialized():
        return 0, 0
    return torch.cuda.current_device(), torch.cuda.current_stream().cuda_stream


def random_states() -> dict[str, Any]:
    """States of the generators that belong to everybody."""
    numpys = mtrand.get_bit_generator().state["state"]
    states: dict[str, Any] = {
        "torch's random state": torch.get_rng_state().numpy().tobytes(),
        "numpy's random state": (numpys["key"].tobytes(), numpys["pos"]),
        "random's state": random.getstate(),
    }
    if torch.cuda.is_initialized():
        states["CUDA's random state"] = [
            (g.initial_seed(), g.get_offset()) for g in torch.cuda.default_generators
        ]
    return states
