"""What is measured is measured with the device held; what the verbs end with and refuse."""

from types import SimpleNamespace

import pytest

from attnbench import cli
from attnbench.core import checkout
from attnbench.core.evidence import save_beside
from attnbench.core.machine import this_machine
from attnbench.core.record import PROTOCOL
from attnbench.core.stats import LEAST_MARGIN
from attnbench.features.commits import rounds, rows

SMALL = ("--seq", "16", "--heads", "1", "--kv-heads", "1", "--head-dim", "8")


class Reached(Exception):
    """A worker would have been asked now."""


class Lock:
    """In place of the lock: which devices, and whether it is held."""

    def __init__(self):
        self.devices, self.on, self.seen = set(), False, []

    def __call__(self, devices):
        self.devices = set(devices)
        return self

    def __enter__(self):
        self.on = True

    def __exit__(self, *_):
        self.on = False


@pytest.fixture
def held(monkeypatch, worker):
    """The lock as each question found it: ``held.seen``."""
    monkeypatch.setenv("ATTNBENCH_TRACEBACK", "1")  # what is raised arrives here
    lock = Lock()

    def answer(question):
        lock.seen.append((lock.on, lock.devices))
        raise Reached

    worker.answer = answer
    for where in ("core.lock", "sweep.engine", "sweep.places", "features.profile.verb"):
        monkeypatch.setattr(f"attnbench.{where}.lock_for", lock)
    return lock


def test_a_worker_is_asked_only_while_the_device_is_held(held, tmp_path):
    out, cpu = ["--out", str(tmp_path)], ["--device", "cpu"]
    for words in (
        ["run", "matmul", *SMALL, *cpu, *out],
        ["check", "matmul", *SMALL, *cpu],
        ["compare", "einsum", "matmul", *SMALL, *cpu, *out],
        ["env", *cpu, *out],
        ["selfcheck", *out],
        ["profile", "matmul", "--seq", "16", *cpu, *out],
    ):
        held.seen.clear()
        with pytest.raises(Reached):
            cli.main(words)
        assert (held.seen, held.on) == ([(True, {"cpu"})], False), words


@pytest.fixture
def margins(monkeypatch, held):
    """The margins at which commits would be compared, each while the device is held."""
    seen = []

    def compared(a, b, cells, opened, *, margin, **more):
        assert (held.on, held.devices) == (True, {"cpu"})
        seen.append(margin)
        return SimpleNamespace(exit_status=1, to_dict=dict)

    monkeypatch.setattr(checkout, "find_commit", lambda name, root: name)
    monkeypatch.setattr(checkout.Repository, "refuse_dirty", lambda *_: None)
    monkeypatch.setattr(rows, "plan_cells", lambda *_: rows.CellPlan([]))
    monkeypatch.setattr(rounds, "compare_in_rounds", compared)
    return seen


def test_commits_are_held_to_the_largest_floor_or_the_margin_given(margins, tmp_path):
    machine = this_machine()
    facts = {"protocol": PROTOCOL, "machine": machine.facts()}
    facts["settings"] = {"threads": machine.threads}
    asked = ["compare", "one", "other", "--device", "cpu", "--json", "--out", str(tmp_path)]
    for floors, words in (((0.002,), []), ((0.02, 0.03), []), ((0.02,), ["--margin", "0.015"])):
        noise = [{"call_s": 1e-3, "floor": floor} for floor in floors]
        save_beside(tmp_path, machine.name, "env.json", {**facts, "noise": noise})
        assert cli.main([*asked, *words]) == 1  # what the comparison ends with
    assert margins == [LEAST_MARGIN, 0.03, 0.015]
