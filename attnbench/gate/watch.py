"""Everything that is compared before and after a variant, in one place.

What variants share (functions, settings, random states, copies of the process left running) may not
change: who changes it is wrong. The rest of the process's state judges nobody, but the next cell
would suffer from it, so that cell goes to another worker.
"""

from __future__ import annotations

import gc
import importlib
import os
import random
import re
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from operator import is_, ne, sub
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from numpy.random import mtrand
from torch.utils._device import DeviceContext

from attnbench.gate.findings import Wrong

_MODULES = """
builtins gc json math os random statistics sys threading time tracemalloc numpy numpy.linalg
numpy.random torch torch.accelerator torch.autograd torch.cuda torch.linalg torch.nn.functional
torch.profiler torch.random torch.special
"""
OTHERS = tuple(map(importlib.import_module, _MODULES.split()))
"""Modules whose functions the ruler and the variants call; only what is public counts."""
BASE = torch._C.TensorBase
CLASSES = {
    "torch.Tensor": torch.Tensor,
    "torch.Tensor's base": BASE,
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
_MISSING = object()
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
            now = get(name, _MISSING)
            if now is not value and _counts(name, value, own) and not _by_compiler(now, value):
                yield from {f"{where}.{name}"} - FOLLOWS
        if where == "torch.Tensor":  # a new name there hides that of its base
            yield from (
                f"{where}.{name}" for name in live if name not in was and hasattr(BASE, name)
            )
    for f, was_inside in before["insides"]:
        if not _EVERY(_PAIRED(is_, _inside(f), was_inside)):
            yield f"the inside of {f.__module__}.{f.__qualname__}"


def _counts(name: str, value: object, own: bool) -> bool:
    if name.startswith("__"):  # torch's compiler keeps names with two strokes, and takes them away
        return name.endswith("__") and isinstance(value, FunctionType)
    return own or (callable(value) and not name.startswith("_"))


def _by_compiler(now: object, was: object) -> bool:
    inside = getattr(now, "__code__", None)
    return inside is BY_COMPILER and getattr(now, "__wrapped__", None) is was


KERNELS = re.compile(r"^(?:CPU|CUDA|Autograd\S*|Composite\S*|catchall): .*$", re.MULTILINE)
_NAMES = """
abs add.Tensor all amax any baddbmm bernoulli_.float bmm clone convolution copy_ div.Tensor
eq.Tensor equal exp index_select isfinite linear linalg_vector_norm logsumexp masked_fill.Scalar
matmul max maximum mm mul.Scalar mul.Tensor native_layer_norm ne.Tensor roll square sub.Tensor sum
sum.dim_IntList where.self zero_ scaled_dot_product_attention _flash_attention_forward
_flash_attention_backward _scaled_dot_product_cudnn_attention _scaled_dot_product_flash_attention
_scaled_dot_product_efficient_attention _scaled_dot_product_flash_attention_backward
_scaled_dot_product_flash_attention_for_cpu _softmax _softmax_backward_data _to_copy
"""
OPERATORS = tuple(f"aten::{name}" for name in _NAMES.split())
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


def left_changed(before: Mapping[str, Any]) -> str:
    """A sentence about what has changed; empty where nothing has."""
    now, states = settings_now(), random_states()
    shared = []
    for name, was in before["settings"].items():
        if now[name] != was:
            both = f"{name} ({was} → {now[name]})"
            shared.append(both if len(both) < len(name) + LONG else name)
    shared += [name for name, was in before["random"].items() if states.get(name) != was]
    shared += [where for where, table, was in before["tables"] if table != was]
    copies = [str(pid) for pid in _copies_of_this_process() if pid not in before["copies"]]
    deeds = {
        "it replaced": list(replaced(before)),
        "it left changed what other variants share:": shared,
        "it left a copy of its process running:": copies,
    }
    return "; ".join(f"{deed} {', '.join(names)}" for deed, names in deeds.items() if names)


def check(before: Mapping[str, Any]) -> None:
    """Raise :class:`Wrong` where something has changed."""
    if sentence := left_changed(before):
        raise Wrong(sentence)


def sealed() -> Callable[[], list[str]]:
    """A function that returns which names of this module were replaced since."""
    names, own = vars(sys.modules[__name__]), __name__
    originals = [
        (name, value, getattr(value, "__code__", None))
        for name, value in names.items()
        if not name.startswith("__")
    ]

    def broken() -> list[str]:
        return [
            f"{own}.{name}"
            for name, value, code in originals
            if names.get(name) is not value or getattr(value, "__code__", None) is not code
        ]

    return broken


def _children(owner: int) -> dict[int, bytes]:
    """The command lines of a process's children."""
    children: dict[int, bytes] = {}
    with suppress(OSError):
        for task in Path(f"/proc/{owner}/task").iterdir():
            with suppress(OSError):  # a thread that has ended, or a system that does not tell
                for child in (task / "children").read_text().split():
                    with suppress(OSError):
                        children[int(child)] = Path(f"/proc/{child}/cmdline").read_bytes()
    return children


def _copies_of_this_process() -> list[int]:
    """Children that run what this process runs: forked, with all that it has."""
    mine = Path("/proc/self/cmdline").read_bytes()
    return [pid for pid, command in _children(os.getpid()).items() if command == mine]


FILES = 64
"""More open files than before by this number are a leak."""
SHARE = 1 / 8
"""The share of a process's memory limit that a cell may leave in use."""
COMPILER = b"torch/_inductor"
"""In the command line of torch's compiler processes, which stay for its next call."""


def _threads() -> set[threading.Thread]:
    """All but those that torch's compiler leaves for its next call; tqdm's wakes at times."""

    def of_compiler(thread: threading.Thread) -> bool:
        target = getattr(thread, "_target", None)
        modules = (type(thread).__module__, str(getattr(target, "__module__", "")))
        return any(module.startswith(("torch.", "concurrent.", "tqdm.")) for module in modules)

    return {thread for thread in threading.enumerate() if not of_compiler(thread)}


def _all_children() -> set[int]:
    """Children of this process, and those that its parent has adopted; none of the compiler's."""
    children = _children(os.getpid()) | _children(os.getppid())
    return {pid for pid, command in children.items() if COMPILER not in command} - {os.getpid()}


def _memory() -> float:
    """The memory that this process holds as a share of its limit; 0 without a limit."""
    most = resource.getrlimit(resource.RLIMIT_DATA)[0]
    if most == resource.RLIM_INFINITY:
        return 0.0
    with Path("/proc/self/status").open() as lines:
        return next(int(x.split()[1]) * 1024 for x in lines if x.startswith("VmData")) / most


PROCESS_STATE: dict[str, tuple[Callable[[], Any], Callable[[Any, Any], Any]]] = {
    "folder": (lambda: Path("/proc/self/cwd").readlink(), ne),
    "signals": (lambda: [signal.getsignal(n) for n in signal.valid_signals()], ne),
    "variables": (lambda: set(os.environ.items()), lambda now, was: was - now),
    "import path": (lambda: set(sys.path), lambda now, was: was - now),
    "threads": (_threads, sub),
    "children": (_all_children, sub),
    "files": (
        lambda: len(os.listdir("/proc/self/fd")),  # noqa: PTH208 - only the number is needed
        lambda now, was: now > was + FILES,
    ),
    "memory": (_memory, lambda now, was: now > was + SHARE),
}
"""How each is read, and by what the next cell would suffer: ``worse(now, before)``."""


def process_state() -> dict[str, Any]:
    """All of that, as it is now."""
    return {name: read() for name, (read, _) in PROCESS_STATE.items()}


def disturbed(before: Mapping[str, Any]) -> list[str]:
    """The names of what the next cell would suffer from."""
    now = process_state()
    return [n for n, (_, worse) in PROCESS_STATE.items() if worse(now[n], before[n])]
