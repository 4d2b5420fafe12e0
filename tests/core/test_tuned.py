"""The file of tuned options: which line a row takes for which problem, and what is not used."""

import warnings
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

import impls
from attnbench.core.machine import Gpu, this_machine
from attnbench.core.record import DamagedRun
from attnbench.core.tuned import TunedOptions, file_of, kind_of, save_lines
from impls.masks import Mask
from impls.problem import Problem
from tests.core.records import refused
from tests.core.tuned_lines import keep, line

CHUNKED, ONLINE = impls.table().find("chunked"), impls.table().find("online")
CAUSAL = Problem(q_len=1024, kv_len=1024, mask=Mask.parse("causal"))
LINE = line(CAUSAL, block=64)


@pytest.fixture
def path(tmp_path, monkeypatch):
    """This processor's file, in a folder of the test's own."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "a folder"))
    found = file_of("cpu", this_machine())
    found.parent.mkdir(parents=True)
    return found


def chosen(row=CHUNKED, problem=CAUSAL):
    """What the row runs with, and what is said of lines that are not used."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        row = TunedOptions(this_machine()).applied(row, problem)
    assert {each.category for each in said} <= {DamagedRun}
    return row.chosen, [str(each.message) for each in said]


@pytest.mark.parametrize(
    ("changes", "block"),
    [
        ({}, 64),
        ({"batch": 3, "heads": 7, "kv_heads": 7}, 64),
        ({"q_len": 725, "kv_len": 1448}, 64),
        ({"q_len": 724, "kv_len": 1024}, 256),
        ({"q_len": 1024, "kv_len": 1449}, 256),
        ({"head_dim": 32}, 256),
        ({"v_head_dim": 32}, 256),
        ({"dtype": "bfloat16"}, 256),
        ({"mask": Mask()}, 256),
        ({"phase": "train"}, 256),
    ],
)
def test_a_line_is_for_problems_alike(path, changes, block):
    keep(LINE)
    assert chosen(problem=CAUSAL.with_(**changes)) == ({"block": block}, [])


def test_an_option_that_is_asked_for_wins_and_its_row_keeps_its_other_defaults(path):
    keep(LINE, line(CAUSAL, "online", q_block=128, k_block=2048))
    assert chosen(CHUNKED.with_options({"block": "256"}))[0] == {"block": 256}
    assert chosen(CHUNKED.with_options({"block": "32"}))[0] == {"block": 32}
    assert chosen(ONLINE)[0] == {"q_block": 128, "k_block": 2048}
    some = ONLINE.with_options({"k_block": "256"})
    assert chosen(some)[0] == {"q_block": 512, "k_block": 256}


def test_the_later_of_two_lines_holds_and_an_empty_one_is_nothing(path):
    keep(LINE, b"", msgspec.structs.replace(LINE, options={"block": 1024}))
    assert chosen()[0] == {"block": 1024}


GARBLED = "they can't be read as what this 'attnbench tune' writes"
OTHER = f"torch was 2.0, and is {this_machine().versions['torch']}"
NO_OPTION = "the options tuned for chunked are not used: blok is none that can be tuned"


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (b"{", GARBLED),
        (b"[" * 100_000, GARBLED),
        (b"\xff\xfe", GARBLED),
        (b'{"tuned": 1}', GARBLED),
        (msgspec.structs.replace(LINE, tuned=2), GARBLED),
        (msgspec.structs.replace(LINE, kv_len=0), GARBLED),
        (msgspec.structs.replace(LINE, options={"block": [1]}), GARBLED),
        (msgspec.structs.replace(LINE, versions={"torch": "2.0"}), OTHER),
        (msgspec.structs.replace(LINE, options={"blok": 1}), NO_OPTION),
        (msgspec.structs.replace(LINE, options={"block": "64"}), "block is none that can be tuned"),
    ],
)
def test_a_line_that_can_not_be_used_costs_itself_and_says_why(path, bad, why):
    keep(line(CAUSAL, "online", q_block=128), bad)
    options, said = chosen()
    assert options == {"block": 256} and len(said) == 1
    assert why in said[0] and said[0].endswith("'attnbench tune' writes them anew")
    assert chosen(ONLINE)[0] == {"q_block": 128, "k_block": 512}


def test_what_changes_the_result_is_never_set(path):
    row = impls.table().find("linear.identity")
    keep(line(CAUSAL, "linear.identity", normalise=True))
    options, (said,) = chosen(row)
    assert options == dict(row.options) and "normalise is none that can be tuned" in said


def test_a_file_that_is_none_or_can_not_be_read_is_a_sentence(path, monkeypatch):
    path.mkdir()
    assert "Is a directory" in chosen()[1][0]
    monkeypatch.setenv("XDG_DATA_HOME", "/" + 300 * "x")
    options, (said,) = chosen()
    assert options == {"block": 256} and "are not used: File name too long" in said


def test_saving_replaces_the_line_of_a_kind_and_keeps_all_else(path):
    train = msgspec.structs.replace(LINE, phase="train")
    keep(b"by hand", LINE, train)
    new = msgspec.structs.replace(LINE, options={"block": 512}, q_len=900, kv_len=900)
    save_lines(path, [new], [kind_of("chunked", CAUSAL)])
    kept = [b"by hand", *map(msgspec.json.encode, (train, new))]
    assert path.read_bytes().splitlines() == kept
    save_lines(path, [], [kind_of("chunked", CAUSAL)])
    assert path.read_bytes().splitlines() == kept[:2]
    refused(lambda: save_lines(Path("/dev/null/x"), [new], []), "XDG_DATA_HOME")


def test_each_device_has_a_file_and_without_a_home_there_is_none(path, monkeypatch):
    gpu = Gpu("NVIDIA H200", "u", 9.0, 1, "570")
    machine = replace(this_machine(), gpus=(gpu,), cpu="AMD EPYC", cores=3)
    assert file_of("cuda", machine).name == "nvidia-h200.jsonl"
    assert file_of("cpu", machine) == path.with_name("amd-epyc-3c.jsonl")
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    monkeypatch.setenv("HOME", "/")
    assert file_of("cpu", machine) is None
    assert chosen() == ({"block": 256}, [])
    monkeypatch.setenv("HOME", "/home/some one")
    assert str(file_of("cpu", machine)).startswith("/home/some one/.local/share/attnbench/tuned/")
