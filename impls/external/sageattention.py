"""SageAttention 1: scores from queries and keys rounded to 8-bit integers.

    k' = k - mean over m of k                            (shifts each row of scores: no change)
    s_nm = round(q_n / a) . round(k'_m / b) a b,  a = max |q| / 127 of 128 queries, b of 64 keys
    out_n = sum over m of softmax(s_n)_m v_m                     (q holds d^-1/2)

It claims to approximate softmax attention, and its distance from that is what the records report.
The definition is the formula above in whatever precision comes, so that the implementation error
shows the kernel and not the rounding it was designed with. The kernel also keeps the weights, the
values and their running sums in float16, whatever dtype comes; so float32 is refused.

The library smooths the keys in place, which would change the caller's; here the mean is taken off
before, and the library told not to. The mean and the scales of blocks mix all keys, later ones
too, so no mask holds strictly: none is claimed. Inference only. head_dim 64, 96 or 128.

Its last block of keys is taken to be full: keys that do not exist get the score 0 and share in the
sum of weights, so that 200 keys give outputs 14 % off. kv_len must be a multiple of 64. Version 2
rounds otherwise and is refused.

arXiv:2410.02367. Cost: 4 n m d operations a head, half of them on 8-bit integers; memory linear
in n.
"""

import importlib.metadata

import torch
from torch import Tensor

from impls.external.common import find, load, need
from impls.heads import Attend, Define, to_query_heads
from impls.problem import Problem
from impls.spec import Unavailable

REMEDY = "pip install 'sageattention>=1.0.6,<2' triton"
Q_BLOCK, K_BLOCK = 128, 64
LARGEST = 127.0
TO_TWO = 1.44269504
"""log2 e as the library spells it: queries are rounded with it in them, for powers of two."""


def build(problem: Problem) -> Attend:
    """The keys' mean, then the library's call."""
    need(
        problem.head_dim in (64, 96, 128),
        f"sageattention takes head_dim 64, 96 or 128, not {problem.head_dim}",
    )
    need(
        problem.kv_len % K_BLOCK == 0,
        f"sageattention counts keys that do not exist in a last block that is not full: kv_len "
        f"must be a multiple of {K_BLOCK}, not {problem.kv_len}",
    )
    library = load("sageattention", "sageattention", REMEDY)
    function = find(library, "sageattn", "sageattention", REMEDY)
    if _version() >= 2:
        raise Unavailable(f"sageattention {_version()}.x rounds otherwise than 1.0.6", REMEDY)

    def attend(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Tensor:
        smooth = k_bcmd - k_bcmd.mean(2, keepdim=True)
        out: Tensor = function(
            q_bhnd, smooth, v_bcme, tensor_layout="HND", is_causal=False,
            sm_scale=problem.scale, smooth_k=False,
        )  # fmt: skip
        return out

    return attend


def _version() -> int:
    try:
        return int(importlib.metadata.version("sageattention").split(".")[0])
    except importlib.metadata.PackageNotFoundError:
        return 0


def rounded(x_bhnd: Tensor, block: int) -> Tensor:
    """x as 8-bit steps of its block's largest number, times the step, in float32."""
    b, h, n, d = x_bhnd.shape
    blocks = -(-n // block)
    padded = torch.nn.functional.pad(x_bhnd.float(), (0, 0, 0, blocks * block - n))
    tiles = padded.view(b, h, blocks, block * d)
    step = tiles.abs().amax(-1, keepdim=True) / LARGEST
    steps = tiles / step.clamp(min=torch.finfo(torch.float32).tiny)
    whole = (steps + 0.5 * steps.sign()).trunc()
    return (whole * step).view(b, h, -1, d)[:, :, :n]


def definition(problem: Problem) -> Define:
    """Softmax of the rounded scores; rounded in the problem's dtype, as the library rounds."""
    dtype = getattr(torch, problem.dtype)

    def define(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, rows: Tensor) -> Tensor:
        k = k_bcmd.to(dtype)
        keys = rounded(k - k.mean(2, keepdim=True), K_BLOCK).to(v_bcme.dtype)
        scaled = q_bhnd.to(dtype).float() * (problem.scale * TO_TWO)
        queries = rounded(scaled, Q_BLOCK).to(v_bcme.dtype) / TO_TWO
        scores = queries[:, :, rows] @ to_query_heads(keys, problem).transpose(-1, -2)
        return scores.softmax(-1) @ to_query_heads(v_bcme, problem)

    return define
