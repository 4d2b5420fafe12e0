"""The machine: what it is, what it can run, and why it can't run the rest. Without torch."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from attnbench import nvml
from impls.spec import Unavailable, Variant

DISTRIBUTIONS = ("torch", "numpy", "triton", "asv", "attnbench")
COMPILERS = ("g++", "c++", "clang++")
C_COMPILERS = ("gcc", "clang")
"""Triton builds with one of these what launches its kernels, or with what $CC names."""


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
            self.cpu, self.cores, self.python, sorted(self.versions.items()), self.torch_cuda,
            sorted({(g.name, g.capability, g.memory_bytes, g.driver) for g in self.gpus}),
        )  # fmt: skip
        return f"{self.name}-{hashlib.sha256(repr(apart).encode()).hexdigest()[:6]}"

    @property
    def threads(self) -> int:
        """How many threads a measurement takes: one core is left for everybody else."""
        return max(1, self.cores - 1)

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {**asdict(self), "devices": list(self.devices)}


@cache
def this_machine() -> Machine:
    """Where this process runs."""
    gpus, cpu = tuple(_gpus()), _cpu_name()
    cores = len(os.sched_getaffinity(0))
    name = gpus[0].name if gpus else f"{cpu} {cores}c"
    return Machine(
        name=re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-"),
        cpu=cpu,
        cores=cores,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        versions={d: v for d in DISTRIBUTIONS if (v := version_of(d))},
        torch_cuda=_torch_cuda(),
        compiler=next(filter(None, map(shutil.which, COMPILERS)), None),
        gpus=gpus,
    )


def why_not(variant: Variant, machine: Machine) -> Unavailable | None:
    """None where the machine can run the variant, else all that is missing and what to do."""
    missing = list(filter(None, [_no_device(variant, machine)]))
    for requirement in variant.requires:
        if (found := _missing(variant, requirement, machine)) is not None:
            missing.append(found)
    if not missing:
        return None
    reasons, remedies = [m.reason for m in missing], [m.remedy for m in missing if m.remedy]
    said = f"{variant.label} "
    reason = "; ".join([reasons[0], *(r.removeprefix(said) for r in reasons[1:])])
    return Unavailable(reason, "; ".join(dict.fromkeys(remedies)))


def _no_device(variant: Variant, machine: Machine) -> Unavailable | None:
    if not set(variant.devices) & set(machine.devices):
        if machine.gpus and not machine.torch_cuda:
            reason = f"{variant.label} needs CUDA, and the torch installed here has none"
            return Unavailable(reason, "install a CUDA build of torch")
        devices = ", ".join(variant.devices)
        return Unavailable(
            f"{variant.label} runs on {devices}; this machine has {', '.join(machine.devices)}",
            "run it on a machine with an NVIDIA GPU",
        )
    return None


def _missing(variant: Variant, requirement: str, machine: Machine) -> Unavailable | None:
    if requirement == "c++":
        if machine.compiler:
            return None
        reason = f"{variant.label} needs a C++ compiler ({' or '.join(COMPILERS)}) on the PATH"
        return Unavailable(reason, "install one, for example Debian's package g++")
    if requirement == "cc":
        if has_c_compiler():
            return None
        reason = f"{variant.label} needs a C compiler ({' or '.join(C_COMPILERS)}) on the PATH"
        return Unavailable(reason, "install one, for example Debian's packages gcc and libc6-dev")
    name, bound, wanted = (*re.split(r"(>=)", requirement), "", "")[:3]
    if name == "sm":
        if any(gpu.capability >= float(wanted) / 10 for gpu in machine.gpus):
            return None
        least = f"compute capability {float(wanted) / 10} or more"
        return Unavailable(f"{variant.label} needs {least}", f"run it on a GPU of {least}")
    found = version_of(name)
    if found is None or (bound and _numbers(found) < _numbers(wanted)):
        state = "is not installed" if found is None else f"is at {found}"
        return Unavailable(f"{variant.label} needs {requirement}; {name} {state}",
                           variant.install or f"pip install '{requirement}'")  # fmt: skip
    return None


def has_c_compiler() -> bool:
    """Whether Triton can build what launches its kernels."""
    return bool(os.environ.get("CC") or any(map(shutil.which, C_COMPILERS)))


def _numbers(version: str) -> tuple[int, ...]:
    release = re.match(r"[0-9.]*", version)
    parts = [int(n) for n in (release[0] if release else "").split(".") if n]
    while parts and parts[-1] == 0:  # 2.6 and 2.6.0 are the same
        parts.pop()
    return tuple(parts)


def version_of(distribution: str) -> str | None:
    """That of an installed distribution; None where it isn't."""
    return _looked_up(importlib.metadata.version, distribution)


@cache
def _looked_up(version: Callable[[str], str], distribution: str) -> str | None:
    """Many rows ask for the same few distributions, and each look takes a millisecond."""
    try:
        return version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _torch_cuda() -> str | None:
    """Read from torch's version file, so that torch need not be imported."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    text = Path(spec.origin).with_name("version.py").read_text()
    found = re.search(r"^cuda\b.*=\s*'([^']+)'", text, re.MULTILINE)
    return found[1] if found else None


def _cpu_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.machine()


def _gpus() -> list[Gpu]:
    """Boards of which the driver tells all that a fingerprint says."""
    found = []
    for board in nvml.boards():
        name, capability, memory = board.name(), board.capability(), board.memory_bytes()
        if not isinstance(name, str) or not isinstance(capability, float):
            continue
        if isinstance(memory, int):
            found.append(Gpu(name, board.uuid, capability, memory, nvml.driver()))
    return found
