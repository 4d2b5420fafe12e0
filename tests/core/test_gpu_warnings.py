"""The state of a GPU before anything is measured, and what is wrong with it, by a fake driver."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from attnbench import cli
from attnbench.core import gpu, machine
from attnbench.core.machine import Gpu, gpu_warnings, this_machine, vitals
from tests.core.test_gpu import FakeNvml, h200
from tests.core.test_machine import BOX

GPU = Gpu("NVIDIA H200", "GPU-aa", 9.0, 150 << 30, "580.159.04")
FIT = replace(BOX, torch_cuda="13.0", gpus=(GPU,))
QUIET = {"ComputeRunningProcesses": []}


@pytest.fixture
def said(monkeypatch):
    """The sentences for a machine whose driver knows these boards."""

    def ask(machine, *boards, **more):
        monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(*boards, **more))
        gpu.library.cache_clear()
        return gpu_warnings(machine)

    yield ask
    gpu.library.cache_clear()


def test_of_a_gpu_that_is_fit_nothing_is_said(said):
    assert said(FIT, h200(**QUIET)) == []


@pytest.mark.parametrize(
    ("driver", "cuda", "words"),
    [
        (
            "535.183.01",
            "13.0",
            "the driver 535.183.01 is too old for torch's CUDA 13.0, which needs 580",
        ),
        ("580.65", "13.0", None),
        ("525.60", "12.8", None),
        ("470.1", "12.1", "needs 525"),
        ("", "13.0", None),
        ("999", "99.1", None),
    ],
)
def test_a_driver_that_is_too_old_for_torchs_cuda_is_told(said, driver, cuda, words):
    box = replace(FIT, torch_cuda=cuda, gpus=(replace(GPU, driver=driver),))
    found = said(box, h200(**QUIET))
    assert len(found) == (words is not None)
    assert all(words in sentence for sentence in found)


def test_without_a_gpu_the_reason_is_the_drivers(said):
    box = replace(FIT, gpus=())
    assert "Driver Not Loaded" in said(box, refuses="Driver Not Loaded")[0]
    assert "shows none" in said(box)[0]


def test_a_torch_without_cuda_is_told(said):
    (found,) = said(replace(FIT, torch_cuda=None), h200(**QUIET))
    assert "has no CUDA" in found
    assert "install" in found


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["check"], True),
        (["check", "--device", "cpu"], False),
        (["list"], False),
    ],
)
@pytest.mark.parametrize("cuda", [None, "13.0"])
def test_where_nobody_named_a_device_a_gpu_that_stays_idle_is_told(
    monkeypatch, capsys, words, told, cuda
):
    monkeypatch.setattr(machine, "this_machine", lambda: replace(FIT, torch_cuda=cuda))
    verb = SimpleNamespace(check=lambda given: 0, show_list=lambda given: 0)
    monkeypatch.setattr(cli, "import_module", lambda name: verb)
    assert cli.main(words) == 0
    said = capsys.readouterr().err
    assert ("has no CUDA, so the GPU stays idle" in said) is (told and cuda is None)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mig": 1}, "cut into instances"),
        (
            {"ComputeRunningProcesses": [SimpleNamespace(pid=7)]},
            "a process computes on NVIDIA H200",
        ),
        (
            {"ComputeRunningProcesses": [SimpleNamespace(pid=7), SimpleNamespace(pid=8)]},
            "2 processes compute",
        ),
        ({"MemoryInfo": SimpleNamespace(total=150 << 30, used=147 << 30)}, "only 3 GiB are free"),
    ],
)
def test_a_gpu_that_is_shared_or_cut_is_told(said, changes, words):
    (found,) = said(FIT, h200(**{**QUIET, **changes}))
    assert words in found


def test_what_the_driver_does_not_say_is_no_fault(said):
    unsaid = dict.fromkeys(("MemoryInfo", "ComputeRunningProcesses", "mig"), ...)
    assert said(FIT, h200(**unsaid)) == []
    (found,) = said(FIT)
    assert "can't be asked" in found


def test_the_processor_reports_its_load_and_its_clock_or_why_not(monkeypatch):
    cpu = vitals(this_machine())["cpu"]
    assert cpu["load_1min"] >= 0 and cpu["governor"]
    assert isinstance(cpu["mhz"], float) or "does not say" in cpu["mhz"]
    monkeypatch.setattr(machine, "_text", lambda path: "")
    cpu = vitals(replace(FIT, gpus=()))["cpu"]
    assert cpu["mhz"] == "the system does not say"
    assert cpu["governor"].startswith("the system does not say")


def test_each_gpu_answers_for_itself(said):
    other = replace(GPU, uuid="GPU-zz")
    said(FIT, h200(instant=None, PowerUsage=...))
    first, second = vitals(replace(FIT, gpus=(GPU, other)))["gpus"]
    assert (first["sm_mhz"], first["power_limit_w"], first["mig"]) == (1950, 700.0, False)
    assert first["power_w"] == "the driver doesn't say its power: Not Supported"
    assert first["held_down_by"] == ["HwThermal", "SwPowerCap"]
    assert second == {"uuid": "GPU-zz", "absent": "the driver knows no GPU GPU-zz: Not Found"}
