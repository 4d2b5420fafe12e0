"""A whole visit to a GPU as one command: ``python proofs/gpu_visit.py --out DIR [--minutes 9]``.

What the machine is and what its ceilings are, the tests of our clocks, our timer against Triton's
own, a quick sweep; the tests of our kernels, and their blocks; energy, a million tokens, the sweep;
the ruler's self-check and the claims about this GPU. Each step has its own limit. DIR holds at most
eight files, whole after every step: called again with the same DIR, or with ``--before`` another's,
a visit goes on with what is left.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import shorten
from time import monotonic

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from attnbench.command.arguments import above_zero, words  # noqa: E402
from attnbench.command.terminal import (  # noqa: E402
    INTERRUPTED,
    as_ctrl_c,
)
from attnbench.core.machine import (  # noqa: E402
    gpu_warnings,
    this_machine,
)
from proofs.visit_called import Ended, Stopped, called  # noqa: E402
from proofs.visit_kept import Kept, NoVisit, Place  # noqa: E402
from proofs.visit_steps import Step, counted, facts, steps  # noqa: E402

PACKING_S = 15.0
"""At the end, for a step's grace and for writing all down."""
LINE = 120
"""Letters of a line in the table; the summary has it whole."""
Runner = Callable[[Sequence[str], float, Callable[[], None]], Ended]


def visit(
    todo: Sequence[Step],
    kept: Kept,
    seconds: float,
    run: Runner = called,
    now: Callable[[], float] = monotonic,
) -> None:
    """Step after step until the time is over; what an earlier visit has done is not done again."""
    end = now() + seconds - PACKING_S
    kept.write()
    for step in todo:
        before = kept.steps.get(step.name)
        if before and before["status"] in ("done", "finding"):
            continue
        left = min(step.limit_s, end - now())
        if left < step.least_s:
            kept.steps[step.name] = before or _ended("not begun", 0.0, "no time was left for it")
            continue
        told = step.command(kept.results, left)
        if isinstance(told, str):
            kept.steps[step.name] = _ended("left out", 0.0, told)
            continue
        print(f"{step.name}: {left:.0f} s at most …", file=sys.stderr, flush=True)
        start = now() - (before or {}).get("seconds", 0.0)
        kept.steps[step.name] = _ended("cut off", 0.0, "the visit ended in the middle of it")
        kept.write()
        try:
            status, output = run(told, left, kept.write)
        except Stopped as stopped:
            kept.tell(step.name, stopped.said)
            kept.steps[step.name] = _ended("cut off", now() - start, "the visit was stopped in it")
            kept.write()
            raise
        kept.tell(step.name, output)
        still = "" if status is not None else f"it was still running after {left:.0f} s"
        line = counted(step, output, still)
        kept.steps[step.name] = _ended(_status(status, output), now() - start, line)
        kept.write()
    kept.write()


def _status(status: int | None, output: str) -> str:
    if status is None:
        return "cut off"
    if "were not begun. Go on with" in output:
        return "partly"
    return {0: "done", 1: "finding"}.get(status, "failed")


def _ended(status: str, seconds: float, line: str) -> dict[str, str | float]:
    return {"status": status, "seconds": round(seconds, 1), "line": line}


def table(kept: Kept) -> str:
    """A line a step: what became of it, its seconds, and the line that counts."""
    rows = [f"{'step':10}{'status':11}{'seconds':>8}  what it came to"]
    for name, one in kept.steps.items():
        line = shorten(one["line"], LINE, placeholder=" …")
        rows.append(f"{name:10}{one['status']:11}{one['seconds']:8.1f}  {line}")
    return "\n".join(rows)


def main(told: Sequence[str]) -> int:
    """Exit status of the steps asked for: 0 where all are done, 1 where one found something, 2
    where some are not; 130 where somebody stopped it.
    """
    given = _parser().parse_args(told)
    begun, todo = monotonic(), steps(given.device)
    names = given.steps or [step.name for step in todo]
    if unknown := set(names) - {step.name for step in todo}:
        print(
            f"there is no step {', '.join(sorted(unknown))}; the steps are "
            f"{', '.join(step.name for step in todo)}",
            file=sys.stderr,
        )
        return 2
    with tempfile.TemporaryDirectory(prefix="attnbench-visit-") as results, as_ctrl_c():
        try:
            place = Place(this_machine().kind, given.device)
            kept = Kept(given.out, Path(results), place, given.before)
            kept.said = gpu_warnings(this_machine())
            print("\n".join(facts()), file=sys.stderr, flush=True)
            kept.tell("machine", "\n".join(facts()))
            for sentence in kept.said:
                print(f"note: {sentence}", file=sys.stderr)
            left = 60 * given.minutes - (monotonic() - begun)
            stopped = _stopped([step for step in todo if step.name in names], kept, left)
        except NoVisit as error:
            print(f"gpu_visit: {error}", file=sys.stderr)
            return 2
    print(table(kept))
    if stopped:
        print("stopped; what was done is kept, and the same command goes on", file=sys.stderr)
        return INTERRUPTED
    found = {one["status"] for name, one in kept.steps.items() if name in names}
    return 2 if found - {"done", "finding"} else int("finding" in found)


def _stopped(todo: Sequence[Step], kept: Kept, seconds: float) -> bool:
    """The visit; whether somebody ended it."""
    try:
        visit(todo, kept, seconds)
    except KeyboardInterrupt:
        return True
    return False


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", required=True, type=Path, metavar="DIR")
    parser.add_argument(
        "--minutes", type=above_zero, default=9.0, metavar="M", help="of the whole visit"
    )
    parser.add_argument(
        "--before",
        type=Path,
        metavar="DIR",
        help="what an earlier visit left, if that is not in --out",
    )
    parser.add_argument("--steps", type=words, metavar="NAME,…", help="of these steps alone")
    parser.add_argument(
        "--device",
        choices=("cuda", "cpu"),
        default="cuda",
        help="cuda if not given; with cpu, to try the visit itself",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
