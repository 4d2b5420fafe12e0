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
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import impls  # noqa: E402
from attnbench.core.machine import version_of  # noqa: E402
from attnbench.report.tables import Table, columns, show, to_markdown  # noqa: E402
from impls.errors import CantBeDone  # noqa: E402
from proofs.kernel_facts import CHIPS, KIB, Launch, broken, described  # noqa: E402

PAGE = ROOT / "docs" / "compiled.md"
LONGEST_S = 3600
ERROR = re.compile(r"^\w[\w.]*Error\b.*", re.MULTILINE)


def our_rows() -> list[str]:
    """The rows of our own kernels."""
    return [name for name in impls.table().rows if name.startswith(("triton.", "gluon."))]


def compile_rows(rows: Sequence[str], capability: int, few: bool = False) -> list[Launch]:
    """The facts of every launch, from a process of its own with an empty cache."""
    hidden = ("TRITON_INTERPRET", "PYTHONPATH")
    words = [HERE / "compiling.py", f"{capability}", "few" if few else "all", *rows]
    with tempfile.TemporaryDirectory(prefix="attnbench-compiled-") as cache:
        env = {k: v for k, v in os.environ.items() if k not in hidden}
        env |= {"TRITON_CACHE_DIR": cache, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run(
            [sys.executable, *words], env=env, capture_output=True, text=True, timeout=LONGEST_S
        )
    if done.returncode:
        sys.stderr.write(done.stderr[-3000:])
        errors = ERROR.findall(done.stderr) or [f"exit status {done.returncode}"]
        raise CantBeDone(f"{', '.join(rows)} can't be compiled for sm_{capability}: {errors[-1]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


SHORT = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}
MERGED = ("phase", "mask", "heads", "dtype", "on")
"""Launches that differ in one of these alone become one line; this is done in this order."""
BLOCK = re.compile(r"BLOCK|CHUNK|COLUMNS|ROWS|^B[MN]$")


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f} %"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _counts(counts: dict[str, int]) -> str:
    return " ".join(f"{n} {name}" for name, n in counts.items())


def _blocks(x: Launch) -> str:
    blocks = [f"{v}" for name, v in x["constants"].items() if BLOCK.search(name)]
    return "×".join([*blocks, f"{x['warps']}", f"{x['stages']}"])


def _remarks(x: Launch) -> str:
    narrow = [f"{x['narrow']} narrow loads"] if x["narrow"] else []
    return ", ".join([*(["serialized"] if x["serialized"] else []), *narrow])


CELLS: dict[str, Callable[[Launch], str]] = {
    "head_dim": lambda x: f"{x['head_dim']}",
    "blocks": _blocks,
    "registers": lambda x: "",
    "spills, B": lambda x: "",
    "shared, KiB": lambda x: f"{x['shared'] / KIB:.0f}",
    "blocks an SM": lambda x: f"{x['blocks_an_sm']}",
    "multiplied by": lambda x: _counts(x["multiplies"]),
    "read by": lambda x: _counts(x["reads"]),
    "B a clock": lambda x: _number(x["shared_bytes_a_clock"]),
    "FLOP a byte": lambda x: _number(x["flop_a_byte"]),
    "products": lambda x: _number(x["products"]),
    "EX2 under one": lambda x: _percent(x["covered"]),
    "remarks": _remarks,
    "on": lambda x: f"{x['capability']}",
    "dtype": lambda x: SHORT[x["dtype"]],
    "heads": lambda x: x["heads"] if x["keys"] > KIB else f"{x['heads']}, length {x['keys']}",
    "mask": lambda x: x["mask"],
    "phase": lambda x: x["phase"],
}
RANGES = {"registers": "registers", "spills, B": "spilled"}
"""Facts in which equal launches may differ, by heading: a line has the least and the most."""
Line = dict[str, Any]


def tables(launches: Sequence[Launch]) -> Iterator[Table]:
    """A table a kernel; launches that differ in RANGES alone are equal."""
    kernels: dict[str, list[Line]] = {}
    for x in launches:
        roles = [v for k, v in x["constants"].items() if isinstance(v, str) and k != "PRECISION"]
        title = f"{x['row']}: {' '.join([x['kernel'], *roles])}"
        line: Line = {heading: cell(x) for heading, cell in CELLS.items()}
        line |= {heading: (x[fact], x[fact]) for heading, fact in RANGES.items()}
        kernels.setdefault(title, []).append(line)
    for title, lines in kernels.items():
        for heading in MERGED:
            lines = _merged(lines, heading)
        lines.sort(key=lambda x: (int(x["head_dim"]), int(x["on"].split(";")[0]), x["dtype"]))
        for line in lines:
            for heading in RANGES:
                low, high = line[heading]
                line[heading] = f"{low}" if low == high else f"{low}–{high}"
        used = [heading for heading in CELLS if any(line[heading] for line in lines)]
        rows = [[line[heading] for heading in used] for line in lines]
        yield Table(title, columns(*used, right=["head_dim"]), rows)


def _merged(lines: Sequence[Line], heading: str) -> list[Line]:
    """One line of all that differ in this heading alone."""
    groups: dict[Any, list[Line]] = {}
    for line in lines:
        rest = tuple(v for k, v in line.items() if k != heading and k not in RANGES)
        groups.setdefault(rest, []).append(line)
    merged = []
    for group in groups.values():
        line = group[0] | {heading: "; ".join(dict.fromkeys(x[heading] for x in group))}
        for each in RANGES:
            low, high = zip(*(x[each] for x in group), strict=True)
            line[each] = min(low), max(high)
        merged.append(line)
    return merged


def page(launches: Sequence[Launch]) -> str:
    """``docs/compiled.md``."""
    from jinja2 import Environment, FileSystemLoader

    words = Environment(loader=FileSystemLoader(HERE), trim_blocks=True, keep_trailing_newline=True)
    return words.get_template("compiled.md.jinja").render(
        triton=version_of("triton"),
        torch=version_of("torch"),
        python=platform.python_version(),
        chips=CHIPS,
        tables=list(tables([launch for launch in launches if "refused" not in launch])),
        markdown=to_markdown,
        refusals=_refusals(launches),
    )


def _refusals(launches: Sequence[Launch]) -> list[str]:
    reasons: dict[tuple[str, str], dict[str, None]] = {}
    for launch in launches:
        if "refused" in launch:
            on = reasons.setdefault((launch["row"], launch["refused"]), {})
            on[f"sm_{launch['capability']}"] = None
    return [f"{row} on {', '.join(on)}: {why}" for (row, why), on in reasons.items()]


def check_arguments(rows: Sequence[str], capabilities: Sequence[int]) -> None:
    """Raises CantBeDone with a sentence where nothing could be compiled."""
    ours, version = our_rows(), version_of("triton")
    if unknown := [row for row in rows if row not in ours]:
        raise CantBeDone(f"{unknown[0]} is no row in Triton or Gluon; those are {', '.join(ours)}")
    if strange := [n for n in capabilities if n not in CHIPS]:
        raise CantBeDone(f"--sm {strange[0]} is unknown; known are {', '.join(map(str, CHIPS))}")
    table = impls.table().rows
    for needed in (r for row in rows for r in table[row].requires if r.startswith("triton>=")):
        if version is None or _release(version) < _release(needed):
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
