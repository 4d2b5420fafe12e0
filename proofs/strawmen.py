"""Ours beside the public form of the same operator: ``python proofs/strawmen.py [NAME …]``.

A variant that is slow only because it was written badly makes every report a lie. So each of ours
that somebody else has published too is timed against theirs: pairs in random order, adjacent in
time, on the same inputs, in one process, on one thread. Printed: the median of the ratios ours /
theirs with its interval, and how far the two results lie apart. The exit status is 1 where a ratio
is beyond 1.05. Where the two do not compute quite the same, the line says what differs. Leave the
machine alone meanwhile.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from attnbench.core.settings import Settings, apply, environment  # noqa: E402
from proofs.theirs import HEADS, MATCHES, WIDTH, Match  # noqa: E402

LIMIT = 1.05
SECONDS = 4.0
FEWEST, MOST = 9, 60


def problem_of(match: Match, phase: str) -> Any:
    from impls.masks import Mask
    from impls.problem import Problem

    return Problem(
        heads=HEADS,
        kv_heads=HEADS,
        q_len=match.length,
        kv_len=match.length,
        head_dim=WIDTH,
        v_head_dim=WIDTH,
        mask=Mask.parse(match.mask),
        phase=phase,
        level=match.level,
    )


def pair(match: Match, phase: str) -> tuple[list[float], float]:
    """The ratios ours / theirs, and how far apart the results are."""
    import torch

    import impls
    from attnbench.gate.inputs import Call, make
    from impls.loading import load_function

    problem = problem_of(match, phase)
    label = "?".join([match.ours, *filter(None, [match.changes.get("options")])])
    row = impls.table().find(label)
    assert row.supports(problem) is None, row.supports(problem)
    inputs = make(problem, 0)
    torch.manual_seed(0)
    ours = Call(problem, load_function(row.build)(problem, **row.chosen), inputs)
    layer = match.theirs(problem)
    theirs = Call(problem, layer, inputs)
    dout = torch.randn(problem.output_shape)
    if match.level != "core":  # theirs trains its weights too
        owner = layer if isinstance(layer, torch.nn.Module) else layer.__closure__[0].cell_contents
        theirs.weights = dict(owner.named_parameters())

    def once(call: Any) -> Any:
        out = call.forward()
        if problem.gradients:
            call.backward(out, dout)
        return out

    results = [once(call).detach().double() for call in (ours, theirs)]
    once(ours), once(theirs)
    apart = float((results[0] - results[1]).norm() / results[1].norm())
    ratios: list[float] = []
    start = time.perf_counter()
    while len(ratios) < FEWEST or (len(ratios) < MOST and time.perf_counter() - start < SECONDS):
        taken = {}
        for call in random.sample([ours, theirs], 2):
            before = time.perf_counter()
            once(call)
            taken[call is ours] = time.perf_counter() - before
        ratios.append(taken[True] / taken[False])
    return ratios, apart


def measured(names: list[str]) -> Iterator[tuple[str, float]]:
    """Each line as it is known, and its ratio."""
    from attnbench.core.stats import summary

    for match in MATCHES:
        if names and match.ours not in names:
            continue
        if find_spec(match.needs) is None:
            yield f"{match.ours}: {match.library} is not installed", 0.0
            continue
        for phase in match.phases:
            ratios, apart = pair(match, phase)
            s = summary(ratios)
            what = f"{match.ours} {match.mask} n{match.length} {phase} / {match.library}"
            result = f"{s.median:6.3f} [{s.low:.3f}, {s.high:.3f}]  apart {apart:.0e}"
            yield f"{what:84} {result}  {match.differs}", s.median


def main(names: list[str]) -> int:
    """Print every ratio; 1 where ours is slower than it may be."""
    settings = Settings(threads=1)
    wanted = environment(settings.threads)
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **wanted})
    apply(settings)
    slow = 0
    for line, ratio in measured(names):
        slow += ratio > LIMIT
        print(line + f"  SLOWER than {LIMIT}" * (ratio > LIMIT), flush=True)
    print(f"{slow} beyond {LIMIT}" if slow else f"none of ours above {LIMIT}")
    return int(slow > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
