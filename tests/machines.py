"""A machine, and one with a GPU, both made up."""

from dataclasses import replace

from attnbench.core.machine import Gpu, Machine

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
GPU = Gpu(name="NVIDIA H200", uuid="GPU-1", capability=9.0, memory_bytes=1 << 37, driver="580.1")
WITH_GPU = replace(BOX, gpus=(GPU,), torch_cuda="13.0")
