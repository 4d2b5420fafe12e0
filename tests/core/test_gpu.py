"""What the driver says of a GPU, what is wrong with it, and why a row can't run on a machine."""

import os
import platform
import re
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from attnbench.core import gpu as nvml
from attnbench.core import machine
from attnbench.core.gpu import Absent, Board
from attnbench.core.machine import Gpu, Machine, gpu_warnings, this_machine, vitals, why_not
from tests.machines import BOX, GPU, WITH_GPU
from tests.sweep.build import row

QUESTIONS = [name for name in vars(Board) if not name.startswith("_")]
H200 = Gpu("NVIDIA H200", "GPU-aa", 9.0, 150 << 30, "580.159.04")
FIT = replace(BOX, torch_cuda="13.0", gpus=(H200,))


class NVMLError(Exception):
    pass


class NotSupported(NVMLError):
    pass


class FakeNvml:
    """``pynvml`` with a driver for some boards, or with one that refuses."""

    NVMLError, NVMLError_NotSupported = NVMLError, NotSupported

    def __init__(self, *boards, refuses=None):
        self.boards, self.refuses = list(boards), refuses

    def nvmlInit(self):
        if self.refuses:
            raise NVMLError(self.refuses)

    def nvmlSystemGetDriverVersion(self):
        return b"580.1"

    def nvmlDeviceGetCount(self):
        return len(self.boards)

    def nvmlDeviceGetHandleByIndex(self, index):
        return self.boards[index]

    def nvmlDeviceGetHandleByUUID(self, uuid):
        for board in self.boards:
            if uuid in (board["UUID"], board["UUID"].removeprefix("GPU-")):  # as a driver does
                return board
        raise NVMLError("Not Found")

    def __getattr__(self, name):
        """All other questions are looked up by what follows ``nvmlDeviceGet``."""
        if not name.startswith("nvmlDeviceGet"):
            raise AttributeError(name)

        def ask(handle, *kind):
            what = name.removeprefix("nvmlDeviceGet")
            if what not in handle:
                raise NotSupported("Not Supported")
            return handle[what][kind[0]] if kind else handle[what]

        return ask


def h200(uuid="GPU-aa", **changes):
    whole = {
        "UUID": uuid,
        "Name": b"NVIDIA H200",
        "CudaComputeCapability": (9, 0),
        "MemoryInfo": SimpleNamespace(total=150 << 30, used=1 << 30),
        "ClockInfo": {1: 1950},
        "MaxClockInfo": {1: 1980},
        "CurrentClocksEventReasons": 0x4 | 0x40,
        "PowerUsage": 612_000,
        "EnforcedPowerLimit": 700_000,
        "TotalEnergyConsumption": 12_345,
        "Temperature": [61],
        "MigMode": [0, 0],
        "ViolationStatus": {
            policy: SimpleNamespace(violationTime=ns)
            for policy, ns in ((0, 2_000_000_000), (1, 5_000_000))
        },
        "ComputeRunningProcesses": [],
    }
    return {k: v for k, v in {**whole, **changes}.items() if v is not ...}


def busy(*pids):
    return {"ComputeRunningProcesses": [SimpleNamespace(pid=pid) for pid in pids]}


@pytest.fixture
def driver(monkeypatch):
    """Puts a fake in pynvml's place."""

    def install(*boards, **more):
        monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(*boards, **more))
        nvml.library.cache_clear()

    yield install
    nvml.library.cache_clear()


def test_a_board_answers_in_plain_units(driver):
    driver(h200(**busy(7, 7, 8)))
    board = nvml.board("GPU-aa")
    asked = {
        "name": "NVIDIA H200", "capability": 9.0, "memory_bytes": 150 << 30, "sm_mhz": 1950,
        "most_sm_mhz": 1980, "used_bytes": 1 << 30, "reasons": {"SwPowerCap", "HwThermal"},
        "power_w": 612.0, "power_limit_w": 700.0, "energy_j": 12.345, "temperature_c": 61,
        "mig": False, "processes": 2, "other_processes": 1,
    }  # fmt: skip
    assert {name: getattr(board, name)() for name in QUESTIONS} == asked
    driver(h200(MigMode=[1, 0]), {"UUID": "MIG-cc"})
    board = nvml.board("aa")  # torch's UUID has no prefix
    assert (board.uuid, board.mig(), board.other_processes()) == ("GPU-aa", True, 0)
    assert nvml.board("cc").mig() is True
    assert nvml.board("dd") == Absent("the driver knows no GPU dd: Not Found")


@pytest.mark.parametrize("question", QUESTIONS)
def test_what_a_board_can_not_answer_is_a_sentence(driver, question):
    driver({"UUID": "GPU-aa"})
    answer = getattr(nvml.board("GPU-aa"), question)()
    if question == "mig":
        assert answer is False  # what can't be cut isn't
    else:
        assert re.fullmatch(r"the driver doesn't say .*: Not Supported", answer.reason)
    bare = SimpleNamespace(NVMLError=NVMLError)  # a pynvml that lacks the question
    assert isinstance(getattr(Board(bare, None, "GPU-aa"), question)(), Absent)


def test_the_real_library_has_every_question_that_is_asked():
    import pynvml

    names = set(re.findall(r"\bnvml(?:Init|Device|System)\w*", Path(nvml.__file__).read_text()))
    assert len(names) > 15
    assert [n for n in sorted(names) if not hasattr(pynvml, n)] == []
    slow = {name: name + "Slowdown" for name in ("SwThermal", "HwThermal", "HwPowerBrake")}
    for name, bit in nvml.REASONS.items():
        assert getattr(pynvml, f"nvmlClocksThrottleReason{slow.get(name, name)}") == bit
    assert nvml.SM == pynvml.NVML_CLOCK_SM


def test_without_a_driver_everything_is_absent_with_its_words(driver, monkeypatch):
    driver(refuses="NVML Shared Library Not Found")
    reason = "the NVIDIA driver can't be asked: NVML Shared Library Not Found"
    assert nvml.board("GPU-aa") == nvml.uuid_of("cuda", {}) == Absent(reason)
    assert (nvml.boards(), nvml.driver()) == ([], "")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    nvml.library.cache_clear()
    assert "nvidia-ml-py is not installed" in nvml.board("GPU-aa").reason


@pytest.mark.parametrize(
    ("device", "visible", "expected"),
    [
        ("cuda", None, "GPU-aa"), ("cuda:1", None, "GPU-ab"), ("cuda:0", "2,0", "GPU-cc"),
        ("cuda:1", "2,0", "GPU-aa"), ("cuda", "GPU-c", "GPU-cc"), ("cuda:1", "0, GPU-ab", "GPU-ab"),
        ("cuda:3", None, "there is no cuda:3"), ("cuda:1", "0", "shows 1"),
        ("cuda", "7", "no GPU 7"), ("cuda", "", "knows no single GPU"),
        ("cuda", "GPU-a", "knows no single GPU"), ("cuda", "-1", "knows no single GPU"),
    ],
)  # fmt: skip
def test_torchs_number_is_followed_through_what_is_visible(driver, device, visible, expected):
    driver(h200("GPU-aa"), h200("GPU-ab"), h200("GPU-cc"))
    answer = nvml.uuid_of(device, {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    assert answer == expected if expected.startswith("GPU-") else expected in answer.reason


def test_boards_that_differ_are_numbered_by_cuda_alone_unless_it_is_told_how(driver):
    driver(h200("GPU-aa"), h200("GPU-bb", Name="NVIDIA T400", MemoryInfo=...))
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in nvml.uuid_of("cuda", {}).reason
    assert nvml.uuid_of("cuda:1", {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}) == "GPU-bb"
    assert nvml.uuid_of("cuda", {"CUDA_VISIBLE_DEVICES": "GPU-bb"}) == "GPU-bb"
    (known,) = machine.this_machine.__wrapped__().gpus  # of the second too little is known
    assert known == Gpu("NVIDIA H200", "GPU-aa", 9.0, 150 << 30, "580.1")


TAKEN = SimpleNamespace(total=150 << 30, used=147 << 30)


@pytest.mark.parametrize(
    ("cuda", "board", "words"),
    [
        ("13.0", {}, None),
        (None, {}, "has no CUDA, so the GPU stays idle; install"),
        ("13.0", {"MigMode": [1, 0]}, "cut into instances"),
        ("13.0", busy(7), "a process computes on NVIDIA H200"),
        ("13.0", busy(7, 8), "2 processes compute"),
        ("13.0", {"MemoryInfo": TAKEN}, "only 3 GiB are"),
        ("13.0", {"UUID": "GPU-zz"}, "can't be asked"),
        ("13.0", dict.fromkeys(("MemoryInfo", "ComputeRunningProcesses", "MigMode"), ...), None),
    ],
    ids=range(8),
)
def test_what_may_spoil_times_is_told(driver, cuda, board, words):
    driver(h200(**board))
    warnings = gpu_warnings(replace(FIT, torch_cuda=cuda))
    assert len(warnings) == (words is not None)
    assert all(words in sentence for sentence in warnings)


def test_processor_and_gpus_tell_their_state_or_why_not(driver, monkeypatch):
    driver(h200(PowerUsage=...))
    found = vitals(replace(BOX, gpus=(H200, replace(H200, uuid="GPU-zz"))))
    assert found["cpu"]["load_1min"] >= 0 and found["cpu"]["governor"]
    first, second = found["gpus"]
    assert (first["sm_mhz"], first["power_limit_w"], first["mig"]) == (1950, 700.0, False)
    assert first["power_w"] == "the driver doesn't say its power: Not Supported"
    assert first["held_down_by"] == ["HwThermal", "SwPowerCap"]
    assert second == {"uuid": "GPU-zz", "absent": "the driver knows no GPU GPU-zz: Not Found"}
    monkeypatch.setattr(machine, "_text", lambda path: "")
    cpu = vitals(replace(FIT, gpus=()))["cpu"]
    assert cpu["mhz"] == "the system does not say"
    assert cpu["governor"].startswith("the system does not say: ")


def lacks(box=BOX, **more):
    """Why a row can't run, and what to do; empty where it can."""
    missing = why_not(row("x", **more), box)
    return (missing.reason, missing.remedy) if missing else ()


def test_the_fingerprint_is_that_of_this_machine():
    found = this_machine().facts()
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


@pytest.mark.parametrize(
    ("have", "needed", "enough"),
    [
        *((old, "2.6", False) for old in ("2.5.9", "1.99.0", "2", "2.5.8.post1")),
        *((new, "2.6.0", True) for new in ("2.6+cpu", "2.6.0", "2.10", "3", "2.6.1+cu126")),
    ],
)
def test_versions_are_compared_as_numbers(monkeypatch, have, needed, enough):
    monkeypatch.setattr(machine, "version_of", {"flash-attn": have}.get)
    said = f"x needs flash-attn>={needed}; flash-attn is at {have}"
    missing = () if enough else (said, f"pip install 'flash-attn>={needed}'")
    assert lacks(requires=(f"flash-attn>={needed}", "flash-attn")) == missing


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
    assert lacks(here, requires=(f"sm={code}",)) == ()
    missing = lacks(here, requires=(f"sm={code - 1}",))
    assert missing[0].endswith(f"needs compute capability {(code - 1) / 10}")
