"""How large this project is, and whether it keeps within its limits: ``python proofs/house.py``.

``--tests`` runs the default tests and times them; ``--names`` names what is counted. Exit status 1
where a limit is exceeded.
"""

import argparse
import ast
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from time import monotonic

ROOT = Path(__file__).resolve().parent.parent
LIMITS = {
    "attnbench: lines as ruff formats them": 26_000,
    "attnbench: files": 180,
    "attnbench: lines marked '# fmt: skip'": 60,
    "attnbench: files in the largest folder": 16,
    "attnbench: class names found in more than one file": 0,
    "attnbench: functions that start a process": 3,
    "attnbench: modules from run to record in which a function takes a Problem": 25,
    "tests: lines": 27_000,
    "tests: seconds of the default tests": 150,
    "README.md: lines": 140,
    "DESIGN.md: words": 4_000,
}
STARTS = {"Popen", "fork", "forkpty", "posix_spawn", "Process", "ProcessPoolExecutor", "run"}
"""Names of calls that start a process; ``run`` counts only as an attribute of subprocess."""
TOOLS = {"git"}
"""Programs of others that are run for their answer: no child of ours."""
PROBLEM_PARAMETERS = {"problem", "problems", "cell", "cells", "job"}
"""Parameters by which a function is handed a Problem."""
RUN = ("attnbench.features.run.verb", "attnbench.sweep.worker")
"""Where a run begins, and where its cells are measured."""
REPORT = ("attnbench.report", "attnbench.features.report", "attnbench.features.run.view")


def python_files(folder: str) -> list[Path]:
    """The committed Python files of a folder."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", f"{folder}/*.py"],
        capture_output=True,
        text=True,
        check=True,
    )
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()]


def formatted_lines(files: list[Path]) -> int:
    """Lines of the files once ruff has formatted all of them, exceptions included."""
    with tempfile.TemporaryDirectory() as folder:
        for number, file in enumerate(files):
            text = file.read_text().replace("# fmt: skip", "").replace("# fmt: off", "")
            Path(folder, f"m{number}.py").write_text(text)
        ruff = Path(sys.executable).with_name("ruff")
        config = ROOT / "pyproject.toml"
        subprocess.run([ruff, "format", "-q", "--config", config, folder], check=True)
        return sum(p.read_text().count("\n") for p in Path(folder).glob("*.py"))


def shared_class_names(files: list[Path]) -> dict[str, list[str]]:
    """Names of top-level classes that more than one file defines."""
    found = defaultdict(list)
    for file in files:
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef):
                found[node.name].append(str(file.relative_to(ROOT)))
    return {name: places for name, places in found.items() if len(places) > 1}


def process_starts(files: list[Path]) -> list[str]:
    """Functions that start a process other than git, as ``file:line``.

    Plants (faults on purpose) and the capture of a user's own program are not counted.
    """
    found = []
    for file in files:
        if "plant" in str(file) or "capture" in str(file):
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            name = node.func.id if isinstance(node.func, ast.Name) else name
            owner = ast.unparse(node.func).partition(".")[0]
            if name not in STARTS or (name == "run" and owner != "subprocess"):
                continue
            first = ast.unparse(node.args[0]) if node.args else ""
            if not any(f"'{tool}'" in first for tool in TOOLS):
                found.append(f"{file.relative_to(ROOT)}:{node.lineno}")
    return found


def largest_folder(files: list[Path]) -> tuple[int, str]:
    """The most Python files that lie side by side, and where."""
    folders = defaultdict(int)
    for file in files:
        folders[str(file.parent.relative_to(ROOT))] += 1
    return max((count, folder) for folder, count in folders.items())


def imported(module: str, seen: set[str]) -> set[str]:
    """``module`` and every module of attnbench that it imports, directly or not."""
    path = ROOT / (module.replace(".", "/") + ".py")
    if not path.exists():
        path = ROOT / module.replace(".", "/") / "__init__.py"
    if module in seen or not path.exists():
        return seen
    seen.add(module)
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            if name.startswith("attnbench") and not name.startswith(REPORT):
                imported(name, seen)
    return seen


def problem_files() -> list[str]:
    """Modules between the verb ``run`` and its records in which a function takes a Problem.

    What a report or the screen does with records is another way, and not counted.
    """
    reached: set[str] = set()
    for start in RUN:
        imported(start, reached)
    found = []
    for file in python_files("attnbench"):
        module = ".".join(file.relative_to(ROOT).with_suffix("").parts)
        if module.removesuffix(".__init__") not in reached:
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef):
                taken = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                notes = {ast.unparse(a.annotation) for a in taken if a.annotation}
                if PROBLEM_PARAMETERS & {a.arg for a in taken} or "Problem" in notes:
                    found.append(module)
                    break
    return found


def figures(*, tests: bool) -> dict[str, int]:
    """Every figure that has a limit and was asked for."""
    files, test_files = python_files("attnbench"), python_files("tests")
    found = {
        "attnbench: lines as ruff formats them": formatted_lines(files),
        "attnbench: files": len(files),
        "attnbench: lines marked '# fmt: skip'": sum(
            file.read_text().count("# fmt: skip") for file in files
        ),
        "attnbench: files in the largest folder": largest_folder(files)[0],
        "attnbench: class names found in more than one file": len(shared_class_names(files)),
        "attnbench: functions that start a process": len(process_starts(files)),
        "attnbench: modules from run to record in which a function takes a Problem": len(
            problem_files()
        ),
        "tests: lines": sum(file.read_text().count("\n") for file in test_files),
        "README.md: lines": (ROOT / "README.md").read_text().count("\n"),
        "DESIGN.md: words": len((ROOT / "DESIGN.md").read_text().split()),
    }
    if tests:
        started = monotonic()
        subprocess.run([sys.executable, "-m", "pytest", "-q"], cwd=ROOT, check=True)
        found["tests: seconds of the default tests"] = round(monotonic() - started)
    return found


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tests", action="store_true", help="run and time the default tests")
    parser.add_argument("--names", action="store_true", help="name what is counted")
    given = parser.parse_args()
    found = figures(tests=given.tests)
    for name, limit in LIMITS.items():
        if name in found:
            mark = " " if found[name] <= limit else "!"
            print(f"{mark} {found[name]:>7,}  of at most {limit:>7,}  {name}")
    if given.names:
        files = python_files("attnbench")
        print(
            "\nclass names in several files:",
            *sorted(shared_class_names(files).items()),
            sep="\n  ",
        )
        print("\nprocesses are started in:", *process_starts(files), sep="\n  ")
        print("\nlargest folder:", *largest_folder(files))
        print("\na Problem is taken by:", *problem_files(), sep="\n  ")
    return int(any(found[name] > LIMITS[name] for name in found))


if __name__ == "__main__":
    sys.exit(main())
