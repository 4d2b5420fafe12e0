"""What a variant left changed in its process: functions, settings, threads, files."""

from __future__ import annotations

import builtins
import gc
import json
import math
import os
import random
import re
import signal
import statistics
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from operator import is_
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import torch.profiler
from numpy.random import mtrand
from torch.utils._device import DeviceContext

from attnbench.gate.findings import Wrong

OTHERS = (
    builtins, gc, json, math, os, random, statistics, sys, threading, time, tracemalloc, np,
    np.linalg, np.random, torch, torch.autograd, torch.cuda, torch.linalg, F, torch.profiler,
    torch.random, torch.special,
)  # fmt: skip
"""Modules whose functions the ruler and the variants call; only what is public counts."""
CLASSES = {
    "torch.Tensor": torch.Tensor,
    "torch.Tensor's base": torch._C.TensorBase,
    "pathlib.Path": Path,
    "threading.Thread": threading.Thread,
}
OWN = ("attnbench", "impls")
"""Packages in which everything counts."""
TABLES = "attnbench."
"""The package whose modules' lists and dicts are numbers of the ruler."""
FOLLOWS = {"torch.Storage"}
"""Names whose value changes with a setting, which is reported already."""
BY_COMPILER = torch._disable_dynamo(torch.is_tensor).__code__
"""The code of what torch wraps its own functions in when its compiler is first loaded."""
_GONE = object()
_EVERY, _PAIRED = all, map
"""Python's own, whatever a variant puts behind their names."""


def names_now() -> dict[str, Any]:
    """The values of all names that count, the insides of our functions, and our tables."""
    own = [m for name, m in list(sys.modules.items()) if m is not None and _is_own(name)]
    modules = {m.__name__: m for m in (*OTHERS, *own)}
    spaces: dict[str, Mapping[str, Any]] = {name: vars(m) for name, m in modules.items()}
    for module in own:
        spaces |= {
            f"{module.__name__}.{name}": vars(value)
            for name, value in list(vars(module).items())
            if isinstance(value, type) and value.__module__ == module.__name__
        }
    spaces |= {where: vars(cls) for where, cls in CLASSES.items()}
    functions: dict[FunctionType, None] = {}  # each once, however many names it has
    tables = []
    for where, names in spaces.items():
        if _is_own(where) or where == F.__name__:
            for value in names.values():
                part = {property: "fget", classmethod: "__func__", staticmethod: "__func__"}
                inner = getattr(value, part[type(value)]) if type(value) in part else value
                if type(inner) is FunctionType:
                    functions[inner] = None
        if where.startswith(TABLES):
            tables += [
                (f"{where}.{name}", value, value.copy())
                for name, value in names.items()
                if type(value) in (dict, list, set) and name.isupper()
            ]
    return {
        "names": [(where, live, dict(live)) for where, live in spaces.items()],
        "modules": modules,
        "insides": [(f, _inside(f)) for f in functions],
        "tables": tables,
        "loaded": len(sys.modules),
    }


def _is_own(where: str) -> bool:
    return where.partition(".")[0] in OWN


def _inside(function: FunctionType) -> tuple[Any, ...]:
    return function.__code__, function.__defaults__, function.__kwdefaults__


def replaced(before: Mapping[str, Any]) -> Iterator[str]:
    """The names that have another value, and the functions that have other code."""
    for name, module in before["modules"].items():
        if sys.modules.get(name) is not module:
            yield name
    for where, live, was in before["names"]:
        if live.keys() == was.keys() and _EVERY(_PAIRED(is_, live.values(), was.values())):
            continue
        own, get = _is_own(where), live.get
        for name, value in was.items():
            now = get(name, _GONE)
            if now is not value and _counts(name, value, own) and not _by_compiler(now, value):
                yield from {f"{where}.{name}"} - FOLLOWS
        new = [name for name in live if name not in was] if len(live) != len(was) else []
        yield from (f"{where}.{name}" for name in new if _hides(where, name))
    for f, was_inside in before["insides"]:
        if not _EVERY(_PAIRED(is_, _inside(f), was_inside)):
            yield f"the inside of {f.__module__}.{f.__qualname__}"


def _counts(name: str, value: object, own: bool) -> bool:
    if name.startswith("__"):  # torch's compiler keeps names with two strokes, and takes them away
        return name.endswith("__") and isinstance(value, FunctionType)
    return own or (callable(value) and not name.startswith("_"))


def _hides(where: str, name: str) -> bool:
    """Whether a new name hides one that was found without it."""
    if where == "torch.Tensor":
        return hasattr(torch._C.TensorBase, name)
    return _is_own(where) and hasattr(builtins, name) and not name.startswith("__")


def _by_compiler(now: object, was: object) -> bool:
    inside = getattr(now, "__code__", None)
    return inside is BY_COMPILER and getattr(now, "__wrapped__", None) is was


KERNELS = re.compile(r"^(?:CPU|CUDA|Autograd\S*|Composite\S*|catchall): .*$", re.MULTILINE)
OPERATORS = tuple(
    f"aten::{name}"
    for name in (
        "abs", "add.Tensor", "all", "amax", "any", "baddbmm", "bernoulli_.float", "bmm", "clone",
        "convolution", "copy_", "div.Tensor", "eq.Tensor", "equal", "exp", "index_select",
        "isfinite", "linear", "linalg_vector_norm", "logsumexp", "masked_fill.Scalar", "matmul",
        "max", "maximum", "mm", "mul.Scalar", "mul.Tensor", "native_layer_norm", "ne.Tensor",
        "roll", "scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_backward",
        "_flash_attention_forward", "_flash_attention_backward",
        "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
        "_softmax", "_softmax_backward_data", "square", "sub.Tensor", "sum", "sum.dim_IntList",
        "_to_copy", "where.self", "zero_",
    )
)  # fmt: skip
"""What variants and the ruler are made of: no variant may replace torch's kernels for these."""
KERNELS_OF = "torch's kernels"
TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
TINY = 1e-40
"""A number that is zero where such numbers are."""
LONG = 120
"""Characters beyond which a setting's old and new value are left out."""


def settings_now() -> dict[str, Any]:
    """Settings, by the words that report a change."""
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
        "what sdpa may use": [
            getattr(cuda, f"{kind}_sdp_enabled")()
            for kind in ("flash", "math", "mem_efficient", "cudnn")
        ],
        "oneDNN": torch.backends.mkldnn.enabled,
        "tiny numbers": float(torch.tensor(TINY, device="cpu", dtype=torch.float32) * 1.0) > 0.0,
        "its priority": os.getpriority(os.PRIO_PROCESS, 0),
        "its processors": sorted(os.sched_getaffinity(0)),
        "its timers": [signal.getitimer(timer)[0] > 0 for timer in TIMERS],
        KERNELS_OF: {name: _kernels(torch._C._dispatch_dump(name)) for name in OPERATORS},
        "tracing": (sys.gettrace() is not None, sys.getprofile() is not None),
        "thread switching": sys.getswitchinterval(),
        "current GPU and stream": (
            (torch.cuda.current_device(), torch.cuda.current_stream().cuda_stream)
            if torch.cuda.is_initialized()
            else (0, 0)
        ),
    }


@lru_cache(maxsize=4 * len(OPERATORS))
def _kernels(dump: str) -> tuple[str, ...]:
    return tuple(KERNELS.findall(dump))


def _modes() -> int:
    """How many modes are active; the default device's own doesn't count."""
    core = torch._C
    functions = map(core._get_function_stack_at, range(core._len_torch_function_stack()))
    plain = sum(isinstance(mode, DeviceContext) for mode in functions)
    return core._len_torch_function_stack() - plain + core._len_torch_dispatch_stack()


def random_states() -> dict[str, Any]:
    """States of the global random generators."""
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


def snapshot() -> dict[str, Any]:
    """All that is watched, as it is now."""
    return {
        "settings": settings_now(),
        "random": random_states(),
        "copies": _copies_of_this_process(),
        **names_now(),
    }


def allowing(before: dict[str, Any], swaps: Iterable[str]) -> dict[str, Any]:
    """The snapshot with the kernels of some operators as they are now, and all else as it was.

    For the operators that a row declares to replace, once it is built. Whether it puts torch's own
    kernels back is checked against the earlier snapshot.
    """
    kernels, now = before["settings"][KERNELS_OF], settings_now()[KERNELS_OF]
    kernels = {**kernels, **{name: now[name] for name in swaps if name in now}}
    return {**before, "settings": {**before["settings"], KERNELS_OF: kernels}}


def still(before: dict[str, Any]) -> dict[str, Any] | None:
    """A snapshot that was just found unchanged; None where there are new names or modules."""
    grown = len(sys.modules) != before["loaded"]
    grown = grown or any(len(live) != len(was) for _, live, was in before["names"])
    return None if grown else before


def _deeds(before: Mapping[str, Any]) -> dict[str, list[str]]:
    """What has changed, by the words that say of a variant that it did it."""
    now, states = settings_now(), random_states()
    shared = []
    for name, was in before["settings"].items():
        if now[name] != was:
            both = f"{name} ({was} → {now[name]})"
            shared.append(both if len(both) < len(name) + LONG else name)
    shared += [name for name, was in before["random"].items() if states.get(name) != was]
    shared += [where for where, table, was in before["tables"] if table != was]
    copies = [str(pid) for pid in _copies_of_this_process() if pid not in before["copies"]]
    return {
        "it replaced": list(replaced(before)),
        "it left changed what other variants share:": shared,
        "it left a copy of its process running:": copies,
    }


def changes(before: Mapping[str, Any]) -> list[str]:
    """What has changed, each in a few words."""
    names, shared, copies = _deeds(before).values()
    return [*shared, *(f"a copy of its process left running ({pid})" for pid in copies), *names]


def said(before: Mapping[str, Any]) -> str | None:
    """The same as a sentence; None where nothing has changed."""
    parts = _deeds(before).items()
    return "; ".join(f"{deed} {', '.join(what)}" for deed, what in parts if what) or None


def check(before: Mapping[str, Any]) -> None:
    """Raise :class:`Wrong` where something has changed."""
    if (sentence := said(before)) is not None:
        raise Wrong(sentence)


def sealed() -> Callable[[], list[str]]:
    """A function that returns which names of this module were replaced since."""
    names, own = vars(sys.modules[__name__]), __name__
    kept = [
        (name, value, getattr(value, "__code__", None))
        for name, value in names.items()
        if not name.startswith("__")
    ]

    def broken() -> list[str]:
        return [
            f"{own}.{name}"
            for name, value, code in kept
            if names.get(name) is not value or getattr(value, "__code__", None) is not code
        ]

    return broken


def _copies_of_this_process() -> list[int]:
    """Children that run what this process runs: forked, with all that it has."""
    mine = Path("/proc/self/cmdline").read_bytes()
    copies = []
    for task in Path("/proc/self/task").iterdir():
        try:
            children = (task / "children").read_text().split()
        except OSError:  # a thread that has ended, or a system that does not tell
            continue
        for child in children:
            try:
                if Path(f"/proc/{child}/cmdline").read_bytes() == mine:
                    copies.append(int(child))
            except OSError:
                continue
    return copies
