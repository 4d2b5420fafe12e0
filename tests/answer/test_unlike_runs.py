"""Two run folders that are not alike: what is refused, what is left out, and what is said of it."""

from pathlib import Path

import pytest

from attnbench.answer.compare_runs import Incomparable, compare_runs
from attnbench.core.disk import StoreError
from attnbench.core.record import PROTOCOL, Record
from attnbench.core.stats import Verdict
from impls.loading import load_file

folders = load_file(Path(__file__).with_name("run_folders.py"))
GPU, ended, timed, verdicts = folders.GPU, folders.ended, folders.timed, folders.verdicts

# ---- which cells ---------------------------------------------------------------------------------


def test_cells_of_one_side_alone_are_listed(run):
    a, b = run(timed("x"), timed("y")), run(timed("x"), timed("x", length=16))
    found = compare_runs(a, b)
    assert found.only_a == ("y on forward, mask none, 8 tokens, b1 h8/8 d64 float32",)
    assert found.only_b == ("x on forward, mask none, 16 tokens, b1 h8/8 d64 float32",)
    assert len(found.cells) == 1


def test_runs_without_a_cell_in_common_are_refused(run):
    a, b = run(timed("x")), run(timed("y"))
    with pytest.raises(Incomparable) as caught:
        compare_runs(a, b)
    said = str(caught.value)
    assert f"{a} and {b} have no cell in common: the first has x on forward" in said
    assert said.endswith("measure the same grid twice")
    with pytest.raises(Incomparable, match="the second no record"):
        compare_runs(a, run())
    assert issubclass(Incomparable, StoreError)


def of_protocol(protocol, variant="sdpa"):
    return Record.from_dict({**timed(variant).to_dict(), "protocol": protocol})


def refused(a, b):
    """What is said of the protocols of two runs."""
    with pytest.raises(Incomparable) as caught:
        compare_runs(a, b)
    said, rest = str(caught.value).split(": numbers of unlike protocols are never compared; ")
    assert rest == "measure again with one attnbench"
    return said


@pytest.mark.parametrize("records", [[], [1]], ids=["header", "header and record"])
def test_runs_of_unlike_protocols_are_refused(run, records):
    old, new = run(*map(of_protocol, records), protocol=1), run(timed())
    assert refused(old, new) == (
        f"{old} was measured with protocol 1; {new} was measured with protocol {PROTOCOL}"
    )


@pytest.mark.parametrize(
    ("header", "word", "record"),
    [
        (1, "protocol 1", PROTOCOL),
        (None, "no protocol", PROTOCOL),
        (PROTOCOL, f"protocol {PROTOCOL}", 1),
    ],
)
def test_a_header_and_records_that_do_not_agree_are_told_apart(run, header, word, record):
    torn, new = run(of_protocol(record), protocol=header), run(timed())
    said = f"run.json says {word}, the times in records.jsonl are of {record}"
    assert refused(torn, new) == (
        f"the files of {torn} do not agree: {said}; {new} was measured with protocol {PROTOCOL}"
    )


def test_a_run_whose_own_records_are_of_two_protocols_is_refused_even_against_itself(run):
    mixed = run(timed(), of_protocol(1, "b"))
    said = f"run.json says protocol {PROTOCOL}, the times in records.jsonl are of 1 and {PROTOCOL}"
    assert refused(mixed, mixed) == f"the files of {mixed} do not agree: {said}"


def test_a_header_without_a_protocol_is_not_said_to_be_of_one(run):
    bare, new = run(ended("failed"), protocol=None), run(ended("failed"))
    assert refused(bare, new).startswith(f"in {bare}, run.json says no protocol; {new} was")


def test_what_is_no_run_is_refused_in_the_stores_words(run, tmp_path):
    with pytest.raises(StoreError, match="there is no run folder"):
        compare_runs(run(timed()), tmp_path / "nowhere")


# ---- how the runs differ -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("machine__name", "bax", ("machine", "box", "bax")),
        ("machine__cpu", "Other", ("cpu", "Some CPU", "Other")),
        ("machine__cores", 8, ("cores", "2", "8")),
        ("machine__versions__torch", "2.12.0", ("torch", "2.13.0", "2.12.0")),
        ("machine__torch_cuda", "13.0", ("torch's CUDA", "nothing", "13.0")),
        ("settings__threads", 2, ("threads", "1", "2")),
        ("settings__environment__OMP_NUM_THREADS", "4", ("OMP_NUM_THREADS", "1", "4")),
        ("settings__environment__NEW", "4", ("NEW", "nothing", "4")),
        ("code__commit", "bbbb", ("commit", "aaaa", "bbbb")),
        ("code__dirty", True, ("uncommitted changes", "False", "True")),
        ("seed", 5, ("seed", "0", "5")),
        ("budget_s", 0.3, ("budget", "0.12", "0.3")),
        ("tables", ["/a.py"], ("tables", "nothing", "/a.py")),
    ],
)
def test_each_thing_that_the_headers_have_otherwise_is_said(run, path, value, said):
    found = compare_runs(run(timed()), run(timed(), **{path: value}))
    assert [(d.what, d.a, d.b) for d in found.differences] == [said]


def test_boards_are_told_one_by_one(run):
    a = run(timed(device="cuda"), machine__gpus=[GPU])
    b = run(timed(device="cuda"), machine__gpus=[{**GPU, "driver": "580.2"}])
    found = compare_runs(a, b)
    assert [(d.what, d.a, d.b) for d in found.differences] == [("gpu 0 driver", "570.1", "580.2")]
    assert not found.across_devices


def test_when_and_where_they_were_taken_is_no_difference(run):
    a = run(timed(), started="one day", command="attnbench run")
    b = run(timed(), started="another", command="attnbench run --out x", folder="elsewhere")
    assert compare_runs(a, b).differences == ()


def test_a_cpu_and_a_gpu_are_compared_and_marked(run):
    a = run(timed())
    b = run(timed(device="cuda", clock="events"), machine__gpus=[GPU])
    found = compare_runs(a, b)
    assert verdicts(found) == [Verdict.EQUIVALENT]
    assert found.cells[0].across_devices and found.across_devices
    assert found.cells[0].notes == ("the clocks are not the same: host and events",)


def test_runs_that_share_a_device_are_matched_by_it(run):
    both = [timed(), timed(device="cuda")]
    found = compare_runs(run(*both, machine__gpus=[GPU]), run(timed()))
    assert len(found.cells) == 1
    assert found.only_a[0].endswith("float32 on cuda")


@pytest.mark.parametrize("path", ["machine__cpu", "machine__gpus"])
def test_another_model_of_the_same_kind_is_another_device(run, path):
    device, value = ("cpu", "Other") if path == "machine__cpu" else ("cuda", [GPU])
    a, b = run(timed(device=device)), run(timed(device=device), **{path: value})
    assert compare_runs(a, b).across_devices
    assert not compare_runs(a, a).across_devices
