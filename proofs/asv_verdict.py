"""Is asv's own verdict right? ``python proofs/asv_verdict.py [--runs 20] [--out FILE] [--only …]``

A scratch clone of this checkout's last commit gets two commits: ``nothing`` changes a comment in a
test, ``planted`` makes one variant do 15 % more work. Each run is ``asv continuous`` over one of
them, as the README has it, with its time and whatever it named. ``nothing`` ought to name nothing
in all of 20 runs but one, ``planted`` its variant in at least 19; all names are in the table.

A line a run goes to ``--out`` (``asv-verdict.jsonl``), with the values that asv compared. What lies
there is not run again, so a stopped proof goes on where it was. ``--only nothing`` or ``--only
planted`` does half of it, ``--table`` prints what is there. The exit status is 1 where the runs
that are there say otherwise. The machine has to be quiet; a run takes some minutes of one core.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from proofs.history import SLICED, SLICES, git  # noqa: E402

VARIANT = "matmul"
FILE = "impls/dense/matmul.py"
TEST = "tests/core/test_amounts.py"
MORE = 3
"""Of the 20 slices that are computed twice: 15 %."""
KINDS = ("nothing", "planted")
BAD = 0.05
"""Of the runs, how many may say otherwise."""
NAMED = re.compile(r"^\|\s*([-+!*])\s*\|.*\|\s*(attention\.\S.*?)\s*\|$")
COMMENT = "\n# of no account\n"


def clone(root: Path) -> None:
    """A clone with a base and a commit of each kind on it, each on a branch of its name."""
    git(ROOT, "clone", "--quiet", "--no-hardlinks", str(ROOT), str(root))
    git(root, "checkout", "--quiet", "-B", "base")
    plain, test = (root / FILE).read_text(), (root / TEST).read_text()
    (root / FILE).write_text(plain + SLICED.format(slices=SLICES, again=0))
    git(root, "commit", "--quiet", "--all", "-m", "in slices")
    changes = {
        "nothing": (TEST, test + COMMENT),
        "planted": (FILE, plain + SLICED.format(slices=SLICES, again=MORE)),
    }
    for kind, (file, text) in changes.items():
        git(root, "checkout", "--quiet", "-b", kind, "base")
        (root / file).write_text(text)
        git(root, "commit", "--quiet", "--all", "-m", kind)


def run(root: Path, kind: str) -> dict[str, Any]:
    """One ``asv continuous``: what it named, how long it took, and what it went by."""
    start = time.monotonic()
    git(root, "checkout", "--quiet", kind)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "asv", "continuous", "HEAD~1", "HEAD"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(root.parent), "PYTHONPATH": ""},
    )
    seconds = time.monotonic() - start
    found = [NAMED.match(line) for line in done.stdout.splitlines()]
    named = {match[2]: match[1] for match in found if match}
    ended = "NOT SIGNIFICANTLY" in done.stdout or bool(named)
    result = {
        "kind": kind,
        "named": named,
        "seconds": round(seconds, 1),
        "status": done.returncode,
        "load": os.getloadavg()[1],
        "values": values(root),
    }
    return result if ended else {**result, "failed": (done.stdout + done.stderr)[-2000:]}


def values(root: Path) -> dict[str, dict[str, list[float]]]:
    """The times that asv keeps of both commits, by branch and cell."""
    from asv.results import iter_results

    by_sha = {
        git(root, "rev-parse", f"HEAD{back}"): name for back, name in (("", "head"), ("~1", "base"))
    }
    found: dict[str, dict[str, list[float]]] = {}
    for result in iter_results(str(root / "results" / "asv")):
        if (name := by_sha.get(result.commit_hash)) is None:
            continue
        params = result.get_result_params("attention.time")
        samples = result.get_result_samples("attention.time", params)
        cells = [", ".join(row) for row in _product(params)]
        found[name] = dict(zip(cells, samples, strict=True))
    return found


def _product(params: Iterable[Iterable[str]]) -> list[tuple[str, ...]]:
    from itertools import product

    return list(product(*params))


def right(one: dict[str, Any]) -> bool:
    """Whether a run named what it ought to."""
    named = one["named"]
    if "failed" in one:
        return False
    if one["kind"] == "nothing":
        return not named
    slower = {name for name, mark in named.items() if mark == "+"}
    return any(name.startswith(f"attention.time('{VARIANT}', ") for name in slower)


def table(runs: list[dict[str, Any]]) -> bool:
    """Print what the runs said; whether that is what it ought to be."""
    good = True
    for kind in KINDS:
        of_kind = [one for one in runs if one["kind"] == kind]
        if not of_kind:
            continue
        well, took = sum(map(right, of_kind)), [one["seconds"] for one in of_kind]
        cells = Counter(f"{mark} {name}" for one in of_kind for name, mark in one["named"].items())
        print(
            f"{kind}: right in {well} of {len(of_kind)} runs; seconds a run: median "
            f"{statistics.median(took):.0f}, most {max(took):.0f}"
        )
        for name, count in cells.most_common():
            print(f"  {count:3} × {name}")
        failed = [one["failed"] for one in of_kind if "failed" in one]
        print(
            "".join(f"  asv failed: {said.strip().splitlines()[-1]}\n" for said in failed), end=""
        )
        good = good and len(of_kind) - well <= max(1, BAD * len(of_kind))
    return good


def main() -> int:
    """The table; 1 where asv's verdict was wrong too often."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20, help="of each kind; 20 if not given")
    parser.add_argument("--out", type=Path, default=Path("asv-verdict.jsonl"))
    parser.add_argument("--only", choices=KINDS)
    parser.add_argument("--table", action="store_true", help="run nothing more")
    given = parser.parse_args()
    runs = (
        [json.loads(line) for line in given.out.read_text().splitlines()]
        if given.out.exists()
        else []
    )
    kinds = (given.only,) if given.only else KINDS
    todo = [
        kind
        for number in range(given.runs)
        for kind in kinds
        if sum(one["kind"] == kind for one in runs) <= number
    ]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "clone"
        if todo and not given.table:
            clone(root)
        for kind in todo if not given.table else ():
            one = run(root, kind)
            runs.append(one)
            with given.out.open("a") as file:
                file.write(json.dumps(one) + "\n")
            mark = "right" if right(one) else "NOT SO"
            said = one.get("failed", "") or one["named"] or "nothing named"
            print(f"{kind:8} {mark:6} {one['seconds']:.0f} s  {said}", flush=True)
    return int(not table(runs))


if __name__ == "__main__":
    sys.exit(main())
