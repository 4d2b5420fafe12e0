"""asv as attnbench uses it: its commands, its machine file, its benchmarks, and its results."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from attnbench.core.checkout import Commit, Repository, without_git
from attnbench.core.disk import CHECKOUT, from_json, make_folder, write_whole
from attnbench.core.machine import pace, this_machine
from attnbench.core.process import Program
from attnbench.features.commits import suite
from attnbench.features.commits.suite import AsvRequest
from impls.errors import CantBeDone
from impls.spec import PHASES

CONFIGURATION = "asv.conf.json"
OWN_FOLDER = ".asv"
"""Of a repository of somebody's own: what asv needs there, its configuration included."""
BENCHMARKS = (CHECKOUT / "benchmarks", Path(__file__).parent / "benchmarks")
"""The suite: in a checkout, and as it is installed."""
ENVIRONMENT_S, SWEPT_S, PROCESS_S, TIMED_S = 10.0, 1.0, 6.0, 0.5
"""Of a commit: its environment; the sweep, a cell; a process in a round; and in that a cell."""
SOME_FAILED = 2
"""How ``asv run`` ends where a benchmark failed; the others' results are kept."""


@dataclass(frozen=True)
class Asv:
    """asv for a checkout, as its configuration file says."""

    root: Path
    file: Path
    """The configuration."""
    results: Path
    pages: Path

    @classmethod
    def of(cls, repository: Repository, variants: Sequence[str] = ()) -> Asv:
        """asv for a checkout; raises CantBeDone where it or its configuration is not there.

        ``variants``: what is measured in a repository of somebody's own, which gets a
        configuration, outside what git keeps.
        """
        if importlib.util.find_spec("asv") is None:
            raise CantBeDone(
                f"asv is not there; {sys.executable} -m pip install 'asv>=0.6.5,<0.7' installs it"
            )
        from asv.util import UserError, load_json

        root = repository.root
        file = root / CONFIGURATION
        if repository.own:
            file = root / OWN_FOLDER / CONFIGURATION
            if variants or not file.exists():
                _configure(file, repository, variants)
        if not file.exists():
            raise CantBeDone(
                f"there is no {file.name} in {root}: run it in a clone of attnbench as a whole"
            )
        try:
            said = load_json(str(file), js_comments=True)
            folders = (file.parent / said[name] for name in ("results_dir", "html_dir"))
            return cls(root, file, *(Path(os.path.normpath(folder)) for folder in folders))
        except (OSError, ValueError, KeyError, TypeError, UserError) as error:
            raise CantBeDone(
                f"{file} can't be read ({type(error).__name__}: {error}); 'git checkout -- "
                f"{file.name}' brings it back"
            ) from None

    @staticmethod
    def guess_s(
        commits: int, rounds: int, bench: str | None, variants: Sequence[str] = ()
    ) -> float:
        """A guess at the seconds of :meth:`run`: a sweep a commit, and a process in each round."""
        asked = AsvRequest(bench=(bench,) if bench else (), variants=tuple(variants))
        cells = len(suite.keys(asked))
        rounds_s = rounds * (PROCESS_S + TIMED_S * cells)
        return pace() * commits * (ENVIRONMENT_S + SWEPT_S * cells + rounds_s)

    def run(
        self,
        hashes: Sequence[str],
        machine: str,
        rounds: int,
        bench: str | None,
        tell: Callable[[str], object],
    ) -> bool:
        """Measure commits; whether all came to a value. Raises CantBeDone where asv fails."""
        words = ["run", "HASHFILE:-", "--machine", machine, "--attribute", f"rounds={rounds}"]
        words += ["--show-stderr", "--record-samples", "--interleave-rounds"]
        words += ["--bench", bench] if bench else []
        return self._call(words, "\n".join(hashes), (0, SOME_FAILED), tell) == 0

    def publish(self) -> Path:
        """Make the pages anew, of all that the results folder holds; where they begin."""
        self._call(["publish"])
        return self.pages / "index.html"

    def preview(self) -> None:
        """Show the pages in a browser, until Ctrl-C."""
        self._call(["preview", "--browser"])

    @property
    def preview_command(self) -> str:
        """What to type to see the pages: a browser doesn't read them from a folder."""
        here = f"{Path.cwd()}/"
        python, file = sys.executable, str(self.file)
        return f"{python.removeprefix(here)} -m asv preview --config {file.removeprefix(here)}"

    def _call(
        self,
        words: Sequence[str],
        given: str = "",
        well: Sequence[int] = (0,),
        tell: Callable[[str], object] | None = None,
    ) -> int:
        """asv's exit status; raises its last words where that is none of those that are well."""
        # -P: a folder named asv in the current directory is not imported
        command = [sys.executable, "-P", "-m", "asv", words[0]]
        command += ["--config", str(self.file), *words[1:]]
        variables = without_git(os.environ)
        watch = (lambda line: tell(line.rstrip("\n"))) if tell else sys.stderr.write
        with Program(
            command, folder=self.root, variables=variables, given=given, watch=watch
        ) as program:
            status = program.wait()
        if status is None or status not in well:
            raise CantBeDone(f"'asv {words[0]}' ended with status {status}: {program.last_line()}")
        return status


def _configure(file: Path, repository: Repository, variants: Sequence[str]) -> None:
    """Write asv's configuration for a repository of somebody's own."""
    values = {
        "version": 1,
        "project": repository.root.name,
        "repo": str(repository.root),
        "branches": ["HEAD"],
        "benchmark_dir": str(next(folder for folder in BENCHMARKS if folder.is_dir())),
        "results_dir": "../results/asv",
        "html_dir": "../reports/asv",
        "env_dir": "env",
        "plugins": [".attnbench.features.commits.environment"],
        "environment_type": "shared",
        "launch_method": "forkserver",
        "attnbench": {
            "root": str(repository.root),
            "tables": list(repository.tables),
            "variants": list(variants),
        },
    }
    try:
        file.parent.mkdir(exist_ok=True)
        (file.parent / ".gitignore").write_text("*\n")
        _write(file, values)
    except OSError as error:
        raise CantBeDone(
            f"can't write {file}: {error.strerror}; make the repository writable"
        ) from None


# ---- machines ------------------------------------------------------------------------------------

FACETS = ("gpu", "driver", "cuda", "torch", "triton")
"""What an entry of ours says besides what asv asks for."""
FORM = 1
NONE = "none"


def entry(machine: Mapping[str, Any]) -> dict[str, str]:
    """asv's entry for a machine, from its fingerprint as plain values."""
    for name in (machine["name"], machine.get("python", "")):
        if Path(name).name != name:  # files are named by both
            raise ValueError(f"{name!r} is the name of no machine or Python")
    gpus, versions = machine.get("gpus") or (), machine.get("versions") or {}
    system = str(machine.get("system", "")).split() or [""]
    facts = {
        "os": system[0],
        "arch": system[-1],
        "cpu": str(machine["cpu"]),
        "num_cpu": str(machine["cores"]),
        "ram": f"{machine['memory_bytes'] / 2**30:.0f} GiB",
        "gpu": ", ".join(dict.fromkeys(gpu["name"] for gpu in gpus)) or NONE,
        "driver": ", ".join(dict.fromkeys(gpu["driver"] for gpu in gpus)) or NONE,
        "cuda": machine.get("torch_cuda") or NONE,
        "torch": versions.get("torch", NONE),
        "triton": versions.get("triton", NONE),
    }
    apart = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:6]
    return {"machine": f"{machine['name']}-{apart}", **facts}


def ensure_machine(path: Path | None = None) -> str:
    """Have this machine in asv's own file as it is now; the name to give to ``--machine``.

    Entries of it as it was before go: asv takes the only one there is where none is named. Raises
    CantBeDone for a file that can't be read or written.
    """
    path = path or Path("~/.asv-machine.json").expanduser()
    machine, known = this_machine(), dict[str, Any]()
    mine = entry(machine.to_dict())
    try:
        known = from_json(path.read_text())
        if not isinstance(known, dict) or known.get("version", FORM) != FORM:
            raise ValueError("it is not of asv's as it is now")
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        raise CantBeDone(
            f"asv's machine file {path} can't be read ({error}): mend it or move it away"
        ) from None
    kept = {}
    for name, other in known.items():
        ours = isinstance(other, dict) and set(FACETS) <= set(other)
        if not ours or str(other.get("machine")).rpartition("-")[0] != machine.name:
            kept[name] = other
    wanted = {**kept, mine["machine"]: mine, "version": FORM}
    if wanted != known:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(path, wanted)
        except OSError as error:
            raise CantBeDone(
                f"can't write {path}, where asv looks a machine up: {error.strerror}; make it "
                "writable, or set HOME to a folder of yours"
            ) from None
    return mine["machine"]


def save_entry(results: Path, mine: Mapping[str, str]) -> None:
    """The entry beside a machine's results, where the pages look for it."""
    path = results / mine["machine"] / "machine.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, {**mine, "version": FORM})


def _write(path: Path, values: Mapping[str, Any]) -> None:
    write_whole(path, (json.dumps(values, indent=4, sort_keys=True) + "\n").encode())


# ---- the list of benchmarks ----------------------------------------------------------------------

FILE = "benchmarks.json"
INDEX_FORM = 2
SUITE = [name for device in suite.PRESET for name in suite.grid(device).variants]
Cell = tuple[str, ...]
"""Variant, length and phase as asv writes them: by ``repr``."""


def in_order(values: Iterable[str]) -> list[str]:
    """Lengths by size, phases as everywhere, the suite's variants first: asv draws eight lines."""
    first = [*PHASES, *SUITE]

    def rank(text: str) -> tuple[int, str]:
        value = text.strip("'")
        if text.isdigit():
            return int(text), ""
        return first.index(value) if value in first else len(first), value

    return sorted(dict.fromkeys(values), key=rank)


def described(name: str) -> dict[str, Any] | None:
    """A benchmark as asv lists them; None for one that is not of the suite's kinds."""
    group, _, figure = name.partition(".")
    known = suite.benchmarks(AsvRequest(energy=True)).get(f"{suite.MODULE}.{figure}")
    if known is None:
        return None
    title = known["pretty_name"] + f", {group}" * (group != suite.MODULE)
    return {**known, "name": name, "pretty_name": title, "code": group}


def write(results: Path) -> Path:
    """Have the pages show whatever lies in a results folder; the file that tells them."""
    from asv.results import iter_results

    path, listed = results / FILE, dict[str, Any]()
    for result in iter_results(str(results)):
        for name in result.get_all_result_keys():
            said = described(name)
            if said is None or result.benchmark_version.get(name) != said["version"]:
                continue  # not of the suite, or by another ruler
            empty = {**said, "params": [[] for _ in said["param_names"]]}
            there = listed.setdefault(name, empty)
            both = zip(there["params"], result.get_result_params(name), strict=True)
            there["params"] = [in_order([*a, *b]) for a, b in both]
    make_folder(results, exist_ok=True)
    _write(path, {**listed, "version": INDEX_FORM})
    return path


def own_repository(configuration: str | None) -> Mapping[str, Any]:
    """What a configuration says of a repository of somebody's own, as :func:`_configure` wrote it;
    asv stands in the folder of the file.
    """
    from asv.config import Config

    own = vars(Config.load(configuration and Path(configuration).name)).get("attnbench")
    return own if isinstance(own, dict) else {}


def before_publishing(configuration: str | None) -> None:
    """Have asv publish whatever its results folder holds; raises asv's own UserError."""
    from asv.config import Config
    from asv.util import UserError

    results = Path(Config.load(configuration and Path(configuration).name).results_dir)
    if (results / FILE).exists():
        try:
            write(results)
        except OSError as error:
            raise UserError(f"can't write {results / FILE}: {error.strerror}") from None


# ---- what its results show of some commits -------------------------------------------------------
#
# Each is held against the one before it by asv's own rule, which is weaker than pairs: what slows
# the machine for a while slows one commit alone. What moved on a commit that changed no measured
# file moved by itself, and what moved no further elsewhere can't be told from that.


class Value(NamedTuple):
    """One benchmark with its parameters: what asv keeps of it."""

    result: float | None
    """None: it failed; not a number: it was skipped."""
    stats: Mapping[str, Any] | None = None
    samples: Sequence[float] | None = None
    version: str = ""

    @property
    def skipped(self) -> bool:
        """There was nothing to run."""
        return self.result is not None and math.isnan(self.result)


@dataclass(frozen=True)
class Moved:
    """A benchmark that is another than it was."""

    name: str
    before: float
    after: float

    @property
    def ratio(self) -> float:
        """After over before."""
        return self.after / self.before

    @property
    def far(self) -> float:
        """How far from what it was, either way."""
        return abs(math.log(self.ratio)) if self.ratio > 0 else math.inf

    @property
    def kind(self) -> str:
        """The benchmark, whatever its parameters: one that times, or one of memory."""
        return self.name.partition("(")[0]


@dataclass
class CommitHistory:
    """What a commit gave, and how that stands to the commit before it."""

    commit: Commit
    measured: int
    skipped: int
    failed: list[str]
    newly_failed: list[str]
    slower: list[Moved] = field(default_factory=list)
    faster: list[Moved] = field(default_factory=list)
    by_itself: list[Moved] = field(default_factory=list)
    """They moved no further than others do where nothing has changed."""
    changed: list[str] = field(default_factory=list)
    """Measured files that the commit before has otherwise."""


def report(
    commits: Sequence[Commit], results: Path, machine: str, factor: float, repository: Repository
) -> list[CommitHistory]:
    """What the results folder holds of each commit, oldest first."""
    found: list[CommitHistory] = []
    before: dict[str, Value] = {}
    last: Commit | None = None
    for commit in commits:
        now = dict(_values(results, machine, commit.sha))
        found.append(_against(commit, before, now, factor))
        found[-1].changed = repository.changed(last, commit) if last else []
        if now:
            before, last = now, commit
    alone: dict[str, float] = {}
    for one in found:
        for moved in (*one.slower, *one.faster) if not one.changed else ():
            alone[moved.kind] = max(alone.get(moved.kind, 0.0), moved.far)
    for one in found:  # what moved no further than something did where nothing had changed
        both = (*one.slower, *one.faster)
        one.by_itself = [m for m in both if m.far <= alone.get(m.kind, 0.0)]
        one.slower = [m for m in one.slower if m not in one.by_itself]
        one.faster = [m for m in one.faster if m not in one.by_itself]
    return found


def _against(
    commit: Commit, before: Mapping[str, Value], now: Mapping[str, Value], factor: float
) -> CommitHistory:
    from asv.commands.compare import _is_result_better

    failed = [name for name, value in now.items() if value.result is None]
    newly = [n for n in failed if n in before and before[n].result is not None]
    skipped = sum(value.skipped for value in now.values())
    found = CommitHistory(commit, len(now) - len(failed) - skipped, skipped, failed, newly)
    for name, b in now.items():
        a = before.get(name)
        if a is None or a.skipped or b.skipped or a.version != b.version:
            continue
        if not a.result or b.result is None:  # it failed, or was zero
            continue
        for one, than, moved in ((a, b, found.slower), (b, a, found.faster)):
            both = (one.stats, one.samples), (than.stats, than.samples)
            if _is_result_better(one.result, than.result, *both, factor):
                moved.append(Moved(name, a.result, b.result))
    return found


def _values(results: Path, machine: str, sha: str) -> Iterator[tuple[str, Value]]:
    """Each benchmark with its parameters, as ``name(a, b)``."""
    from asv.results import iter_results_for_machine_and_hash

    for result in iter_results_for_machine_and_hash(str(results), machine, sha):
        for key in result.get_all_result_keys():
            params = result.get_result_params(key)
            cells = list(product(*params))
            columns = (
                result.get_result_value(key, params),
                result.get_result_stats(key, params),
                result.get_result_samples(key, params),
            )
            rows = zip(*(each or [None] * len(cells) for each in columns), strict=True)
            version = str(result.benchmark_version.get(key))
            for cell, (value, stats, samples) in zip(cells, rows, strict=True):
                name = f"{key}({', '.join(cell)})" if cell else key
                yield name, Value(value, stats, samples, version)
