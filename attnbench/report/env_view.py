"""The machine in a table: what it is, how it stands, its ceilings, its noise floor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.markup import escape

from attnbench.report.tables import grid, put


def show(facts: Mapping[str, Any]) -> None:
    """``env``: a line a fact."""
    made = grid("", "", words=[""])
    for what, said in (*_machine(facts), *_moment(facts["observed"]), *_reach(facts)):
        made.add_row(what, escape(said))
    put(made)


def _machine(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    m, settings = facts["machine"], facts["settings"]
    yield "machine", m["name"]
    yield "cpu", f"{m['cpu']}, {m['cores']} cores, {m['memory_bytes'] / 2**30:.1f} GiB"
    for gpu in m["gpus"]:
        memory = f"{gpu['memory_bytes'] / 2**30:.0f} GiB"
        yield "gpu", f"{gpu['name']}, sm {gpu['capability']}, {memory}, driver {gpu['driver']}"
    if not m["gpus"]:
        yield "gpu", "none that NVIDIA's driver library shows"
    yield "system", f"{m['system']}, Python {m['python']}"
    yield "versions", ", ".join(f"{k} {v}" for k, v in m["versions"].items())
    yield "torch's CUDA", m["torch_cuda"] or "none: a CPU build"
    yield "C++ compiler", m["compiler"] or "none: compiled variants are unavailable"
    yield "threads", str(settings["threads"])
    yield "environment", ", ".join(f"{k}={v}" for k, v in settings["environment"].items())


def _moment(observed: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    cpu = observed["cpu"]
    clock = f"{cpu['mhz']:.0f} MHz" if isinstance(cpu["mhz"], float) else cpu["mhz"]
    yield "cpu clock", f"{clock}; governor: {cpu['governor']}"
    yield "load", f"{cpu['load_1min']:.2f} over a minute, {cpu['load_5min']:.2f} over five"
    for gpu in observed["gpus"]:
        facts = (f"{name.replace('_', ' ')} {value}" for name, value in gpu.items())
        yield "gpu now", ", ".join(facts)


def _reach(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for dtype, rate in facts["ceilings"]["flops"].items():
        yield f"product {dtype}", f"{rate / 1e9:.1f} GFLOP/s"
    for size, rate in facts["ceilings"]["copy"].items():
        yield f"copy of {int(size) / 2**20:g} MiB", f"{rate / 1e9:.1f} GB/s"
    for floor in facts["noise"]:
        beyond = f"{floor['floor']:.2%}" if floor["floor"] > 0 else "none beyond sampling noise"
        said = f"{beyond} ({floor['trials']} comparisons of a variant with itself, of "
        said += f"{floor['pairs']:.0f} pairs; their ratios were up to {floor['apart']:.2%} off one)"
        yield f"noise at {floor['call_s'] * 1e3:.3g} ms", said
