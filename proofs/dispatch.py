"""What a dispatched call costs above its variant: ``python proofs/dispatch.py``.

Calls of one and of the other in turn, on tensors so small that the call is all there is. Leave the
machine alone meanwhile.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from attnbench.core.settings import environment  # noqa: E402

os.environ.update(environment(threads=1))  # what counts only before torch is imported

import torch  # noqa: E402

import attnbench  # noqa: E402
from attnbench.answer.dispatch_table import (  # noqa: E402
    DispatchEntry,
    DispatchTable,
    Range,
)
from attnbench.core.machine import this_machine  # noqa: E402
from attnbench.models.attention import Built, CallShape  # noqa: E402
from attnbench.models.dispatch import Dispatch  # noqa: E402
from impls import table as rows  # noqa: E402
from impls.masks import Mask  # noqa: E402

LIMIT_US = 10.0
TURNS, CALLS = 2000, 10
"""So many pairs of so many calls."""
CASES = (
    ("forward", 16, 16, False),
    ("forward", 16, 16, True),
    ("train", 16, 16, True),
    ("decode", 1, 64, False),
)
VARIANTS = ("sdpa", "matmul")


def dispatched(built: Built) -> Dispatch:
    """By a table of some size, in which one variant takes the calls of all the cases."""
    made = {
        "device": "cpu",
        "torch": torch.__version__,
        "machine": this_machine().name,
        "threads": 1,
        "attnbench": attnbench.__version__,
        "protocol": 2,
        "run": "",
    }
    entries = [
        DispatchEntry(
            phase,
            mask,
            "float32",
            heads,
            heads,
            64,
            64,
            (1, 8),
            tuple(
                Range(64 * n + 1, 64 * n + 64, 1 if phase == "decode" else "same", built.row.label)
                for n in range(8)
            ),
        )
        for phase in ("forward", "train", "decode")
        for mask in ("none", "causal")
        for heads in (1, 2, 4, 8)
    ]
    return Dispatch(DispatchTable(made, entries=entries), {built.row.label: built})


def above(call: Callable[[], object], alone: Callable[[], object]) -> float:
    """Microseconds that a call takes above another: the median over pairs, in turn."""
    taken: list[float] = []
    for turn in range(TURNS):
        pair = {}
        for which in (call, alone) if turn % 2 else (alone, call):
            start = time.perf_counter()
            for _ in range(CALLS):
                which()
            pair[which] = (time.perf_counter() - start) / CALLS * 1e6
        taken.append(pair[call] - pair[alone])
    return statistics.median(taken)


def figures() -> Iterator[tuple[str, float]]:
    """Of each variant and each case."""
    for variant in VARIANTS:
        built = Built(rows().rows[variant])  # the same for both: each has its tensors elsewhere
        function = dispatched(built)
        for phase, queries, keys, causal in CASES:
            grad = phase == "train"
            q, k, v = (torch.randn(1, 1, n, 64, requires_grad=grad) for n in (queries, keys, keys))
            asked = CallShape(
                tuple(q.shape),
                tuple(k.shape),
                tuple(v.shape),
                q.dtype,
                q.device,
                Mask.parse("causal" if causal else "none"),
                phase,
            )
            attend = built.attend(asked)
            torch.testing.assert_close(function(q, k, v, is_causal=causal), attend(q, k, v))
            taken = above(
                lambda f=function, t=(q, k, v), c=causal: f(*t, is_causal=c),  # type: ignore[misc]
                lambda a=attend, t=(q, k, v): a(*t),  # type: ignore[misc]
            )
            yield f"{variant}, {phase}, {'causal' if causal else 'no mask'}", taken
        assert not function.said, function.said


def main() -> int:
    """Each figure beside the limit; 1 where one is beyond it."""
    torch.set_num_threads(1)
    beyond = 0
    for what, taken in figures():
        beyond += taken > LIMIT_US
        mark = "  BEYOND" * (taken > LIMIT_US)
        print(f"{what:32} {taken:6.2f} µs above the variant alone, at most {LIMIT_US:.0f}{mark}")
    return int(bool(beyond))


if __name__ == "__main__":
    sys.exit(main())
