"""Options out of range: refused in a sentence, or served rightly and said.

Never an exception out of a kernel, and never another result in silence.
"""

import pytest

from impls.loading import load_function
from impls.spec import Unsupported
from tests.impls.small import TABLE, problem, verdict

ROWS = [
    row
    for row in TABLE.rows.values()
    if "cpu" in row.devices
    and (not row.requires or row.name == "blocksparse.flex")
    and not row.ranks  # those are asked in their own tests
]
NUMBERS = ("0", "-1", "99")
COMPILED = [r.name for r in TABLE.rows.values() if "c++" in r.requires]


def values(row, name):
    """What to try for an option: numbers out of any range, words that mean nothing."""
    default = row.options[name]
    if isinstance(default, bool):
        return []
    if name == "seed":  # any is served
        return NUMBERS[1:2]
    if isinstance(default, int | float):
        slow = row.name in COMPILED or name == "iterations"
        return [v for v in NUMBERS if not slow or v != "99"]
    return [] if name == "core" else ["nonsense", "/nowhere/to/be/found.npy"]


CASES = [(r.name, name, v) for r in ROWS for name in r.options for v in values(r, name)]


@pytest.mark.parametrize(("name", "option", "value"), CASES)
def test_an_option_out_of_range_is_refused_or_served_rightly(name, option, value):
    row = TABLE.find(f"{name}?{option}={value}")
    masks = row.on("cpu", "masks")
    mask = "causal" if "causal" in masks else "none"
    mask = "window:9,0" if name.startswith("window.") else mask
    phase = "train" if "train" in row.on("cpu", "phases") else "forward"
    extent = {"batch": 1, "heads": 2, "kv_heads": 2, "v_head_dim": 16, "dtype": "float32"}
    given = problem(mask, 37, phase=phase, level=row.level, **extent)
    try:
        found = verdict(row.label, given)
    except Unsupported as refusal:
        said = str(refusal)
        assert value in said, said
        assert len(said.split()) >= 4, said
        if row.definition and row.level == "core":  # it is build alone that refuses
            load_function(row.definition)(given, **row.chosen)
        load_function(row.cost)(given, **row.chosen)
    else:
        assert found.reason is None
