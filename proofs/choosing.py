"""How long an answer takes from a hundred thousand records: ``python proofs/choosing.py``.

A run of so many records of usual length is written, and ``attnbench choose`` asked of it as a
command, several times. Printed: the median, beside its limit, and whether torch was loaded.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from attnbench.core.record import Record  # noqa: E402
from attnbench.core.store import read_header, read_records  # noqa: E402

SOURCE = ROOT / "results/amd-epyc-2c/20261122-135617"
RECORDS, SAMPLES, TIMES, LIMIT_S = 100_000, 24, 7, 1.5
ASKED = ("--seq", "1500", "--heads", "4", "--phase", "train")
NO_TORCH = "import sys; from attnbench.cli import main; main({}); sys.exit('torch' in sys.modules)"


def written(folder: Path) -> Path:
    """The records of a committed run again and again, of more and more batches."""
    found = [short(r) for r in read_records(SOURCE)]
    header: dict[str, Any] = read_header(SOURCE)
    (folder / "run.json").write_text(json.dumps(header))
    with (folder / "records.jsonl").open("w") as file:
        for number in range(RECORDS):
            record = found[number % len(found)]
            batch = 1 + number // len(found)
            file.write(
                record.with_(problem={**record.problem.to_dict(), "batch": batch}).line() + "\n"
            )
    return folder


def short(record: Record) -> Record:
    """With as many samples as a record of the default budget has."""
    if record.time is None:
        return record
    return record.with_(time=record.time.with_(samples_s=record.time.samples_s[:SAMPLES]))


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        run = written(Path(name))
        size = (run / "records.jsonl").stat().st_size
        words = ["choose", *ASKED, "--from", str(run)]
        taken = []
        for _ in range(TIMES):
            begun = time.perf_counter()
            command = [sys.executable, "-m", "attnbench", *words]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
            taken.append(time.perf_counter() - begun)
            assert done.returncode == 0, done.stderr
        code = NO_TORCH.format(words)
        loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True)
    middle = statistics.median(taken)
    print(done.stdout.splitlines()[0])
    print(
        f"choose from {RECORDS:,} records, {size / 1e6:.0f} MB: {middle:.2f} s "
        f"[{min(taken):.2f}, {max(taken):.2f}], at most {LIMIT_S} s"
    )
    print(f"torch loaded: {'yes' if loaded.returncode else 'no'}")
    return int(middle > LIMIT_S or bool(loaded.returncode))


if __name__ == "__main__":
    raise SystemExit(main())
