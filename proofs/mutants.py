"""How many planted edits the tests notice: ``python proofs/mutants.py --count 240 --out FILE``.

Edits are drawn with a seed from the modules of the gate, the meter, the answers and the store: one
comparison, number, condition or call is changed in a copy of the checkout, and the tests that
belong to the module are run there until one fails. FILE gets a line of JSON for each edit; a second
call with the same FILE goes on where the first stopped. The score is the share that was noticed.
"""

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PARTS = {  # part: (its modules, its tests)
    "gate": ("attnbench/gate", "tests/gate"),
    "meter": ("attnbench/meter", "tests/meter"),
    "answer": ("attnbench/answer", "tests/answer"),
    "core": ("attnbench/core", "tests/core"),
}
LIMIT_S = 240
"""For the tests of one edit; a hang is noticed too."""
SWAPS = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*",
    ast.And: "or", ast.Or: "and",
}  # fmt: skip


class Edit(NamedTuple):
    """One changed expression of one file."""

    part: str
    file: str
    line: int
    start: int
    end: int
    before: str
    after: str

    @property
    def key(self) -> str:
        """Text that tells it from every other edit."""
        return f"{self.file}:{self.line}:{self.before} -> {self.after}"


def edits_of(part: str, file: Path) -> Iterator[Edit]:
    """Every edit of one module."""
    source = file.read_text()
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node in nodes(ast.parse(source)):
        changed = changed_text(node)
        if changed is None:
            continue
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        before = source.encode()[start:end].decode()
        name = str(file.relative_to(ROOT))
        yield Edit(part, name, node.lineno, start, end, before, changed)


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Expressions and calls that run: no annotations, docstrings or decorators."""
    named = isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    for node in tree.body if named else ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.AnnAssign):
            if node.value is not None:
                yield from nodes(ast.Expression(node.value))
            continue
        if isinstance(node, ast.JoinedStr | ast.arguments):
            continue
        yield node
        yield from nodes(node)


def changed_text(node: ast.AST) -> str | None:
    """What stands in the node's place after the edit; None for a node that is left alone."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        sides = ast.unparse(node.left), ast.unparse(node.comparators[0])
        return f"({sides[0]}) {SWAPS[type(node.ops[0])]} ({sides[1]})"
    if isinstance(node, ast.BinOp) and type(node.op) in SWAPS:
        return f"(({ast.unparse(node.left)}) {SWAPS[type(node.op)]} ({ast.unparse(node.right)}))"
    if isinstance(node, ast.BoolOp):
        word = f" {SWAPS[type(node.op)]} "
        return "(" + word.join(f"({ast.unparse(value)})" for value in node.values) + ")"
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return f"({ast.unparse(node.operand)})"
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return repr(node.value * 2 + 1)
    if isinstance(node, ast.Constant) and type(node.value) is bool:
        return repr(not node.value)
    if isinstance(node, ast.IfExp):
        return f"({ast.unparse(node.orelse)})"
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return "None"
    return None


def drawn(count: int, seed: int) -> list[Edit]:
    """``count`` edits, as many from each part, in an order that the seed fixes."""
    chosen: list[Edit] = []
    for part, (folder, _) in PARTS.items():
        files = sorted((ROOT / folder).rglob("*.py"))
        pool = [edit for file in files if "plant" not in file.name for edit in edits_of(part, file)]
        random.Random(f"{seed} {part}").shuffle(pool)
        chosen += pool[: count // len(PARTS)]
    random.Random(seed).shuffle(chosen)
    return chosen


def tests_of(edit: Edit, copy: Path) -> list[str]:
    """The test files of a module: named like it, then those that import it, then its part's."""
    folder = PARTS[edit.part][1]
    module = edit.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    stem = module.rpartition(".")[2]
    files = sorted((copy / "tests").rglob("test_*.py"))
    texts = {file: file.read_text() for file in files}
    package, _, name = module.rpartition(".")

    def rank(file: Path) -> int:
        if file.stem == f"test_{stem}":
            return 0
        text = texts[file]
        if module in text or (f"from {package} import" in text and name in text):
            return 1
        return 2 if str(file.relative_to(copy)).startswith(folder + "/") else 3

    ranked = sorted((file for file in files if rank(file) < 3), key=rank)
    return [str(file.relative_to(copy)) for file in ranked]


def noticed(edit: Edit, copy: Path) -> str:
    """The first test that fails with the edit in ``copy``; empty where none does."""
    file = copy / edit.file
    source = file.read_bytes()
    file.write_bytes(source[: edit.start] + edit.after.encode() + source[edit.end :])
    words = ["-x", "-q", "-n0", "-p", "no:cacheprovider", "--no-header", *tests_of(edit, copy)]
    environment = {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *words],
            cwd=copy,
            env=environment,
            timeout=LIMIT_S,
            capture_output=True,
            text=True,
        )
    except subprocess.TimeoutExpired:
        return "time limit"
    finally:
        file.write_bytes(source)
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return "" if done.returncode == 0 else (failed or ["it does not start"])[0][:160]


def copies(number: int, folder: str) -> SimpleQueue:
    """That many copies of what is committed."""
    queue: SimpleQueue = SimpleQueue()
    for index in range(number):
        copy = Path(folder, str(index))
        subprocess.run(["git", "clone", "-q", ROOT, copy], check=True)
        shutil.copytree(ROOT / "attnbench", copy / "attnbench", dirs_exist_ok=True)
        queue.put(copy)
    return queue


def main() -> int:
    """Plant the edits that FILE does not hold yet, and print the score."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=240)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    given.out.touch()
    done = {found["key"]: found for found in map(json.loads, given.out.read_text().splitlines())}
    edits = drawn(given.count, given.seed)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(given.jobs) as pool:
        free = copies(given.jobs, folder)

        def judge(edit: Edit) -> None:
            copy = free.get()
            found = {"key": edit.key, "part": edit.part, "noticed": noticed(edit, copy)}
            free.put(copy)
            with given.out.open("a") as out:
                out.write(json.dumps(found) + "\n")
            done[edit.key] = found

        list(pool.map(judge, [edit for edit in edits if edit.key not in done]))
    asked = [done[edit.key] for edit in edits]
    counts = Counter((found["part"], bool(found["noticed"])) for found in asked)
    for part in PARTS:
        print(f"{part}: {counts[part, True]} of {counts[part, True] + counts[part, False]}")
    red = sum(bool(found["noticed"]) for found in asked)
    print(f"noticed: {red} of {len(asked)} ({red / len(asked):.1%})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
