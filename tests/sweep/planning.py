"""Grids that are planned, and the words of what can't be."""

from attnbench.core.machine import Machine
from attnbench.sweep.plan import make_plan
from attnbench.sweep.presets import Preset
from impls import Table
from impls.spec import Variant

BOX = Machine(
    name="box",
    cpu="a cpu",
    cores=2,
    memory_bytes=1 << 33,
    system="Linux",
    python="3.11.7",
    versions={},
    torch_cuda=None,
    compiler=None,
)
GRID = Preset("a grid", seq=("16",), heads=(2,), phase=("forward",))


def row(name, **more):
    plain = {"title": "", "family": "f", "computes": "softmax", "build": "a:b"}
    return Variant(**{"name": name, **plain, **more})


def table(*rows):
    made = Table()
    for each in rows:
        made.add(each)
    return made


def plan(*rows, names=(), machine=BOX, **grid):
    return make_plan(table(*(rows or [row("a")])), names, GRID.with_(**grid), machine)
