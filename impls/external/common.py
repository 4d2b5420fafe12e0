"""Shared by the adapters: finding the library, reading the mask, laying tensors out.

Legend in :mod:`impls.heads`; t tokens of packed documents (t = n), and h and c stand for b h and
b c where heads of all batch elements lie side by side.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from impls.masks import alibi_slopes
from impls.problem import Problem
from impls.score_mask import blind_rows, closed_log_sums
from impls.spec import Unavailable, Unsupported

KERNELS = "pip install 'kernels>=0.17'"


def load(module: str, variant: str, remedy: str) -> Any:
    """The library's module; raises Unavailable, with how to get it, where it can't be imported.

    Some draw from Python's random numbers while they are imported; the numbers are put back.
    """
    dice = random.getstate()
    try:
        return importlib.import_module(module)
    except (ImportError, OSError, RuntimeError) as error:  # built for another torch or CUDA
        reason = f"{variant} needs the module {module}, which can't be imported: {error}"
        raise Unavailable(reason, remedy) from None
    finally:
        random.setstate(dice)


def cached_kernel(repository: str, version: int, variant: str) -> Any:
    """A kernel of the hub from this machine's cache: a measurement downloads nothing."""
    get = f"kernels.get_kernel('{repository}', version={version})"
    kernels = load("kernels", variant, KERNELS)
    hub = load("huggingface_hub.constants", variant, KERNELS)
    online, hub.HF_HUB_OFFLINE = hub.HF_HUB_OFFLINE, True
    try:
        return kernels.get_kernel(repository, version=version)
    except Exception as error:  # what the package raises differs from version to version
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise Unavailable(
            f"{variant} reads {repository}, version {version}, from the hub's cache, and can't: "
            f"{lines[0]}",
            f'where there is a network: python -c "import kernels; {get}", and bring the cache',
        ) from None
    finally:
        hub.HF_HUB_OFFLINE = online


def find(module: Any, name: str, variant: str, remedy: str) -> Any:
    """A function of the library; raises Unavailable where an old version lacks it."""
    if not hasattr(module, name):
        version = getattr(module, "__version__", "installed here")
        reason = f"{variant} needs {module.__name__}.{name}; the version {version} has none"
        raise Unavailable(reason, remedy)
    return getattr(module, name)


def capability(problem: Problem) -> tuple[int, int] | None:
    """The compute capability of the problem's GPU; None where there is none to ask."""
    if not problem.device.startswith("cuda") or not torch.cuda.is_available():
        return None
    return torch.cuda.get_device_capability(problem.device)


class Pattern(NamedTuple):
    """A mask in the words of fused kernels. ``left`` and ``right`` are -1 where all is seen."""

    causal: bool
    left: int
    right: int
    documents: tuple[int, ...]
    alibi: bool

    @property
    def window(self) -> tuple[int, int]:
        """Keys to the left and to the right, the position itself besides."""
        return self.left, self.right

    @property
    def local(self) -> bool:
        """True where a window was asked for."""
        return self.left >= 0 or (self.right >= 0 and not self.causal)


def pattern(problem: Problem, variant: str) -> Pattern:
    """The problem's mask, with the lower-right alignment these kernels have; raises Unsupported for
    one with another.
    """
    mask = problem.mask
    if mask.upper_left and problem.q_len != problem.kv_len and not mask.plain:
        raise Unsupported(
            f"{variant} puts the last query at the last key, so it can't take the mask {mask} "
            f"for {problem.q_len} queries and {problem.kv_len} keys"
        )
    numbers = {part.kind: part.numbers for part in mask.parts}
    causal = "causal" in numbers
    left, right = numbers.get("window", (-1, -1))
    return Pattern(
        causal, left, 0 if causal else right, numbers.get("document", ()), "alibi" in numbers
    )


def need_capability(problem: Problem, variant: str, *majors: int) -> None:
    """Raise Unavailable for a GPU whose compute capability is none of these."""
    version = capability(problem)
    if version is not None and version[0] not in majors:
        runs = " or ".join(f"{major}.x" for major in majors)
        reason = f"{variant} runs on compute capability {runs}, not on {version[0]}.{version[1]}"
        raise Unavailable(reason, "run it on a Hopper GPU (H100, H200)")


def need(holds: bool, sentence: str) -> None:
    """Raise Unsupported, with the sentence, for what the library does not take."""
    if not holds:
        raise Unsupported(sentence)


def need_multiple(problem: Problem, variant: str, of: int = 8) -> None:
    """Raise Unsupported unless both widths are multiples: kernels load 16 bytes at a time."""
    widths = (problem.head_dim, problem.v_head_dim)
    need(
        all(width % of == 0 for width in widths),
        f"{variant} takes a head_dim and a v_head_dim that are multiples of {of}, "
        f"not {widths[0]} and {widths[1]}",
    )


def swap(x_bhnd: Tensor) -> Tensor:
    """[b, h, n, d] as [b, n, h, d], or back: a view."""
    return x_bhnd.transpose(1, 2)


def pack(x_bhnd: Tensor) -> Tensor:
    """All tokens of one sequence by the heads of every batch element: [n, b h, d], a view.

    Every batch element has the same documents, so batch elements can stand as more heads; laid
    end to end as more tokens they would have to be copied.
    """
    return x_bhnd.flatten(0, 1).transpose(0, 1)


def unpack(out_nhe: Tensor, problem: Problem) -> Tensor:
    """Back from :func:`pack`: [b, h, n, e], a view."""
    return out_nhe.transpose(0, 1).unflatten(0, (problem.batch, problem.heads))


Back = Callable[[Tensor], Tensor]


def closing(problem: Problem, variant: str, back: Back) -> Callable[[Any], Any]:
    """What makes ``attend``'s results of a library's: its output, or a tuple that begins with that
    and the log-sum-exp, natural and [b, h, n] or, of packed tokens, [b h, n].

    ``back`` lays the output out. Raises Unsupported where a gradient is asked of the log-sum-exp,
    which these libraries have not.
    """
    if not problem.lse:
        return lambda result: back(result[0] if isinstance(result, tuple) else result)
    need(
        not problem.gradients,
        f"{variant} gives no gradient through its log-sum-exp; forward and decode have it",
    )
    blind = blind_rows(problem)  # for which a library may give anything

    def close(result: tuple[Tensor, ...]) -> Any:
        log_sums = result[1].view(problem.batch, problem.heads, problem.q_len)
        return back(result[0]), closed_log_sums(log_sums, None, blind)

    return close


def offsets(lengths: tuple[int, ...], device: str) -> Tensor:
    """The start of each sequence, and the end: int32 [sequences + 1]."""
    edges = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return torch.from_numpy(edges).to(device)


def flash_call(
    problem: Problem, variant: str, mask: Pattern, function: Callable[..., Any], **more: Any
) -> Callable[..., Any]:
    """``attend`` by a function of flash-attn's form; where the mask has documents, by its form for
    packed tokens.
    """
    lay, back = swap, swap
    if mask.documents:
        edges, longest = offsets(mask.documents, problem.device), max(mask.documents)
        lay, back = pack, partial(unpack, problem=problem)
        more |= {"cu_seqlens_q": edges, "cu_seqlens_k": edges}
        more |= {"max_seqlen_q": longest, "max_seqlen_k": longest}
    more = {"softmax_scale": problem.scale, "window_size": mask.window, **more}
    close = closing(problem, variant, back)

    def attend(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Any:
        return close(function(lay(q_bhnd), lay(k_bcmd), lay(v_bcme), causal=mask.causal, **more))

    return attend


def slopes(problem: Problem, copies: int = 1) -> Tensor:
    """The slopes of ALiBi, float32 [h], or [b h] where heads lie side by side."""
    per_head = torch.from_numpy(alibi_slopes(problem.heads)).float()
    return per_head.repeat(copies).to(problem.device)
