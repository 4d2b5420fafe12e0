"""Wherever Python, torch and attnbench are installed, honest variants are not accused, and planted
faults are caught: layouts with symbolic links, as uv, Homebrew, Nix and plain users make them."""

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.calling import ROOT

PACKAGES = Path(sysconfig.get_path("purelib"))
"""Where torch and the rest are installed for this process."""
SELFCHECK = """
import json
from attnbench.core.machine import this_machine
from attnbench.core.settings import Settings
from attnbench.features.selfcheck.selfcheck import run_plants
from attnbench.sweep.engine import LocalEngine
from attnbench.command.progress import Progress
from attnbench.gate.plants import PLANTS
some = [p for p in PLANTS if p.kind == "nothing" or p.deed in DEEDS]
with LocalEngine(Settings(threads=1)) as engine, Progress(len(some)) as watching:
    found = list(run_plants(this_machine(), engine, 0, watching, some))
print(json.dumps([[o.deed, o.caught, o.said] for o in found]))
"""
DEEDS = [
    "its code run between calls",
    "the mask inverted",
    "NaN in one row",
    "a result kept by a digest that signs don't change",
]


def virtual_environment(folder, home):
    """One without packages, whose Python is the one in ``home``; its folder of packages."""
    folder.joinpath("bin").mkdir(parents=True)
    folder.joinpath("bin/python").symlink_to(home / f"python3.{sys.version_info.minor}")
    folder.joinpath("pyvenv.cfg").write_text(f"home = {home}\n")
    packages = folder / "lib" / PACKAGES.parent.name / PACKAGES.name
    packages.mkdir(parents=True)
    return packages


def linked_python(tmp_path):
    """uv's: a link to the newest patch release, and an environment whose home is that link."""
    release, minor = tmp_path / "cpython-release", tmp_path / "cpython-minor"
    release.symlink_to(os.path.realpath(sys.base_prefix))
    minor.symlink_to(release.name)
    packages = virtual_environment(tmp_path / "env", minor / "bin")
    packages.joinpath("more.pth").write_text(f"import site; site.addsitedir({str(PACKAGES)!r})\n")
    return tmp_path / "env/bin/python", tmp_path, {"PYTHONPATH": str(ROOT)}


def linked_wheel(tmp_path):
    """Packages that are links into a store, and of attnbench what its wheel holds, unpacked."""
    packages = virtual_environment(tmp_path / "env", Path(os.path.realpath(sys.base_prefix), "bin"))
    for file in PACKAGES.iterdir():
        if file.suffix != ".pth":
            packages.joinpath(file.name).symlink_to(file)
    build = ["-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", tmp_path, ROOT]
    subprocess.run([sys.executable, *build], check=True, timeout=200)
    (wheel,) = tmp_path.glob("attnbench-*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "store")
    for folder in (tmp_path / "store").iterdir():
        packages.joinpath(folder.name).unlink(missing_ok=True)
        packages.joinpath(folder.name).symlink_to(folder)
    return tmp_path / "env/bin/python", tmp_path, {}


@pytest.mark.slow
@pytest.mark.parametrize("layout", [linked_python, linked_wheel])
def test_an_honest_variant_is_measured_and_a_fault_is_caught(tmp_path, layout):
    python, folder, variables = layout(tmp_path)

    def said(*words):
        where = {"cwd": folder, "env": {**os.environ, **variables}}
        return json.loads(subprocess.check_output([python, *words], **where, timeout=300))

    place = said("-c", "import json, attnbench; print(json.dumps(attnbench.__file__))")
    assert place.startswith(str(ROOT)) is (layout is linked_python)
    command = ["-m", "attnbench"]
    words = ["sdpa", "matmul", "--seq", "64", "--budget=0.1", "--json", "--out", tmp_path / "out"]
    ran = said(*command, "run", *words)
    assert [(r["status"], r["reason"]) for r in ran["records"]] == [("measured", "")] * 4
    assert "sdpa" in Path(ran["run"], "report", "index.html").read_text()
    outcomes = said("-c", SELFCHECK.replace("DEEDS", repr(DEEDS)))
    assert len(outcomes) == 2 + len(DEEDS)
    assert all(caught for _, caught, _ in outcomes), outcomes
