"""Is the first estimate of each verb near what it took? ``python proofs/estimates.py [VERB …]``.

Calls each verb on several sizes as a user does, outside a terminal, one after another, and prints
when it first said how long is left, what it said, what it took from there, and the larger of the
two over the smaller. Nothing else should run meanwhile. Some fifty minutes.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from time import monotonic

ROOT = Path(__file__).resolve().parent.parent
COMMAND = Path(sys.executable).with_name("attnbench")
MOST = 1.5
"""What an estimate may be off by, as a factor."""
QUICK = 2.0
"""What is over so soon needs no estimate."""
UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}
RUNS = ("results/amd-epyc-2c/20261122-135617", "results/amd-epyc-2c/20261128-073342")
SIZES = f"""
run sdpa matmul chunked --seq 128,256,512 --mask causal
run --seq 256,512 --mask causal --phase forward
run
choose --seq 256 --phase forward --measure
choose --seq 512 --phase train --measure
choose --seq 1024 --measure
crossover sdpa linear.elu --seq 64,512
crossover sdpa chunked --seq 128,2048
crossover sdpa linear.elu
compare sdpa matmul --seq 512 --mask causal --phase forward
compare sdpa chunked --seq 256,512 --mask causal
compare sdpa matmul
limits sdpa --max-memory 64MiB --phase forward
limits sdpa chunked linear.elu --max-memory 64MiB
limits sdpa chunked linear.elu gla nystrom --max-memory 256MiB --max-time 1s
env
env --dtype float32,bfloat16
env --threads 1
selfcheck
check sdpa matmul
check --seq 64 --mask causal --phase forward
check
quality model sdpa performer
quality model sdpa performer linear.elu nystrom
quality recall --preset cpu-quick
reproduce CLAIM1
reproduce CLAIM1 CLAIM2 CLAIM3
reproduce
history HEAD --bench time.*chunked --rounds 6
history HEAD~1..HEAD --bench time.*chunked --rounds 6
history compare HEAD~1 HEAD --seq 512 --phase forward
report {RUNS[0]}
report {RUNS[1]}
report {" ".join(RUNS)}
"""


def duration(line: str) -> float | None:
    """The first duration after "about" in a line, in seconds."""
    if (match := re.search(r"about ((?:[\d.]+ (?:min|s|h)\b ?)+)", line)) is None:
        return None
    parts = re.findall(r"([\d.]+) (min|s|h)\b", match[1])
    return sum(float(number) * UNITS[unit] for number, unit in parts)


def estimate(words: list[str]) -> tuple[float, float | None, float, int]:
    """When it first said how long, what it said, what it took from there, and its status."""
    start, at, estimate_s, last = monotonic(), 0.0, None, ""
    with tempfile.TemporaryDirectory() as folder:
        in_place = words[0] in ("check", "history") and "compare" not in words
        command = [COMMAND, *words, *([] if in_place else ["--out", folder])]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        process = subprocess.Popen(command, cwd=ROOT, text=True, **quiet)
        for last in process.stderr:
            if estimate_s is None and (estimate_s := duration(last)) is not None:
                at = monotonic() - start
        status = process.wait()
    if status not in (0, 1):
        print(last, file=sys.stderr)
    return at, estimate_s, monotonic() - start - at, status


def main() -> int:
    """The table; 1 where an estimate was off by more than the factor."""
    claims = subprocess.run(
        [COMMAND, "reproduce", "--list", "--json"], cwd=ROOT, capture_output=True, text=True
    )
    bad, sizes = 0, SIZES
    for number, claim in enumerate(json.loads(claims.stdout)[:3], 1):
        sizes = sizes.replace(f"CLAIM{number}", claim["name"])
    print("| verb | said after, s | said, s | took from there, s | off by |\n|---|---|---|---|---|")
    for words in map(str.split, sizes.strip().splitlines()):
        if sys.argv[1:] and words[0] not in sys.argv[1:]:
            continue
        at, estimate_s, seconds, status = estimate(words)
        failed = "" if status in (0, 1) else f" (status {status})"
        if estimate_s is None:
            bad += seconds > QUICK
            text, off = "–", "none" if seconds > QUICK else "–"
        else:
            factor = max(estimate_s, seconds) / max(min(estimate_s, seconds), 0.1)
            bad += factor > MOST
            text, off = f"{estimate_s:.0f}", f"{factor:.2f}"
        verb = " ".join(words)
        print(f"| `{verb}`{failed} | {at:.1f} | {text} | {seconds:.1f} | {off} |", flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    raise SystemExit(main())
