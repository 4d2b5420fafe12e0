"""Where torch and attnbench are links, as uv, Homebrew, Nix and plain users make them, honest
variants are not accused, and planted faults are caught."""

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


def linked_wheel(tmp_path):
    """The Python of an environment whose packages are links into a store, and of attnbench what its
    wheel holds, unpacked.
    """
    home = Path(os.path.realpath(sys.base_prefix), "bin")
    (tmp_path / "env/bin").mkdir(parents=True)
    (tmp_path / "env/bin/python").symlink_to(home / f"python3.{sys.version_info.minor}")
    (tmp_path / "env/pyvenv.cfg").write_text(f"home = {home}\n")
    packages = tmp_path / "env/lib" / PACKAGES.parent.name / PACKAGES.name
    packages.mkdir(parents=True)
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
    return tmp_path / "env/bin/python"


@pytest.mark.slow
def test_an_honest_variant_is_measured_and_a_fault_is_caught(tmp_path):
    python = linked_wheel(tmp_path)

    def said(*words):
        more = {"timeout": 300, "capture_output": True, "text": True}
        done = subprocess.run([python, *words], cwd=tmp_path, **more)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout)

    place = said("-c", "import json, attnbench; print(json.dumps(attnbench.__file__))")
    assert not place.startswith(str(ROOT))
    command = ["-m", "attnbench"]
    words = ["sdpa", "matmul", "--seq", "64", "--json", "--out", tmp_path / "out"]
    ran = said(*command, "run", *words)
    assert [(r["status"], r["reason"]) for r in ran["records"]] == [("measured", "")] * 4
    assert "sdpa" in Path(ran["run"], "report", "index.html").read_text()
    outcomes = said("-c", SELFCHECK.replace("DEEDS", repr(DEEDS)))
    assert len(outcomes) == 2 + len(DEEDS)
    assert all(caught for _, caught, _ in outcomes), outcomes
