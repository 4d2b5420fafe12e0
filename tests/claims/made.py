"""Claims, figures and machines made up for tests."""

from dataclasses import replace

from attnbench.core.machine import Gpu, Machine
from attnbench.features.claims.claim import Claim, ClaimPoint, ClaimRule, ClaimSource, Needs

SOURCE = ClaimSource("a page", "somebody", "nowhere", "all of it")
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


def point(name="one", rule=ClaimRule.AT_MOST, published=1.0, tolerance=0.0, **more):
    return ClaimPoint(name, f"what {name} says", ClaimRule(rule), published, tolerance, **more)


def claim(*points, name="made-up", how="tests.claims.deeds:well", needs=None, **more):
    return Claim(
        name, "it is so", SOURCE, "as it is", points or (point(),), how, needs or Needs(), **more
    )
