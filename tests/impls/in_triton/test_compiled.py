"""What the rows in Triton would launch on a GPU: it compiles, it fits, and nothing in it waits."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.impls.in_triton import interpreted

interpreted.start()
SHARED = {90: 227 << 10, 86: 99 << 10}
"""Bytes of shared memory that a block can have, by compute capability (CUDA's programming guide,
technical specifications): an H100; a 3090 (a 4090 has as much, an A100 more, by the same
tables)."""
SPILLED, SPILLED_WIDE = 128, 768
"""Bytes that a thread of triton.flash may store to memory for want of registers: of two bytes a
number up to 128 wide, and else: 704 in float32 under a window, by Triton 3.9 for sm_90."""
KERNELS = {
    "triton.linear": {"sums", "before", "walk", "losses"},
    "triton.flash": {"forward", "deltas", "backward_keys", "backward_queries"},
    "triton.decode": {"read_keys", "put_together"},
}
"""What takes longest to compile comes first, so that two workers end at nearly the same time."""
NO_PRODUCTS = {"deltas", "put_together", "before", "losses"}


@pytest.mark.slow
@pytest.mark.parametrize("capability", SHARED)
@pytest.mark.parametrize("row", KERNELS)
def test_every_launch_of_a_table_compiles_and_fits(row, capability, tmp_path):
    hidden = ("TRITON_INTERPRET", "PYTHONPATH")
    environment = {k: v for k, v in os.environ.items() if k not in hidden}
    environment |= {
        "TRITON_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    ran = subprocess.run(
        [sys.executable, Path(__file__).with_name("compiling.py"), f"{capability}", row],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    launches = [json.loads(line) for line in ran.stdout.splitlines()]
    assert {one["kernel"] for one in launches} == KERNELS[row]
    for one in launches:
        assert one["shared"] <= SHARED[capability], one
        wide = one["dtype"] == "float32" or one["head_dim"] > 128
        most = SPILLED_WIDE if wide else SPILLED
        assert row != "triton.flash" or one["spilled"] <= most, one
        multiplied = one["kernel"] not in NO_PRODUCTS and one["dtype"] != "float32"
        assert (one["tensor_cores"] > 0) == multiplied, one  # float32 is multiplied in full
        assert one["narrow"] == 0, one  # numbers of two bytes are loaded eight at a time
        waits = one["kernel"] == "sums"  # which reads far more than it multiplies
        assert waits or not one["waiting"], one
