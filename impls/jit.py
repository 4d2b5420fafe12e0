"""Shared by the variants in Triton: whether it can run here, and the mask as a band.

Triton is imported by the modules of kernels, and those by :func:`kernels` when a variant is built.
Its interpreter, TRITON_INTERPRET=1, runs the same kernels with NumPy on the CPU, so that they can
be tested where there is no GPU. What it takes is no time of the variant's: the rows run on cuda
alone, and there nothing is built while the interpreter is on.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from impls.problem import Problem
from impls.spec import Unavailable, Unsupported

REMEDY = "pip install 'attnbench[triton]'"
SWITCH = "TRITON_INTERPRET"
HOPPER = 90
PROCESSORS = 4
"""Processors of a device that has no count of its own, as under the interpreter."""
WIDE = 8
"""Numbers of two bytes that a thread loads at once."""
Launcher = TypeVar("Launcher", bound=Callable[..., Any])


def kernels(module: str, variant: str, problem: Problem) -> ModuleType:
    """The variant's kernels; raises Unavailable, with what to do, where they can't run."""
    interpreted = os.environ.get(SWITCH) == "1"
    if problem.device == "cpu" and not interpreted:
        raise Unavailable(
            f"{variant} is compiled for a GPU, and the device is cpu",
            f"run it on cuda; {SWITCH}=1, set before Python starts, interprets it on a CPU, "
            "for tests and not for timing",
        )
    if problem.device != "cpu" and interpreted:
        raise Unavailable(
            f"{variant} would be interpreted on the CPU, since {SWITCH}=1 is set", f"unset {SWITCH}"
        )
    try:
        return importlib.import_module(module)
    except ImportError as error:
        reason = f"{variant} needs the module triton, which can't be imported: {error}"
        raise Unavailable(reason, REMEDY) from None


def fitting(variant: str) -> Callable[[Launcher], Launcher]:
    """Around what launches kernels: blocks that a GPU has no room for are no failure, but
    :class:`Unsupported` there.
    """

    def around(launch: Launcher) -> Launcher:
        @functools.wraps(launch)
        def launched(*arguments: Any, **more: Any) -> Any:
            try:
                return launch(*arguments, **more)
            except Exception as error:
                if type(error).__name__ != "OutOfResources":  # triton's, which is not imported here
                    raise
                raise Unsupported(
                    f"{variant} was given blocks that this GPU has no room for: "
                    f"{str(error).partition(' Reducing')[0]}"
                ) from None

        return launched  # type: ignore[return-value]

    return around


def capability(device: str) -> int:
    """Compute capability, as 90 for 9.0; Hopper's under the interpreter."""
    if not device.startswith("cuda"):
        return HOPPER
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


class Band(NamedTuple):
    """Query i sees the keys i + shift - left to i + shift + right; -1 where there is no end."""

    shift: int
    left: int
    right: int


def band(problem: Problem) -> Band:
    """The masks none, causal and window, and what several of them leave."""
    beyond = problem.q_len + problem.kv_len  # further than any key is from any query
    ends = {"left": beyond, "right": beyond}
    for part in problem.mask.parts:
        if part.kind == "window":
            ends["left"] = min(ends["left"], part.numbers[0])
        if part.kind in ("causal", "window"):
            ends["right"] = min(ends["right"], part.numbers[1] if part.numbers else 0)
    left, right = (-1 if end == beyond else end for end in ends.values())
    shift = 0 if problem.mask.upper_left else problem.kv_len - problem.q_len
    return Band(shift, left, right)


def rows_of(x_bhnd: Tensor) -> Tensor:
    """The same as kernels load it: a token's numbers next to each other, and where they are a
    multiple of eight, tokens at multiples of eight, so that a load can be wide.
    """
    *between, within = x_bhnd.stride()
    wide = x_bhnd.shape[-1] % WIDE or not any(step % WIDE for step in between)
    return x_bhnd if within == 1 and wide else x_bhnd.contiguous()


def described(x_bhnd: Tensor, block: int, width: int) -> Any:
    """A host descriptor of blocks of a head's tokens, as the tensor memory accelerator takes it;
    None where the tensor lies as none can say: steps that are no multiples of 16 bytes.
    """
    from triton.tools.tensor_descriptor import TensorDescriptor

    size = x_bhnd.element_size()
    across = [
        step if count > 1 else WIDE
        for count, step in zip(x_bhnd.shape, x_bhnd.stride(), strict=True)
    ]
    odd = any(step <= 0 or step * size % 16 for step in across[:3])
    if odd or x_bhnd.stride(-1) != 1 or x_bhnd.data_ptr() % 16:
        return None
    return TensorDescriptor(x_bhnd, list(x_bhnd.shape), [*across[:3], 1], [1, 1, block, width])


def steps(x_bhnd: Tensor) -> tuple[int, int, int]:
    """From one batch element, head and token to the next, in numbers."""
    batch, head, token, _ = x_bhnd.stride()
    return batch, head, token


def power(count: int, least: int = 16) -> int:
    """The next power of two: what a block's sides must be, and 16 at the least in a product."""
    return max(least, 1 << (count - 1).bit_length())


def precision(dtype: torch.dtype) -> str:
    """The precision of products: float32 keeps its 24 bits, which tensor cores would cut to 11."""
    return "ieee" if dtype == torch.float32 else "tf32"


def processors(device: str) -> int:
    """Programs that run side by side, at the least."""
    if not device.startswith("cuda"):
        return PROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
