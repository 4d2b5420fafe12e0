"""asv's plugin: an environment that shares the running interpreter's packages, torch among them.

It holds the commit's ``impls`` and nothing else, so it takes no build, no network and a moment.
"""

from __future__ import annotations

import atexit
import os
import shutil
import site
import sys
import sysconfig
import tempfile
import venv
from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from asv.environment import Environment, EnvironmentUnavailable
from asv.machine import Machine
from asv.util import UserError

from attnbench.features.commits import asv_interface, suite
from impls.errors import CantBeDone

RUNNING = f"{sys.version_info.major}.{sys.version_info.minor}"
PACKAGES = ("site-packages", "dist-packages")
"""How folders of installed packages are called. An editable project's own is none of them."""
LINK = "attnbench-shared.pth"


class Shared(Environment):  # type: ignore[misc]
    """The interpreter that runs asv, with a commit's ``impls`` before all that is installed."""

    tool_name = "shared"
    matches_python_fallback = False

    def __init__(
        self, conf: Any, python: str, requirements: dict[str, str], tagged_env_vars: Any
    ) -> None:
        wrong = f"installs no {', '.join(requirements)}" * bool(requirements)
        wrong = wrong if self.matches(python) else f"has Python {RUNNING}, not {python}"
        if wrong:
            raise EnvironmentUnavailable(f"a shared environment {wrong}; take -E virtualenv")
        self._python, self._requirements = python, requirements  # asv asks before it keeps them
        super().__init__(conf, python, requirements, tagged_env_vars)

    @classmethod
    def matches(cls, python: str) -> bool:
        """Whether this is the Python that asv runs in."""
        return python == RUNNING

    def check_presence(self) -> bool:
        """Whether it is there, and shares what this interpreter has."""
        try:
            known = self.load_info_file(self._path)["python"] == self._python
            runs = Path(self.find_executable("python")).resolve() == Path(sys.executable).resolve()
            return known and runs and (self._packages() / LINK).read_text() == _linked()
        except Exception:  # whatever is wrong with it: it is made anew
            return False

    def _setup(self) -> None:
        venv.EnvBuilder(symlinks=True, with_pip=False).create(self._path)
        (self._packages() / LINK).write_text(_linked())

    def run(self, args: Sequence[str], **kwargs: Any) -> Any:
        """Its Python, with these arguments."""
        return self.run_executable("python", list(args), **kwargs)

    def _build_project(self, repo: Any, commit_hash: str, build_dir: str) -> None:
        """Nothing is built."""

    def _uninstall_project(self) -> None:
        self._set_installed_commit_hash(None)
        shutil.rmtree(self._packages() / "impls", ignore_errors=True)

    def _install_project(self, repo: Any, commit_hash: str, build_dir: str) -> None:
        """A commit without ``impls`` gets none, and its benchmarks say so."""
        found = Path(build_dir) / "impls"
        if found.is_dir():
            shutil.copytree(found, self._packages() / "impls")

    def _packages(self) -> Path:
        base = {"base": self._path, "platbase": self._path}
        return Path(sysconfig.get_path("purelib", "venv", base))


def _linked() -> str:
    """Where the running interpreter has its packages: all of them come after the commit's."""
    installed = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    if site.ENABLE_USER_SITE:
        installed.append(site.getusersitepackages())
    folders = [Path(folder) for folder in (*installed, *sys.path)]
    found = dict.fromkeys(f.resolve() for f in folders if f.name in PACKAGES)
    return "".join(f"{folder}\n" for folder in found if folder.is_dir())


def setup() -> None:
    """Tell asv's processes what it was asked for; and it, before it publishes, what it has."""
    from asv.commands import make_argparser

    words = sys.argv[1:]
    try:
        said, _ = make_argparser()[0].parse_known_args(words)
    except SystemExit:  # another program has loaded asv, and its arguments are its own
        said = Namespace()
    if words[:1] == ["publish"]:
        asv_interface.before_publishing(getattr(said, "config", None))
    if {"run", "continuous", "find"} & {*words}:
        _hand_on(said, os.environ)


def _hand_on(said: Namespace, environment: Any) -> None:
    from attnbench.core.machine import this_machine

    try:
        Machine.hardcoded_machine_name = asv_interface.ensure_machine()
    except CantBeDone as sentence:
        raise UserError(str(sentence)) from None
    device = this_machine().devices[-1]
    own = asv_interface.own_repository(getattr(said, "config", None))
    energy = device == "cuda" or _counts_energy()
    request = suite.request_of(said, device, own, energy=energy)
    kept = tempfile.mkdtemp(prefix="attnbench-history-")
    atexit.register(shutil.rmtree, kept, ignore_errors=True)
    msgspec.structs.replace(request, kept=kept).hand_on(environment)


def _counts_energy() -> bool:
    """Whether the processor's own counters can be read."""
    from attnbench.core.machine import energy_counters

    with suppress(OSError):
        found = energy_counters()
        return bool(found) and all(os.access(zone / "energy_uj", os.R_OK) for zone in found)
    return False
