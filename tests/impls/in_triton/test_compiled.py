"""The launches of the rows in Triton and Gluon on a GPU compile and keep their bounds."""

import pytest

from proofs.compiled import compile_rows, faults, our_rows
from tests.impls.in_triton import interpreted

interpreted.start()
KERNELS = {
    "triton.linear": {"sums", "before", "walk", "losses"},
    "triton.flash": {"forward", "deltas", "backward_keys", "backward_queries"},
    "triton.gated_delta": {"prepare", "walk"},
    "triton.kda": {"prepare", "walk"},
    "triton.decode": {"read_keys", "put_together"},
}
ROWS = our_rows()
TASKS = {f"sm90-{row}": (90, [row]) for row in ROWS} | {f"sm{n}": (n, ROWS) for n in (86, 100)}
"""Hopper's, and one kind before and after it: ``python -m proofs.compiled`` does all."""


@pytest.mark.slow
@pytest.mark.parametrize(("capability", "rows"), TASKS.values(), ids=TASKS)
def test_launches_compile_and_keep_their_bounds(capability, rows):
    launches = compile_rows(rows, capability, few=True)
    for row in rows:
        names = {launch["kernel"] for launch in launches if launch["row"] == row}
        assert names >= KERNELS.get(row, set())
        assert names or capability != 90
    assert faults(launches) == []
