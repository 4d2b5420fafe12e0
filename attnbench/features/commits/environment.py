"""asv's plugin: commits share the running interpreter and its packages, torch among them.

There is nothing to build or install: the suite lays out each commit by itself.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from argparse import Namespace
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from asv.environment import Environment, EnvironmentUnavailable
from asv.machine import Machine
from asv.util import UserError

from attnbench.core.machine import this_machine
from attnbench.features.commits import asv_interface
from attnbench.features.commits.suite import VARIABLE, AsvRequest
from impls.errors import CantBeDone

RUNNING = f"{sys.version_info.major}.{sys.version_info.minor}"


class Shared(Environment):  # type: ignore[misc]
    """The interpreter that runs asv."""

    tool_name = "shared"
    matches_python_fallback = False
    installed_commit_hash = None

    def __init__(
        self, conf: Any, python: str, requirements: dict[str, str], tagged_env_vars: Any
    ) -> None:
        wrong = f"installs no {', '.join(requirements)}" if requirements else ""
        wrong = wrong if self.matches(python) else f"has Python {RUNNING}, not {python}"
        if wrong:
            raise EnvironmentUnavailable(f"a shared environment {wrong}; take -E virtualenv")
        self._python, self._requirements = python, requirements  # asv asks before it keeps them
        super().__init__(conf, python, requirements, tagged_env_vars)

    @classmethod
    def matches(cls, python: str) -> bool:
        """This is the Python that asv runs in."""
        return python == RUNNING

    def create(self) -> None:
        """Nothing is created."""

    def install_project(self, conf: Any, repo: Any, commit_hash: str) -> None:
        """Name the commit to the suite."""
        self._set_commit_hash(commit_hash)

    def find_executable(self, executable: str) -> str:
        """The running interpreter."""
        return sys.executable

    def run(self, args: Sequence[str], **kwargs: Any) -> Any:
        """Run Python with these arguments."""
        return self.run_executable("python", list(args), **kwargs)


def setup() -> None:
    """Tell asv which machine this is, and the suite what asv was asked for."""
    from asv.commands import make_argparser

    try:
        arguments, _ = make_argparser()[0].parse_known_args()
    except SystemExit:  # another program has loaded asv, and its arguments are its own
        return
    Machine.hardcoded_machine_name = asv_interface.machine_entry(this_machine())["machine"]
    if {"run", "continuous", "find"} & {*sys.argv[1:]}:
        _hand_on(arguments, os.environ)


def _hand_on(arguments: Namespace, environment: MutableMapping[str, str]) -> None:
    try:
        asv_interface.ensure_machine()
    except CantBeDone as why:
        raise UserError(str(why)) from None
    turns = getattr(arguments, "interleave_rounds", False)
    bench = getattr(arguments, "bench", None) or ()
    scratch = tempfile.mkdtemp(prefix="attnbench-history-")
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    request = AsvRequest(
        root=str(Path.cwd()),  # asv stands in its folder
        device=this_machine().devices[-1],
        bench=(bench,) if isinstance(bench, str) else tuple(bench),
        interleaved=turns is None or bool(turns),  # None: asv takes turns if it can
        scratch=scratch,
    )
    environment[VARIABLE] = msgspec.json.encode(request).decode()
