"""What the driver says of a GPU, and that whatever it can't say is a sentence."""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import attnbench
from attnbench.core import gpu as nvml
from attnbench.core import machine
from attnbench.core.gpu import Absent, Board

ROOT = Path(attnbench.__file__).parents[1]
QUESTIONS = [name for name in vars(Board) if not name.startswith("_")]


class NVMLError(Exception):
    pass


class NotSupported(NVMLError):
    pass


class NoSuchFunction(NVMLError):
    pass


class FakeNvml:
    """``pynvml`` with a driver for some boards, or with one that refuses."""

    NVMLError, NVMLError_NotSupported = NVMLError, NotSupported
    NVMLError_FunctionNotFound = NoSuchFunction

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
            if board["uuid"] == uuid:
                return board
        raise NVMLError("Not Found")

    def nvmlDeviceGetFieldValues(self, handle, fields):
        assert fields == [186]
        watts = self._of(handle, "instant")
        value = SimpleNamespace(uiVal=watts)
        return [SimpleNamespace(nvmlReturn=3 if watts is None else 0, valueType=1, value=value)]

    def nvmlDeviceGetMigMode(self, handle):
        if handle.get("mig") is None:
            raise NotSupported("Not Supported")
        return [handle["mig"], 0]

    def nvmlDeviceGetViolationStatus(self, handle, policy):
        return SimpleNamespace(violationTime=self._of(handle, "violations")[policy])

    def nvmlDeviceGetClockInfo(self, handle, kind):
        return self._of(handle, "clocks")[kind]

    def nvmlDeviceGetMaxClockInfo(self, handle, kind):
        return self._of(handle, "most")[kind]

    def nvmlDeviceGetTemperature(self, handle, sensor):
        return self._of(handle, "temperature")

    @staticmethod
    def _of(handle, what):
        if what not in handle:
            raise NotSupported("Not Supported")
        return handle[what]

    def __getattr__(self, name):
        """All other questions are looked up by what follows ``nvmlDeviceGet``."""
        if not name.startswith("nvmlDeviceGet"):
            raise AttributeError(name)
        return lambda handle: self._of(handle, name.removeprefix("nvmlDeviceGet"))


def h200(uuid="GPU-aa", **changes):
    process = SimpleNamespace
    whole = {
        "uuid": uuid,
        "UUID": uuid,
        "Name": b"NVIDIA H200",
        "CudaComputeCapability": (9, 0),
        "MemoryInfo": SimpleNamespace(total=150 << 30, used=1 << 30),
        "clocks": {1: 1950, 2: 3201},
        "most": {1: 1980, 2: 3201},
        "CurrentClocksEventReasons": 0x4 | 0x40,
        "instant": 612_000,
        "PowerUsage": 598_000,
        "EnforcedPowerLimit": 700_000,
        "TotalEnergyConsumption": 12_345,
        "temperature": 61,
        "mig": 0,
        "violations": {0: 2_000_000_000, 1: 5_000_000, 3: 0},
        "ComputeRunningProcesses": [process(pid=4242)],
    }
    return {k: v for k, v in {**whole, **changes}.items() if v is not ...}


@pytest.fixture
def driver(monkeypatch):
    """Puts a fake in pynvml's place."""

    def install(*boards, **more):
        monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(*boards, **more))
        nvml.library.cache_clear()

    yield install
    nvml.library.cache_clear()


def test_a_board_answers_in_plain_units(driver):
    driver(h200())
    board = nvml.board("GPU-aa")
    assert board.name() == "NVIDIA H200"
    assert board.capability() == 9.0
    assert board.memory_bytes() == 150 << 30
    assert (board.sm_mhz(), board.most_sm_mhz()) == (1950, 1980)
    assert (board.memory_mhz(), board.most_memory_mhz()) == (3201, 3201)
    assert board.reasons() == {"SwPowerCap", "HwThermal"}
    assert [board.held_down_s(p) for p in nvml.POLICIES] == [2.0, 0.005, 0.0]
    assert board.held_down_s() == 0.005
    assert (board.power_w(), board.power_limit_w()) == (612.0, 700.0)
    assert board.energy_j() == 12.345
    assert board.temperature_c() == 61
    assert board.mig() is False
    assert board.other_processes() == 0


@pytest.mark.parametrize("question", QUESTIONS)
def test_what_a_board_can_not_answer_is_a_sentence(driver, question):
    driver({"uuid": "GPU-aa", "UUID": "GPU-aa"})
    answer = getattr(nvml.board("GPU-aa"), question)()
    if question == "mig":
        assert answer is False  # what can't be cut isn't
    else:
        assert isinstance(answer, Absent)
        assert answer.reason.startswith("the driver doesn't say ")
        assert answer.reason.endswith(": Not Supported")


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_pynvml_that_lacks_the_question_is_a_sentence_too(question):
    bare = SimpleNamespace(NVMLError=NVMLError)
    assert isinstance(getattr(Board(bare, None, "GPU-aa"), question)(), Absent)


def test_the_real_library_has_every_question_that_is_asked():
    import pynvml

    asked = re.findall(r"\bnvml(?:Init|Device|System)\w*", Path(nvml.__file__).read_text())
    names = set(asked)
    assert len(names) > 15
    assert [n for n in sorted(names) if not hasattr(pynvml, n)] == []
    bits = {n: getattr(pynvml, f"nvmlClocksThrottleReason{n}", None) for n in nvml.REASONS}
    bits |= {
        "SwThermal": pynvml.nvmlClocksThrottleReasonSwThermalSlowdown,
        "HwThermal": pynvml.nvmlClocksThrottleReasonHwThermalSlowdown,
        "HwPowerBrake": pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown,
    }
    assert bits == nvml.REASONS
    assert (pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_MEM) == (nvml.SM, nvml.MEMORY)
    assert pynvml.NVML_FI_DEV_POWER_INSTANT == nvml.POWER_INSTANT
    assert nvml.UNSIGNED == pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
    assert nvml.POLICIES == {
        "power": pynvml.NVML_PERF_POLICY_POWER,
        "thermal": pynvml.NVML_PERF_POLICY_THERMAL,
        "board": pynvml.NVML_PERF_POLICY_BOARD_LIMIT,
    }


def test_without_the_power_of_this_instant_that_of_a_second_is_taken(driver):
    driver(h200(instant=None))
    assert nvml.board("GPU-aa").power_w() == 598.0


def test_an_older_driver_is_asked_by_the_older_name(driver):
    driver(h200(CurrentClocksThrottleReasons=0x8))
    library = nvml.library()

    def gone(handle):
        raise NoSuchFunction("Function Not Found")

    library.nvmlDeviceGetCurrentClocksEventReasons = gone
    assert nvml.board("GPU-aa").reasons() == {"HwSlowdown"}
    library.nvmlDeviceGetCurrentClocksEventReasons = None
    assert nvml.board("GPU-aa").reasons() == {"HwSlowdown"}


def test_a_board_is_found_by_torchs_uuid_which_has_no_prefix(driver):
    driver(h200("GPU-aa"), h200("GPU-bb", clocks={1: 345, 2: 1}), {"uuid": "MIG-cc"})
    assert nvml.board("bb").sm_mhz() == 345
    assert nvml.board("cc").mig() is True
    absent = nvml.board("dd")
    assert absent == Absent("the driver knows no GPU dd: Not Found")


@pytest.mark.parametrize(("pids", "others"), [([], 0), ([7], 0), ([7, 7], 0), ([7, 8, 9], 2)])
def test_all_processes_on_it_but_one_are_others(driver, pids, others):
    driver(h200(ComputeRunningProcesses=[SimpleNamespace(pid=p) for p in pids]))
    assert nvml.board("aa").other_processes() == others


def test_a_board_cut_into_instances_says_so(driver):
    driver(h200(mig=1))
    assert nvml.board("aa").mig() is True


# ---- no driver -----------------------------------------------------------------------------------


def test_without_a_driver_everything_is_absent_with_its_words(driver):
    driver(refuses="NVML Shared Library Not Found")
    reason = "the NVIDIA driver can't be asked: NVML Shared Library Not Found"
    assert nvml.board("GPU-aa") == Absent(reason)
    assert nvml.uuid_of("cuda", {}) == Absent(reason)
    assert (nvml.boards(), nvml.driver()) == ([], "")


def test_without_the_package_too(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    nvml.library.cache_clear()
    assert "nvidia-ml-py is not installed" in nvml.board("GPU-aa").reason
    nvml.library.cache_clear()


def test_the_driver_is_asked_without_torch():
    code = "import sys; from attnbench.core import gpu; gpu.boards(); print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == "False"


# ---- which one -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "visible", "uuid"),
    [
        ("cuda", None, "GPU-aa"),
        ("cuda:1", None, "GPU-ab"),
        ("cuda:0", "2,0", "GPU-cc"),
        ("cuda:1", "2,0", "GPU-aa"),
        ("cuda", "GPU-c", "GPU-cc"),
        ("cuda:1", "0, GPU-ab", "GPU-ab"),
    ],
)
def test_torchs_number_is_followed_through_what_is_visible(driver, device, visible, uuid):
    driver(h200("GPU-aa"), h200("GPU-ab"), h200("GPU-cc"))
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert nvml.uuid_of(device, environment) == uuid


@pytest.mark.parametrize(
    ("device", "visible", "why"),
    [
        ("cuda:3", None, "there is no cuda:3"),
        ("cuda:1", "0", "shows 1"),
        ("cuda", "7", "no GPU 7"),
        ("cuda", "", "knows no single GPU"),
        ("cuda", "GPU-a", "knows no single GPU"),
        ("cuda", "-1", "knows no single GPU"),
    ],
)
def test_a_number_that_leads_nowhere_is_a_sentence(driver, device, visible, why):
    driver(h200("GPU-aa"), h200("GPU-ab"), h200("GPU-cc"))
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert why in nvml.uuid_of(device, environment).reason


def test_boards_that_differ_are_numbered_by_cuda_alone_unless_it_is_told_how(driver):
    driver(h200("GPU-aa"), h200("GPU-bb", Name="NVIDIA T400"))
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in nvml.uuid_of("cuda", {}).reason
    assert nvml.uuid_of("cuda:1", {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}) == "GPU-bb"
    assert nvml.uuid_of("cuda", {"CUDA_VISIBLE_DEVICES": "GPU-bb"}) == "GPU-bb"


# ---- the machine's fingerprint -------------------------------------------------------------------


def test_the_fingerprint_lists_the_boards(driver):
    driver(h200(), h200("GPU-bb", MemoryInfo=...))
    (gpu,) = machine._gpus()  # of the second too little is known
    assert gpu == machine.Gpu("NVIDIA H200", "GPU-aa", 9.0, 150 << 30, "580.1")
