"""asv as attnbench uses it: its commands, its machine file, and its results."""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from attnbench.core.checkout import Commit, Repository, without_git
from attnbench.core.disk import CHECKOUT
from attnbench.core.machine import Machine, pace, this_machine
from attnbench.core.process import Program
from impls.errors import CantBeDone

CONFIGURATION = "asv.conf.json"
OWN_FOLDER = ".asv"
"""The folder of asv's files in a repository of somebody's own, its configuration included."""
BENCHMARKS = (CHECKOUT / "benchmarks", Path(__file__).parent / "benchmarks")
"""The suite: in a checkout, and as it is installed."""
RECORD_S, PROCESS_S, TIMED_S = 1.0, 6.0, 0.5
"""Seconds for a cell's record; a process in a round; and a cell in that."""
SOME_FAILED = 2
"""The status of ``asv run`` where a benchmark failed; the others' results are kept."""


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
        """asv for a checkout; raises CantBeDone where it can't be configured.

        ``variants``: what is measured in a repository of somebody's own, which gets a
        configuration, outside what git keeps.
        """
        from asv.config import Config
        from asv.util import UserError

        file = repository.root / CONFIGURATION
        if repository.own:
            file = repository.root / OWN_FOLDER / CONFIGURATION
            _configure(file, repository, variants)
        try:
            config = Config.load(str(file))
        except UserError as error:
            raise CantBeDone(
                f"asv can't be configured: {error}; 'git checkout -- {file.name}' in a clone of "
                "attnbench brings the file back"
            ) from None
        names = (config.results_dir, config.html_dir)
        folders = (Path(os.path.normpath(file.parent / name)) for name in names)
        return cls(repository.root, file, *folders)

    @staticmethod
    def guess_s(
        commits: int, rounds: int, bench: str | None, variants: Sequence[str] = ()
    ) -> float:
        """A guess at the seconds of :meth:`run`."""
        from attnbench.features.commits.suite import AsvRequest

        request = AsvRequest(bench=(bench,) if bench else (), variants=tuple(variants))
        cells = len(request.keys())
        rounds_s = rounds * (PROCESS_S + TIMED_S * cells)
        return pace() * commits * (PROCESS_S + RECORD_S * cells + rounds_s)

    def run(
        self,
        hashes: Sequence[str],
        machine: str,
        rounds: int,
        bench: str | None,
        tell: Callable[[str], object],
    ) -> bool:
        """Measure commits; False where a benchmark failed. Raises CantBeDone where asv fails."""
        words = ["run", "HASHFILE:-", "--machine", machine, "--attribute", f"rounds={rounds}"]
        words += ["--show-stderr", "--record-samples", "--interleave-rounds"]
        words += ["--bench", bench] if bench else []
        return self._call(words, "\n".join(hashes), (0, SOME_FAILED), tell) == 0

    def publish(self) -> Path:
        """Make the pages anew, of all that the results folder holds; where they begin."""
        self._call(["publish"])
        return self.pages / "index.html"

    @property
    def preview_command(self) -> str:
        """The command that shows the pages: a browser doesn't read them from a folder."""
        here = f"{Path.cwd()}/"
        python, file = sys.executable, str(self.file)
        return f"{python.removeprefix(here)} -m asv preview --config {file.removeprefix(here)}"

    def _call(
        self,
        words: Sequence[str],
        text: str = "",
        good: Sequence[int] = (0,),
        tell: Callable[[str], object] | None = None,
    ) -> int:
        """asv's exit status; raises its last words where that is not a good one."""
        # -P: a folder named asv in the current directory is not imported
        command = [sys.executable, "-P", "-m", "asv", words[0]]
        command += ["--config", str(self.file), *words[1:]]
        variables = without_git(os.environ)
        watch = (lambda line: tell(line.rstrip("\n"))) if tell else sys.stderr.write
        with Program(
            command, folder=self.root, variables=variables, given=text, watch=watch
        ) as program:
            status = program.wait()
        if status is None or status not in good:
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
        file.write_text(json.dumps(values, indent=4) + "\n")
    except OSError as error:
        raise CantBeDone(
            f"can't write {file}: {error.strerror}; make the repository writable"
        ) from None


def machine_entry(machine: Machine) -> dict[str, str]:
    """A machine for asv; with another driver or torch it is another machine."""
    system, gpus, none = machine.system.split(), machine.gpus, "none"
    facts = {
        "os": system[0],
        "arch": system[-1],
        "cpu": machine.cpu,
        "num_cpu": str(machine.cores),
        "ram": f"{machine.memory_bytes / 2**30:.0f} GiB",
        "gpu": ", ".join(dict.fromkeys(gpu.name for gpu in gpus)) or none,
        "driver": ", ".join(dict.fromkeys(gpu.driver for gpu in gpus)) or none,
        "cuda": machine.torch_cuda or none,
        "torch": machine.versions.get("torch", none),
        "triton": machine.versions.get("triton", none),
    }
    digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:6]
    return {"machine": f"{machine.name}-{digest}", **facts}


def ensure_machine() -> str:
    """Have this machine in asv's own file; the name to give to ``--machine``.

    Raises CantBeDone for a file that can't be read or written.
    """
    from asv.machine import MachineCollection
    from asv.util import UserError

    entry = machine_entry(this_machine())
    try:
        MachineCollection.save(entry["machine"], entry)
    except (UserError, OSError, TypeError) as error:
        path = MachineCollection.get_machine_file_path()
        raise CantBeDone(
            f"asv's machine file {path} can't be used ({error}): mend it or move it away, or set "
            "HOME to a folder of yours"
        ) from None
    return entry["machine"]


# ---- what its results show of some commits -------------------------------------------------------
#
# Each is compared with the one before it by asv's own rule, which is weaker than pairs: what slows
# the machine for a while slows one commit alone.


class Value(NamedTuple):
    """One benchmark with its parameters, as asv keeps it."""

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
    """A benchmark that is slower or faster than on the commit before."""

    name: str
    before: float
    after: float

    @property
    def ratio(self) -> float:
        """After over before."""
        return self.after / self.before


@dataclass
class CommitHistory:
    """The results of a commit, compared with those of the commit before it."""

    commit: Commit
    measured: int
    skipped: int
    failed: list[str]
    newly_failed: list[str]
    slower: list[Moved] = field(default_factory=list)
    faster: list[Moved] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    """Measured files that are not as in the commit before."""


def report(
    commits: Sequence[Commit], results: Path, machine: str, factor: float, repository: Repository
) -> list[CommitHistory]:
    """The results of each commit in asv's folder, oldest first."""
    histories: list[CommitHistory] = []
    before: dict[str, Value] = {}
    last: Commit | None = None
    for commit in commits:
        now = dict(_values(results, machine, commit.sha))
        one = _compared(commit, before, now, factor)
        one.changed = repository.changed(last, commit) if last else []
        histories.append(one)
        if now:
            before, last = now, commit
    return histories


def _compared(
    commit: Commit, before: Mapping[str, Value], now: Mapping[str, Value], factor: float
) -> CommitHistory:
    from asv.commands.compare import _is_result_better

    failed = [name for name, value in now.items() if value.result is None]
    newly = [name for name in failed if name in before and before[name].result is not None]
    skipped = sum(value.skipped for value in now.values())
    history = CommitHistory(commit, len(now) - len(failed) - skipped, skipped, failed, newly)
    for name, b in now.items():
        a = before.get(name)
        if a is None or a.skipped or b.skipped or a.version != b.version:
            continue
        if not a.result or b.result is None:  # it failed, or was zero
            continue
        for one, other, moved in ((a, b, history.slower), (b, a, history.faster)):
            both = (one.stats, one.samples), (other.stats, other.samples)
            if _is_result_better(one.result, other.result, *both, factor):
                moved.append(Moved(name, a.result, b.result))
    return history


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
                yield f"{key}({', '.join(cell)})", Value(value, stats, samples, version)
