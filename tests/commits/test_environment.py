"""What asv is told of the machine, and its processes of the command."""

import json
from argparse import Namespace

import pytest
from asv.util import UserError

from attnbench.core import machine
from attnbench.features.commits import asv_interface, environment, suite
from impls.errors import CantBeDone


def test_asv_is_told_of_the_machine_without_asking_and_its_processes_of_the_command(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(environment.Machine, "hardcoded_machine_name", None)
    counter = tmp_path / "intel-rapl:0" / "energy_uj"
    monkeypatch.setattr(machine, "POWERCAP", tmp_path)
    assert not environment._counts_energy()
    counter.parent.mkdir()
    counter.write_text("1")
    (counter.parent / "name").write_text("psys")
    assert not environment._counts_energy()
    (counter.parent / "name").write_text("package-0")
    given = {}
    environment._hand_on(Namespace(quick=True, bench=["x"]), given)
    asked = suite.current_request(given)
    assert (asked.quick, asked.bench, asked.energy) == (True, ("x",), True)
    name = environment.Machine.hardcoded_machine_name
    assert name in json.loads((tmp_path / ".asv-machine.json").read_text())

    def damaged():
        raise CantBeDone("asv's machine file is no JSON")

    monkeypatch.setattr(asv_interface, "ensure_machine", damaged)
    with pytest.raises(UserError, match="is no JSON"):
        environment._hand_on(Namespace(), {})
