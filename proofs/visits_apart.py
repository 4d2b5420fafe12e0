"""How far two visits to a GPU lie apart: ``python proofs/visits_apart.py VISIT VISIT``.

Of each preset that both have measured, by how much the times of one and the same cell differ: of
the middle cell, which is to be within two per cent, and of nine in ten.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from attnbench.answer.compare_runs import RunsComparison, compare_runs  # noqa: E402
from impls.errors import CantBeDone  # noqa: E402
from proofs.visit_kept import SUMMARY, unpack  # noqa: E402
from proofs.visit_steps import unfinished  # noqa: E402

PRESETS = ("h200-quick", "million", "h200")
WITHIN = 0.02


def lines(a: Path, b: Path) -> Iterator[tuple[str, int | None]]:
    """Of two folders of results, preset by preset: what can be said, and the exit status of it."""
    for preset in PRESETS:
        first, second = unfinished(a, preset), unfinished(b, preset)
        if first is None or second is None:
            missing = ["first"] * (first is None) + ["second"] * (second is None)
            yield f"{preset:11} not in the {' and '.join(missing)} visit", None
            continue
        try:
            said, status = _apart(compare_runs(first, second))
        except CantBeDone as error:
            said, status = str(error), 2
        yield f"{preset:11} {said}", status


def _apart(found: RunsComparison) -> tuple[str, int]:
    if found.apart is None:
        return "no cell has a time in both", 2
    timed = sum(cell.comparison is not None for cell in found.cells)
    middle, most = found.apart
    return (
        f"{timed} cells timed in both: the middle one {100 * middle:.1f} % apart, nine in ten at "
        f"most {100 * most:.1f} %; {len(found.cells) - timed} with another status"
    ), int(middle > WITHIN)


def main(given: Sequence[str]) -> int:
    """Exit status 0 where every middle cell is within the bound, 1 where one is not, 2 else."""
    if len(given) != 2:
        print((__doc__ or "").partition("\n")[0], file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="attnbench-visits-") as room:
        unpacked = [Path(room, name) for name in "ab"]
        for word, into in zip(given, unpacked, strict=True):
            folder = Path(word)
            if not (folder / SUMMARY).is_file():
                print(f"{folder} holds no visit: it has no {SUMMARY}", file=sys.stderr)
                return 2
            try:
                unpack(folder, into)
            except ValueError as error:
                print(f"{folder} can't be read: {error}", file=sys.stderr)
                return 2
        said = list(lines(*unpacked))
    for line, _ in said:
        print(line)
    return max((status for _, status in said if status is not None), default=2)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
