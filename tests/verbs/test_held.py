"""What is measured is measured with the device held; what the verbs end with and refuse."""

import pytest

from attnbench import cli
from attnbench.core import checkout
from attnbench.core.evidence import save_machine
from attnbench.core.machine import this_machine
from attnbench.core.record import PROTOCOL
from attnbench.core.stats import LEAST_MARGIN
from attnbench.features.commits import rounds

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


@pytest.mark.parametrize(
    "words",
    [
        ["run", "matmul", *SMALL],
        ["check", "matmul", *SMALL],
        ["compare", "einsum", "matmul", *SMALL],
        ["env"],
        ["selfcheck"],
        ["profile", "matmul", "--seq", "16"],
    ],
    ids=lambda words: words[0],
)
def test_a_worker_is_asked_only_while_the_device_is_held(held, tmp_path, words):
    out = [] if words[0] == "check" else ["--out", str(tmp_path)]
    with pytest.raises(Reached):
        cli.main([*words, *out, *([] if words == ["selfcheck"] else ["--device", "cpu"])])
    assert held.seen == [(True, {"cpu"})]
    assert not held.on


@pytest.fixture
def margins(monkeypatch, held):
    """The margins at which commits would be compared, each while the device is held."""
    seen = []

    class Found:
        exit_status = 1

        @staticmethod
        def to_dict():
            return {}

    def compared(a, b, cells, opened, *, margin, **more):
        assert (held.on, held.devices) == (True, {"cpu"})
        seen.append(margin)
        return Found

    monkeypatch.setattr(checkout, "find_commit", lambda name, root: name)
    monkeypatch.setattr(rounds, "plan_cells", lambda *_: rounds.CellPlan([]))
    monkeypatch.setattr(rounds, "compare_in_rounds", compared)
    return seen


@pytest.mark.parametrize(
    ("floors", "words", "margin"),
    [
        ([0.002], [], LEAST_MARGIN),
        ([0.02, 0.03], [], 0.03),
        ([0.02, 0.03], ["--margin", "0.015"], 0.015),
    ],
)
def test_commits_are_held_to_the_largest_floor_or_the_margin_given(
    margins, tmp_path, floors, words, margin
):
    machine = this_machine()
    facts = {"protocol": PROTOCOL, "machine": machine.to_dict()}
    noise = [{"call_s": 1e-3, "floor": f} for f in floors]
    threads = {"threads": machine.threads}
    save_machine(tmp_path, machine, {**facts, "noise": noise, "settings": threads})
    asked = ["compare", "one", "other", "--device", "cpu", "--json", "--out", str(tmp_path)]
    assert cli.main([*asked, *words]) == 1  # what the comparison ends with
    assert margins == [margin]
