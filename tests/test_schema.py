"""The published schema and the dataclasses, field by field."""

import json
import re
import types
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Union, get_args, get_origin, get_type_hints

import pytest
from jsonschema import Draft202012Validator

import attnbench
from attnbench.record import (
    SCHEMA,
    Determinism,
    Distance,
    Energy,
    Error,
    Memory,
    Ranks,
    Record,
    Status,
    Time,
    Work,
)
from impls.problem import Problem
from impls.spec import DTYPES, PHASES, Computes, Level

PUBLISHED = json.loads((Path(attnbench.__file__).parent / "record.schema.json").read_text())


def _object(node):
    """The object that a schema node describes, past ``oneOf`` and ``$ref``."""
    if "$ref" in node:
        return PUBLISHED["$defs"][node["$ref"].rpartition("/")[2]]
    for choice in node.get("oneOf", ()):
        if choice["type"] == "object":
            return choice
    return node


def _walk(part, node, where):
    """Each place where a dataclass and an object of the schema stand for the same thing."""
    yield part, node, where
    for name, hint in get_type_hints(part).items():
        below = _object(node["properties"].get(name, {}))
        for kind in get_args(hint) or (hint,):
            if is_dataclass(kind):
                yield from _walk(kind, below, f"{where}.{name}")
            elif get_origin(kind) is dict and is_dataclass(get_args(kind)[1]):
                entry = _object(below["additionalProperties"])
                yield from _walk(get_args(kind)[1], entry, f"{where}.{name}.any")


PLACES = list(_walk(Record, PUBLISHED, "record"))
JSON_TYPES = {float: "number", int: "integer", str: "string", list: "array", dict: "object"}


def test_the_walk_reaches_every_part():
    assert {part for part, _, _ in PLACES} == {
        Record, Time, Memory, Error, Distance, Work, Energy, Determinism, Ranks,
    }  # fmt: skip


def test_errors_are_named_for_the_output_and_the_gradients():
    pattern = _object(PUBLISHED["properties"]["error"])["propertyNames"]["pattern"]
    assert all(re.search(pattern, name) for name in ("forward", "dq", "dx", "dout.weight"))
    assert not any(re.search(pattern, name) for name in ("", "d", "q", "backward", "forwards"))


@pytest.mark.parametrize(("part", "node", "where"), PLACES, ids=[w for _, _, w in PLACES])
def test_schema_and_dataclass_have_the_same_fields(part, node, where):
    names = {f.name for f in fields(part)}
    assert set(node["properties"]) == names
    assert set(node["required"]) == names  # what is written is written whole
    assert node["additionalProperties"] is False


@pytest.mark.parametrize(("part", "node", "where"), PLACES, ids=[w for _, _, w in PLACES])
def test_schema_and_dataclass_give_the_fields_the_same_types(part, node, where):
    for name, hint in get_type_hints(part).items():
        kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
        plain = {JSON_TYPES.get(get_origin(k) or k) for k in kinds if k is not type(None)} - {None}
        published = node["properties"][name]
        if plain and "type" in published:
            said = published["type"]
            said = {said} if isinstance(said, str) else set(said)
            null = {"null"} if type(None) in kinds else set()
            assert said == plain | null, f"{where}.{name}"


def test_schema_and_code_have_the_same_words():
    properties = PUBLISHED["properties"]
    assert properties["status"]["enum"] == [str(s) for s in Status]
    assert properties["computes"]["enum"] == ["", *get_args(Computes)]
    assert properties["schema"]["const"] == SCHEMA
    problem = properties["problem"]
    names = [f.name for f in fields(Problem)]
    assert sorted(problem["properties"]) == sorted(problem["required"]) == sorted(names)
    assert problem["properties"]["dtype"]["enum"] == list(DTYPES)
    assert problem["properties"]["phase"]["enum"] == list(PHASES)
    assert problem["properties"]["level"]["enum"] == list(get_args(Level))


def test_only_what_no_record_can_do_without_has_no_default():
    bare = {f.name for f in fields(Record) if f.default is MISSING and f.default_factory is MISSING}
    assert bare == {"status", "variant", "problem"}


def test_the_published_schema_is_itself_a_valid_schema():
    Draft202012Validator.check_schema(PUBLISHED)
