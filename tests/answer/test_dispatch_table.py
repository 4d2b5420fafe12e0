"""A dispatch table as data: what it gives for a call, its file, and what can't be one."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import impls
from attnbench.answer.dispatch_table import (
    DispatchEntry,
    DispatchTable,
    InvalidTable,
    Range,
    made_of,
)
from impls.asked import CantBeDone

ROOT = Path(__file__).resolve().parents[2]
MADE = {
    "device": "cpu",
    "torch": "2.13.0",
    "machine": "box",
    "threads": 1,
    "attnbench": "0.1.0",
    "protocol": 2,
    "run": "20260101-000000",
}


def entry(*ranges, **more):
    return DispatchEntry(
        **{
            "phase": "forward",
            "mask": "causal",
            "dtype": "float32",
            "heads": 8,
            "kv_heads": 2,
            "head_dim": 64,
            "v_head_dim": 64,
            "batch": (1, 4),
            "ranges": ranges
            or (Range(128, 1000, "same", "matmul"), Range(1001, 4096, "same", "sdpa")),
            **more,
        }
    )


def table(*entries, **more):
    return DispatchTable(**{"made": MADE, "entries": entries or (entry(),), **more})


def test_both_ends_of_a_range_belong_to_it_and_nothing_else_does():
    one = entry(Range(4, 6, "same", "a"), Range(8, 8, 1, "b"))
    expected = {(4, 4): "a", (5, 5): "a", (6, 6): "a", (8, 1): "b"}
    for keys in range(1, 11):
        for queries in range(1, 11):
            assert one.takes(1, keys, queries) == expected.get((keys, queries)), (keys, queries)


@pytest.mark.parametrize(("batch", "taken"), [(1, None), (2, "sdpa"), (3, "sdpa"), (4, None)])
def test_both_ends_of_the_batch_belong_to_it(batch, taken):
    assert entry(Range(8, 8, "same", "sdpa"), batch=(2, 3)).takes(batch, 8, 8) == taken


def test_a_table_comes_back_from_its_file_as_it_was(tmp_path):
    one = table(entry(), entry(Range(9, 99, 1, "sdpa"), phase="decode"))
    one.write(tmp_path / "table.json")
    assert DispatchTable.read(tmp_path / "table.json") == one


def test_the_file_is_what_the_contract_says(tmp_path):
    table(entry(Range(8, 9, "same", "sdpa"))).write(tmp_path / "table.json")
    assert json.loads((tmp_path / "table.json").read_text()) == {
        "dispatch_table": 1,
        "made": MADE,
        "fallback": "sdpa",
        "entries": [
            {
                "phase": "forward",
                "mask": "causal",
                "dtype": "float32",
                "heads": 8,
                "kv_heads": 2,
                "head_dim": 64,
                "v_head_dim": 64,
                "batch": [1, 4],
                "ranges": [{"from": 8, "to": 9, "queries": "same", "variant": "sdpa"}],
            }
        ],
    }


def test_a_mask_is_kept_in_its_one_spelling():
    assert entry(mask="none+causal@lower-right").mask == "causal"


def test_a_table_that_is_cut_off_anywhere_is_refused_in_a_sentence(tmp_path):
    table().write(tmp_path / "whole.json")
    text = (tmp_path / "whole.json").read_text().rstrip()
    file = tmp_path / "cut.json"
    for length in range(len(text)):
        file.write_text(text[:length])
        with pytest.raises(InvalidTable, match=r"cut\.json was cut off, or is no dispatch table"):
            DispatchTable.read(file)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000 + "]" * 100_000,
        '{"dispatch_table":' + "[" * 100_000,
        json.dumps(table().to_dict()).replace('"threads": 1', '"threads": ' + "9" * 5_000),
    ],
    ids=["deep", "deep and cut off", "long number"],
)
def test_a_file_that_no_parser_takes_is_refused_in_a_sentence(tmp_path, text):
    (tmp_path / "table.json").write_text(text)
    with pytest.raises(InvalidTable, match=r"table\.json was cut off, or is no dispatch table"):
        DispatchTable.read(tmp_path / "table.json")


def changed(**changes):
    """The file's values, with one of them another: ``made__torch=…``, ``entries__0__phase=…``."""
    values = json.loads(json.dumps(table().to_dict()))
    for path, value in changes.items():
        *rooms, last = (int(room) if room.isdigit() else room for room in path.split("__"))
        place = values
        for room in rooms:
            place = place[room]
        place[last] = value
    return values


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([], "it is no dispatch table"),
        ({"records": 1}, "it is no dispatch table"),
        (changed(dispatch_table=2), r"it has form 2, and this attnbench .* reads form 1"),
        (changed(made={"device": "cpu"}), "does not say what it was made for: torch, machine"),
        (changed(made=3), "made is an object"),
        (changed(entries=3), "entries is a list"),
        (changed(entries=[]), "it has no entries"),
        (changed(more=1), "a dispatch table has no more"),
        (changed(fallback="matmul"), "fallback 'matmul' is not 'sdpa'"),
        (changed(entries__0=3), "entry 1: an entry is an object, not 3"),
        (changed(entries__0__phase="backward"), "entry 1: phase 'backward' is not one of forward"),
        (changed(entries__0__dtype="int8"), "entry 1: dtype 'int8' is not one of"),
        (changed(entries__0__mask="diagonal"), "entry 1: mask 'diagonal'"),
        (changed(entries__0__mask=3), "entry 1: mask is 3; it must be a name"),
        (changed(entries__0__kv_heads=3), "entry 1: heads=8 is not a multiple of kv_heads=3"),
        (changed(entries__0__heads=0), "entry 1: heads is 0"),
        (changed(entries__0__head_dim="64"), "entry 1: head_dim is '64'"),
        (changed(entries__0__batch=[1]), "entry 1: batch is"),
        (changed(entries__0__batch=[4, 1]), "entry 1: batch is 4 … 1: the least is above"),
        (changed(entries__0__batch=3), "entry 1: batch and ranges are lists"),
        (changed(entries__0__ranges=[]), "entry 1: it has no ranges"),
        (changed(entries__0__ranges=[{"from": 1}]), "entry 1: a range needs to, queries, variant"),
        (changed(entries__0__ranges__0__to=True), "entry 1: a range from … to is True"),
        (changed(entries__0__ranges__0__to=3), "entry 1: a range from … to is 128 … 3"),
        (changed(entries__0__ranges__0__queries="all"), "entry 1: queries is 'all'"),
        (changed(entries__0__ranges__0__variant=""), "entry 1: variant '' is not the name of one"),
        (changed(entries__0__ranges__0__to=1001), "two ranges speak of 1001 keys"),
        (changed(entries__0__heads=10**13), "entry 1: heads is 10000000000000; it must be"),
        (changed(entries__0__heads=float("nan")), "entry 1: heads is nan"),
        (changed(made__threads="two"), "made says threads is 'two'"),
        (changed(made__inputs="peaky"), "made says inputs is 'peaky'"),
        (changed(made__torch=["2.13.0"]), "made says torch is"),
    ],
    ids=str,
)
def test_what_can_be_no_table_is_refused_in_a_sentence_that_names_the_file(tmp_path, values, said):
    (tmp_path / "odd.json").write_text(json.dumps(values))
    with pytest.raises(InvalidTable, match=said) as refused:
        DispatchTable.read(tmp_path / "odd.json")
    assert "odd.json" in str(refused.value)
    assert isinstance(refused.value, CantBeDone)


def test_a_file_that_is_not_there_or_no_text_is_a_sentence(tmp_path):
    with pytest.raises(InvalidTable, match="there is no dispatch table"):
        DispatchTable.read(tmp_path / "none.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidTable, match="can't be read"):
        DispatchTable.read(tmp_path / "bytes.json")
    with pytest.raises(InvalidTable, match="can't be read"):
        DispatchTable.read(tmp_path)
    with pytest.raises(CantBeDone, match="can't write the dispatch table"):
        table().write(tmp_path / "no" / "folder.json")


A, B = Range(8, 16, "same", "a"), Range(16, 32, "same", "b")


@pytest.mark.parametrize(
    ("entries", "length"),
    [
        ((entry(A, B),), 16),
        ((entry(A), entry(B)), 16),
        ((entry(A, batch=(1, 2)), entry(B, batch=(2, 3))), 16),
        ((entry(replace(A, queries=1), replace(B, queries=1), phase="decode"),), 16),
        ((entry(A, Range(1, 99, 12, "b")),), 12),
        ((entry(Range(1, 99, 12, "b"), A),), 12),
    ],
    ids=["one entry", "two", "batches", "few queries", "same and few", "few and same"],
)
def test_two_ranges_that_speak_of_one_call_are_refused(entries, length):
    with pytest.raises(InvalidTable, match=f"two ranges speak of {length} keys"):
        table(*entries)


@pytest.mark.parametrize(
    "entries",
    [
        (entry(A, replace(B, first=17)),),
        (entry(A), entry(B, heads=16)),
        (entry(A), entry(B, mask="none")),
        (entry(A, batch=(1, 2)), entry(B, batch=(3, 4))),
        (entry(A, Range(8, 16, 17, "b")),),
        (entry(replace(A, queries=1), replace(B, queries=2), phase="decode"),),
    ],
)
def test_ranges_that_never_speak_of_one_call_stand_side_by_side(entries):
    assert table(*entries).entries == entries


def test_what_is_not_exactly_softmax_may_not_stand_in_a_table():
    known = impls.table()
    good = table(entry(Range(8, 9, "same", "chunked?block=64"), Range(10, 11, "same", "sdpa")))
    assert [row.label for row in good.rows(known).values()] == ["chunked?block=64", "sdpa"]
    for name in ("linear.elu", "longformer"):
        with pytest.raises(InvalidTable, match=rf"{name} is not exactly softmax attention"):
            table(entry(Range(8, 9, "same", name))).rows(known)


@pytest.mark.parametrize("name", ["sdqa", "chunked?blocks=3", "chunked?block=much"])
def test_a_variant_that_nobody_knows_is_refused_and_the_remedy_named(name):
    with pytest.raises(InvalidTable, match=r"name that file too: tables=\[FILE\]"):
        table(entry(Range(8, 9, "same", name))).rows(impls.table())


def test_where_a_table_was_made_is_read_off_the_header_of_a_real_run():
    (path,) = ROOT.glob("results/amd-epyc-2c/20261122-135617/run.json")
    made = made_of(json.loads(path.read_text()))
    assert made == {
        "device": "cpu",
        "torch": "2.13.0+cpu",
        "machine": "amd-epyc-2c",
        "threads": 1,
        "attnbench": "0.1.0",
        "protocol": 2,
        "run": "20261122-135617",
    }
    assert table(made=made).made == made


def test_where_a_table_was_made_on_a_gpu_names_its_driver():
    gpu = {"name": "NVIDIA H200", "driver": "570.1"}
    header = {
        "machine": {"name": "nvidia-h200", "versions": {"torch": "2.13"}, "gpus": [gpu]},
        "grid": {"device": "cuda:1"},
        "settings": {"threads": 4},
        "protocol": 2,
        "run": "r",
    }
    made = made_of(header)
    assert (made["device"], made["driver"], made["machine"]) == ("cuda", "570.1", "nvidia-h200")
    assert "driver" not in made_of(header, device="cpu")
