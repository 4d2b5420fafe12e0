"""What counts joules: a board's counter and the processor's, and why there may be none."""

from types import SimpleNamespace

import pytest

from attnbench.core.gpu import Absent
from attnbench.core.record import Energy
from attnbench.meter import energy
from attnbench.meter.energy import NvmlCounter, counter_for, of_board

# ---- NVML's counter ------------------------------------------------------------------------------


class Board:
    uuid = "GPU-aa"

    def __init__(self, **answers):
        answers = {"mig": False, "other_processes": 0, "energy_j": 5.0, "power_w": 300.0, **answers}
        for name, answer in answers.items():
            setattr(self, name, lambda a=answer: a)


def test_a_boards_counter_is_taken_where_it_is_ours_alone():
    waited = []
    board = Board(mig=Absent("no"), other_processes=Absent("no"))  # it is believed
    counter = of_board(board, lambda: waited.append(1))
    assert isinstance(counter, NvmlCounter)
    assert (counter.joules(), counter.watts(), counter.key) == (5.0, 300.0, "GPU-aa")
    assert counter.method == "nvml counter: the whole board"
    counter.wait()
    assert waited == [1]
    board.energy_j = lambda: Absent("GPU is lost")
    with pytest.raises(OSError, match="GPU is lost"):
        counter.joules()


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ({"mig": True}, "cut into instances (MIG)"),
        ({"other_processes": 1}, "1 other process computes on the GPU"),
        ({"other_processes": 3}, "3 other processes compute on the GPU"),
        ({"energy_j": Absent("the driver doesn't say its energy: Not Supported")}, "Not Supported"),
    ],
)
def test_a_boards_counter_that_is_not_ours_alone_is_a_reason(answers, why):
    got = of_board(Board(**answers), lambda: None)
    assert why in got.why and got.joules is None


def test_a_gpus_counter_is_that_of_its_uuid(monkeypatch):
    gpu = SimpleNamespace(uuid="aa", synchronize=lambda: None)
    monkeypatch.setattr(energy, "cuda_gpu", lambda device: gpu)
    monkeypatch.setattr(energy.nvml, "board", {"aa": Board()}.get)
    assert counter_for("cuda:1").key == "GPU-aa"
    monkeypatch.setattr(energy.nvml, "board", lambda uuid: Absent("there is no driver"))
    assert counter_for("cuda:1") == Energy(why="there is no driver")


# ---- the processor's counter ---------------------------------------------------------------------


class Powercap:
    """A folder as Linux shows it."""

    RANGE = 262_143_328_850

    def __init__(self, folder):
        self.folder = folder

    def zone(self, name, what, energy=1000):
        place = self.folder / name
        place.mkdir()
        files = {"name": what, "energy_uj": energy, "max_energy_range_uj": self.RANGE}
        for file, text in files.items():
            (place / file).write_text(f"{text}\n")
        return place / "energy_uj"


@pytest.fixture
def powercap(tmp_path, monkeypatch):
    monkeypatch.setattr(energy, "POWERCAP", tmp_path)
    return Powercap(tmp_path)


def test_packages_are_summed_and_their_parts_are_not(powercap):
    a, b = powercap.zone("intel-rapl:0", "package-0"), powercap.zone("intel-rapl:1", "package-1")
    parts = [
        powercap.zone("intel-rapl:0:0", "core"),
        powercap.zone("intel-rapl:2", "psys"),
        powercap.zone("intel-rapl-mmio:0", "package-0"),
    ]
    counter = counter_for("cpu")
    start = counter.joules()
    a.write_text(str(1000 + 2_000_000))
    b.write_text(str(1000 + 500_000))
    for part in parts:
        part.write_text("99000000")
    assert counter.joules() - start == pytest.approx(2.5)
    assert counter.method == "rapl counter: package-0, package-1"
    assert counter.watts() is None


def test_a_counter_that_begins_again_at_zero_goes_on_counting(powercap):
    file = powercap.zone("intel-rapl:0", "package-0", Powercap.RANGE - 1_000_000)
    counter = counter_for("cpu")
    file.write_text(str(Powercap.RANGE - 400_000))
    first = counter.joules()
    file.write_text("600000")
    assert counter.joules() - first == pytest.approx(1.0)
    file.write_text("700000")
    assert counter.joules() - first == pytest.approx(1.1)


def test_a_counter_that_can_not_be_read_says_why(powercap, monkeypatch):
    powercap.zone("intel-rapl:2", "psys")
    assert "shows no energy counter of its processor" in counter_for("cpu").why
    broken = powercap.zone("intel-rapl:0", "package-0", "broken")
    assert "can't be read" in counter_for("cpu").why
    broken.write_text("1")

    def denied(file):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(energy, "_number", denied)
    got = counter_for("cpu")
    assert "is for root alone" in got.why
    assert "chmod a+r" in got.why
