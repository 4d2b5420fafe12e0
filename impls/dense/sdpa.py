"""torch's scaled_dot_product_attention: its own choice, and each of its backends forced.

    softmax( q k^T d^-1/2 + mask ) v, in one call

A backend is forced by calling its own operator with what scaled_dot_product_attention would hand
it, since the flags by which torch chooses (``sdpa_kernel``) are the whole process's, and other
threads would compute under them. A forced backend that can't take the call raises; nothing falls
back. What ran is attested by the operators in the record. torch's ``is_causal`` is upper-left, so a
lower-right causal mask over unequal lengths is passed as a mask. A sink is one more key.

Cost: 4 n m d FLOPs a head forward; the fused backends hold no matrix of scores.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.backends import cuda

from impls.heads import Attend
from impls.problem import Problem
from impls.score_mask import blind_rows, closed_log_sums, sdpa_arguments
from impls.spec import Unsupported

WIDE = 8
"""The flash kernel on CUDA takes heads whose width is a multiple of this."""
ALIGNED = 16
"""The efficient kernel takes masks whose rows begin at multiples of this."""


def build(problem: Problem, dropout: float = 0.0) -> Attend:
    """torch chooses."""
    arguments = sdpa_arguments(problem)
    if dropout:
        arguments["dropout_p"] = dropout
    if problem.group > 1:
        arguments["enable_gqa"] = True
    if problem.sinks:
        return _beside_sinks(problem, arguments)

    def attend(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q_bhnd, k_bcmd, v_bcme, **arguments)

    return attend


def _beside_sinks(problem: Problem, arguments: dict[str, Any]) -> Attend:
    """A sink as the score of one more key of zeros, by the mask; its value is zeros too."""
    visible = torch.from_numpy(problem.mask.visible(problem.shape))
    added = problem.mask.bias(problem.shape)
    bias = torch.zeros(()) if added is None else torch.from_numpy(added)
    bias = torch.where(visible, bias, -torch.inf).to(problem.device, getattr(torch, problem.dtype))
    bias_bhnm = bias.expand(-1, problem.heads, -1, -1)
    arguments = {k: x for k, x in arguments.items() if k not in ("is_causal", "attn_mask")}

    def attend(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, sinks: Tensor) -> Tensor:
        column = sinks[:, None, None].expand(*bias_bhnm.shape[:3], 1)
        mask = torch.cat([bias_bhnm, column], -1)
        k, v = (F.pad(x, (0, 0, 0, 1)) for x in (k_bcmd, v_bcme))
        return F.scaled_dot_product_attention(q_bhnd, k, v, mask, **arguments)

    return attend


def build_math(problem: Problem, dropout: float = 0.0) -> Attend:
    """Products, softmax and product, one after the other."""
    mask, grouped = _Mask(problem), problem.group > 1

    def attend(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Tensor:
        return torch._scaled_dot_product_attention_math(
            q_bhnd, k_bcmd, v_bcme, mask.added(), dropout, mask.causal, scale=mask.scale,
            enable_gqa=grouped,
        )[0]  # fmt: skip

    return attend


def build_flash(problem: Problem) -> Attend:
    """FlashAttention: on the CPU torch's own kernel, which takes a mask; on CUDA Dao's."""
    if problem.lse and problem.gradients:
        raise Unsupported(
            "torch gives no gradient through the log-sum-exp of its FLASH_ATTENTION; forward and "
            "decode have it"
        )
    if problem.device != "cpu":
        return _flash_on_cuda(problem)
    mask, blind = _Mask(problem), blind_rows(problem) if problem.lse else None

    def attend(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Any:
        if not q_bhnd.stride(-1) == k_bcmd.stride(-1) == v_bcme.stride(-1) == 1:
            raise Unsupported(
                f"torch's FLASH_ATTENTION has no kernel for {problem} where the numbers of a "
                "token don't lie next to each other; call .contiguous() on q, k and v"
            )
        out, lse = torch._scaled_dot_product_flash_attention_for_cpu(
            q_bhnd, k_bcmd, v_bcme, 0.0, mask.causal, attn_mask=mask.added(), scale=mask.scale
        )
        return (out, closed_log_sums(lse, None, blind)) if problem.lse else out

    return attend


def _flash_on_cuda(problem: Problem) -> Attend:
    mask, scale = _Mask(problem), problem.scale
    backend = _BackendCheck(
        problem, "FLASH_ATTENTION", cuda.can_use_flash_attention, cuda.flash_sdp_enabled, mask
    )

    def attend(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Any:
        backend.check(q_bhnd, k_bcmd, v_bcme)
        more = -q_bhnd.shape[-1] % WIDE
        q, k, v = (F.pad(x, (0, more)) if more else x for x in (q_bhnd, k_bcmd, v_bcme))
        own = torch._scaled_dot_product_flash_attention(q, k, v, 0.0, mask.causal, scale=scale)
        out = own[0][..., : v_bcme.shape[-1]] if more else own[0]
        return (out, own[1]) if problem.lse else out

    return attend


def build_efficient(problem: Problem) -> Attend:
    """Memory-efficient attention, from xFormers."""
    mask = _Mask(problem)
    backend = _BackendCheck(
        problem, "EFFICIENT_ATTENTION", cuda.can_use_efficient_attention,
        cuda.mem_efficient_sdp_enabled, mask,
    )  # fmt: skip

    def attend(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Tensor:
        backend.check(q_bhnd, k_bcmd, v_bcme)
        added, keys = mask.added(), problem.kv_len
        if added is not None:
            if more := -keys % ALIGNED:
                added = F.pad(added, (0, more))[..., :keys]
            added = added.expand(problem.batch, problem.heads, problem.q_len, keys)
        return torch._scaled_dot_product_efficient_attention(
            q_bhnd, k_bcmd, v_bcme, added, _trained(q_bhnd, k_bcmd, v_bcme), 0.0, mask.causal,
            scale=mask.scale,
        )[0]  # fmt: skip

    return attend


def build_cudnn(problem: Problem) -> Attend:
    """cuDNN's attention."""
    mask = _Mask(problem)
    backend = _BackendCheck(
        problem, "CUDNN_ATTENTION", cuda.can_use_cudnn_attention, cuda.cudnn_sdp_enabled, mask
    )

    def attend(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Tensor:
        backend.check(q_bhnd, k_bcmd, v_bcme)
        return torch._scaled_dot_product_cudnn_attention(
            q_bhnd, k_bcmd, v_bcme, mask.added(), _trained(q_bhnd, k_bcmd, v_bcme), 0.0,
            mask.causal, scale=mask.scale,
        )[0]  # fmt: skip

    return attend


class _Mask:
    """The problem's mask as the operators take it."""

    def __init__(self, problem: Problem) -> None:
        arguments = sdpa_arguments(problem)
        self.causal = bool(arguments.get("is_causal"))
        self.mask: Tensor | None = arguments.get("attn_mask")
        self.scale: float | None = arguments.get("scale")
        dtype = getattr(torch, problem.dtype)
        self._zero = torch.zeros((), dtype=dtype, device=problem.device)

    def added(self) -> Tensor | None:
        """The bias of the scores; booleans become numbers at each call, as in torch."""
        if self.mask is None or self.mask.dtype != torch.bool:
            return self.mask
        return torch.where(self.mask.logical_not(), -torch.inf, self._zero)


class _BackendCheck:
    """torch's check before it hands a call to a backend on CUDA, made once for each layout.

    The answer counts the backend's flag in, which another thread may switch off at any time.
    """

    def __init__(
        self, problem: Problem, name: str, can_use: Callable[..., bool],
        enabled: Callable[[], bool], mask: _Mask,
    ) -> None:  # fmt: skip
        self._problem, self._name, self._mask = problem, name, mask
        self._can_use, self._enabled = can_use, enabled
        self._checked: set[tuple[tuple[int, ...], ...]] = set()

    def check(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        """Raise :class:`Unsupported` where the backend doesn't take the call."""
        layout = (q.stride(), k.stride(), v.stride())
        if layout in self._checked:
            return
        mask, grouped = self._mask, self._problem.group > 1
        parameters = cuda.SDPAParams(q, k, v, mask.mask, 0.0, mask.causal, grouped)
        if not self._can_use(parameters):
            if not self._enabled():
                raise Unsupported(
                    f"torch's {self._name} is switched off in this process, by torch.backends.cuda "
                    "or by sdpa_kernel in another thread: switch it on"
                )
            raise Unsupported(f"torch's {self._name} has no kernel for {self._problem}")
        self._checked.add(layout)


def _trained(*inputs: Tensor) -> bool:
    """True if backward will need the log-sums."""
    return torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
