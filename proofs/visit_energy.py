"""What a token costs in energy, three times over, for the ten fastest variants of a run.

``python proofs/visit_energy.py RESULTS``: of the latest quick run there, forward at 8,192 tokens,
the ten fastest are measured again in three runs, but for those that a visit before has made. After
each comes how far they lie apart.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from attnbench.core.record import Record, Status  # noqa: E402
from attnbench.core.store import each_run, read_records  # noqa: E402
from proofs.visit_steps import ATTNBENCH, unfinished  # noqa: E402

LENGTH, MANY, REPEATS, WITHIN = 8192, 10, 3, 0.05
BUDGET_S = 0.3
"""For the samples of a cell; the energy loop has its own."""
Run = Callable[[Sequence[str]], int]


def fastest(records: Iterable[Record]) -> list[Record]:
    """The fastest of each variant at the length, forward, on one problem: the first that is met."""
    found: dict[str, Record] = {}
    problem = None
    for record in records:
        here = record.problem
        if (here.kv_len, here.phase) != (LENGTH, "forward") or record.time is None:
            continue
        problem = problem or here
        if here == problem:
            found[record.variant] = record
    return sorted(found.values(), key=lambda r: r.time.median_s if r.time else 0.0)[:MANY]


def words(records: Sequence[Record], out: Path) -> list[str]:
    """The run that measures them again."""
    p = records[0].problem
    asked = {
        "seq": p.kv_len,
        "batch": p.batch,
        "heads": p.heads,
        "kv-heads": p.kv_heads,
        "head-dim": p.head_dim,
        "dtype": p.dtype,
        "mask": str(p.mask),
        "phase": p.phase,
        "device": p.device,
    }
    told = [word for name, value in asked.items() for word in (f"--{name}", f"{value}")]
    return [
        *ATTNBENCH,
        "run",
        *(r.variant for r in records),
        *told,
        "--energy",
        "--budget",
        f"{BUDGET_S}",
        "--no-report",
        "--out",
        f"{out}",
    ]


def per_token(records: Iterable[Record]) -> dict[str, float | str]:
    """Of each variant the joules a token, or why there are none."""
    said: dict[str, float | str] = {}
    for record in records:
        energy, p = record.energy, record.problem
        if record.status is not Status.MEASURED:
            said[record.variant] = record.reason
        elif energy is None or energy.joules is None:
            said[record.variant] = energy.why if energy else "no energy was asked for"
        else:
            said[record.variant] = energy.joules / (p.batch * p.q_len)
    return said


def sustained(records: Iterable[Record]) -> list[str]:
    """Of each variant what a call takes back to back for seconds, beside its time."""
    return [
        f"{r.variant:18} {1e3 * r.energy.call_s:.4g} ms a call back to back for seconds, "
        f"{r.energy.call_s / r.time.median_s:.3f} of the {1e3 * r.time.median_s:.4g} ms timed apart"
        for r in records
        if r.energy and r.energy.call_s and r.time
    ]


def of_before(results: Path, quick: Path, ten: Sequence[Record]) -> list[dict[str, float | str]]:
    """The repeats that are whole already: runs of all these and no others, with joules."""
    found = []
    for path in each_run([results]):
        if path == quick:
            continue
        records = [r for r in read_records(path) if r.problem == ten[0].problem]
        if {r.variant for r in records} == {r.variant for r in ten} and any(
            r.energy is not None for r in records
        ):
            found.append(per_token(records))
    return found[:REPEATS]


def told(repeats: Sequence[Mapping[str, float | str]]) -> tuple[list[str], int]:
    """The lines of a table, and the exit status: 0 where all lie within the bound."""
    lines, widest, within, why = [], (0.0, ""), 0, ""
    names = list(dict.fromkeys(name for repeat in repeats for name in repeat))
    for name in names:
        values = [repeat.get(name, "it was not measured") for repeat in repeats]
        numbers = [v for v in values if isinstance(v, float) and v > 0]
        if len(numbers) < len(values):
            why = next((v for v in values if isinstance(v, str)), "less than its idle draw")
            lines.append(f"{name:18} {why}")
            continue
        apart = max(numbers) / min(numbers) - 1
        within += apart <= WITHIN
        widest = max(widest, (apart, name))
        joules = "  ".join(f"{1e6 * n:9.4g}" for n in numbers)
        lines.append(f"{name:18} {joules} µJ a token  {100 * apart:5.1f} % apart")
    if not widest[1]:
        return [*lines, f"energy: nothing was compared: {why or 'no variant was measured'}"], 2
    if len(repeats) < 2:
        return [
            *lines,
            f"energy: {len(names)} variant{'s' * (len(names) > 1)} once, so nothing was compared",
        ], 2
    lines.append(
        f"energy: {within} of {len(names)} variants within {100 * WITHIN:.0f} % over "
        f"{len(repeats)} repeats; the widest {100 * widest[0]:.1f} % ({widest[1]})"
    )
    return lines, int(within < len(names))


def main(given: Sequence[str], run: Run = subprocess.call) -> int:
    """Exit status 0 where repeats agree, 1 where some don't, 2 where nothing was compared."""
    results = Path(given[0])
    quick = unfinished(results, "h200-quick")
    ten = fastest(read_records(quick)) if quick else []
    if quick is None or not ten:
        print(f"energy: {results} holds no quick run with times at {LENGTH} tokens: run that first")
        return 2
    repeats = of_before(results, quick, ten)
    while True:
        lines, status = told(repeats)
        if repeats:
            print("\n".join(lines), flush=True)  # now: a visit may end before the next one does
        if len(repeats) == REPEATS:
            return status
        before = set(each_run([results]))
        run(words(ten, results))
        new = [path for path in each_run([results]) if path not in before]
        records = [record for path in new for record in read_records(path)]
        print("\n".join(sustained(records)), flush=True)
        repeats.append(per_token(records))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
