"""Is the first estimate of each verb near what it took?

    python proofs/estimates.py [VERB …]

Calls each verb on three sizes as a user does, outside a terminal, one after another, and prints
when it first said how long is left, what it said, what it took from there, and the larger of the
two over the smaller. Nothing else should run meanwhile. Some fifty minutes.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from time import monotonic

HERE = Path(__file__).resolve().parent.parent
COMMAND = Path(sys.executable).with_name("attnbench")
MOST = 1.5
"""What an estimate may be off by, as a factor."""
QUICK = 2.0
"""What is over so soon needs no estimate."""
UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}
SIZES = {
    "run": [
        "run sdpa matmul chunked --seq 128,256,512 --mask causal",
        "run --seq 256,512 --mask causal --phase forward",
        "run",
    ],
    "choose": [
        "choose --seq 256 --phase forward --measure",
        "choose --seq 512 --phase train --measure",
        "choose --seq 1024 --measure",
    ],
    "crossover": [
        "crossover sdpa linear.elu --seq 64,512",
        "crossover sdpa chunked --seq 128,2048",
        "crossover sdpa linear.elu",
    ],
    "compare": [
        "compare sdpa matmul --seq 512 --mask causal --phase forward",
        "compare sdpa chunked --seq 256,512 --mask causal",
        "compare sdpa matmul",
    ],
    "limits": [
        "limits sdpa --max-memory 64MiB --phase forward",
        "limits sdpa chunked linear.elu --max-memory 64MiB",
        "limits sdpa chunked linear.elu gla nystrom --max-memory 256MiB --max-time 1s",
    ],
    "env": ["env", "env --dtype float32,bfloat16", "env --threads 1"],
    "selfcheck": ["selfcheck"],
    "check": ["check sdpa matmul", "check --seq 64 --mask causal --phase forward", "check"],
    "quality": [
        "quality model sdpa performer",
        "quality model sdpa performer linear.elu nystrom",
        "quality recall --preset cpu-quick",
    ],
    "reproduce": ["reproduce {0}", "reproduce {0} {1} {2}", "reproduce"],
    "history": [
        "history HEAD --bench time.*chunked --rounds 6",
        "history HEAD~1..HEAD --bench time.*chunked --rounds 6",
        "history compare HEAD~1 HEAD --seq 512 --phase forward",
    ],
    "report": [
        "report results/amd-epyc-2c/20261122-135617",
        "report results/amd-epyc-2c/20261128-073342",
        "report results/amd-epyc-2c/20261122-135617 results/amd-epyc-2c/20261128-073342",
    ],
}  # fmt: skip


def seconds(words: str) -> float | None:
    """The first duration after "about" in a line."""
    found = re.search(r"about ((?:[\d.]+ (?:min|s|h)\b ?)+)", words)
    if found is None:
        return None
    parts = re.findall(r"([\d.]+) (min|s|h)\b", found[1])
    return sum(float(number) * UNITS[unit] for number, unit in parts)


def estimated(words: list[str], folder: Path) -> tuple[float, float | None, float, int]:
    """When it first said how long, what it said, what it took from there, and its status."""
    start, at, said = monotonic(), 0.0, None
    out = (
        []
        if words[0] in ("check", "history") and "compare" not in words
        else ["--out", str(folder)]
    )
    process = subprocess.Popen(
        [COMMAND, *words, *out],
        cwd=HERE,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    assert process.stderr is not None
    last = []
    for line in process.stderr:
        last = [*last[-2:], line]
        if said is None and (said := seconds(line)) is not None:
            at = monotonic() - start
    if (status := process.wait()) not in (0, 1):
        print("".join(last), file=sys.stderr)
    return at, said, monotonic() - start - at, status


def main() -> int:
    """The table; 1 where an estimate was off by more than the factor."""
    listed = subprocess.run(
        [COMMAND, "reproduce", "--list", "--json"], cwd=HERE, capture_output=True, text=True
    )
    claims = [each["name"] for each in json.loads(listed.stdout)]
    bad = 0
    print(
        "| verb | said after, s | said, s | took from there, s | off by |\n|---|---|---|---|---|",
        flush=True,
    )
    for verb in sys.argv[1:] or SIZES:
        for words in SIZES[verb]:
            with tempfile.TemporaryDirectory() as folder:
                at, said, took, status = estimated(words.format(*claims).split(), Path(folder))
            if said is None:
                factor, bad = "none" if took > QUICK else "–", bad + (took > QUICK)
            else:
                off = max(said, took) / max(min(said, took), 0.1)
                factor, bad = f"{off:.2f}", bad + (off > MOST)
            shown = "–" if said is None else f"{said:.0f}"
            failed = "" if status in (0, 1) else f" (status {status})"
            print(f"| `{words}`{failed} | {at:.1f} | {shown} | {took:.1f} | {factor} |", flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    raise SystemExit(main())
