"""torch's scaled_dot_product_attention: its own choice, and each of its backends forced.

    softmax( q k^T d^-1/2 + mask ) v, in one call

A forced backend that can't take the call raises; nothing falls back. What ran is attested by the
kernels in the record. torch's ``is_causal`` is upper-left, so a lower-right causal mask over
unequal lengths is passed as a mask.

Cost: 4 n m d FLOPs a head forward; the fused backends hold no matrix of scores.
"""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from impls.heads import Attend
from impls.problem import Problem
from impls.score_mask import sdpa_arguments
from impls.spec import Unsupported


def build(problem: Problem) -> Attend:
    """torch chooses."""
    arguments = sdpa_arguments(problem)
    if problem.group > 1:
        arguments["enable_gqa"] = True

    def attend(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q_bhnd, k_bcmd, v_bcme, **arguments)

    return attend


def _forced(backend: SDPBackend) -> Callable[[Problem], Attend]:
    def build_forced(problem: Problem) -> Attend:
        call = build(problem)

        def attend(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Tensor:
            try:
                with sdpa_kernel(backend):
                    return call(q_bhnd, k_bcmd, v_bcme)
            except RuntimeError as error:
                if "No available kernel" in str(error) or "No viable backend" in str(error):
                    raise Unsupported(
                        f"torch's {backend.name} has no kernel for {problem}"
                    ) from None
                raise

        return attend

    return build_forced


build_math = _forced(SDPBackend.MATH)
build_flash = _forced(SDPBackend.FLASH_ATTENTION)
build_efficient = _forced(SDPBackend.EFFICIENT_ATTENTION)
build_cudnn = _forced(SDPBackend.CUDNN_ATTENTION)
