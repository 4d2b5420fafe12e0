"""The machine: what it is, what it can run, and why it can't run the rest. Without torch."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any

from attnbench.core import gpu as nvml
from attnbench.core.format import size
from attnbench.core.gpu import Absent
from impls.spec import Unavailable, Variant

DISTRIBUTIONS = ("torch", "numpy", "triton", "asv", "attnbench")
COMPILERS = ("g++", "c++", "clang++")
C_COMPILERS = ("gcc", "clang")
"""Triton builds with one of these what launches its kernels, or with what $CC names."""
COMPILED = {
    "c++": ("C++", COMPILERS, "package g++"),
    "cc": ("C", C_COMPILERS, "packages gcc and libc6-dev"),
}


@dataclass(frozen=True)
class Gpu:
    """One NVIDIA GPU as its driver describes it."""

    name: str
    uuid: str
    capability: float
    memory_bytes: int
    driver: str


@dataclass(frozen=True)
class Machine:
    """The fingerprint that goes with every run."""

    name: str
    """Short, for folders: ``amd-epyc-2c`` or the GPU's name."""
    cpu: str
    cores: int
    memory_bytes: int
    system: str
    python: str
    versions: dict[str, str]
    torch_cuda: str | None
    """The CUDA that torch was built for; None for a build without."""
    compiler: str | None
    gpus: tuple[Gpu, ...] = field(default=())

    @property
    def devices(self) -> tuple[str, ...]:
        """The kinds of device that torch can use here."""
        return ("cpu", "cuda") if self.gpus and self.torch_cuda else ("cpu",)

    @property
    def kind(self) -> str:
        """The name, and a word that is another where numbers can't be set side by side."""
        apart = (
            self.cpu,
            self.cores,
            self.python,
            sorted(self.versions.items()),
            self.torch_cuda,
            sorted({(g.name, g.capability, g.memory_bytes, g.driver) for g in self.gpus}),
        )
        return f"{self.name}-{hashlib.sha256(repr(apart).encode()).hexdigest()[:6]}"

    @property
    def threads(self) -> int:
        """How many threads a measurement takes: one core is left for everybody else."""
        return max(1, self.cores - 1)

    def facts(self) -> dict[str, Any]:
        """As plain values."""
        return {**asdict(self), "devices": list(self.devices)}


@cache
def this_machine() -> Machine:
    """Where this process runs."""
    gpus = []
    for board in nvml.boards():
        facts = board.name(), board.uuid, board.capability(), board.memory_bytes()
        if not any(isinstance(each, Absent) for each in facts):
            gpus.append(Gpu(*facts, nvml.driver()))  # type: ignore[arg-type]
    model = re.search(r"^model name\s*:\s*(.+)$", _text("/proc/cpuinfo"), re.MULTILINE)
    cpu = model[1].strip() if model else platform.processor() or platform.machine()
    cores, spec, built_for = len(os.sched_getaffinity(0)), importlib.util.find_spec("torch"), None
    if spec is not None and spec.origin is not None:  # so that torch need not be imported
        version = _text(Path(spec.origin).with_name("version.py"))
        built_for = re.search(r"^cuda\b.*=\s*'([^']+)'", version, re.MULTILINE)
    name = gpus[0].name if gpus else f"{cpu} {cores}c"
    return Machine(
        name=re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-"),
        cpu=cpu,
        cores=cores,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        versions={d: v for d in DISTRIBUTIONS if (v := version_of(d))},
        torch_cuda=built_for[1] if built_for else None,
        compiler=next(filter(None, map(shutil.which, COMPILERS)), None),
        gpus=tuple(gpus),
    )


def kernel_bytes(field: str, file: str = "/proc/self/status") -> int:
    """Linux's number under a name, in kilobytes there; 0 where it has none."""
    with Path(file).open() as lines:
        return next((int(x.split()[1]) * 1024 for x in lines if x.startswith(field)), 0)


SOURCE = "total = [a.b(c + 1) for c in range(10) if c not in seen]\n" * 300
SOURCE_S = 11.5e-3
"""What Python takes to compile it on the machine where guesses at seconds were made, a slow one."""


@cache
def pace() -> float:
    """How many times as long as that one this machine takes to load, build, check and draw. A guess
    at the seconds of these is multiplied by it; of products of matrices the speed is measured.
    """
    took = []
    for _ in range(5):
        start = perf_counter()
        compile(SOURCE, "pace", "exec")
        took.append(perf_counter() - start)
    return min(took) / SOURCE_S


def why_not(variant: Variant, machine: Machine) -> Unavailable | None:
    """None where the machine can run the variant, else all that is missing and what to do."""
    lacks = [_missing(variant, requirement, machine) for requirement in variant.requires]
    if not set(variant.devices) & set(machine.devices):
        needed = " or ".join({"cuda": "CUDA", "cpu": "a CPU"}.get(d, d) for d in variant.devices)
        no_device = f"needs {needed}", "run it on a machine with an NVIDIA GPU"
        if machine.gpus and not machine.torch_cuda:
            no_device = NO_CUDA
        lacks = [no_device, *lacks]
    missing = [each for each in lacks if each is not None]
    if not missing:
        return None
    reason = f"{variant.label} " + "; ".join(reason for reason, _ in missing)
    return Unavailable(reason, "; ".join(dict.fromkeys(remedy for _, remedy in missing)))


NO_CUDA = (
    "needs CUDA, and the torch installed here has none",
    "install a CUDA build of torch",
)


def _missing(variant: Variant, requirement: str, machine: Machine) -> tuple[str, str] | None:
    """What is missing, and a remedy."""
    name, _, least = requirement.partition(">=")
    if name in ("c++", "cc"):
        if machine.compiler if name == "c++" else has_c_compiler():
            return None
        language, programs, packages = COMPILED[name]
        return (
            f"needs a {language} compiler ({' or '.join(programs)}) on the PATH",
            f"install one, for example Debian's {packages}",
        )
    if name == "sm" or name.startswith("sm="):
        least_capability = float(least or name[3:]) / 10
        exact = not least
        if any(
            g.capability == least_capability or (g.capability > least_capability and not exact)
            for g in machine.gpus
        ):
            return None
        capability = f"compute capability {least_capability}{'' if exact else ' or more'}"
        return f"needs {capability}", f"run it on a GPU of {capability}"
    version = version_of(name)
    if version is not None and _numbers(version) >= _numbers(least):
        return None
    state = "is not installed" if version is None else f"is at {version}"
    return f"needs {requirement}; {name} {state}", variant.install or f"pip install '{requirement}'"


def has_c_compiler() -> bool:
    """Whether Triton can build what launches its kernels."""
    return bool(os.environ.get("CC") or any(map(shutil.which, C_COMPILERS)))


def _numbers(version: str) -> tuple[int, ...]:
    release = re.match(r"[0-9.]*", version)
    parts = [int(n) for n in (release[0] if release else "").split(".") if n]
    while parts and parts[-1] == 0:  # 2.6 and 2.6.0 are the same
        parts.pop()
    return tuple(parts)


@cache
def version_of(distribution: str) -> str | None:
    """That of an installed distribution; None where it isn't. A look takes a millisecond."""
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(distribution)
    return None


MUCH_TAKEN = 0.05
"""The share of a GPU's memory that others may hold without a word."""


def idle_gpu(machine: Machine) -> str:
    """A sentence where torch can't use the GPU that there is, so that the CPU is taken; or none."""
    if not machine.gpus or machine.torch_cuda is not None:
        return ""
    return (
        "the torch installed here has no CUDA, so the GPU stays idle; install a CUDA build of torch"
    )


def gpu_warnings(machine: Machine) -> list[str]:
    """What may spoil measurements on the GPUs, or keep them from being used; a sentence each."""
    if not machine.gpus:
        library = nvml.library()
        why = library.reason if isinstance(library, Absent) else "its driver shows none"
        return [f"there is no GPU to measure on: {why}"]
    warnings = [idle_gpu(machine)] if idle_gpu(machine) else []
    for gpu in machine.gpus:
        board = nvml.board(gpu.uuid)
        if isinstance(board, Absent):
            warnings.append(f"{gpu.name} can't be asked how it is: {board.reason}")
            continue
        if board.mig() is True:
            warnings.append(
                f"{gpu.name} is cut into instances (MIG): one of them is "
                "measured, not the whole GPU"
            )
        others, used = board.processes(), board.used_bytes()
        if isinstance(others, int) and others:
            many = f"{others} processes compute" if others > 1 else "a process computes"
            warnings.append(
                f"{many} on {gpu.name} already: times will be of both; end it, or take another GPU"
            )
        if isinstance(used, int) and used > MUCH_TAKEN * gpu.memory_bytes:
            free, whole = size(gpu.memory_bytes - used), size(gpu.memory_bytes)
            warnings.append(
                f"of {gpu.name}'s {whole} only {free} are free: what needs more "
                "will run out of memory"
            )
    return warnings


GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
_MEASURED = ("sm_mhz", "most_sm_mhz", "power_w", "power_limit_w", "temperature_c")
VITALS = (*_MEASURED, "mig", "reasons", "other_processes")
"""Questions to each GPU."""


def vitals(machine: Machine) -> dict[str, Any]:
    """The state of the processor and of each GPU now; a sentence for what can't be known."""
    clocks = [float(x) for x in re.findall(r"cpu MHz\s*:\s*([0-9.]+)", _text("/proc/cpuinfo"))]
    one, five, _ = os.getloadavg()
    unsaid = "the system does not say: a virtual machine's host sets the clocks"
    cpu = {
        "mhz": max(clocks, default=unsaid.partition(":")[0]),
        "governor": _text(GOVERNOR).strip() or unsaid,
        "load_1min": one,
        "load_5min": five,
    }
    gpus: list[dict[str, Any]] = []
    for gpu in machine.gpus:
        gpus.append({"uuid": gpu.uuid})
        board = nvml.board(gpu.uuid)
        if isinstance(board, Absent):
            gpus[-1]["absent"] = board.reason
            continue
        for question in VITALS:
            answer = getattr(board, question)()
            name = "held_down_by" if question == "reasons" else question
            answer = sorted(answer) if isinstance(answer, frozenset) else answer
            gpus[-1][name] = answer.reason if isinstance(answer, Absent) else answer
    return {"cpu": cpu, "gpus": gpus}


def _text(path: str | Path) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
