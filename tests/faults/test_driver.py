"""The driver itself: what it must notice, it notices."""

import re
import sys

import pytest

from tests.faults.campaign import Fault, Place, run

LISTENS = "import socket, time; s = socket.create_server(('', 0)); time.sleep(2)"
NOTICED = {
    "a traceback": ("echo 'Traceback (most recent call last)' >&2; exit 2", "Traceback"),
    "a status that means nothing": ("exit 3", "3"),
    "an escape": (r"printf '\033[31m'; exit 2", "x1b"),
    "a process left behind": ("sleep 30 & sleep 0.2; exit 2", "left behind"),
    "a temporary file": ("touch $TMPDIR/x; exit 2", "TMPDIR"),
    "a file outside": ("touch {outside}/x; exit 2", "outside"),
    "a file here": ("touch x; exit 2", "new in the folder"),
    "a file at home": ("touch ~/.x; exit 2", "HOME"),
    "no end": ("sleep 30", "still running"),
    "a socket": (f'{sys.executable} -c "{LISTENS}"; exit 2', "loopback"),
}  # fmt: skip


@pytest.mark.slow
def test_what_goes_well_passes_and_what_does_not_is_noticed(bring_about, tmp_path):
    bring_about(Fault("fine", ["--version"], status=[0], says=r"^\d+\.\d+"))
    (tmp_path / "run").mkdir()
    for number, (name, (shell, said)) in enumerate(NOTICED.items()):
        fault = Fault(name, [], shell=shell, within_s=3)
        try:
            run(fault, Place(tmp_path / str(number), tmp_path / "run"))
        except AssertionError as error:
            assert re.search(said, str(error)), name
        else:
            pytest.fail(f"{name} was not noticed")
