"""asv as attnbench uses it: its commands, its machine file, and the list of its benchmarks."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnbench.core.checkout import without_git
from attnbench.core.disk import from_json, make_folder, write_whole
from attnbench.core.machine import this_machine
from attnbench.features.commits import suite
from attnbench.features.commits.suite import AsvRequest
from impls.asked import CantBeDone
from impls.spec import PHASES

CONFIGURATION = "asv.conf.json"
SOME_FAILED = 2
"""How ``asv run`` ends where a benchmark failed; the others' results are kept."""


class AsvError(CantBeDone):
    """asv is not there, or could not do it; a sentence."""


@dataclass(frozen=True)
class Asv:
    """asv for a checkout, as its configuration file says."""

    root: Path
    results: Path
    pages: Path

    @classmethod
    def of(cls, root: Path) -> Asv:
        """Raises a sentence where asv or its configuration is not there."""
        if importlib.util.find_spec("asv") is None:
            raise AsvError(
                f"asv is not installed for {sys.executable}; install it with "
                f"{sys.executable} -m pip install 'asv>=0.6.5,<0.7'"
            )
        from asv.util import UserError, load_json

        file = root / CONFIGURATION
        if not file.exists():
            raise AsvError(
                f"there is no {file.name} in {root}; history is kept in a clone of attnbench as a "
                "whole, with its benchmarks folder: run it there"
            )
        try:
            said = load_json(str(file), js_comments=True)
            return cls(root, root / said["results_dir"], root / said["html_dir"])
        except (OSError, ValueError, KeyError, TypeError, UserError) as error:
            raise AsvError(
                f"{file} can't be read ({type(error).__name__}: {error}); 'git checkout -- "
                f"{file.name}' brings it back"
            ) from None

    def run(self, hashes: Sequence[str], machine: str, rounds: int, bench: str | None) -> bool:
        """Measure commits; True where every benchmark came to a value."""
        words = ["run", "HASHFILE:-", "--machine", machine, "--attribute", f"rounds={rounds}"]
        words += ["--show-stderr", "--record-samples", "--interleave-rounds"]
        words += ["--bench", bench] if bench else []
        return self._call(words, "\n".join(hashes), (0, SOME_FAILED)) == 0

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
        python, file = sys.executable, str(self.root / CONFIGURATION)
        return f"{python.removeprefix(here)} -m asv preview --config {file.removeprefix(here)}"

    def _call(self, words: Sequence[str], given: str = "", well: Sequence[int] = (0,)) -> int:
        """asv's exit status; raises its last words where that is none of those that are well."""
        # -P: a folder named asv in the current directory is not imported
        command = [sys.executable, "-P", "-m", "asv", words[0]]
        command += ["--config", str(self.root / CONFIGURATION), *words[1:]]
        last: deque[str] = deque(maxlen=1)
        with subprocess.Popen(
            command,
            cwd=self.root,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**without_git(os.environ), "PYTHONUNBUFFERED": "1"},
        ) as child:
            assert child.stdin is not None and child.stdout is not None
            with child.stdin as asking:
                asking.write(given)
            for line in child.stdout:
                last.extend(filter(None, [line.strip()]))
                sys.stderr.write(line)
                sys.stderr.flush()
            status = child.wait()
        if status not in well:
            said = last[0] if last else "it said nothing"
            raise AsvError(
                f"'asv {words[0]}' ended with status {status}: {said}; what it said before is above"
            )
        return status


def checked_regex(text: str | None) -> str | None:
    """A pattern as it is; raises a sentence for what is none."""
    try:
        re.compile(text or "")
    except re.error as error:
        raise AsvError(f"--bench {text!r} is no regular expression: {error}") from None
    return text


# ---- machines ------------------------------------------------------------------------------------

FACETS = ("gpu", "driver", "cuda", "torch", "triton")
"""What an entry of ours says besides what asv asks for."""
FORM = 1
"""asv's version of its machine files."""
NONE = "none"


class MachineFileError(CantBeDone):
    """asv's machine file can't be read or written; a sentence."""


def entry(machine: Mapping[str, Any]) -> dict[str, str]:
    """asv's entry for a machine, from its fingerprint as plain values."""
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

    The entries of others stay. Those of this machine as it was before, with another torch or
    driver, go: asv takes the only entry there is where no name is given.
    """
    path = path or Path("~/.asv-machine.json").expanduser()
    machine = this_machine()
    mine, known = entry(machine.to_dict()), _read(path)

    def is_of_before(other: Any) -> bool:
        ours = isinstance(other, dict) and set(FACETS) <= set(other)
        return ours and str(other.get("machine")).rpartition("-")[0] == machine.name

    kept = {name: other for name, other in known.items() if not is_of_before(other)}
    wanted = {**kept, mine["machine"]: mine, "version": FORM}
    if wanted != known:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(path, wanted)
        except OSError as error:
            raise MachineFileError(
                f"can't write {path}, where asv looks a machine up: {error.strerror}; make it "
                "writable, or set HOME to a folder of yours"
            ) from None
    return mine["machine"]


def _read(path: Path) -> dict[str, Any]:
    remedy = "mend it or move it away; it is made anew"
    try:
        known = from_json(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is no JSON"
        raise MachineFileError(
            f"asv's machine file {path} can't be read ({why}): {remedy}"
        ) from None
    if not isinstance(known, dict) or known.get("version", FORM) != FORM:
        raise MachineFileError(f"{path} is not a machine file of asv's as it is now: {remedy}")
    return known


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
"""asv's version of this file."""
SUITE = [name for device in suite.PRESET for name in suite.grid(device).variants]
SAME = ("version", "unit", "param_names")
"""What is listed with others of these is not what the results are of."""
Cell = tuple[str, ...]
"""Variant, length and phase as asv writes them: by ``repr``."""


def in_order(values: Iterable[str]) -> list[str]:
    """Values of one parameter: lengths by size, phases as everywhere, the suite's variants first.

    asv draws lines for the first eight.
    """
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
    """Have the pages show whatever lies in a results folder."""
    from asv.results import iter_results

    path = results / FILE
    try:
        listed = from_json(path.read_text())
        if listed.pop("version") != INDEX_FORM:
            listed = {}
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        listed = {}  # it is written anew
    for result in iter_results(str(results)):
        for name in result.get_all_result_keys():
            said = described(name)
            if said is None or result.benchmark_version.get(name) != said["version"]:
                continue  # not of the suite, or by another ruler
            there = listed.get(name)
            if not isinstance(there, dict) or any(there.get(k) != said[k] for k in SAME):
                there = listed[name] = {**said, "params": [[] for _ in said["param_names"]]}
            both = zip(there["params"], result.get_result_params(name), strict=True)
            there["params"] = [in_order([*a, *b]) for a, b in both]
    make_folder(results, exist_ok=True)
    _write(path, {**listed, "version": INDEX_FORM})
    return path


def before_publishing(configuration: str | None) -> None:
    """Have asv publish whatever lies in its results folder.

    It has gone to the folder of its configuration file already.
    """
    from asv.config import Config
    from asv.util import UserError

    results = Path(Config.load(configuration and Path(configuration).name).results_dir)
    if (results / FILE).exists():
        try:
            write(results)
        except OSError as error:
            raise UserError(f"can't write {results / FILE}: {error.strerror}") from None
