"""A whole visit to a GPU as one command: ``python proofs/gpu_visit.py --out DIR [--minutes 9]``.

What the machine is and what its ceilings are, the tests that need a GPU, our timer against Triton's
own, a quick sweep, the ruler's self-check, the claims about this GPU, and the sweep for as long as
there is time. Each step has its own limit. DIR holds at most eight files, whole after every step:
called again with the same DIR, or with ``--before`` another's, a visit goes on with what is left.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from proofs.visit_kept import Kept, NoVisit  # noqa: E402
from proofs.visit_steps import Step, counted, steps  # noqa: E402

PACKING_S = 15.0
"""At the end, for a step's grace and for writing all down."""
KEEP_EVERY_S = 60.0
"""A long step's results are written down so often while it goes on."""
GRACE_S = 8.0
"""After Ctrl-C a step may still end its cell; then it is killed."""

Ended = tuple[int | None, str]
"""The exit status, None of what was cut off, and all that was said."""
Runner = Callable[[Sequence[str], float, Callable[[], None]], Ended]


def called(command: Sequence[str], limit_s: float, keep: Callable[[], None]) -> Ended:
    """Run it for so long at most; whatever it started ends with it. Now and then, ``keep``."""
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": paths}
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=said, stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        end, cut = monotonic() + limit_s, False
        while (status := _waited(process, min(KEEP_EVERY_S, end - monotonic()))) is None:
            keep()
            if monotonic() >= end:
                cut = True
                process.send_signal(signal.SIGINT)
                if _waited(process, GRACE_S) is None:
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                break
        said.seek(0)
        return (None if cut else status), said.read().decode(errors="replace")


def _waited(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    try:
        return process.wait(max(0.0, seconds))
    except subprocess.TimeoutExpired:
        return None


def visit(todo: Sequence[Step], kept: Kept, seconds: float, run: Runner = called,
          now: Callable[[], float] = monotonic) -> None:  # fmt: skip
    """Step after step until the time is over; what an earlier visit has done is not done again."""
    end = now() + seconds - PACKING_S
    for step in todo:
        before = kept.steps.get(step.name)
        if before and before["status"] in ("done", "finding"):
            continue
        left = min(step.limit_s, end - now())
        if left < step.least_s:
            kept.steps[step.name] = before or _ended("not begun", 0.0, "no time was left for it")
            continue
        start = now()
        words = step.command(kept.results, left)
        if isinstance(words, str):
            kept.steps[step.name] = _ended("left out", 0.0, words)
            continue
        print(f"{step.name}: {left:.0f} s at most …", file=sys.stderr, flush=True)
        kept.steps[step.name] = _ended("cut off", 0.0, "the visit ended in the middle of it")
        kept.write()
        status, output = run(words, left, kept.write)
        kept.tell(step.name, output)
        spent = now() - start + (before or {}).get("seconds", 0.0)
        still = "" if status is not None else f"it was still running after {left:.0f} s"
        line = counted(step, output, still)
        kept.steps[step.name] = _ended(_status(status, output), spent, line)
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
    rows += [
        f"{name:10}{one['status']:11}{one['seconds']:8.1f}  {one['line'][:120]}"
        for name, one in kept.steps.items()
    ]
    return "\n".join(rows)


def main(words: Sequence[str]) -> int:
    """Exit status 0 where every step is done, 1 where one found something, 2 where some are not."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", required=True, type=Path, metavar="DIR")
    parser.add_argument(
        "--minutes", type=float, default=9.0, metavar="M", help="of the whole visit"
    )
    parser.add_argument("--before", type=Path, metavar="DIR", help="what an earlier visit left, if "
                        "that is not in --out")  # fmt: skip
    parser.add_argument("--steps", metavar="NAME,…", help="of these steps alone")
    parser.add_argument("--device", default="cuda", help="cuda if not given")
    given = parser.parse_args(words)
    begun, todo = monotonic(), steps(given.device)
    names = given.steps.split(",") if given.steps else [step.name for step in todo]
    if unknown := set(names) - {step.name for step in todo}:
        print(f"there is no step {', '.join(sorted(unknown))}; the steps are "
              f"{', '.join(step.name for step in todo)}", file=sys.stderr)  # fmt: skip
        return 2
    with tempfile.TemporaryDirectory(prefix="attnbench-visit-") as results:
        try:
            kept = Kept(given.out, Path(results), given.before)
        except NoVisit as error:
            print(f"gpu_visit: {error}", file=sys.stderr)
            return 2
        except OSError as error:
            print(f"gpu_visit: {given.out} can't hold a visit: {error.strerror}", file=sys.stderr)
            return 2
        kept.said = _amiss()
        for sentence in kept.said:
            print(f"note: {sentence}", file=sys.stderr)
        left = 60 * given.minutes - (monotonic() - begun)
        visit([step for step in todo if step.name in names], kept, left)
    print(table(kept))
    found = {one["status"] for one in kept.steps.values()}
    return 2 if found - {"done", "finding"} else int("finding" in found)


def _amiss() -> list[str]:
    from attnbench.amiss import amiss
    from attnbench.machine import this_machine

    return amiss(this_machine())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
