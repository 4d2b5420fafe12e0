"""asv as attnbench uses it: its commands, its machine file, and its results."""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from attnbench.core.checkout import Commit, Repository, without_git
from attnbench.core.machine import Machine, pace, this_machine
from attnbench.core.process import Program
from impls.errors import CantBeDone

CONFIGURATION = "asv.conf.json"
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
    def of(cls, repository: Repository) -> Asv:
        """asv for a clone of attnbench; raises CantBeDone for another repository, or where its
        configuration can't be read.
        """
        from asv.config import Config
        from asv.util import UserError

        if repository.whole:
            raise CantBeDone(
                f"asv's suite measures attnbench's own impls, in a clone; in {repository.root} "
                "compare two commits: 'attnbench history compare BASE HEAD'"
            )
        file = repository.root / CONFIGURATION
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
    def guess_s(commits: int, rounds: int, bench: str | None) -> float:
        """A guess at the seconds of :meth:`run`."""
        from attnbench.features.commits.suite import AsvRequest

        cells = len(AsvRequest(bench=(bench,) if bench else ()).keys())
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

    def compare(self, base: str, head: str, machine: str, factor: float) -> list[str]:
        """asv's own lines on what is slower or faster in a commit than in another."""
        lines: list[str] = []
        words = ["compare", base, head, "--machine", machine, "--factor", str(factor)]
        self._call([*words, "--only-changed", "--sort", "ratio"], tell=lines.append)
        return [line for line in lines if line.strip()]

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


@dataclass(frozen=True)
class CommitResults:
    """What asv keeps of a commit on a machine."""

    commit: Commit
    values: dict[tuple[str, ...], float | None]
    """By benchmark, variant, length and phase; None: it failed; not a number: it was skipped."""

    @classmethod
    def read(cls, commit: Commit, results: Path, machine: str) -> CommitResults:
        """From asv's folder of results."""
        from asv.results import iter_results_for_machine_and_hash

        values: dict[tuple[str, ...], float | None] = {}
        for result in iter_results_for_machine_and_hash(str(results), machine, commit.sha):
            for key in result.get_all_result_keys():
                params = result.get_result_params(key)
                cells = [[str(value).strip("'") for value in cell] for cell in product(*params)]
                several = result.get_result_value(key, params) or [None] * len(cells)
                values |= {(key, *cell): x for cell, x in zip(cells, several, strict=True)}
        return cls(commit, values)

    @property
    def failed(self) -> list[tuple[str, ...]]:
        """The benchmarks that should have a value and have none."""
        return [key for key, value in self.values.items() if value is None]

    @property
    def skipped(self) -> int:
        """The number of those of which there was nothing to run."""
        return sum(value is not None and math.isnan(value) for value in self.values.values())

    def newly_failed(self, before: CommitResults | None) -> list[str]:
        """The benchmarks that had a value in a commit before."""
        then = before.values if before else {}
        return [" ".join(key) for key in self.failed if then.get(key) is not None]
