"""The layers of the code, checked from the imports themselves: ``python proofs/floors.py``.

An import points down or stays in its own room, and one feature imports of another only the
functions named here. Every import statement counts, also one inside a
function or under ``if TYPE_CHECKING``; a module named in a string and loaded later is not seen.
"""

import ast
import re
import sys
from collections import namedtuple
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

DATA = (
    "impls.errors", "impls.loading", "impls.masks", "impls.spec", "impls.problem", "impls.cost",
)  # fmt: skip
TENSORS = ("impls.graph", "impls.heads", "impls.jit", "impls.jit_kernels", "impls.score_mask")
FAMILY = "impls.<family>"
TABLE = ("impls", "impls.outside")
FLOORS = (  # lowest first; a room is a module, or a package with all that is in it
    DATA, TENSORS, (FAMILY,), TABLE, ("attnbench",), ("attnbench.core",), ("attnbench.gate",),
    ("attnbench.meter",), ("attnbench.sweep",), ("attnbench.answer",), ("attnbench.report",),
    ("attnbench.command",), ("attnbench.models",), ("attnbench.features",),
    ("attnbench.notebook",), ("attnbench.cli", "benchmarks"), ("attnbench.__main__",),
)  # fmt: skip
OPEN = {*DATA, *TENSORS, *TABLE}
"""May import others of their floor, so long as no circle comes of it."""
WITH_TORCH = {"attnbench.gate", "attnbench.meter", "attnbench.models", FAMILY, *TENSORS}
"""The rooms that may load torch. Every other module must load where there is no torch."""
WORKERS = re.compile(
    r"attnbench\.features\.(quality\.((pretrained|recall)_)?worker"
    r"|profile\.profiler|claims\.(biases|layers|one_head|word_vectors))"
)
"""Modules of other rooms that may: they run in processes of their own."""
TORCH_IN_FUNCTIONS = {
    "impls.masks",
    "attnbench.core.settings",
}
FEATURE = re.compile(r"attnbench\.features\.(\w+)")
CALLS = {
    ("run", "report.verb.report_of"),
    ("report", "claims.view.claims_for_page"), ("report", "quality.verb.quality_for_page"),
}  # fmt: skip
"""The functions of one feature that another calls; else a feature stands by itself."""
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
Statement = ast.Import | ast.ImportFrom
Import = namedtuple("Import", "source target place when")
"""``when`` is "loading", "calling" (inside a function) or "typing" (never carried out)."""


class House:
    """The modules under a root, their imports, and what is wrong with them."""

    def __init__(self, root: Path) -> None:
        self.files: dict[str, Path] = {}
        tops = [root / top for top in ("impls", "attnbench", "benchmarks")]
        for file in sorted(f for top in tops for f in top.rglob("*.py")):
            name = ".".join(file.relative_to(root).with_suffix("").parts)
            self.files[name.removesuffix(".__init__")] = file
        self.packages = {name for name, f in self.files.items() if f.name == "__init__.py"}
        self.variants = {name for name, f in self.files.items() if _holds_a_variant(f)}
        self.imports: dict[Import, set[str]] = {}  # with the whole names of what is imported
        self.loads: dict[str, dict[str, str]] = {}  # source -> target -> place
        for source, file in self.files.items():
            for node, when in _statements(ast.parse(file.read_bytes()).body):
                place = f"{file.relative_to(root)}:{node.lineno}"
                for target, name in self._targets(node, source):
                    self.imports.setdefault(Import(source, target, place, when), set()).add(name)
                    if when == "loading":
                        self.loads.setdefault(source, {})[target] = place

    def _targets(self, node: Statement, source: str) -> list[tuple[str, str]]:
        """The modules that a statement imports, each with the whole name of what it takes there."""
        if isinstance(node, ast.Import):
            return [(alias.name, alias.name) for alias in node.names]
        package = source if source in self.packages else source.rpartition(".")[0]
        above = package.rsplit(".", node.level - 1)[:1] if node.level else []
        base = ".".join([*above, *filter(None, [node.module])])
        inner = [f"{base}.{alias.name}" for alias in node.names]  # ``from a import b``: a.b, or a
        return [(name if name in self.files else base, name) for name in inner]

    def room(self, module: str) -> str | None:
        """The room a module is in; None where the house has none for it."""
        place = ".".join(module.split(".")[: 1 if module.startswith("benchmarks") else 2])
        family = place.startswith("impls.") and place in self.packages
        return place if place in FLOOR or family else None

    def torch_free(self, module: str) -> bool:
        """True for a module that must load where there is no torch."""
        place = self.room(module)
        if place not in FLOOR:  # a family: its rows and its costs are data
            return module in (place, f"{place}.cost")
        return not (place in WITH_TORCH or WORKERS.fullmatch(module))

    def violations(self) -> list[str]:
        """A line for each broken rule."""
        found = [f"{m}: stands on no floor" for m in self.files if self.room(m) is None]
        for one in self.imports:
            rules = self._points_up(one), self._of_a_feature(one), self._wants_torch(one)
            for why in filter(None, rules):
                found.append(f"{one.place}: {one.source} imports {one.target}: {why}")
        return [*found, *self._circles()]

    def _points_up(self, one: Import) -> str | None:
        here, there = self.room(one.source), self.room(one.target)
        if here is None or there is None:
            return None
        if here == there:
            shared = here in FLOOR or one.target not in {here, *self.variants}
            return None if shared else "of its family it may import what holds no variant"
        low, high = (FLOOR.get(place, FLOOR[FAMILY]) for place in (here, there))
        down = high < low or (high == low and here in OPEN)
        return None if down else f"{there} does not stand below {here}"

    def _of_a_feature(self, one: Import) -> str | None:
        here, there = FEATURE.match(one.source), FEATURE.match(one.target)
        if here is None or there is None or here[1] == there[1]:
            return None
        called = (name.removeprefix("attnbench.features.") for name in self.imports[one])
        known = all((here[1], name) in CALLS for name in called)
        return None if known else "what two features share lies lower"

    def _wants_torch(self, one: Import) -> str | None:
        if one.when == "typing" or not self.torch_free(one.source):
            return None
        if one.when == "calling":
            direct = one.target.split(".")[0] == "torch" and one.source not in TORCH_IN_FUNCTIONS
            return "it must do without torch" if direct else None
        reached = not self.torch_free(one.target) and self._loads_torch(one.target)
        return "it must load without torch" if reached else None

    def _loads_torch(self, start: str) -> bool:
        seen, todo = set[str](), [start]
        while todo:  # a module loads what it imports, and the packages it is in
            if (module := todo.pop()) not in seen:
                seen.add(module)
                todo += [*self.loads.get(module, ()), module.rpartition(".")[0]]
        return "torch" in seen

    def _circles(self) -> Iterator[str]:
        loads = {source: dict(targets) for source, targets in self.loads.items()}
        while True:
            try:
                return TopologicalSorter(loads).prepare()
            except CycleError as error:
                target, source, *_ = circle = error.args[1]
                place = loads[source].pop(target)
                yield f"{place}: a circle: {' imports '.join(reversed(circle))}"


def _holds_a_variant(file: Path) -> bool:
    """Whether a module has a function that a row could name: ``build`` or ``build_…``."""
    top = ast.parse(file.read_bytes()).body
    return any(isinstance(n, ast.FunctionDef) and re.match(r"build(_|$)", n.name) for n in top)


def _statements(nodes: Iterable[ast.AST], when: str = "loading") -> Iterator[tuple[Statement, str]]:
    """The imports among some statements and inside them, and when each is carried out."""
    for node in nodes:
        if isinstance(node, Statement):
            yield node, when
        inside = when
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and when == "loading":
            inside = "calling"
        typing = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        yield from _statements(getattr(node, "body", ()), "typing" if typing else inside)
        for part in ("orelse", "finalbody", "handlers", "cases"):
            yield from _statements(getattr(node, part, ()), inside)


def main(root: Path) -> int:
    """Print what is wrong under ``root``; 1 where something is."""
    house = House(root)
    wrong = house.violations()
    inside = sum(house.room(one.target) is not None for one in house.imports)
    good = f"floors: {len(house.files)} modules, {inside} imports, none points up"
    print("\n".join(wrong) or good)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parent.parent))
