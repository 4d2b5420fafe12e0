"""Wherever Python, torch and attnbench are installed, honest variants are not accused, and planted
faults are caught: layouts with symbolic links, as uv, Homebrew, Nix and plain users make them."""

import json
import os
import shutil
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
with LocalEngine(Settings(threads=1)) as engine, Progress() as watching:
    found = list(run_plants(this_machine(), engine, 0, watching, some))
print(json.dumps([[o.deed, o.caught, o.said] for o in found]))
"""
PROGRAM = """
import torch
q = torch.ones(1, 2, 8, 4)
torch.nn.functional.scaled_dot_product_attention(q, q, q)
"""
DEEDS = [
    "its code run between calls",
    "the mask inverted",
    "NaN in one row",
    "a result kept by a digest without signs",
    "a child that answers",
    "a forged answer",
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


def unpacked_wheel(folder):
    words = ["-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", folder, ROOT]
    subprocess.run([sys.executable, *words], check=True, timeout=200)
    (wheel,) = folder.glob("attnbench-*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "store")
    return folder / "store"


def linked_packages(tmp_path):
    """Packages that are links, but for attnbench, and one with a name of a module of Python's."""
    packages = virtual_environment(tmp_path / "env", Path(os.path.realpath(sys.base_prefix), "bin"))
    for file in PACKAGES.iterdir():
        if file.suffix != ".pth":
            packages.joinpath(file.name).symlink_to(file)
    for folder in unpacked_wheel(tmp_path).iterdir():
        packages.joinpath(folder.name).unlink(missing_ok=True)
        shutil.copytree(folder, packages / folder.name)
    packages.joinpath("tempfile.py").write_text("raise ImportError('of another Python')")
    return tmp_path / "env/bin/python", tmp_path, {}


def linked_files(tmp_path):
    """Packages whose every file is a link, as uv makes them if it is asked for links."""
    packages = virtual_environment(tmp_path / "env", Path(os.path.realpath(sys.base_prefix), "bin"))
    for store in (PACKAGES, unpacked_wheel(tmp_path)):
        subprocess.run(["cp", "-rsf", f"{store}/.", packages], check=True, timeout=100)
    for file in packages.glob("*.pth"):
        file.unlink()
    return tmp_path / "env/bin/python", tmp_path, {}


@pytest.mark.slow
@pytest.mark.parametrize("layout", [linked_python, linked_packages, linked_files])
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
    program, calls = tmp_path / "program.py", tmp_path / "calls.json"
    program.write_text(PROGRAM)
    capture = [*command, "capture", "--out", calls, "--", python, program]
    subprocess.run([python, *capture], cwd=folder, env={**os.environ, **variables}, check=True)
    assert json.loads(calls.read_text())["sites"]
    outcomes = said("-c", SELFCHECK.replace("DEEDS", repr(DEEDS)))
    assert len(outcomes) == 2 + len(DEEDS)
    assert all(caught for _, caught, _ in outcomes), outcomes
