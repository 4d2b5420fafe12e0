"""The published schema is what the types say, and takes and refuses what the reader does."""

import json
from pathlib import Path
from typing import get_args

import pytest
from jsonschema import Draft202012Validator

import attnbench
from attnbench.core.record import (
    SCHEMA,
    Determinism,
    Distance,
    Energy,
    Error,
    InvalidRecord,
    Memory,
    Ranks,
    Record,
    Status,
    Time,
    Work,
)
from impls.problem import MOST, Problem
from impls.spec import DTYPES, PHASES, Computes, Level
from proofs.record_schema import schema

FILE = Path(attnbench.__file__).parent / "record.schema.json"
PUBLISHED = json.loads(FILE.read_text())
VALID = Draft202012Validator(PUBLISHED)
RUNS = sorted((FILE.parents[1] / "results").glob("*/*/records.jsonl"))
ERROR = Error(relative=0.0, max=0.0, worst_row=0.0, cosine=1.0, worst_at=[0, 1, 2])
WHOLE = Record(
    status=Status.MEASURED,
    variant="a",
    problem=Problem(),
    computes="softmax",
    time=Time(
        **dict.fromkeys(("median_s", "low_s", "high_s", "q25_s", "q75_s", "min_s"), 1.0),
        n=1,
        clock="host",
        stop="budget",
        samples_s=[1.0],
        audit_s=1.0,
    ),
    memory=Memory(peak_bytes=1, saved_bytes=None, expected_bytes=None, method="m"),
    error={"forward": ERROR, "dq": ERROR, "dout.weight": ERROR},
    distance=Distance(relative=1.0, max=1.0, worst_row=1.0, cosine=0.0, skill=1.0),
    cost=Work(flops=1, bytes=1),
    energy=Energy(joules=1.0, gross_joules=1.0, idle_w=1.0, call_s=1.0),
    determinism=Determinism(repeats=False, mode_repeats=True, mode_cost=1.0),
    ranks=Ranks(world=2, time_s=[1.0, 1.0], peak_bytes=[1, 1], sent_bytes=[1, 1], backend="gloo"),
    canary_s=1.0,
)


def with_(path, value):
    """The whole record's JSON values with another at a dotted path."""
    sent = json.loads(WHOLE.line())
    *way, last = path.split(".")
    at = sent
    for step in way:
        at = at[step]
    at[last] = value
    return sent


def test_the_file_is_what_the_types_say():
    assert FILE.read_text() == json.dumps(schema(), indent=2) + "\n", (
        "write it anew: python -m proofs.record_schema > attnbench/record.schema.json"
    )
    Draft202012Validator.check_schema(PUBLISHED)


def test_it_has_the_words_of_the_code_and_the_texts_below_the_fields():
    parts = PUBLISHED["$defs"]
    fields = parts["Record"]["properties"]
    words = {name: fields["problem"]["properties"][name]["enum"] for name in ("dtype", "phase")}
    assert words == {"dtype": list(DTYPES), "phase": list(PHASES)}
    assert fields["problem"]["properties"]["level"]["enum"] == list(get_args(Level))
    assert list(fields["problem"]["properties"]) == list(Problem().to_dict())
    assert set(parts["Status"]["enum"]) == set(Status)
    assert set(fields["computes"]["enum"]) == {"", *get_args(Computes)}
    assert fields["setup_s"]["description"].startswith("Building, and what the first call took")
    assert parts["Work"]["description"].startswith("What the mathematics needs")


@pytest.mark.parametrize("path", RUNS, ids=[path.parent.name for path in RUNS])
def test_a_real_record_is_valid_and_read(path):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for values in lines:
        Record.from_dict(values)
    for values in lines[::25]:
        VALID.validate(values)


def test_a_record_with_every_part_is_valid_and_read():
    values = json.loads(WHOLE.line())
    assert None not in [values[part] for part in ("time", "energy", "determinism", "ranks")]
    VALID.validate(values)
    assert Record.from_dict(values) == WHOLE


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("time.median_s", "1"),
        ("time.n", 0),
        ("time.samples_s", []),
        ("time.discarded", -1),
        ("time.audit_s", -1.0),
        ("memory.peak_bytes", -1),
        ("error", {"backward": ERROR.to_dict()}),
        ("error", {"d": ERROR.to_dict()}),
        ("error.forward.worst_at", [0, 1]),
        ("error.forward.worst_at", [0, 1, 2, 3]),
        ("distance.skill", 1.5),
        ("cost.flops", -1),
        ("cost.bytes", 0.5),
        ("energy.calls", -1),
        ("energy.gross_joules", -1.0),
        ("energy.idle_w", -1.0),
        ("energy.call_s", -1.0),
        ("determinism.mode_cost", -1.0),
        ("determinism.repeats", 1),
        ("ranks.world", 1),
        ("ranks.time_s", [1.0, -1.0]),
        ("ranks.peak_bytes", [1, -1]),
        ("ranks.sent_bytes", [1, -1]),
        ("computes", "magic"),
        ("canary_s", 0.0),
        ("schema", 0),
        ("schema", SCHEMA + 1),
        ("protocol", 0),
        ("problem", {}),
        ("problem.surprise", 1),
        ("problem.q_len", 0),
        ("problem.heads", 8 * MOST),
        ("problem.dtype", "int8"),
        ("problem.phase", "sideways"),
        ("problem.level", "roof"),
        ("problem.mask", 3),
        ("problem.inputs", "captured:"),
        ("problem.device", "cuda:x"),
    ],
)
def test_what_no_record_says_is_refused_by_the_schema_and_the_reader(path, value):
    sent = with_(path, value)
    assert not VALID.is_valid(sent)
    with pytest.raises(InvalidRecord):
        Record.from_dict(sent)


def test_a_record_that_does_not_name_its_schema_is_refused():
    sent = with_("schema", SCHEMA)
    del sent["schema"]
    assert not VALID.is_valid(sent)
    with pytest.raises(InvalidRecord, match="of which schema"):
        Record.from_dict(sent)


@pytest.mark.parametrize(
    ("path", "value"),
    [("time.median_s", -1.0), ("time.samples_s", [-1.0]), ("time.stop", "tired")],
)
def test_what_no_clock_says_is_refused_by_the_schema_and_left_to_the_store(path, value):
    sent = with_(path, value)
    assert not VALID.is_valid(sent)
    assert json.loads(Record.from_dict(sent).line()) == sent
