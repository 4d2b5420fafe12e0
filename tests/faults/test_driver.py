"""The driver itself: what it must notice, it notices."""

import sys
from pathlib import Path

import pytest

from impls.loading import load_file

campaign = load_file(Path(__file__).with_name("campaign.py"))
Fault = campaign.Fault
PYTHON = sys.executable
LISTENS = "import socket, time; s = socket.create_server(('', 0)); time.sleep(1)"

FINE = Fault(name="fine", words=["--version"], status=[0], says=r"^\d+\.\d+")
NOTICED = {
    "a traceback": ("echo 'Traceback (most recent call last)' >&2; exit 2", "Traceback"),
    "a status that means nothing": ("exit 3", "3"),
    "an escape": (r"printf '\033[31m'; exit 2", "x1b"),
    "a process left behind": ("sleep 30 & exit 2", "left behind"),
    "a temporary file": ("touch $TMPDIR/x; exit 2", "TMPDIR"),
    "a file outside": ("touch {outside}/x; exit 2", "outside"),
    "a file here": ("touch x; exit 2", "new in the folder"),
    "a file at home": ("touch ~/.x; exit 2", "HOME"),
    "no end": ("sleep 30", "still running"),
    "a socket": (f'{PYTHON} -c "{LISTENS}"; exit 2', "loopback"),
}  # fmt: skip
pytestmark = pytest.mark.slow


def test_what_goes_well_passes(bring_about):
    bring_about(FINE)


@pytest.mark.parametrize("name", NOTICED)
def test_it_notices(name, tmp_path):
    shell, said = NOTICED[name]
    fault = Fault(name=name, words=[], shell=shell, within_s=3)
    (tmp_path / "run").mkdir()
    with pytest.raises(AssertionError, match=said):
        campaign.run(fault, campaign.make_place(tmp_path / "fault", tmp_path / "run"))
