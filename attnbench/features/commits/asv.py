"""asv as attnbench uses it: its machine file, its results, its environment."""

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
LAST_LINES = 12


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
        said = _configuration(root / CONFIGURATION)
        return cls(root, root / said["results_dir"], root / said["html_dir"])

    def run(self, hashes: Sequence[str], machine: str, rounds: int, bench: str | None) -> bool:
        """Measure commits; True where every benchmark came to a value."""
        words = [
            "run",
            "HASHFILE:-",
            "--machine",
            machine,
            "--show-stderr",
            "--record-samples",
            "--interleave-rounds",
            "--attribute",
            f"rounds={rounds}",
        ]
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
        configuration = _short(str(self.root / CONFIGURATION))
        return f"{_short(sys.executable)} -m asv preview --config {configuration}"

    def _call(self, words: Sequence[str], given: str = "", well: Sequence[int] = (0,)) -> int:
        """asv's exit status; raises its last words where that is none of those that are well."""
        # -P: a folder named asv in the current directory is not imported
        command = [
            sys.executable,
            "-P",
            "-m",
            "asv",
            *words[:1],
            "--config",
            str(self.root / CONFIGURATION),
            *words[1:],
        ]
        last: deque[str] = deque(maxlen=LAST_LINES)
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
                last.append(line.rstrip())
                sys.stderr.write(line)
                sys.stderr.flush()
            status = child.wait()
        if status not in well:
            said = next((line for line in reversed(last) if line.strip()), "it said nothing")
            raise AsvError(
                f"'asv {words[0]}' ended with status {status}: {said.strip()}; what it said before "
                "is above"
            )
        return status


def checked_regex(text: str | None) -> str | None:
    """A pattern as it is; raises a sentence for what is none."""
    try:
        re.compile(text or "")
    except re.error as error:
        raise AsvError(f"--bench {text!r} is no regular expression: {error}") from None
    return text


def _configuration(file: Path) -> dict[str, Any]:
    """By asv's own reading, which takes comments."""
    from asv.util import UserError, load_json

    if not file.exists():
        raise AsvError(
            f"there is no {file.name} in {file.parent}; history is kept in a clone of attnbench "
            "as a whole, with its benchmarks folder: run it there"
        )
    try:
        said = load_json(str(file), js_comments=True)
        return {name: str(said[name]) for name in ("results_dir", "html_dir")}
    except (OSError, ValueError, KeyError, TypeError, UserError) as error:
        raise AsvError(
            f"{file} can't be read ({type(error).__name__}: {error}); 'git checkout -- "
            f"{file.name}' brings it back"
        ) from None


def _short(path: str) -> str:
    """As seen from where we stand, if it lies there."""
    here = str(Path.cwd())
    return path.removeprefix(here + "/")


FACETS = ("gpu", "driver", "cuda", "torch", "triton")
"""What an entry of ours says besides what asv asks for."""
FORM = 1
"""asv's version of its machine files."""
NONE = "none"
REMEDY = "mend it or move it away; it is made anew"


class MachineFileError(CantBeDone):
    """asv's machine file can't be read or written; a sentence."""


def entry(machine: Mapping[str, Any]) -> dict[str, str]:
    """asv's entry for a machine, from its fingerprint as plain values."""
    gpus, versions = machine.get("gpus") or (), machine.get("versions") or {}
    system = str(machine.get("system", "")).split()
    facts = {
        "os": system[0] if system else "",
        "arch": system[-1] if system else "",
        "cpu": str(machine["cpu"]),
        "num_cpu": str(machine["cores"]),
        "ram": f"{machine['memory_bytes'] / 2**30:.0f} GiB",
        "gpu": _names(gpu["name"] for gpu in gpus),
        "driver": _names(g["driver"] for g in gpus),
        "cuda": machine.get("torch_cuda") or NONE,
        "torch": versions.get("torch", NONE),
        "triton": versions.get("triton", NONE),
    }
    apart = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:6]
    return {"machine": f"{machine['name']}-{apart}", **facts}


def _names(found: Any) -> str:
    return ", ".join(dict.fromkeys(found)) or NONE


def ensure_machine(path: Path | None = None) -> str:
    """Have this machine in asv's own file as it is now; the name to give to ``--machine``.

    The entries of others stay. Those of this machine as it was before, with another torch or
    driver, go: asv takes the only entry there is where no name is given.
    """
    path = path or Path("~/.asv-machine.json").expanduser()
    machine = this_machine()
    mine = entry(machine.to_dict())
    known = _read(path)
    kept = {k: v for k, v in known.items() if not _of_before(v, machine.name)}
    wanted = {**kept, mine["machine"]: mine, "version": FORM}
    if wanted != known:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, (json.dumps(wanted, indent=4, sort_keys=True) + "\n").encode())
        except OSError as error:
            raise MachineFileError(
                f"can't write {path}, where asv looks a machine up: {error.strerror}; make it "
                "writable, or set HOME to a folder of yours"
            ) from None
    return mine["machine"]


def save_entry(results: Path, mine: Mapping[str, str]) -> None:
    """The entry beside a machine's results, where the pages look for it."""
    path = results / mine["machine"] / "machine.json"
    text = json.dumps({**mine, "version": FORM}, indent=4, sort_keys=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, (text + "\n").encode())


def _of_before(found: Any, name: str) -> bool:
    """Whether an entry is one that this module made of the machine of a name."""
    ours = isinstance(found, dict) and set(FACETS) <= set(found)
    return ours and str(found.get("machine")).rpartition("-")[0] == name


def _read(path: Path) -> dict[str, Any]:
    try:
        known = from_json(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is no JSON"
        raise MachineFileError(
            f"asv's machine file {path} can't be read ({why}): {REMEDY}"
        ) from None
    if not isinstance(known, dict) or known.get("version", FORM) != FORM:
        raise MachineFileError(f"{path} is not a machine file of asv's as it is now: {REMEDY}")
    return known


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
    return sorted(dict.fromkeys(values), key=_rank)


def _rank(text: str) -> tuple[int, int, str]:
    if text.isdigit():
        return 0, int(text), ""
    first = (*PHASES, *SUITE)
    value = text.strip("'")
    return 1, first.index(value) if value in first else len(first), value


def axes(cells: Iterable[Cell]) -> list[list[str]]:
    """The values of each parameter that some cells have."""
    return [in_order(values) for values in zip(*cells, strict=True)]


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
    listed = _listed(path)
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
    text = json.dumps({**listed, "version": INDEX_FORM}, indent=4, sort_keys=True)
    write_whole(path, (text + "\n").encode())
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


def _listed(path: Path) -> dict[str, Any]:
    """What the file says now; nothing where it can't be read, for it is written anew."""
    try:
        listed = from_json(path.read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(listed, dict) or listed.pop("version", None) != INDEX_FORM:
        return {}
    return listed
