"""From the command line's words to profiles: one problem, its phase, and who is refused and why."""

import json
import textwrap
from pathlib import Path

import pytest

import impls
from attnbench.core.machine import this_machine
from attnbench.core.record import Record, Status
from attnbench.core.settings import Settings
from attnbench.features.profile.run import NotProfiled, plan, profiles
from attnbench.sweep.engine import LocalEngine, WorkerLost
from attnbench.sweep.presets import PRESETS
from impls.problem import InvalidProblem
from tests.sweep.build import ToldEngine

PLANTED = """
import os
from impls.spec import Variant

def inverted(problem):
    import torch
    seen = ~torch.from_numpy(problem.mask.visible(problem.shape))

    def attend(q, k, v):
        scores = (q @ k.mT * problem.scale).masked_fill(~seen, float("-inf"))
        return scores.softmax(-1).nan_to_num(0.0) @ v

    return attend

def exits(problem):
    return lambda q, k, v: os._exit(3)

ROWS = [Variant(name=f"p.{name}", title=name, family="p", computes="softmax", build=f":{name}")
        for name in ("inverted", "exits")]
"""
SMALL = {"seq": ("48",), "heads": (2,), "head_dim": (8,)}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    file = tmp_path_factory.mktemp("planted") / "planted.py"
    file.write_text(textwrap.dedent(PLANTED))
    return impls.table([str(file)])


@pytest.fixture(scope="module")
def engine():
    with LocalEngine(Settings()) as one:
        yield one


def planned(names, table=None, **changes):
    return plan(names, table or impls.table(), PRESETS["cpu"], changes, this_machine()).cells


@pytest.mark.parametrize(
    ("names", "phase"),
    [
        (["einsum", "numpy"], "forward"),
        (["mha"], "train"),
    ],
)
def test_the_phase_is_the_first_that_all_of_them_serve(names, phase):
    cells = planned(names)
    assert {c.problem.phase for c in cells} == {phase}
    assert all(c.left_out is None for c in cells)


def test_the_mask_is_causal_where_all_of_them_take_it():
    assert str(planned(["einsum"])[0].problem.mask) == "causal"
    alone, both = planned(["lsh"]), planned(["einsum", "lsh"])
    assert {str(c.problem.mask) for c in (*alone, *both)} == {"none"}
    assert all(c.left_out is None for c in (*alone, *both))


def test_more_problems_than_one_are_refused():
    with pytest.raises(InvalidProblem, match=r"one problem, and this grid has 4: .*; give one"):
        planned(["einsum"], seq=("64", "128"), mask=("none", "causal"))


@pytest.mark.slow
def test_profiles_come_back_with_their_traces(engine, tmp_path):
    cells = planned(["einsum", "sdpa.flash"], **SMALL)
    found = profiles(cells, engine, 0, tmp_path)
    assert [p["variant"] for p in found] == ["einsum", "sdpa.flash"]
    assert all(p["slug"] == str(cells[0].problem) for p in found)
    assert [p["threads"] for p in found] == [1, 1]
    for p in found:
        assert json.loads(Path(p["trace"]).read_text())["traceEvents"]
    assert "aten::_softmax" in {x["name"] for x in found[0]["phases"][0]["operators"]}


@pytest.mark.parametrize(
    ("name", "status", "reason"),
    [
        ("p.inverted", 1, r"p\.inverted is not profiled \(wrong\): .*key"),
        ("p.exits", 1, r"p\.exits is not profiled \(crashed\): .*status 3"),
    ],
)
@pytest.mark.slow
def test_a_variant_that_is_not_right_is_not_profiled(engine, table, tmp_path, name, status, reason):
    with pytest.raises(NotProfiled, match=reason) as stopped:
        profiles(planned([name], table, **SMALL), engine, 0, tmp_path)
    assert stopped.value.status == status
    assert not list(tmp_path.glob("*/profile.json"))


@pytest.mark.parametrize(
    ("name", "words", "changes"),
    [
        ("sdpa.cudnn", "unavailable.*cuda", {}),
        ("numpy", "unsupported.*no backward", {"phase": ("train",)}),
    ],
)
def test_what_cannot_run_says_why_and_asks_no_worker(tmp_path, name, words, changes):
    with pytest.raises(NotProfiled, match=words) as stopped:
        profiles(planned([name], **SMALL, **changes), None, 0, tmp_path / "new")
    assert stopped.value.status == 2
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("status", "ends"),
    [
        (Status.FAILED, 1),
        (Status.OUT_OF_MEMORY, 2),
    ],
)
def test_the_workers_reason_is_the_one_that_is_given(tmp_path, status, ends):
    (cell,) = planned(["einsum"], **SMALL)
    said = Record.of(cell.variant, cell.problem, status, "because of this", remedy="do that")
    words = r"^einsum is not profiled \([a-z ]+\): because of this → do that$"
    with pytest.raises(NotProfiled, match=words) as stopped:
        profiles([cell], ToldEngine({"record": said.to_dict()}), 0, tmp_path)
    assert stopped.value.status == ends


@pytest.mark.parametrize(("timed_out", "ends"), [(True, 2), (False, 1)])
def test_a_worker_that_is_lost_costs_a_sentence(tmp_path, timed_out, ends):
    lost = WorkerLost("it is gone", "last words", timed_out=timed_out)
    with pytest.raises(NotProfiled, match="it is gone") as stopped:
        profiles(planned(["einsum"], **SMALL), ToldEngine(lost), 0, tmp_path)
    assert stopped.value.status == ends
