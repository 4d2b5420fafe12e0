"""torch's own variable-length attention: ``torch.nn.attention.varlen.varlen_attn``.

    softmax( q k^T d^-1/2 + mask ) v within each document; q, k, v packed as [tokens, h, d]

The flash kernel inside torch, with offsets of the documents made once. Causal is the window
(-1, 0), aligned lower-right. Every batch element has the same documents, so its heads are laid
side by side and nothing is copied. A mask without documents is one document.

A kernel that was swapped in by ``torch.nn.attention.activate_flash_attention_impl`` would run
here too; that is refused, so that the row measures one kernel.

Its log-sum-exp is not asked for: torch's documentation lays it out as [n, h], its kernel as [h, n],
and no GPU has shown which it is.

arXiv:2307.08691. Cost: 4 n m d FLOPs a head forward on the pairs that the mask lets meet; memory
linear in n.
"""

import inspect
from typing import Any

import torch.nn.attention
from torch import Tensor

from impls.external.common import find, load, need, need_multiple, offsets, pack, pattern, unpack
from impls.heads import Attend
from impls.problem import Problem
from impls.spec import Unavailable

REMEDY = "pip install 'torch>=2.11'"
WORDS = ("scale", "window_size")


def build(problem: Problem) -> Attend:
    """Offsets once; one call."""
    module = load("torch.nn.attention.varlen", "torch.varlen", REMEDY)
    function = find(module, "varlen_attn", "torch.varlen", REMEDY)
    takes = inspect.signature(function).parameters
    missing = [word for word in WORDS if word not in takes]
    if missing:
        reason = f"torch.varlen needs a varlen_attn that takes {', '.join(missing)}"
        raise Unavailable(reason + f"; that of torch {torch.__version__} does not", REMEDY)
    _check_kernel()
    need_multiple(problem, "torch.varlen")
    mask = pattern(problem, "torch.varlen")
    ends = [mask.documents or (length,) for length in (problem.q_len, problem.kv_len)]
    edges = [offsets(lengths, problem.device) for lengths in ends]
    longest = [max(lengths) for lengths in ends]
    asks = "enable_gqa" in takes and problem.group > 1  # before, groups needed no asking
    more = {"enable_gqa": True} if asks else {}

    def attend(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Tensor:
        out_nhe = function(
            pack(q_bhnd), pack(k_bcmd), pack(v_bcme), *edges, *longest, scale=problem.scale,
            window_size=mask.window, **more,
        )  # fmt: skip
        return unpack(out_nhe, problem)

    return attend


def _check_kernel() -> None:
    ask: Any = getattr(torch.nn.attention, "current_flash_attention_impl", None)
    active = ask() if ask else None
    need(
        active is None,
        f"torch.varlen measures torch's own kernel, and {active} is active in this process",
    )
