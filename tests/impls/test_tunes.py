"""Options that tuning may set never change the result."""

import pytest
import torch

from impls.dense import tiles
from impls.jit import fitting
from impls.problem import Problem
from impls.spec import Unsupported
from tests.impls.small import TABLE, both_forms, inputs, problem, takes_more

SLOW_TO_COMPILE = ("window.flex",)  # test_flex has blocks of several sizes
CASES = [
    f"{row.name}?{name}={value}"
    for row in TABLE.rows.values()
    if "cpu" in row.devices and row.name not in SLOW_TO_COMPILE and not takes_more(row, Problem())
    for name, values in row.tunes.items()
    for value in (values[0], values[-1])
]


@pytest.mark.parametrize("label", CASES)
def test_a_tuned_option_changes_nothing_but_rounding(label):
    row = TABLE.find(label)
    mask = "window:30,0" if row.name == "window.blocked" else "causal"
    p = problem(mask, length=150)
    tensors = inputs(p)
    (attend, _), (plain, _) = both_forms(label, p), both_forms(row.name, p)
    torch.testing.assert_close(attend(*tensors), plain(*tensors), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize(("dtype", "least"), [("bfloat16", 32), ("float32", 16)])
@pytest.mark.parametrize("phase", ["forward", "train", "backward"])
def test_launches_to_try_are_what_the_row_takes_and_of_the_kernels_that_run(
    head_dim, dtype, least, phase
):
    p = Problem(head_dim=head_dim, v_head_dim=head_dim, dtype=dtype, phase=phase)
    forward = tiles.forward(p)
    backward = [tuple(map(int, x.split("x"))) for f in (tiles.keys, tiles.queries) for x in f(p)]
    assert bool(forward) == (phase != "backward") and bool(backward) == (phase != "forward")
    for queries, keys, warps, stages in [*forward, *backward]:
        assert {queries.bit_count(), keys.bit_count(), warps.bit_count()} == {1}
        assert min(queries, keys) >= least and stages >= 1
        rows = (queries + 2 * stages * keys, keys + 2 * stages * queries)
        assert min(rows) * head_dim * p.item_bytes <= 227 * 1024


def test_blocks_that_a_gpu_has_no_room_for_are_not_supported_there():
    out_of_resources = type("OutOfResources", (Exception,), {})  # as triton's, by name and words

    @fitting("some.row")
    def launch():
        raise out_of_resources("out of resource: shared memory. Reducing block sizes may help.")

    with pytest.raises(Unsupported, match="room for: out of resource: shared memory"):
        launch()
