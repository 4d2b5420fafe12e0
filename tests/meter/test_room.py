"""Whether there is room, on a GPU whose memory is a number."""

import pytest
import torch

from attnbench.gate.inputs import Inputs
from attnbench.meter import cell
from attnbench.meter import memory as room
from impls.cost import Cost
from impls.problem import Problem

GIB = 2**30


class Memory:
    """What the driver has, what torch keeps of the rest, and what of that is in use."""

    def __init__(self, monkeypatch, free, kept, used):
        self.free, self.kept, self.used, self.deeds = free, kept, used, []
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (self.free, 10**12))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: self.kept)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: self.used)
        monkeypatch.setattr(torch.cuda, "empty_cache", self._empty)
        monkeypatch.setattr(room.gc, "collect", lambda: self.deeds.append("collected"))

    def _empty(self):
        self.deeds.append("emptied")
        self.free, self.kept = self.free + self.kept - self.used, self.used


@pytest.mark.parametrize(
    ("need", "deeds"),
    [
        (8, []),
        (9, []),
        (10, ["collected", "emptied"]),
        (36, ["collected", "emptied"]),
    ],
)
def test_what_torch_keeps_is_given_back_where_the_driver_has_too_little(monkeypatch, need, deeds):
    memory = Memory(monkeypatch, free=10 * GIB, kept=35 * GIB, used=5 * GIB)
    room.insist(need * GIB, "cuda", "it", "above")
    assert memory.deeds == deeds


def test_what_does_not_fit_even_then_is_said_with_what_is_free(monkeypatch):
    memory = Memory(monkeypatch, free=10 * GIB, kept=35 * GIB, used=5 * GIB)
    with pytest.raises(MemoryError) as raised:
        room.insist(37 * GIB, "cuda", "checking it", "with")
    assert str(raised.value) == (
        "predicted, not run: checking it needs 37.0 GiB with its inputs and 40.0 GiB are free"
    )
    assert memory.deeds == ["collected", "emptied"]


def test_what_torch_keeps_unused_can_be_had_too(monkeypatch):
    Memory(monkeypatch, free=3, kept=7, used=2)
    assert room.free_bytes("cuda") == 8


def test_a_context_that_is_gone_has_nothing_to_give_back(monkeypatch):
    Memory(monkeypatch, free=1, kept=0, used=0)

    def gone():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "empty_cache", gone)
    room.release("cuda")


def test_a_cpu_has_nothing_to_give_back(monkeypatch):
    memory = Memory(monkeypatch, free=0, kept=0, used=0)
    room.insist(0, "cpu", "it", "above")
    room.release("cpu")
    assert memory.deeds == ["collected"]


@pytest.mark.parametrize(
    ("device", "peak", "fits"),
    [
        ("cuda", 2, True),
        ("cuda", 4, False),
        ("cuda", None, True),
        ("cpu", 99, True),
    ],
)
def test_a_gpu_needs_room_for_the_copies_that_checking_keeps(monkeypatch, device, peak, fits):
    Memory(monkeypatch, free=10 * GIB, kept=0, used=0)
    inputs = Inputs(*(torch.empty(n * GIB, dtype=torch.int8, device="meta") for n in (1, 1, 0)))
    cost = None if peak is None else Cost(0, 0, peak * GIB)
    asked = cell._insist_on_copies, Problem(device=device), inputs, cost
    if fits:
        asked[0](*asked[1:])
    else:
        with pytest.raises(MemoryError, match=r"checking it needs 10\.0 GiB with its inputs"):
            asked[0](*asked[1:])
