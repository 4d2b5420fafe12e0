"""Are commits compared rightly? ``python proofs/commits.py [--only NAME …]``.

Commits that hold one thing each (nothing, a variant that does 5 % more work, one that
is wrong and fast, one whose import fails, a new one), and one with all of these, are held against
the commit they came from by ``attnbench history compare`` while another process is at work. Each
must be called what it is; three runs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from proofs.ruler import busy_core  # noqa: E402

DENSE = Path("impls/dense")
VARIANTS = ("matmul", "chunked", "einsum", "sdpa.math")
CALLED = ("wrong", "fails", "slower", "faster", "works again", "added", "removed")
"""Words that say that something is not as it was."""
SLICED = """

def build(problem: Problem) -> Attend:
    \"\"\"In 20 slices, of which {again} are computed twice.\"\"\"
    import torch

    seen = torch.from_numpy(problem.mask.visible(problem.shape))
    bias = torch.zeros(seen.shape).masked_fill(~seen, float("-inf"))

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        parts = []
        slices = zip(q.tensor_split(20, 2), bias.tensor_split(20, -2))
        for number, (rows, mask) in enumerate(slices):
            for _ in range(1 + (number < {again})):
                part = (rows @ k.mT * problem.scale + mask).softmax(-1) @ v
            parts.append(part)
        return torch.cat(parts, 2)

    return attend
"""
HALF = """

def build(problem: Problem, block: int) -> Attend:
    \"\"\"As if the later half of the keys and values were not there: half the work.\"\"\"
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        half = k.shape[2] // 2
        return (q @ k[:, :, :half].mT * problem.scale).softmax(-1) @ v[:, :, :half]

    return attend
"""
FRESH = """

ROWS.append(_row("fresh", "the same once more", "matmul:build_prescale", "two_matrices"))
"""
COMMENT = "\n# of no account\n"
Files = Mapping[Path, str]


def with_more(file: Path, more: str) -> Files:
    """A file of this checkout with something after its end."""
    return {file: (ROOT / file).read_text() + more}


def sliced(again: int) -> Files:
    """matmul in slices, of which some are computed twice."""
    return with_more(DENSE / "matmul.py", SLICED.format(again=again))


def commits() -> dict[str, tuple[Files, dict[str, str]]]:
    """The files that each commit changes, and what must be said of which variant."""
    broken = with_more(DENSE / "einsum.py", "\n\nimport nowhere_to_be_found\n")
    single = {
        "5 % slower": (sliced(1), {"matmul": "slower"}),
        "wrong, in half the time": (with_more(DENSE / "chunked.py", HALF), {"chunked": "wrong"}),
        "an import that fails": (broken, {"einsum": "fails"}),
        "a new variant": (with_more(DENSE / "__init__.py", FRESH), {"fresh": "added"}),
    }
    files = {file: text for changed, _ in single.values() for file, text in changed.items()}
    words = {name: word for _, words in single.values() for name, word in words.items()}
    nothing = with_more(DENSE / "cost.py", COMMENT)
    return {"no change": (nothing, {}), **single, "all of it": (files, words)}


def git(root: Path, *words: str) -> str:
    people = ("AUTHOR_NAME", "AUTHOR_EMAIL", "COMMITTER_NAME", "COMMITTER_EMAIL")
    env = {**os.environ, **{f"GIT_{each}": "a@a" for each in people}}
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, env=env)
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout.strip()


def clone(root: Path, branches: Mapping[str, Files]) -> str:
    """A clone of this checkout with matmul in slices, and a branch a change; the base commit."""
    git(ROOT, "clone", "--quiet", "--no-hardlinks", str(ROOT), str(root))
    _commit(root, "base", sliced(0))
    base = git(root, "rev-parse", "HEAD")
    for name, files in branches.items():
        git(root, "checkout", "--quiet", base)
        _commit(root, name, files)
    return base


def _commit(root: Path, branch: str, files: Files) -> None:
    git(root, "checkout", "--quiet", "-B", branch)
    for file, text in files.items():
        (root / file).write_text(text)
    git(root, "commit", "--quiet", "--all", "-m", branch)


def verdicts(root: Path, base: str, branch: str, new: bool) -> tuple[dict[str, str], str, int]:
    """The words that say a change, how all cells ended, and the exit status."""
    names = (*VARIANTS, "fresh") if new else VARIANTS
    words = ["-P", "-m", "attnbench", "history", "compare", base, branch, "--json"]
    words += [word for name in names for word in ("--variant", name)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *words], cwd=root, env=env, capture_output=True, text=True
    )
    if not done.stdout:
        return {"": done.stderr.strip()[-300:]}, "", done.returncode
    cells = json.loads(done.stdout)["cells"]
    ends = [
        f"{c['variant']} {c['said']}"
        + (f" {c['comparison']['ratio']:.3f}" if c["comparison"] else "")
        for c in cells
    ]
    changed = {c["variant"]: c["said"] for c in cells if c["said"] in CALLED}
    return changed, ", ".join(ends), done.returncode


def compare(runs: int, only: list[str]) -> int:
    """How many comparisons called a commit anything else than what it is."""
    wrong, planted = 0, {k: v for k, v in commits().items() if not only or k in only}
    branches = {f"plant-{n}": files for n, (files, _) in enumerate(planted.values())}
    with tempfile.TemporaryDirectory() as folder, busy_core():
        root = Path(folder) / "repository"
        base = clone(root, branches)
        for run in range(1, runs + 1):
            for branch, (subject, (_, expected)) in zip(branches, planted.items(), strict=True):
                start = time.monotonic()
                words, ends, status = verdicts(root, base, branch, "fresh" in expected)
                finding = bool({"wrong", "fails", "slower"} & set(expected.values()))
                right = words == expected and status == finding
                wrong += not right
                mark = "as planted" if right else f"NOT SO: expected {expected}, status {status}"
                took = time.monotonic() - start
                print(f"run {run}  {subject:24} {mark}  ({took:.0f} s; {ends})", flush=True)
    print(f"{wrong} of {runs * len(planted)} comparisons called otherwise than planted")
    return wrong


def main() -> int:
    """1 where commits are called what they are not."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    options = parser.parse_args()
    return int(compare(options.runs, options.only) > 0)


if __name__ == "__main__":
    sys.exit(main())
