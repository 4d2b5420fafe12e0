"""The machine's fingerprint, and why a row can't run on it."""

import json
import os
import platform
import re
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest

import attnbench
from attnbench.core import machine
from attnbench.core.machine import Gpu, Machine, why_not
from impls.spec import Variant

ROOT = Path(attnbench.__file__).parents[1]
GPU = Gpu(name="NVIDIA H200", uuid="GPU-1", capability=9.0, memory_bytes=1 << 37, driver="580.1")
BOX = Machine(
    name="box",
    cpu="a cpu",
    cores=4,
    memory_bytes=1 << 33,
    system="Linux",
    python="3.11.7",
    versions={},
    torch_cuda=None,
    compiler=None,
)
WITH_GPU = replace(BOX, gpus=(GPU,), torch_cuda="13.0")


def row(**more):
    plain = {"title": "", "family": "f", "computes": "softmax", "build": "a:b"}
    return Variant(**{"name": "x", **plain, **more})


@pytest.fixture(scope="module")
def said():
    code = (
        "import json, sys; from attnbench.core.machine import this_machine;"
        "m = this_machine().to_dict(); print(json.dumps([m, 'torch' in sys.modules]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return json.loads(done.stdout)


def test_the_fingerprint_is_read_without_torch(said):
    assert said[1] is False


def test_the_fingerprint_is_that_of_this_machine(said):
    found = said[0]
    memory = re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())
    assert found["cores"] == len(os.sched_getaffinity(0))
    assert abs(found["memory_bytes"] - int(memory[1]) * 1024) < 1 << 20
    assert found["python"] == platform.python_version()
    assert platform.release() in found["system"]
    assert found["versions"]["torch"] == version("torch")
    assert found["versions"]["numpy"] == version("numpy")
    assert found["cpu"]
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", found["name"])
    assert set(found) == {*Machine.__dataclass_fields__, "devices"}


def test_the_cuda_that_torch_was_built_for_is_what_torch_says(said):
    torch = pytest.importorskip("torch")
    assert said[0]["torch_cuda"] == torch.version.cuda


@pytest.mark.parametrize(
    ("gpus", "cuda", "devices"),
    [
        ((), None, ("cpu",)),
        ((), "13.0", ("cpu",)),
        ((GPU,), None, ("cpu",)),
        ((GPU,), "13.0", ("cpu", "cuda")),
    ],
)
def test_cuda_needs_a_gpu_and_a_torch_that_was_built_for_it(gpus, cuda, devices):
    assert replace(BOX, gpus=gpus, torch_cuda=cuda).devices == devices


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 1), (16, 15)])
def test_one_core_is_left_for_everybody_else(cores, threads):
    assert replace(BOX, cores=cores).threads == threads


# ---- why not -------------------------------------------------------------------------------------


@pytest.fixture
def installed(monkeypatch):
    """Pretend that these distributions are installed, and no other."""
    have = {}

    def pretend(name):
        if name in have:
            return have[name]
        raise machine.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(machine.importlib.metadata, "version", pretend)
    return have


def test_a_row_that_needs_nothing_runs():
    assert why_not(row(), BOX) is None


def test_a_row_for_cuda_needs_a_gpu():
    missing = why_not(row(devices=("cuda",)), BOX)
    assert "runs on cuda; this machine has cpu" in missing.reason
    assert "GPU" in missing.remedy
    assert why_not(row(devices=("cuda",)), WITH_GPU) is None


def test_a_gpu_under_a_cpu_build_of_torch_is_told_apart_from_no_gpu():
    missing = why_not(row(devices=("cuda",)), replace(WITH_GPU, torch_cuda=None))
    assert "torch" in missing.reason
    assert "CUDA build of torch" in missing.remedy


def test_a_distribution_that_is_missing_is_named_with_how_to_install_it(installed):
    missing = why_not(row(requires=("flash-attn>=2.6",)), BOX)
    assert "x needs flash-attn>=2.6; flash-attn is not installed" in missing.reason
    assert missing.remedy == "pip install 'flash-attn>=2.6'"
    assert "is not installed" in why_not(row(requires=("xformers",)), BOX).reason


def test_a_row_that_says_how_to_install_is_taken_at_its_word(installed):
    missing = why_not(row(requires=("flash-attn-3",), install="build it from source"), BOX)
    assert missing.remedy == "build it from source"


@pytest.mark.parametrize(
    ("have", "wanted", "enough"),
    [
        *((old, "2.6", False) for old in ("2.5.9", "2.5", "1.99.0", "2", "2.5.8.post1")),
        *(
            (new, "2.6", True)
            for new in ("2.6", "2.6.0", "2.10", "3", "2.6.1+cu126", "2.6.0.post1")
        ),
        ("2.6", "2.6.0", True),
        ("3", "3.0", True),
        ("2.6+cpu", "2.6.0", True),
    ],
)
def test_versions_are_compared_as_numbers(installed, have, wanted, enough):
    installed["flash-attn"] = have
    missing = why_not(row(requires=(f"flash-attn>={wanted}", "flash-attn")), BOX)
    assert (missing is None) == enough
    assert enough or f"flash-attn is at {have}" in missing.reason
    assert enough or missing.remedy == f"pip install 'flash-attn>={wanted}'"


def test_a_compiler_is_needed_where_the_row_says_so():
    missing = why_not(row(requires=("c++",)), BOX)
    assert "C++ compiler" in missing.reason
    assert missing.remedy
    assert why_not(row(requires=("c++",)), replace(BOX, compiler="/usr/bin/g++")) is None


@pytest.mark.parametrize(
    ("found", "named", "can"),
    [
        (None, None, False),
        ("gcc", None, True),
        ("clang", None, True),
        ("g++", None, False),
        (None, "/opt/bin/cc", True),
        (None, "", False),
    ],
)
def test_a_c_compiler_is_needed_where_triton_looks_for_one(monkeypatch, found, named, can):
    monkeypatch.setattr("shutil.which", lambda name: name if name == found else None)
    monkeypatch.delenv("CC", raising=False)
    if named is not None:
        monkeypatch.setenv("CC", named)
    missing = why_not(row(requires=("cc",)), BOX)
    assert (missing is None) == can
    assert can or "needs a C compiler (gcc or clang)" in missing.reason


@pytest.mark.parametrize("major", range(5, 13))
def test_compute_capability_is_compared_as_a_number(major):
    for minor in range(10):
        here = replace(WITH_GPU, gpus=(replace(GPU, capability=major + minor / 10),))
        code = 10 * major + minor
        assert why_not(row(devices=("cuda",), requires=(f"sm>={code}",)), here) is None
        missing = why_not(row(devices=("cuda",), requires=(f"sm>={code + 1}",)), here)
        assert f"compute capability {(code + 1) / 10}" in missing.reason
        assert missing.remedy


def test_all_that_is_missing_is_said_with_all_the_remedies(installed):
    missing = why_not(row(devices=("cuda",), requires=("sm>=80", "flash-attn>=2.6")), BOX)
    assert missing.reason == (
        "x runs on cuda; this machine has cpu; needs compute capability 8.0 or more; "
        "needs flash-attn>=2.6; flash-attn is not installed"
    )
    assert missing.remedy == (
        "run it on a machine with an NVIDIA GPU; "
        "run it on a GPU of compute capability 8.0 or more; pip install 'flash-attn>=2.6'"
    )
