"""What compilers make of our GPU kernels, without a GPU: ``python proofs/compiled.py [ROW …]``.

Every launch of the rows in Triton and Gluon is compiled for five kinds of GPU, in width, dtype,
mask and phase. The command prints a table a kernel, holds each launch to its bounds (exit status 1
where one is broken), and writes ``docs/compiled.md`` unless rows or ``--sm`` leave something out.
Half an hour of one processor.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import impls  # noqa: E402
from attnbench.core.machine import version_of  # noqa: E402
from attnbench.report.tables import Table, columns, show, to_markdown  # noqa: E402
from impls.errors import CantBeDone  # noqa: E402
from proofs.kernel_bounds import Launch, broken, described  # noqa: E402
from proofs.kernel_facts import CHIPS, KIB  # noqa: E402

PAGE = ROOT / "docs" / "compiled.md"
LANGUAGES = ("triton", "gluon")
LONGEST_S = 3600
ERROR = re.compile(r"^\w[\w.]*Error\b.*", re.MULTILINE)


def our_rows() -> list[str]:
    """The rows of our own kernels."""
    return [name for name in impls.table().rows if name.partition(".")[0] in LANGUAGES]


def compile_rows(rows: Sequence[str], capability: int, few: bool = False) -> list[Launch]:
    """The facts of every launch, from a process of its own with an empty cache."""
    hidden = ("TRITON_INTERPRET", "PYTHONPATH")
    with tempfile.TemporaryDirectory(prefix="attnbench-compiled-") as cache:
        environment = {k: v for k, v in os.environ.items() if k not in hidden} | {
            "TRITON_CACHE_DIR": cache,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        done = subprocess.run(
            [sys.executable, Path(__file__).with_name("compiling.py"), f"{capability}",
             "few" if few else "all", *rows],
            env=environment, capture_output=True, text=True, check=False, timeout=LONGEST_S,
        )  # fmt: skip
    if done.returncode:
        sys.stderr.write(done.stderr[-3000:])
        errors = ERROR.findall(done.stderr) or [f"exit status {done.returncode}"]
        raise CantBeDone(f"{', '.join(rows)} can't be compiled for sm_{capability}: {errors[-1]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


SHORT = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}
MERGED = ("phase", "mask", "heads", "dtype", "on")
"""Launches that differ in one of these alone become one line; this is done in this order."""
BLOCK = re.compile(r"BLOCK|CHUNK|COLUMNS|ROWS|^B[MN]$")


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{100 * share:.0f} %"


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:.3g}"


def _launched(launch: Launch) -> str:
    blocks = [f"{v}" for name, v in launch["constants"].items() if BLOCK.search(name)]
    return "×".join([*blocks, f"{launch['warps']}", f"{launch['stages']}"])


def _counts(counts: dict[str, int]) -> str | None:
    return " ".join(f"{n} {name}" for name, n in counts.items()) or None


CELLS: dict[str, Callable[[Launch], Any]] = {
    "head_dim": lambda x: f"{x['head_dim']}",
    "blocks": _launched,
    "shared, KiB": lambda x: f"{x['shared'] / KIB:.0f}",
    "blocks an SM": lambda x: f"{x['blocks_an_sm']}",
    "multiplied by": lambda x: _counts(x["multiplies"]),
    "read by": lambda x: _counts(x["reads"]),
    "B a clock": lambda x: _number(x["shared_bytes_a_clock"]),
    "FLOP a byte": lambda x: _number(x["flop_a_byte"]),
    "products": lambda x: _number(x["products"]),
    "EX2 under one": lambda x: _percent(x["covered"]),
    "remarks": lambda x: ", ".join(
        ["serialized"] * x["serialized"] + [f"{x['narrow']} narrow loads"] * (x["narrow"] > 0)
    ),
}
RANGES = {"registers": "registers", "spilled": "spills, B"}
"""Facts in which equal launches may differ, and their headings."""
EXPLAINED = """
| column | it holds |
|---|---|
| blocks | the launch: blocks (of queries and keys, or of a chunk and columns), warps, stages |
| spills | bytes that a thread stores to memory for want of registers |
| blocks an SM | that fit at once, by registers, shared memory, warps and tensor memory |
| multiplied by | instructions in the PTX: wgmma (Hopper), tcgen05 (Blackwell), mma |
| read by | instructions in the PTX that read memory: TMA, cp.async, ld |
| B a clock | bytes of shared memory that the hungriest wgmma reads a clock; an SM can 128 |
| FLOP a byte | that a program reads through L2, by its blocks |
| products | of a block of queries, a block of keys and the width, a turn; padding counts |
| EX2 under one | share of EX2 that runs while a wgmma is in flight, in the loop where it is least |
| on, dtype, heads, mask, phase | the launches of which all else is equal; heads/key heads |
"""


class Line(NamedTuple):
    """A line of a table: its cells, the launches that it is of, and least and most of RANGES."""

    cells: tuple[str, ...]
    of: dict[str, str]
    least: tuple[int, ...]
    most: tuple[int, ...]


def tables(launches: Sequence[Launch]) -> Iterator[Table]:
    """A table a kernel; launches that differ in RANGES alone are equal."""
    kernels: dict[str, list[Line]] = {}
    for x in launches:
        roles = [v for name, v in x["constants"].items()
                 if isinstance(v, str) and name != "PRECISION"]  # fmt: skip
        title = f"{x['row']}: {' '.join([x['kernel'], *roles])}"
        heads = x["heads"] if x["keys"] > KIB else f"{x['heads']}, length {x['keys']}"
        of = {"on": f"{x['capability']}", "dtype": SHORT[x["dtype"]], "heads": heads,
              "mask": x["mask"], "phase": x["phase"]}  # fmt: skip
        cells = tuple(cell(x) or "" for cell in CELLS.values())
        values = tuple(x[name] for name in RANGES)
        kernels.setdefault(title, []).append(Line(cells, of, values, values))
    for title, lines in kernels.items():
        for name in MERGED:
            lines = _merged(lines, name)
        lines.sort(key=lambda x: (int(x.cells[0]), _first(x.of["on"]), x.of["dtype"]))
        used = [i for i in range(len(CELLS)) if any(x.cells[i] for x in lines)]
        headings = [*(list(CELLS)[i] for i in used), *lines[0].of]
        headings[2:2] = RANGES.values()
        rows = [[*(x.cells[i] for i in used), *x.of.values()] for x in lines]
        for row, line in zip(rows, lines, strict=True):
            row[2:2] = map(_range, line.least, line.most)
        yield Table(title, columns(*headings, right=["head_dim"]), rows)


def _range(low: int, high: int) -> str:
    return f"{low}" if low == high else f"{low}–{high}"


def _first(capabilities: str) -> int:
    return int(capabilities.split(";")[0])


def _merged(lines: list[Line], name: str) -> list[Line]:
    groups: dict[Any, list[Line]] = {}
    for line in lines:
        rest = (line.cells, *(v for k, v in line.of.items() if k != name))
        groups.setdefault(rest, []).append(line)
    merged = []
    for group in groups.values():
        values = dict.fromkeys(line.of[name] for line in group)
        of = group[0].of | {name: "; ".join(values)}
        least = tuple(map(min, zip(*(line.least for line in group), strict=True)))
        most = tuple(map(max, zip(*(line.most for line in group), strict=True)))
        merged.append(Line(group[0].cells, of, least, most))
    return merged


def page(launches: Sequence[Launch]) -> str:
    """``docs/compiled.md``."""
    facts = [launch for launch in launches if "refused" not in launch]
    chips = Table("", columns("on", "GPU", "shared memory of a block, KiB", "of an SM",
                              "warps", "blocks"),
                  [[f"{n}", c.name, c.shared, c.shared_sm, c.warps, c.blocks]
                   for n, c in CHIPS.items()])  # fmt: skip
    parts = [
        "# What compilers make of our GPU kernels",
        "`python proofs/compiled.py` compiles every launch of the rows in Triton and Gluon without "
        f"a GPU, and wrote this page: Triton {version_of('triton')}, torch {version_of('torch')}, "
        f"Python {platform.python_version()}. Nothing here was run. The slow tests of "
        "`tests/impls/in_triton/test_compiled.py` hold some of these launches to their bounds, the "
        "command holds all. A token has the head_dim's numbers in q, k and v; batch 1, 4,096 "
        "tokens unless another number is named.",
        EXPLAINED.strip(),
        to_markdown(chips),
        'Limits are those of the CUDA C++ Programming Guide ("Technical Specifications per Compute '
        'Capability"); each SM has 65,536 registers.',
    ]
    for table in tables(facts):
        parts += [f"## {table.title}", to_markdown(table)]
    if reasons := _refusals(launches):
        parts += ["## Not compiled", "\n".join(f"- {line}" for line in reasons)]
    return "\n\n".join(parts) + "\n"


def _refusals(launches: Sequence[Launch]) -> list[str]:
    reasons: dict[tuple[str, str], list[str]] = {}
    for launch in launches:
        if "refused" in launch:
            on = reasons.setdefault((launch["row"], launch["refused"]), [])
            on += [f"sm_{launch['capability']}"] * (f"sm_{launch['capability']}" not in on)
    return [f"{row} on {', '.join(on)}: {why}" for (row, why), on in reasons.items()]


def check_arguments(rows: Sequence[str], capabilities: Sequence[int]) -> None:
    """Raises CantBeDone with a sentence where nothing could be compiled."""
    known = our_rows()
    for row in rows:
        if row not in known:
            raise CantBeDone(f"{row} is no row in Triton or Gluon; those are {', '.join(known)}")
    for capability in capabilities:
        if capability not in CHIPS:
            raise CantBeDone(
                f"--sm {capability} is unknown; known are {', '.join(map(str, CHIPS))}"
            )
    table = impls.table().rows
    for needed in (r for row in rows for r in table[row].requires if r.startswith("triton>=")):
        least, version = needed.removeprefix("triton>="), version_of("triton")
        if version is None or _release(version) < _release(least):
            state = "is not installed" if version is None else f"is at {version}"
            raise CantBeDone(
                f"compiling needs {needed}, and triton {state}: pip install 'attnbench[triton]'"
            )


def _release(version: str) -> list[int]:
    return [int(n) for n in re.findall(r"\d+", version)[:2]]


def compile_all(rows: Sequence[str], capabilities: Sequence[int], processes: int) -> list[Launch]:
    """Every launch, some processes side by side; a line to standard error as each ends."""

    def one(task: tuple[str, int]) -> list[Launch]:
        launches = compile_rows([task[0]], task[1])
        print(f"{task[0]} sm_{task[1]}: {len(launches)} launches", file=sys.stderr, flush=True)
        return launches

    with ThreadPoolExecutor(processes) as pool:
        tasks = [(row, capability) for row in rows for capability in capabilities]
        return [launch for launches in pool.map(one, tasks) for launch in launches]


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("rows", nargs="*", metavar="ROW")
    parser.add_argument("--sm", type=int, nargs="+", default=list(CHIPS), metavar="N")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args(words)
    rows = arguments.rows or our_rows()
    try:
        check_arguments(rows, arguments.sm)
        launches = compile_all(rows, arguments.sm, max(1, arguments.processes))
    except CantBeDone as reason:
        print(reason, file=sys.stderr)
        return 2
    facts = [launch for launch in launches if "refused" not in launch]
    for table in tables(facts):
        show(table)
    if set(rows) == set(our_rows()) and set(arguments.sm) == set(CHIPS):
        PAGE.write_text(page(launches), encoding="utf-8")
    faults = [f"{described(launch)}: {line}" for launch in facts for line in broken(launch)]
    print("", *_refusals(launches), *faults, sep="\n")
    print(f"{len(facts)} launches; bounds broken: {len(faults)}")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
