"""Runs that have no place in a commit's history, and the sentences that say so."""

import json
from pathlib import Path

import pytest

from attnbench.core.disk import HEADER, RECORDS
from attnbench.core.record import PROTOCOL
from impls.loading import load_file

runs = load_file(Path(__file__).with_name("runs.py"))
CELL = ("'sdpa'", "128", "'forward'")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"code": {"commit": None, "dirty": None}}, ["says no commit", "from a clone"]),
        ({"protocol": PROTOCOL - 1}, [f"protocol {PROTOCOL - 1}", "measure that commit again"]),
        ({"code": {"commit": "0" * 40, "dirty": False}}, ["0" * 40, "git"]),
        ({"machine": {"name": "box"}}, ["damaged"]),
        ({"machine": None}, ["damaged"]),
        ({"settings": {}}, ["damaged"]),
        ({"started": "soon"}, ["damaged"]),
        ({"nodes": {"a": {}}}, ["damaged"]),
        ({"schema": 99}, ["schema 99"]),
    ],
)
def test_a_run_that_has_no_place_is_refused_in_a_sentence(place, change, words):
    ran = runs.altered(place.run("a", runs.measured()), **change)
    place.refused(ran, holding=[str(ran), *words])
    assert not place.results.exists()


def test_a_run_with_changes_that_no_commit_holds_is_refused(place):
    ran = runs.altered(place.run("a", runs.measured()), code={"commit": place.first, "dirty": True})
    place.refused(ran, holding=[str(ran), place.first[:8], "commit the changes"])


def test_a_run_whose_header_is_damaged_is_refused(place):
    ran = place.run("a", runs.measured())
    (ran / HEADER).write_text('{"schema": 3')
    place.refused(ran, holding=[str(ran), "damaged"])


def test_a_run_with_a_damaged_line_is_refused_with_its_number(place):
    ran = place.run("a", runs.measured(), runs.measured("gla"))
    lines = (ran / RECORDS).read_text().splitlines(keepends=True)
    (ran / RECORDS).write_text("{}\n" + lines[1])
    place.refused(ran, holding=["line 1"])


def test_a_torn_last_line_is_left_out(place):
    ran = place.run("a", runs.measured(), runs.measured("gla"))
    text = (ran / RECORDS).read_text()
    (ran / RECORDS).write_text(text[:-20])
    assert list(place.cells(ran)) == [CELL]


def test_nothing_is_written_if_one_of_several_runs_is_refused(place):
    good, bad = place.run("a", runs.measured()), place.run("b", runs.measured())
    runs.altered(bad, code={"commit": place.first, "dirty": True})
    place.refused(good, bad)
    assert not place.results.exists()


def test_of_a_folder_what_has_no_place_is_left_out_and_said(place):
    place.run("a", runs.measured())
    runs.altered(place.run("b", runs.measured()), code={"commit": place.first, "dirty": True})
    said = []
    (file,) = place.export(place.runs, say=said.append)
    assert CELL in runs.cells(file)
    (sentence,) = said
    assert "left out" in sentence
    assert str(place.runs / "b") in sentence


def test_a_folder_of_which_nothing_has_a_place_is_refused(place):
    for name in "ab":
        runs.altered(place.run(name, runs.measured()), code={"commit": None, "dirty": None})
    place.refused(place.runs, holding=["2 runs", "says no commit"])


def test_where_there_is_no_run_that_is_said(place):
    place.runs.mkdir()
    place.refused(place.runs, holding=["no run", str(place.runs)])
    place.refused(place.runs / "gone", holding=["gone"])


def test_a_run_without_records_is_refused(place):
    place.refused(place.run("a"), holding=["no record"])


def test_a_damaged_file_of_asvs_is_named_and_kept(place):
    ran = place.run("a", runs.measured())
    (file,) = place.export(ran)
    whole = json.loads(file.read_text())
    odd = {**whole, "results": {"attention.time": 3}}
    cut = {**whole, "results": {"attention.time": [[0.1], [["'sdpa'"], 128]]}}
    for text in ("{", "[]", '{"version": 2}', json.dumps(odd), json.dumps(cut)):
        file.write_text(text)
        place.refused(ran, holding=[str(file), "move it away"])
        assert file.read_text() == text


def test_a_folder_that_can_not_be_written_is_said(place):
    place.results.write_text("a file")
    place.refused(place.run("a", runs.measured()), holding=[str(place.results)])
