"""What a death or a loss of power leaves behind: set aside, and said; damage elsewhere is named."""

import os

import pytest

from attnbench.core.disk import HEADER, RECORDS, TORN, open_draft
from attnbench.core.record import DamagedRun
from attnbench.core.run_folder import RunFolder
from attnbench.core.store import load, read_records


def left_behind(folder, made, tail):
    """A run of two records whose file ends in something else."""
    for variant in "ab":
        folder.append(made.record(variant))
    folder.close()
    with (folder.path / RECORDS).open("ab") as more:
        more.write(tail)


TAILS = {
    b'{"status":"mea': 1,
    b"\0" * 4096: 1,
    b'{"status":"mea' + b"\0" * 512: 1,
    b"\0\0\0\n": 1,
    b"{nonsense\n": 1,
    b"\xff\xfe\n": 1,
    b"\n": 1,
    b'{nonsense\n\0\0\n{"sta': 3,
}


@pytest.mark.parametrize(("tail", "lines"), TAILS.items(), ids=range(len(TAILS)))
def test_what_was_left_unfinished_is_set_aside_and_said(folder, made, tail, lines):
    left_behind(folder, made, tail)
    again = RunFolder.reopen(folder.path)
    said = again.set_aside
    assert "the last line of" in said if lines == 1 else f"the last {lines} lines" in said
    for word in (str(folder.path / RECORDS), TORN, "measured again"):
        assert word in said
    assert "\n" not in said
    assert (folder.path / TORN).read_bytes().rstrip(b"\n") == tail.rstrip(b"\n")
    again.append(made.record("c"))
    again.close()
    assert [r.variant for r in read_records(folder.path)] == ["a", "b", "c"]


def test_a_run_that_ended_whole_has_nothing_set_aside(folder, made):
    left_behind(folder, made, b"")
    again = RunFolder.reopen(folder.path)
    again.close()
    assert again.set_aside == ""
    assert not (folder.path / TORN).exists()


def test_what_is_torn_twice_is_all_kept(folder, made):
    left_behind(folder, made, b"one")
    RunFolder.reopen(folder.path).close()
    with (folder.path / RECORDS).open("ab") as more:
        more.write(b"two")
    RunFolder.reopen(folder.path).close()
    assert (folder.path / TORN).read_text() == "one\ntwo\n"


@pytest.mark.parametrize("line", [b"{nonsense\n", b"\0\0\n", b"\n"])
def test_a_damaged_line_in_the_middle_is_left_out_and_set_aside(folder, made, line):
    left_behind(folder, made, line + made.record("c").line().encode() + b"\n")
    for read in (
        lambda: [r.variant for r in read_records(folder.path)],
        lambda: load([folder.path])["variant"].tolist(),
    ):
        with pytest.warns(DamagedRun, match=f"line 3 of .*--resume {folder.path}"):
            assert read() == ["a", "b", "c"]
    again = RunFolder.reopen(folder.path)
    again.close()
    assert f"line 3 of {folder.path / RECORDS}" in again.set_aside
    assert (folder.path / TORN).read_bytes() == line
    assert [r.variant for r in read_records(folder.path)] == ["a", "b", "c"]


@pytest.mark.parametrize("line", [b"{}\n", b"7\n", b'{"schema": 99}\n'])
def test_a_last_line_that_is_json_is_no_torn_one(folder, made, refused, line):
    left_behind(folder, made, line)
    before = (folder.path / RECORDS).read_bytes()
    refused(lambda: RunFolder.reopen(folder.path), "line 3")
    assert (folder.path / RECORDS).read_bytes() == before
    refused(lambda: list(read_records(folder.path)), "line 3")


def test_reading_a_run_that_was_left_damaged_says_what_sets_it_aside(folder, made):
    left_behind(folder, made, b"\0\0\n")
    for read in (lambda: list(read_records(folder.path)), lambda: load([folder.path])):
        with pytest.warns(DamagedRun, match=f"line 3 .*attnbench run --resume {folder.path}"):
            assert len(read()) == 2
    RunFolder.reopen(folder.path).close()
    assert len(load([folder.path])) == 2


def test_a_draft_that_a_death_left_is_cleared_away(folder):
    folder.close()
    for file in (HEADER, RECORDS):
        descriptor, _ = open_draft(folder.path / file)
        os.close(descriptor)
    RunFolder.reopen(folder.path).close()
    assert {p.name for p in folder.path.iterdir()} == {HEADER, RECORDS}


@pytest.mark.filterwarnings("ignore::attnbench.core.record.DamagedRun")
def test_a_line_said_twice_counts_once_and_a_time_below_any_call_is_taken_back(folder, made):
    folder.append(made.timed("twice"))
    folder.append(made.timed("fast", median=1e-8))
    file = folder.path / RECORDS
    file.write_bytes(file.read_bytes() * 2)
    found = [(record.variant, record.time is None) for record in read_records(folder.path)]
    assert found == [("twice", False), ("fast", True)]
