"""Which benchmarks there are: asv's ``benchmarks.json``, with all that its results hold.

asv publishes what this file lists and nothing else, and ``asv run`` lists what the suite has. So
the file is written anew from the results, which may hold more variants, lengths and problems.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from attnbench.history import suite
from attnbench.history.command import Asked
from attnbench.store.disk import from_json, make_folder, write_whole
from impls.spec import PHASES

FILE = "benchmarks.json"
FORM = 2
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
    known = suite.benchmarks(Asked(energy=True)).get(f"{suite.MODULE}.{figure}")
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
    text = json.dumps({**listed, "version": FORM}, indent=4, sort_keys=True)
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
    if not isinstance(listed, dict) or listed.pop("version", None) != FORM:
        return {}
    return listed
