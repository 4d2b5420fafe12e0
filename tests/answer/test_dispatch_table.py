"""A dispatch table as data: what it gives for a call, its file, and what can't be one."""

import json

import msgspec
import pytest

import impls
from attnbench.answer import dispatch_table
from attnbench.answer.dispatch_table import (
    DispatchEntry,
    DispatchTable,
    InvalidTable,
    Origin,
    Range,
)
from impls.errors import CantBeDone
from impls.problem import INPUTS
from tests.calling import ROOT

MADE = {
    "device": "cpu", "torch": "2.13.0", "machine": "box", "threads": 1, "attnbench": "0.1.0",
    "protocol": 2, "run": "20260101-000000",
}  # fmt: skip
ENTRY = {
    "phase": "forward", "mask": "causal", "dtype": "float32", "heads": 8, "kv_heads": 2,
    "head_dim": 64, "v_head_dim": 64, "batch": (1, 4),
}  # fmt: skip
A = Range(8, 16, "same", "a")


def entry(*ranges, **more):
    return DispatchEntry(**{**ENTRY, "ranges": ranges or (A,), **more})


def table(*entries):
    return DispatchTable(Origin(**MADE), entries or (entry(),))


def test_both_ends_of_a_range_and_of_the_batch_belong_to_it_and_nothing_else_does():
    one = entry(Range(4, 6, "same", "a"), Range(8, 8, 1, "b"), batch=(2, 3))
    expected = {(4, 4): "a", (5, 5): "a", (6, 6): "a", (8, 1): "b"}
    for keys in range(1, 11):
        for queries in range(1, 11):
            variants = [one.takes(batch, keys, queries) for batch in (1, 2, 3, 4)]
            taken = expected.get((keys, queries))
            assert variants == [None, taken, taken, None], (keys, queries)


def test_the_file_is_what_the_contract_says_and_comes_back_as_it_was(tmp_path):
    capped = entry(A, parameters={"scale": 64**-0.5, "softcap": 50, "sinks": True})
    lower = entry(A, mask="none+causal@lower-right")
    one = table(lower, entry(Range(9, 99, 1, "b"), heads=4), capped)
    one.write(tmp_path / "table.json")
    values = json.loads((tmp_path / "table.json").read_text())
    ranges = [{"from": 8, "to": 16, "queries": "same", "variant": "a"}]
    first, _, last = values.pop("entries")
    assert first == {**ENTRY, "batch": [1, 4], "ranges": ranges}
    assert last == {**first, "parameters": {"softcap": 50, "sinks": True}}
    assert values == {"dispatch_table": 1, "made": MADE, "fallback": "sdpa"}
    assert DispatchTable.read(tmp_path / "table.json") == one
    with pytest.raises(CantBeDone, match=r"can't write .*; give another file"):
        one.write(tmp_path / "no" / "folder.json")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b'{"dispatch_table": 1, "made": {',
        b'{"made":' + b'{"a":' * 100_000,
        b"\xff\xfe\x00",
        None,
    ],
)
def test_a_file_that_no_parser_takes_is_refused_in_a_sentence(tmp_path, text):
    file = tmp_path / "cut.json"
    if text is not None:
        file.write_bytes(text)
    with pytest.raises(InvalidTable, match=r"cut\.json.*; make one with"):
        DispatchTable.read(file)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("dispatch_table", 2, "dispatch_table"),
        ("made", {"device": "cpu"}, "missing required field `torch`"),
        ("entries", [], "length >= 1"),
        ("more", 1, "unknown field `more`"),
        ("fallback", "matmul", "fallback"),
        ("entries.0.phase", "backward", r"entries\[0\]"),
        ("entries.0.dtype", "int8", r"dtype 'int8' is not one of .*entries\[0\]"),
        ("entries.0.mask", "diagonal", r"diagonal.*entries\[0\]"),
        ("entries.0.kv_heads", 3, r"heads=8 is not a multiple of kv_heads=3.*entries\[0\]"),
        ("entries.0.heads", 2**31, "<= 2147483647"),
        ("entries.0.batch", [4, 1], "4 … 1: the least is above the most"),
        (
            "entries.0.parameters",
            {"state": True},
            "state can't be set: scale, softcap, sinks, lse can",
        ),
        ("entries.0.parameters", {"softcap": 0.0}, "softcap is 0.0; it must be a number above 0"),
        ("entries.0.ranges.0", {"from": 1}, "missing required field `to`"),
        ("entries.0.ranges.0.queries", "all", "queries"),
    ],
)
def test_what_can_be_no_table_is_refused_in_a_sentence_that_names_the_file(
    tmp_path, path, value, words
):
    values = place = json.loads(msgspec.json.encode(table()))
    *way, last = (int(each) if each.isdigit() else each for each in path.split("."))
    for each in way:
        place = place[each]
    place[last] = value
    (tmp_path / "odd.json").write_text(json.dumps(values))
    with pytest.raises(InvalidTable, match=rf"odd\.json can't be used: .*{words}"):
        DispatchTable.read(tmp_path / "odd.json")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("chunked?block=64", None),
        ("cosine", "cosine is not exactly softmax attention"),
        ("longformer", "longformer is not exactly softmax attention"),
        ("sdqa", r"name that file too: tables=\[FILE\]"),
        ("chunked?block=x", r"name that file too: tables=\[FILE\]"),
    ],
)
def test_only_exact_variants_that_somebody_knows_may_stand_in_a_table(name, words):
    one = table(entry(Range(8, 9, "same", name)))
    if words is None:
        assert [row.label for row in one.rows(impls.table()).values()] == [name]
    else:
        with pytest.raises(InvalidTable, match=words):
            one.rows(impls.table())


def test_where_a_table_was_made_is_read_off_the_header():
    run = "20261122-135617"
    header = json.loads((ROOT / f"results/amd-epyc-2c/{run}/run.json").read_text())
    of = {"torch": "2.13.0+cpu", "machine": "amd-epyc-2c", "run": run, "inputs": list(INPUTS[:4])}
    assert dispatch_table.made_of(header) == Origin(**{**MADE, **of})
    of["inputs"] = header["checked_inputs"] = list(INPUTS)
    assert dispatch_table.made_of(header) == Origin(**{**MADE, **of})
