"""The support matrix says of each row what the row itself answers, and the page is the table's."""

import numpy as np
import pytest

import impls
from attnbench.features.show import support
from impls.masks import MASK_KINDS, Mask
from impls.operators import PARAMETERS
from impls.problem import SHORT, Problem
from impls.spec import DTYPES, PHASES
from proofs.support import PAGE, new_page

OWN = impls.own_rows()
TEXTS = {"window": "window:9,0", "chunk": "chunk:8", "prefix": "prefix:4", "blocks": "blocks:16x2"}
TEXTS |= {"document": "document:20,12", "packed": "packed:lognormal,8,0", "padding": "padding:20"}
TEXTS |= {"leftpad": "leftpad:20"}
N = 32


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A mask of each kind, in words; two are in files."""
    folder = tmp_path_factory.mktemp("masks")
    np.save(folder / "dense.npy", np.ones((N, N), dtype=bool))
    np.save(folder / "bias.npy", np.zeros((N, N), dtype=np.float32))
    return {"dense": f"dense:{folder}/dense.npy", "bias": f"bias:{folder}/bias.npy"}


def asked(row, device, **changes):
    """A problem that the row takes on a device, with changes."""
    least = row.head_dims[0] if row.head_dims else 64
    sizes = {"heads": 4, "kv_heads": 4, "q_len": N, "kv_len": N}
    sizes |= {"head_dim": max(least, 64), "v_head_dim": max(least, 64)}
    phases = row.on(device, "phases")
    first = {"phase": "forward" if "forward" in phases else phases[0]}
    first |= {"dtype": row.on(device, "dtypes")[0], "mask": Mask.parse(row.on(device, "masks")[0])}
    values = {**sizes, **first, **changes}
    if "kv_dtype" in row.takes and values["phase"] == "decode":
        values = {"kv_dtype": "int8", **values}
    return Problem(**values, level=row.level, device=device)


@pytest.mark.parametrize("name", OWN)
def test_each_cell_is_what_the_row_answers_of_such_a_problem(name, files):
    row = impls.table().find(f"{name}?world=2" if OWN[name].ranks else name)
    for device in row.devices:
        cells = support.takes(row, device)
        answers = {SHORT[x]: {"dtype": x} for x in DTYPES} | {x: {"phase": x} for x in PHASES}
        answers |= {x: {"mask": Mask.parse(files.get(x, TEXTS.get(x, x)))} for x in MASK_KINDS}
        if row.level == "core":
            answers |= {x: {x: True if PARAMETERS[x].is_flag else 0.7} for x in PARAMETERS}
            answers["kv_dtype"] = {"kv_dtype": "int8", "phase": "decode"}
            answers["kv_scale"] = {**answers["kv_dtype"], "kv_scale": "head"}
            answers["v_head_dim"] = {"v_head_dim": 72}
        answers["gqa"] = {"kv_heads": 2}
        for column, changes in answers.items():
            if column == "state" and asked(row, device).phase == "decode":
                continue
            why = row.supports(asked(row, device, **changes))
            assert cells[column] is (why is None), (device, column, why)
        crossed = [p for p in ("forward", "decode") if p in row.on(device, "phases")]
        taken = [p for p in crossed if row.supports(asked(row, device, phase=p, q_len=1)) is None]
        cross = {True: crossed, "decode": ["decode"], False: []}[cells["cross"]]
        assert taken == [p for p in crossed if p in cross], device
        trains = row.supports(asked(row, device, phase="train")) is None
        assert cells["gradient"] is trains


def test_the_page_is_what_the_table_says():
    assert PAGE.read_text() == new_page(), "python -m proofs.support --write"
