"""Which GPU a run's workers see: of a machine with two, both made up."""

from dataclasses import replace

import pytest

from attnbench.core import gpu
from attnbench.core.machine import Gpu, this_machine
from attnbench.core.settings import Settings
from attnbench.sweep import places as local
from impls.problem import InvalidProblem

GPUS = tuple(
    Gpu(name="NVIDIA H200", uuid=f"GPU-{i}", capability=9.0, memory_bytes=1 << 37, driver="580")
    for i in (0, 1)
)


@pytest.fixture
def two(monkeypatch):
    """The machine, and which GPUs were held."""
    machine, held = replace(this_machine(), gpus=GPUS, torch_cuda="13.0"), []

    class Lock:
        def __init__(self, devices):
            held.append(list(devices))

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

    def uuid_of(device):
        number = int(device.partition(":")[2] or 0)
        return f"GPU-{number}" if number < 2 else gpu.Absent("the driver shows 2 GPUs")

    monkeypatch.setattr(local, "this_machine", lambda: machine)
    monkeypatch.setattr(local, "lock_for", Lock)
    monkeypatch.setattr(local.nvml, "uuid_of", uuid_of)
    return held


def slots(devices, device):
    places = local.Local(devices)
    with places.slots(Settings(), device) as found:
        return places.kind, [
            (s.device, s.engine._variables or {}, s.engine._limited) for s in found
        ]


@pytest.mark.parametrize("number", [0, 1])
def test_a_gpu_that_is_named_is_the_only_one_that_its_worker_sees(two, number):
    only = {"CUDA_VISIBLE_DEVICES": f"GPU-{number}"}
    assert slots([f"cuda:{number}"], "cuda") == ("cuda", [("cuda", only, False)])
    assert two == [[f"cuda:{number}"]]


@pytest.mark.parametrize(
    ("devices", "device", "limited"),
    [
        ([], "cpu", True),
        (["cpu"], "cpu", True),
        ([], "cuda", False),
        (["cuda"], "cuda", False),
        ([], "cuda:1", False),
    ],
)
def test_where_no_gpu_is_named_problems_say_which(two, devices, device, limited):
    _, found = slots(devices, device)
    assert found == [(device, {}, limited)]
    assert two == [[device]]


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        (["cuda:2"], "the driver shows 2 GPUs"),
        (["cpu", "cuda:0"], "unlike devices"),
        (["cuda:0", "cuda:0"], "name each once"),
        (["cuda", "cuda:1"], "name each once"),
    ],
)
def test_what_can_not_be_had_is_a_sentence(two, devices, said):
    with pytest.raises(InvalidProblem, match=said):
        local.Local(devices)
