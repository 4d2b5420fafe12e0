"""asv's entry for a machine: what it says, and that nobody is asked."""

import errno
import json
from pathlib import Path

import pytest
from asv.machine import Machine as AsvMachine

from attnbench.core.machine import this_machine
from attnbench.features.commits import asv
from attnbench.features.commits.asv import FACETS, ensure_machine, entry
from impls.asked import CantBeDone
from impls.loading import load_file

runs = load_file(Path(__file__).with_name("runs.py"))
OTHERS = {"machine": "laptop", "os": "", "arch": "", "cpu": "", "num_cpu": "2", "ram": "1"}


@pytest.fixture
def file(tmp_path):
    return tmp_path / "home" / ".asv-machine.json"


def read(file):
    return json.loads(file.read_text())


def test_an_entry_says_what_asv_asks_for_and_what_becomes_facets():
    told = entry(runs.GPU_BOX)
    assert set(told) == {*(name for name, _ in AsvMachine.fields), *FACETS}
    assert all(isinstance(value, str) and value for value in told.values())
    wanted = {
        "gpu": "NVIDIA H200",
        "driver": "580.1",
        "cuda": "13.0",
        "torch": "2.13.0+cu130",
        "triton": "3.9.0",
        "num_cpu": "4",
        "ram": "8 GiB",
        "arch": "x86_64",
    }
    assert told | wanted == told


def test_a_machine_without_a_gpu_says_so():
    told = entry(runs.BOX)
    assert [told[name] for name in ("gpu", "driver", "cuda", "triton")] == ["none"] * 4


def test_several_gpus_of_a_kind_are_named_once():
    assert entry({**runs.GPU_BOX, "gpus": [runs.GPU] * 8}) == entry(runs.GPU_BOX)


@pytest.mark.parametrize(
    "change",
    [
        {"versions": {"torch": "2.14.0+cpu"}},
        {"versions": {"torch": "2.13.0+cpu", "triton": "3"}},
        {"cores": 8},
        {"cpu": "another"},
        {"memory_bytes": 1 << 34},
        {"gpus": [runs.GPU]},
        {"torch_cuda": "13.0"},
        {"name": "crate"},
    ],
)
def test_machines_with_unlike_facets_have_unlike_names(change):
    assert entry(runs.BOX)["machine"] != entry({**runs.BOX, **change})["machine"]


@pytest.mark.parametrize(
    "change",
    [
        {"system": "Linux 6.2 x86_64"},
        {"memory_bytes": (1 << 33) - 4096},
        {"compiler": "/bin/cc"},
        {"versions": {"torch": "2.13.0+cpu", "attnbench": "9", "asv": "0.6.7"}},
    ],
)
def test_what_is_no_facet_makes_no_other_machine(change):
    assert entry(runs.BOX) == entry({**runs.BOX, **change})


def test_this_machine_is_entered_without_asking_and_asv_finds_it(file):
    name = ensure_machine(file)
    found = AsvMachine.load(machine_name=name, _path=str(file))
    assert found.__dict__ == entry(this_machine().to_dict())
    assert found.machine == name


def test_where_it_is_the_only_one_asv_takes_it_without_a_name(file):
    name = ensure_machine(file)
    assert AsvMachine.load(_path=str(file)).machine == name


def test_others_entries_stay(file):
    file.parent.mkdir()
    file.write_text(json.dumps({"laptop": OTHERS, "version": 1}))
    name = ensure_machine(file)
    assert read(file)["laptop"] == OTHERS
    assert set(read(file)) == {"laptop", name, "version"}


def test_the_machine_as_it_was_before_goes_and_its_neighbour_stays(file):
    mine, now = entry(this_machine().to_dict()), this_machine().to_dict()
    before = entry({**now, "versions": {"torch": "1.0"}})
    neighbour = entry({**now, "name": now["name"] + "-2"})
    file.parent.mkdir()
    known = {each["machine"]: each for each in (before, neighbour)}
    file.write_text(json.dumps({**known, "version": 1}))
    ensure_machine(file)
    assert set(read(file)) == {neighbour["machine"], mine["machine"], "version"}


def test_what_is_there_already_is_not_written_again(file):
    ensure_machine(file)
    before = file.stat().st_mtime_ns, file.stat().st_ino
    ensure_machine(file)
    assert (file.stat().st_mtime_ns, file.stat().st_ino) == before


def test_the_file_is_asvs_own_where_none_is_given(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    name = ensure_machine()
    assert name in read(tmp_path / ".asv-machine.json")
    assert AsvMachine.load(machine_name=name).machine == name


@pytest.mark.parametrize("text", ["{", "[1]", '{"version": 2}', b"\xff"])
def test_a_file_that_is_none_of_asvs_is_named_and_kept(file, text):
    file.parent.mkdir()
    raw = text if isinstance(text, bytes) else text.encode()
    file.write_bytes(raw)
    with pytest.raises(CantBeDone) as caught:
        ensure_machine(file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert file.read_bytes() == raw


def test_a_home_that_can_not_be_written_is_said(file, monkeypatch):
    def full(*given):
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(asv, "write_whole", full)
    with pytest.raises(CantBeDone, match=r"no space left.*set HOME"):
        ensure_machine(file)


def test_the_entry_beside_results_is_what_asv_would_write(tmp_path):
    told = entry(runs.BOX)
    asv.save_entry(tmp_path / "ours", told)
    theirs = AsvMachine()
    theirs.__dict__.update(told)
    theirs.save(str(tmp_path / "theirs"))
    ours, asvs = (tmp_path / side / told["machine"] / "machine.json" for side in ("ours", "theirs"))
    assert read(ours) == read(asvs)
