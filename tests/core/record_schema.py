"""The JSON Schema of a record, made of its types.

``python -m tests.core.record_schema > attnbench/record.schema.json`` writes it anew.
"""

from __future__ import annotations

import ast
import inspect
import json
from itertools import pairwise
from typing import Any, get_args

import msgspec

from attnbench.core.record import SCHEMA, Part, Record, Status
from impls.operators import PARAMETERS, Parameter
from impls.problem import INPUTS, LONGEST, MOST, Problem
from impls.spec import DTYPES, PHASES, Level


def schema() -> dict[str, Any]:
    """The schema of one line of records.jsonl, in JSON Schema's draft 2020-12."""
    (root,), parts = msgspec.json.schema_components([Record], ref_template="#/$defs/{name}")
    for kind in Part.__subclasses__():
        for name, text in _texts(kind).items() if kind.__name__ in parts else ():
            parts[kind.__name__]["properties"][name]["description"] = text
    parts["Record"]["required"].append("schema")
    parts["Record"]["properties"]["problem"] = _problem()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"attnbench-record-{SCHEMA}",
        "title": "attnbench record",
        **root,
        "if": {"properties": {"status": {"const": Status.MEASURED}}},
        "then": {"properties": {"reason": {"const": ""}}},
        "else": {
            "properties": {"reason": {"minLength": 1}, "time": {"type": "null"}},
            "required": ["reason"],
        },
        "$defs": parts,
    }


def _texts(kind: type[Part]) -> dict[str, str]:
    """The text that stands below a field, by the field's name."""
    (made,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(made, ast.ClassDef)
    return {
        above.target.id: inspect.cleandoc(below.value.value).replace("\n", " ")
        for above, below in pairwise(made.body)
        if isinstance(above, ast.AnnAssign)
        and isinstance(above.target, ast.Name)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
        and isinstance(below.value.value, str)
    }


def _values(parameter: Parameter) -> dict[str, Any]:
    if parameter.words:
        return {"enum": [*parameter.words]}
    return {"const": True} if parameter.is_flag else {"type": "number", "exclusiveMinimum": 0}


def _problem() -> dict[str, Any]:
    """A problem's schema: its numbers are whole, and what is no number is a text."""
    texts: dict[str, dict[str, Any]] = {
        "dtype": {"enum": list(DTYPES)},
        "mask": {"description": "As impls/masks.py spells it."},
        "phase": {"enum": list(PHASES)},
        "inputs": {"pattern": f"^({'|'.join(INPUTS)}|captured:.+)$"},
        "level": {"enum": list(get_args(Level))},
        "device": {"pattern": "^(cpu|cuda(:[0-9]+)?)$"},
    }
    names = [name for name in Problem.__struct_fields__ if name not in PARAMETERS]
    parameters = {
        name: {**_values(each), "description": each.about} for name, each in PARAMETERS.items()
    }
    return {
        "type": "object",
        "properties": {
            name: {"type": "string", **texts[name]}
            if name in texts
            else {
                "type": "integer",
                "minimum": 1,
                "maximum": LONGEST if name.endswith("_len") else MOST,
            }
            for name in names
        }
        | parameters,
        "required": names,
        "additionalProperties": False,
    }


if __name__ == "__main__":
    print(json.dumps(schema(), indent=2))
