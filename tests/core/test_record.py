"""What a record may say: the types and the published schema, held against each other."""

import json
import math
from types import MappingProxyType

import pytest

from attnbench.core import record
from attnbench.core.record import Error, Record, Status, Time, read_record
from attnbench.core.wire import plain
from impls.masks import Mask
from impls.problem import MOST, Problem
from tests.calling import ROOT, VALID
from tests.core.record_schema import schema

RUNS = sorted((ROOT / "results").glob("*/*/records.jsonl"))
ERROR = Error(relative=0.0, max=0.0, worst_row=0.0, cosine=1.0, worst_at=[0, 1, 2])
TIMES = ("median_s", "low_s", "high_s", "q25_s", "q75_s", "min_s")
TIME = Time(**dict.fromkeys(TIMES, 1.0), n=1, clock="host", stop="budget", samples_s=[1], audit_s=1)
WHOLE = Record(
    status=Status.MEASURED,
    variant="a",
    problem=Problem(),
    computes="softmax",
    time=TIME,
    memory=record.Memory(peak_bytes=1, saved_bytes=None, expected_bytes=None, method="m"),
    error={"forward": ERROR, "dq": ERROR, "dout.weight": ERROR},
    distance=record.Distance(relative=1.0, max=1.0, worst_row=1.0, cosine=0.0, skill=1.0),
    cost=record.Work(flops=1, bytes=1),
    energy=record.Energy(joules=1.0, gross_joules=1.0, idle_w=1.0, call_s=1.0),
    determinism=record.Determinism(repeats=False, mode_repeats=True, mode_cost=1.0),
    ranks=record.Ranks(2, time_s=[1, 1], peak_bytes=[1, 1], sent_bytes=[1, 1], backend="gloo"),
    canary_s=1.0,
)
MISSING = object()


def with_(path, value):
    """The whole record's JSON values with another at a dotted path, or none."""
    sent = json.loads(WHOLE.line())
    *way, last = path.split(".")
    at = sent
    for step in way:
        at = at[step]
    at[last] = value
    if value is MISSING:
        del at[last]
    return sent


def test_the_file_is_what_the_types_say():
    file = ROOT / "attnbench/record.schema.json"
    assert file.read_text() == json.dumps(schema(), indent=2) + "\n", (
        "write it anew: python -m tests.core.record_schema > attnbench/record.schema.json"
    )
    VALID.check_schema(VALID.schema)


@pytest.mark.parametrize("path", RUNS, ids=[path.parent.name for path in RUNS])
def test_a_real_record_is_valid_and_read(path):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for values in lines:
        read_record(values)
    for values in lines[::50]:
        VALID.validate(values)


def test_a_record_with_every_part_is_valid_and_read():
    values = json.loads(WHOLE.line())
    assert None not in [values[part] for part in ("time", "energy", "determinism", "ranks")]
    VALID.validate(values)
    assert read_record(values) == WHOLE
    with pytest.raises(AttributeError):
        WHOLE.status = Status.WRONG


def test_what_no_record_says_is_refused_by_the_schema_and_the_reader():
    for path, value in (
        *((f"{part}surprise", 1) for part in ("", "time.", "memory.", "error.forward.", "cost.")),
        *((name, MISSING) for name in ("status", "variant", "problem", "schema")),
        ("status", "splendid"), ("reason", "it went well"), ("time.median_s", "1"), ("time.n", 0),
        ("time.samples_s", []), ("time.discarded", -1), ("time.audit_s", -1.0),
        ("memory.peak_bytes", -1), ("error", {"backward": plain(ERROR)}),
        ("error.forward.worst_at", [0, 1]), ("distance.skill", 1.5), ("cost.flops", -1),
        ("cost.bytes", 0.5), ("energy.calls", -1), ("energy.gross_joules", -1.0),
        ("determinism.mode_cost", -1.0), ("determinism.repeats", 1), ("ranks.world", 1),
        ("ranks.time_s", [1.0, -1.0]), ("computes", "magic"), ("canary_s", 0.0), ("schema", 0),
        ("schema", record.SCHEMA + 1), ("schema", "1"), ("protocol", 0), ("problem", {}),
        ("problem.surprise", 1), ("problem.q_len", 0), ("problem.heads", 8 * MOST),
        ("problem.dtype", "int8"), ("problem.phase", "sideways"), ("problem.level", "roof"),
        ("problem.mask", 3), ("problem.inputs", "captured:"), ("problem.device", "cuda:x"),
    ):  # fmt: skip
        sent = with_(path, value)
        assert not VALID.is_valid(sent)
        with pytest.raises(record.InvalidRecord):
            read_record(sent)


@pytest.mark.parametrize("status", [s for s in Status if s is not Status.MEASURED])
def test_what_is_not_measured_says_why_and_has_no_time(status):
    for changes, words in (
        ({"reason": "why"}, "can't carry a time"),
        ({"reason": "", "time": None}, "must say why"),
    ):
        sent = {**plain(WHOLE), "status": str(status), **changes}
        assert not VALID.is_valid(sent)
        with pytest.raises(record.InvalidRecord, match=words):
            read_record(sent)


@pytest.mark.parametrize("number", [float("nan"), float("-inf")])
def test_what_is_not_finite_becomes_null(number):
    error = {"forward": Error(relative=number, max=number, worst_row=number, cosine=number)}
    made = WHOLE.with_(entropy=number, options={"scale": [number]}, error=error)
    said = json.loads(made.line())
    assert (said["entropy"], said["options"]) == (None, {"scale": [None]})
    assert {said["error"]["forward"][k] for k in ("relative", "max", "cosine")} == {None}
    assert VALID.is_valid(said)


def test_the_key_tells_cells_apart_and_does_not_depend_on_order():
    turned = read_record(with_("problem", dict(reversed(plain(Problem()).items()))))
    assert WHOLE.key == turned.key == record.cell_key("a", Problem())
    others = WHOLE.with_(variant="b"), WHOLE.with_(problem=Problem(q_len=8, kv_len=8))
    assert len({WHOLE.key, *(other.key for other in others)}) == 3


def test_a_slow_host_is_no_doubt_of_a_time_whose_calls_were_queued_ahead():
    slow = "launch-bound: 35 µs by events, 78 µs from end to end"
    gaps = "launch-bound: the host takes 1 ms to queue a call, so gaps are in its time"
    assert TIME.with_(flags=[slow, "drifting", gaps]).doubts == ["drifting", gaps]


@pytest.mark.parametrize(
    ("variant", "options", "name"),
    [
        ("gla", {"chunk": 64, "seed": 0}, "gla?gates=key"),
        ("gla?chunk=32", {"chunk": 32, "gates": "key"}, "gla?chunk=32&gates=key"),
        ("retention", {"chunk": 64}, "retention?gates=fixed"),
        ("delta?gates=key", {"chunk": 64, "gates": "key"}, "delta?gates=key"),
        ("ssd", {"chunk": 64, "gates": "input"}, "ssd"),
        ("sdpa", {}, "sdpa"),
    ],
)
def test_a_record_of_gates_that_keys_made_goes_by_that_form(variant, options, name):
    values = plain(Record(status="failed", reason="x", variant=variant, problem=Problem()))
    assert read_record({**values, "options": options}).variant == name


def test_kinds_of_text_and_number_are_written_as_json_has_them():
    class Text(str): ...

    class Whole(int): ...

    sent = {
        "text": Text("2.13"),
        "whole": Whole(3),
        "mask": Mask.parse("causal"),
        1: (math.inf, 0.5),
    }
    read = json.loads(json.dumps(plain(MappingProxyType(sent)), allow_nan=False))
    assert read == {"text": "2.13", "whole": 3, "mask": "causal", "1": [None, 0.5]}
