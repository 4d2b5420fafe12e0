"""From the command line's words to profiles: one problem, its phase, and who is refused and why."""

import pytest

import impls
from attnbench.core.machine import this_machine
from attnbench.core.record import Record, Status
from attnbench.features.profile.profiles import NotProfiled, plan_cells, profile_cells
from attnbench.sweep.presets import PRESETS
from tests.sweep.build import ToldEngine

SMALL = {"seq": ("48",), "heads": (2,), "head_dim": (8,)}


def planned(names, **changes):
    return plan_cells(names, impls.table(), PRESETS["compare-cpu"], changes, this_machine())


def test_phase_and_mask_are_the_first_that_all_of_them_serve():
    for names, phase, mask in (
        (["einsum"], "train", "causal"),
        (["einsum", "numpy"], "forward", "causal"),
        (["mha"], "train", "causal"),
        (["einsum", "lsh"], "train", "none"),
    ):
        cells = planned(names)
        assert {(c.problem.phase, str(c.problem.mask)) for c in cells} == {(phase, mask)}
        assert all(c.left_out is None for c in cells)


def test_what_cannot_run_says_why_and_asks_no_worker(tmp_path):
    with pytest.raises(NotProfiled, match=r"unsupported.*no backward") as stopped:
        profile_cells(planned(["numpy"], **SMALL, phase=("train",)), None, 0, tmp_path / "new")
    assert stopped.value.status == 2 and not (tmp_path / "new").exists()


def test_the_reason_is_the_workers(tmp_path):
    for status, words, ends in (
        (Status.FAILED, r"^einsum is not profiled \(failed\): it is so → do that$", 1),
        (Status.OUT_OF_MEMORY, r"^einsum is not profiled \(out of memory\): it is so → ", 2),
    ):
        (cell,) = planned(["einsum"], **SMALL)
        record = Record.of(cell.variant, cell.problem, status, "it is so", remedy="do that")
        with pytest.raises(NotProfiled, match=words) as stopped:
            profile_cells([cell], ToldEngine({"record": record.to_dict()}), 0, tmp_path)
        assert stopped.value.status == ends
