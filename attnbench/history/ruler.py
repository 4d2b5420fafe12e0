"""Which ``impls`` a process of asv's measures, and with which ruler.

The ruler is the ``attnbench`` of the checkout that asv runs in; ``impls`` is the commit's, from its
environment. Both are found without being loaded, so that a commit that can't be measured is said to
be so in a sentence.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import attnbench
from attnbench.sweep.contract import interface, unlike

OWN = ("", "existing")
"""Environments that asv did not make: there the checkout's own ``impls`` are measured."""


def checkout() -> Path:
    """The folder that holds the ruler."""
    return Path(attnbench.__file__).resolve().parents[1]


def impls_of_commit(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The folder of the ``impls`` that are measured; None where the commit has none."""
    if environment.get("ASV_ENV_TYPE", "") in OWN:
        return checkout() / "impls"
    found = find_spec("impls")
    if found is None or found.origin is None:
        return None
    folder = Path(found.origin).resolve().parent
    made = Path(environment["ASV_ENV_DIR"]).resolve()
    return folder if made in folder.parents else None  # another's, that is installed somewhere


def why_not(impls: Path | None, commit: str) -> str:
    """Why a commit can't be measured with this ruler; a sentence, or nothing."""
    if impls is None:
        return f"commit {commit[:8]} has no folder impls; give a later one"
    return unlike(impls, interface(checkout() / "impls"), commit[:8])


def laid_out(impls: Path, folder: Path) -> Path:
    """A folder in which workers look first, with a copy of the commit's ``impls`` alone.

    A link would not do: the ruler tells its own code from a variant's by the files they lie in.
    """
    if not folder.exists():
        shutil.copytree(impls, folder / "impls", ignore=shutil.ignore_patterns("__pycache__"))
    return folder
