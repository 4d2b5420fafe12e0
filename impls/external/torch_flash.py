"""torch's scaled_dot_product_attention with FlashAttention-3 or -4 put in place of its own kernel.

    softmax( q k^T d^-1/2 + mask ) v, in one call of torch's flash operator

``torch.nn.attention.activate_flash_attention_impl`` swaps the kernel under the FLASH_ATTENTION
backend, whose operator is called. The swap is the whole process's: other flash attention runs it
too. It is made once and undone when the variant is dropped, since backward goes through the same
table; each call checks that it still stands. Masks: none, and causal over equal lengths, as the
flash backend takes nothing else. FA3 needs compute capability 9.0; FA4 needs 9.0 or 10.0.

arXiv:2407.08608 (FA3). Cost: 4 n m d FLOPs a head forward; memory linear in n.
"""

import weakref
from collections import Counter
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from impls.external import BUILD_FA3
from impls.external.common import closing, find, load, need, need_capability
from impls.heads import Attend
from impls.problem import Problem
from impls.spec import Unsupported

TORCH = "pip install 'torch>=2.13'"
FA3 = f"build flash-attn-3: {BUILD_FA3}"
FA4 = "pip install 'flash-attn-4>=4.0.0b36'"
WIDE = 8
MAJORS = {"FA3": (9,), "FA4": (9, 10)}


class Swapped:
    """``attend`` with another kernel active until the last of its kind is dropped."""

    standing: ClassVar[Counter[str]] = Counter()
    """The number of live users of each kernel."""

    def __init__(self, problem: Problem, kernel: str, variant: str) -> None:
        self.problem, self.kernel = problem, kernel
        self._close = closing(problem, variant, lambda out: out[..., : problem.v_head_dim])
        self.registry: Any = torch.nn.attention
        activate = find(self.registry, "activate_flash_attention_impl", variant, TORCH)
        if self.registry.current_flash_attention_impl() != kernel:
            activate(kernel)
        self.standing[kernel] += 1
        self._dropped = weakref.finalize(self, _drop, self.registry, kernel)

    def __call__(self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Any:
        """The forced backend, and nothing else."""
        active = self.registry.current_flash_attention_impl()
        if active != self.kernel:
            raise RuntimeError(f"{self.kernel} was activated, and {active} is active now")
        try:
            return self._flash(q_bhnd, k_bcmd, v_bcme)
        except RuntimeError as error:
            if "unsupported" in str(error):
                reason = str(error).splitlines()[0]
                raise Unsupported(f"{self.kernel} under torch refuses: {reason}") from None
            raise

    def _flash(self, *qkv: Tensor) -> Any:
        """As scaled_dot_product_attention calls it: heads are padded to a width of whole eights."""
        more = -self.problem.head_dim % WIDE
        q, k, v = (F.pad(x, (0, more)) if more else x for x in qkv)
        causal, scale = "causal" in self.problem.mask.kinds, self.problem.scale
        return self._close(
            torch._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, scale=scale)
        )

    def note(self) -> str:
        """The backend."""
        return f"{self.kernel} under torch's FLASH_ATTENTION"


def _drop(registry: Any, kernel: str) -> None:
    """Put torch's own kernel back where this was the last that replaced it."""
    Swapped.standing[kernel] -= 1
    if not Swapped.standing[kernel] and registry.current_flash_attention_impl() == kernel:
        registry.restore_flash_attention_impl()


def _build(problem: Problem, kernel: str, variant: str, module: str, remedy: str) -> Attend:
    need_capability(problem, variant, *MAJORS[kernel])
    load(module, variant, remedy)
    mask = problem.mask
    need(
        mask.plain or mask.is_causal(problem.shape),
        f"{variant} takes no mask, or causal over equal lengths: the flash backend aligns causal "
        f"upper-left, and {mask} for {problem.q_len} queries and {problem.kv_len} keys is not that",
    )
    return Swapped(problem, kernel, variant)


def build_fa3(problem: Problem) -> Attend:
    """FlashAttention-3."""
    return _build(problem, "FA3", "torch.fa3", "flash_attn_interface", FA3)


def build_fa4(problem: Problem) -> Attend:
    """FlashAttention-4."""
    return _build(problem, "FA4", "torch.fa4", "flash_attn.cute.interface", FA4)
