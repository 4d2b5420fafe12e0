"""Is a pull request told what it does? ``python proofs/history.py [RUNS [COMMIT …]]``

Three runs and all the commits below if nothing is said.

A repository is made whose commits hold one thing each: nothing, a variant that does 5 % more work,
one that is wrong and fast, one whose import fails, one that is new; and one commit with all of
these. Each is held against the commit they came from by ``attnbench history compare``, while
another process is at work on another core. The exit status is 1 if anything is called that is not
so, or not called that is.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from proofs.trust import busy_core  # noqa: E402

SLICES = 20
VARIANTS = ("matmul", "chunked", "einsum", "sdpa.math")
CALLED = ("wrong", "fails", "slower", "faster", "works again", "added", "removed")
"""Words that say that something is not as it was."""

SLICED = """

def build(problem: Problem) -> Attend:
    \"\"\"In {slices} slices, of which {again} are computed twice.\"\"\"
    import torch

    seen = torch.from_numpy(problem.mask.visible(problem.shape))
    bias = torch.zeros(seen.shape).masked_fill(~seen, float("-inf"))

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        parts = []
        slices = zip(q.tensor_split({slices}, 2), bias.tensor_split({slices}, -2))
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
Files = Mapping[str, str]


def plants() -> dict[str, tuple[Files, dict[str, str]]]:
    """What each commit changes, by its subject, and what must be said of which variant."""
    dense = ROOT / "impls" / "dense"

    def with_(name: str, more: str) -> dict[str, str]:
        return {f"impls/dense/{name}": (dense / name).read_text() + more}

    slower = with_("matmul.py", SLICED.format(slices=SLICES, again=1))
    wrong, fresh = with_("chunked.py", HALF), with_("__init__.py", FRESH)
    broken = with_("einsum.py", "\n\nimport nowhere_to_be_found\n")
    said = {"matmul": "slower", "chunked": "wrong", "einsum": "fails", "fresh": "added"}
    return {
        "no change": (with_("cost.py", "\n# of no account\n"), {}),
        "5 % slower": (slower, {"matmul": "slower"}),
        "wrong, in half the time": (wrong, {"chunked": "wrong"}),
        "an import that fails": (broken, {"einsum": "fails"}),
        "a new variant": (fresh, {"fresh": "added"}),
        "all of it": ({**slower, **wrong, **broken, **fresh}, said),
    }


def make(root: Path) -> str:
    """The repository, a branch a plant; the commit that all came from."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "impls", root / "impls", ignore=ignored)
    file = root / "impls" / "dense" / "matmul.py"
    file.write_text(file.read_text() + SLICED.format(slices=SLICES, again=0))
    (root / ".gitignore").write_text("__pycache__/\n")
    git(root, "init", "--quiet", "--initial-branch", "main")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "-m", "as it is")
    base = git(root, "rev-parse", "HEAD")
    for number, (subject, (files, _)) in enumerate(plants().items()):
        git(root, "checkout", "--quiet", "-b", f"plant-{number}", base)
        for name, text in files.items():
            (root / name).write_text(text)
        git(root, "commit", "--quiet", "--all", "-m", subject)
    git(root, "checkout", "--quiet", "main")
    return base


def git(root: Path, *words: str) -> str:
    names = {
        f"GIT_{who}_{what}": "a@a" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    done = subprocess.run(
        ["git", *words],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **names},
    )
    return done.stdout.strip()


def called(root: Path, base: str, branch: str) -> tuple[dict[str, str], dict[str, str], int]:
    """What is called, how all cells ended, and the exit status."""
    new = ["fresh"] * ('"fresh"' in git(root, "show", f"{branch}:impls/dense/__init__.py"))
    words = [word for name in (*VARIANTS, *new) for word in ("--variant", name)]
    done = subprocess.run(
        [
            sys.executable,
            "-P",
            "-m",
            "attnbench",
            "history",
            "compare",
            base,
            branch,
            *words,
            "--json",
        ],
        cwd=root,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    if not done.stdout:
        return {"": done.stderr.strip()[-300:]}, {}, done.returncode
    cells = json.loads(done.stdout)["cells"]
    ended = {
        cell["variant"]: f"{cell['said']} {cell['pairs']['comparison']['ratio']:.3f}"
        if cell["pairs"]
        else cell["said"]
        for cell in cells
    }
    return {c["variant"]: c["said"] for c in cells if c["said"] in CALLED}, ended, done.returncode


def main(runs: int = 3, *subjects: str) -> int:
    """The table of what was called; 1 if anything else than what was planted."""
    wanted, bad = subjects or tuple(plants()), 0
    with tempfile.TemporaryDirectory() as folder, busy_core():
        root = Path(folder) / "repository"
        root.mkdir()
        base = make(root)
        for run in range(1, runs + 1):
            for number, (subject, (_, expected)) in enumerate(plants().items()):
                if subject not in wanted:
                    continue
                start = time.monotonic()
                seen, ended, status = called(root, base, f"plant-{number}")
                found = bool({"wrong", "fails", "slower"} & set(expected.values()))
                right = seen == expected and status == found
                bad += not right
                mark = "as planted" if right else f"NOT SO: expected {expected}, status {status}"
                took = time.monotonic() - start
                all_ = ", ".join(f"{name} {word}" for name, word in ended.items())
                print(f"run {run}  {subject:24} {mark}  ({took:.0f} s; {all_})", flush=True)
    print(f"{bad} of {runs * len(wanted)} comparisons called otherwise than planted")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:2]), *sys.argv[2:]))
