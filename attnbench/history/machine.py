"""asv's entry for a machine, made from the fingerprint, so that nobody is asked.

asv files results by the machine's name, and whatever else an entry says (GPU, driver, CUDA, torch)
becomes a facet of its pages. It compares two results of one name as if one machine had measured
them. So the name carries a word that is another wherever one of the facets is.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnbench.machine import this_machine
from attnbench.store.disk import from_json, write_whole
from impls.asked import CantBeDone

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
        "os": system[0] if system else "", "arch": system[-1] if system else "",
        "cpu": str(machine["cpu"]), "num_cpu": str(machine["cores"]),
        "ram": f"{machine['memory_bytes'] / 2**30:.0f} GiB",
        "gpu": _names(gpu["name"] for gpu in gpus), "driver": _names(g["driver"] for g in gpus),
        "cuda": machine.get("torch_cuda") or NONE,
        "torch": versions.get("torch", NONE), "triton": versions.get("triton", NONE),
    }  # fmt: skip
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
