"""The machine's fingerprint, and why a row can't run on it."""

import os
import platform
import re
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from attnbench.core import machine
from attnbench.core.machine import Machine, this_machine, why_not
from impls.spec import Variant
from tests.machines import BOX, GPU, WITH_GPU

CUDA = ("cuda",)


def lacks(box=BOX, **more):
    """Why a row can't run, and what to do; empty where it can."""
    row = Variant(name="x", title="", family="f", computes="softmax", build="a:b", **more)
    missing = why_not(row, box)
    return (missing.reason, missing.remedy) if missing else ()


def test_the_fingerprint_is_that_of_this_machine():
    found = this_machine().to_dict()
    memory = re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())
    assert found["cores"] == len(os.sched_getaffinity(0))
    assert abs(found["memory_bytes"] - int(memory[1]) * 1024) < 1 << 20
    assert found["python"] == platform.python_version()
    assert platform.release() in found["system"]
    assert found["versions"]["torch"] == version("torch")
    assert found["torch_cuda"] == torch.version.cuda
    assert found["cpu"]
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", found["name"])
    assert set(found) == {*Machine.__dataclass_fields__, "devices"}


def test_cuda_needs_a_gpu_and_a_torch_that_was_built_for_it():
    assert WITH_GPU.devices == ("cpu", "cuda")
    assert replace(WITH_GPU, gpus=()).devices == replace(WITH_GPU, torch_cuda=None).devices
    assert [replace(BOX, cores=n).threads for n in (1, 2, 16)] == [1, 1, 15]
    kinds = {each.kind for each in (BOX, replace(BOX, cores=5), replace(BOX, versions={"a": "1"}))}
    assert len(kinds) == 3 and replace(BOX, compiler="g++").kind in kinds


@pytest.fixture
def installed(monkeypatch):
    """Pretend that these distributions are installed, and no other."""
    have = {}

    def pretend(name):
        if name in have:
            return have[name]
        raise machine.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(machine.importlib.metadata, "version", pretend)
    machine.version_of.cache_clear()
    yield have
    machine.version_of.cache_clear()


@pytest.mark.parametrize(
    ("have", "wanted", "enough"),
    [
        *((old, "2.6", False) for old in ("2.5.9", "1.99.0", "2", "2.5.8.post1")),
        *((new, "2.6", True) for new in ("2.6", "2.6.0", "2.10", "3", "2.6.1+cu126")),
        ("2.6+cpu", "2.6.0", True),
    ],
)
def test_versions_are_compared_as_numbers(installed, have, wanted, enough):
    installed["flash-attn"] = have
    found = lacks(requires=(f"flash-attn>={wanted}", "flash-attn"))
    said = f"x needs flash-attn>={wanted}; flash-attn is at {have}"
    assert found == (() if enough else (said, f"pip install 'flash-attn>={wanted}'"))


@pytest.mark.parametrize(
    ("found", "named", "can"),
    [("clang", None, True), ("g++", None, False), (None, "/opt/bin/cc", True), (None, "", False)],
)
def test_a_compiler_is_needed_where_the_row_says_so(monkeypatch, found, named, can):
    monkeypatch.setattr("shutil.which", lambda name: name if name == found else None)
    monkeypatch.delenv("CC", raising=False)
    if named is not None:
        monkeypatch.setenv("CC", named)
    missing = lacks(requires=("cc",))
    assert (missing == ()) == can
    assert can or "needs a C compiler (gcc or clang)" in missing[0]
    assert "needs a C++ compiler (g++ or" in lacks(requires=("c++",))[0]
    assert lacks(replace(BOX, compiler="/usr/bin/g++"), requires=("c++",)) == ()


@pytest.mark.parametrize("code", [75, 89, 90, 100])
def test_compute_capability_is_compared_as_a_number(code):
    here = replace(WITH_GPU, gpus=(replace(GPU, capability=code / 10),))
    assert lacks(here, requires=(f"sm>={code}",)) == ()
    assert f"capability {(code + 1) / 10}" in lacks(here, requires=(f"sm>={code + 1}",))[0]
