"""What a record may say: the types and the published schema, held against each other."""

import json
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

import attnbench
from attnbench.core.record import (
    SCHEMA,
    Distance,
    Error,
    InvalidRecord,
    Memory,
    Ranks,
    Record,
    Status,
    Time,
    Work,
    cell_key,
)
from impls.problem import Problem
from impls.spec import DTYPES, PHASES, Computes, Level, Variant

PUBLISHED = json.loads((Path(attnbench.__file__).parent / "record.schema.json").read_text())
VALID = Draft202012Validator(PUBLISHED)
UNMEASURED = [s for s in Status if s is not Status.MEASURED]
TIME = Time(
    median_s=2.0,
    low_s=1.5,
    high_s=2.5,
    q25_s=1.75,
    q75_s=2.25,
    min_s=1.0,
    n=3,
    clock="host",
    stop="budget",
    samples_s=[1.0, 2.0, 3.0],
)


def record(status=Status.MEASURED, **more):
    reason = "" if status == "measured" else "because"
    return Record(
        **{
            "status": status,
            "reason": reason,
            "variant": "a",
            "problem": Problem().to_dict(),
            **more,
        }
    )


# ---- what can't be said --------------------------------------------------------------------------


@pytest.mark.parametrize("status", UNMEASURED)
def test_a_time_needs_the_status_measured(status):
    with pytest.raises(InvalidRecord, match=f"{status} can't carry a time"):
        record(status, time=TIME)
    sent = {**record().to_dict(), "time": TIME.to_dict(), "status": str(status), "reason": "why"}
    assert not VALID.is_valid(sent)
    with pytest.raises(InvalidRecord, match="can't carry a time"):
        Record.from_dict(sent)


@pytest.mark.parametrize("status", UNMEASURED)
def test_what_is_not_measured_must_say_why(status):
    with pytest.raises(InvalidRecord, match="must say why"):
        record(status, reason="")
    assert not VALID.is_valid({**record().to_dict(), "status": str(status)})
    assert VALID.is_valid(record(status).to_dict())


def test_what_is_measured_has_no_reason_to_give():
    with pytest.raises(InvalidRecord, match="use note"):
        record(reason="it went well")
    assert not VALID.is_valid({**record().to_dict(), "reason": "it went well"})


def test_a_status_outside_the_list_is_refused():
    with pytest.raises(ValueError, match="splendid"):
        record("splendid")
    assert not VALID.is_valid({**record().to_dict(), "status": "splendid", "reason": "why"})


def test_a_record_does_not_change():
    with pytest.raises(AttributeError):
        record().status = Status.WRONG


def _with(path, value):
    """A record's plain values with one of them put in, at a dotted path."""
    sent = record(
        time=TIME,
        distance=Distance(relative=1.0, max=1.0, worst_row=1.0, cosine=0.0, skill=0.0),
        memory=Memory(peak_bytes=1, saved_bytes=None, expected_bytes=None, method="m"),
        error={"forward": Error(relative=0.0, max=0.0, worst_row=0.0, cosine=1.0)},
        cost=Work(flops=1, bytes=1),
    ).to_dict()
    *way, last = path.split(".")
    at = sent
    for step in way:
        at = at[step]
    at[last] = value
    return sent


@pytest.mark.parametrize(
    "path",
    [
        "surprise",
        "time.surprise",
        "memory.surprise",
        "error.forward.surprise",
        "distance.surprise",
        "cost.surprise",
    ],
)
def test_a_field_that_nobody_knows_is_refused_by_name(path):
    sent = _with(path, 1)
    assert not VALID.is_valid(sent)
    with pytest.raises(InvalidRecord, match="surprise"):
        Record.from_dict(sent)


@pytest.mark.parametrize("missing", ["status", "variant", "problem"])
def test_a_record_without_what_it_must_have_is_refused(missing):
    sent = record().to_dict()
    del sent[missing]
    assert not VALID.is_valid(sent)
    with pytest.raises(InvalidRecord):
        Record.from_dict(sent)


@pytest.mark.parametrize("schema", [SCHEMA + 1, None, "1"])
def test_a_newer_schema_is_refused_with_what_to_do(schema):
    with pytest.raises(InvalidRecord, match="measure again with this"):
        Record.from_dict({**record().to_dict(), "schema": schema, "new_field": 1})


@pytest.mark.parametrize("line", ["[]", "3", "null", '"measured"'])
def test_json_that_is_no_object_is_no_record(line):
    with pytest.raises(InvalidRecord):
        Record.from_dict(json.loads(line))


# ---- there and back ------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_becomes_null(number):
    said = json.loads(
        record(
            entropy=number,
            share_of_ceiling=number,
            options={"scale": [number]},
            error={"forward": Error(relative=number, max=number, worst_row=number, cosine=number)},
        ).line()
    )
    assert said["entropy"] is said["share_of_ceiling"] is None
    assert said["options"] == {"scale": [None]}
    assert {said["error"]["forward"][k] for k in ("relative", "max", "worst_row", "cosine")} == {
        None
    }
    assert VALID.is_valid(said)


def test_a_line_is_one_line_whatever_the_texts_hold():
    line = record(Status.FAILED, reason="two\nlines\u2028and \u00fc", detail="a\r\nb").line()
    assert line.splitlines() == [line]


def test_a_record_of_a_variant_carries_its_label_and_its_options():
    row = Variant(
        name="x", title="", family="f", computes="softmax", build="a:b", options={"block": 4}
    )
    made = Record.of(row.with_options({"block": "8"}), Problem(), Status.FAILED, "why")
    assert (made.variant, made.family, made.computes) == ("x?block=8", "f", "softmax")
    assert made.options == {"block": 8}


def test_the_key_tells_cells_apart_and_does_not_depend_on_order():
    turned = dict(reversed(Problem().to_dict().items()))
    assert record().key == record(problem=turned).key == cell_key("a", Problem())
    assert record().key != record(variant="b").key
    assert record().key != record(problem=Problem(q_len=8, kv_len=8).to_dict()).key


counts = st.integers(0, 2**63 - 1)
amounts = st.floats(0, allow_nan=False, allow_infinity=False)
wild = st.none() | st.floats()
words = st.text(max_size=12)
times = st.builds(
    Time,
    median_s=amounts,
    low_s=amounts,
    high_s=amounts,
    q25_s=amounts,
    q75_s=amounts,
    min_s=amounts,
    n=st.integers(1),
    clock=st.sampled_from(["host", "events", "e2e"]),
    stop=st.sampled_from(["converged", "plateau", "budget"]),
    samples_s=st.lists(amounts, min_size=1, max_size=3),
    discarded=counts,
    flags=st.lists(words, max_size=2),
)
memories = st.builds(
    Memory,
    peak_bytes=counts,
    saved_bytes=st.none() | counts,
    expected_bytes=st.none() | counts,
    method=words,
    flags=st.lists(words, max_size=2),
)
errors = st.builds(
    Error,
    relative=wild,
    max=wild,
    worst_row=wild,
    cosine=wild,
    ratio=wild,
    worst_at=st.none() | st.lists(counts, min_size=3, max_size=3),
)
distances = st.builds(
    Distance,
    relative=wild,
    max=wild,
    worst_row=wild,
    cosine=wild,
    skill=st.none() | st.floats(max_value=1),
)
problems = st.builds(
    Problem,
    batch=st.integers(1, 4),
    heads=st.just(4),
    kv_heads=st.sampled_from([1, 2, 4]),
    q_len=st.integers(1, 99),
    kv_len=st.integers(1, 99),
    dtype=st.sampled_from(DTYPES),
    phase=st.sampled_from(PHASES),
    level=st.sampled_from(get_args(Level)),
    device=st.sampled_from(["cpu", "cuda", "cuda:1"]),
)
ranks = st.builds(
    Ranks,
    world=st.just(2),
    time_s=st.lists(amounts, min_size=2, max_size=2),
    peak_bytes=st.lists(counts, min_size=2, max_size=2),
    sent_bytes=st.lists(counts, min_size=2, max_size=2),
    backend=words,
)


@st.composite
def records(draw):
    status = draw(st.sampled_from(list(Status)))
    measured = status is Status.MEASURED
    return Record(
        status=status,
        variant=draw(words),
        problem=draw(problems).to_dict(),
        reason="" if measured else draw(st.text(min_size=1, max_size=12)),
        remedy=draw(words),
        family=draw(words),
        computes=draw(st.sampled_from(["", *get_args(Computes)])),
        options=draw(st.dictionaries(words, st.integers() | words | st.booleans(), max_size=2)),
        time=draw(st.none() | times) if measured else None,
        memory=draw(st.none() | memories),
        error=draw(
            st.none() | st.dictionaries(st.sampled_from(["forward", "dq", "dk", "dv"]), errors)
        ),
        distance=draw(st.none() | distances),
        entropy=draw(wild),
        cost=draw(st.none() | st.builds(Work, flops=counts, bytes=counts)),
        share_of_ceiling=draw(wild),
        setup_s=draw(wild),
        kernels=draw(st.lists(words, max_size=2)),
        note=draw(words),
        spent_s=draw(st.dictionaries(words, amounts, max_size=2)),
        seed=draw(st.integers()),
        detail=draw(words),
        run=draw(words),
        started=draw(words),
        node=draw(words),
        canary_s=draw(st.none() | st.floats(1e-9, 1e9)),
        ranks=draw(st.none() | ranks),
    )


@settings(max_examples=150, deadline=None)
@given(records())
def test_any_record_is_valid_by_the_schema_and_comes_back_as_it_went(made):
    sent = json.loads(made.line())
    VALID.validate(sent)
    back = Record.from_dict(sent)
    assert back.line() == made.line()
    assert (back.status, back.key) == (made.status, made.key)
    assert (back.time, back.memory, back.ranks) == (made.time, made.memory, made.ranks)
