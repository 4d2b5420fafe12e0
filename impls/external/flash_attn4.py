"""FlashAttention-4: the kernels written in CuTe DSL, compiled at first use.

    softmax( q k^T d^-1/2 + mask ) v      q, k, v in the layout [b, n, h, d]

Calls ``flash_attn.cute.flash_attn_func``; for documents ``flash_attn_varlen_func``. Aligned
lower-right; a side of a window that is open is None, not -1; grouped heads native; no ALiBi. On
Hopper head_dim and v_head_dim are multiples of 8 from 8 to 256, each its own; on Blackwell at
most 128, or 192 with 128, or 256 with 256. Keys are not split in decoding: Hopper has no kernel for
that.

Cost: 4 n m d FLOPs a head forward on the pairs that the mask lets meet; memory linear in n.
"""

from impls.external.common import capability, flash_call, load, need, need_multiple, pattern
from impls.heads import Attend
from impls.problem import Problem
from impls.spec import Unavailable

REMEDY = "pip install 'flash-attn-4>=4.0.0b36' (with CUDA 13: 'flash-attn-4[cu13]>=4.0.0b36')"


def build(problem: Problem) -> Attend:
    """The call that fits the mask."""
    _check_device(problem)
    library = load("flash_attn.cute", "flash_attn4", REMEDY)
    need_multiple(problem, "flash_attn4")
    mask = pattern(problem, "flash_attn4")
    window = tuple(None if side < 0 else side for side in mask.window)
    function = library.flash_attn_varlen_func if mask.documents else library.flash_attn_func
    more = {"window_size": window, "return_lse": bool(problem.lse)}
    return flash_call(problem, "flash_attn4", mask, function, **more)


def _check_device(problem: Problem) -> None:
    version = capability(problem) or (9, 0)
    if version[0] not in (9, 10, 11):
        reason = f"flash_attn4 has no forward and backward for capability {version[0]}.{version[1]}"
        raise Unavailable(reason, "run it on a Hopper or Blackwell GPU (H100, H200, B200)")
    d, e = problem.head_dim, problem.v_head_dim
    wide = {(192, 128), (256, 256)}
    need(
        max(d, e) <= (256 if version[0] == 9 else 128) or (version[0] > 9 and (d, e) in wide),
        f"flash_attn4 takes widths up to 256 on Hopper, on Blackwell up to 128, 192 with 128 or "
        f"256 with 256, not head_dim {d} with v_head_dim {e}",
    )
