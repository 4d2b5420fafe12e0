"""What asv was asked for, as the processes that it starts get to know it.

asv tells the process that fills a cache nothing of ``--quick`` and ``--bench``. Its own process
knows, so what matters goes into the environment, which it hands on.
"""

from __future__ import annotations

import json
import os
import re
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

VARIABLE = "ATTNBENCH_HISTORY"


@dataclass(frozen=True)
class Asked:
    """One command of asv's, and what of the machine decides which benchmarks there are."""

    device: str = "cpu"
    energy: bool = False
    """Whether something counts it here."""
    quick: bool = False
    bench: tuple[str, ...] = ()
    """Expressions, one of which a benchmark with its parameters has to match; any, if none."""
    interleaved: bool = False
    """Whether the commits are measured in turns, a process of each in a round."""
    kept: str = ""
    """A folder that lives as long as asv's command: what the first round found stays there."""

    def wants(self, benchmark: str, parameters: Sequence[str]) -> bool:
        """Whether a benchmark with these parameters, as asv writes them, was asked for."""
        name = f"{benchmark}({', '.join(parameters)})"
        return not self.bench or any(re.search(each, name) for each in self.bench)

    def hand_on(self, environment: dict[str, str]) -> None:
        """To the processes that get this environment."""
        environment[VARIABLE] = json.dumps(asdict(self))


def understood(said: Namespace, device: str, *, energy: bool) -> Asked:
    """The arguments of asv's command, where it has them."""
    turns, bench = getattr(said, "interleave_rounds", False), getattr(said, "bench", None) or ()
    return Asked(
        device, energy, bool(getattr(said, "quick", False)),
        (bench,) if isinstance(bench, str) else tuple(bench),
        turns is None or bool(turns),  # None: asv takes turns if it can
    )  # fmt: skip


def handed_on(environment: Mapping[str, str] = os.environ) -> Asked:
    """What asv was asked for; the defaults in a process that asv did not start."""
    text = environment.get(VARIABLE)
    if text is None:
        return Asked()
    said = json.loads(text)
    return Asked(**{**said, "bench": tuple(said["bench"])})
