"""The one ``attend`` that stands for a team: whoever calls it calls all its ranks.

Forward, q, k and v are laid where the ranks see them, each computes its share, and the whole output
is taken up; backward likewise. Autograd meets it as one function.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from torch import Tensor

from attnbench.measure.memory import HIGH_WATER, SURE, Observed
from attnbench.measure.team.clock import RanksClock
from attnbench.measure.team.pages import Pages
from attnbench.measure.team.team import Team, team_for
from attnbench.parts import Memory, Ranks, Time
from attnbench.truth.inputs import Ends
from impls.problem import Problem
from impls.spec import Variant

GRADIENTS = ("dq", "dk", "dv")


class Together:
    """A variant that every rank of a team has built for its share of a problem."""

    def __init__(self, team: Team, variant: Variant, problem: Problem) -> None:
        self.team, self.problem = team, problem
        self._pages = Pages(problem)
        self._of, built = team.build(variant.to_dict(), problem.to_dict(), self._pages.file)
        self._pages.close_file()
        weakref.finalize(self, team.let_go, self._of)
        self._note = built[0]["note"]
        self.spent = [0.0] * team.world
        """Seconds of each rank, and bytes that it sent, since :meth:`begin`."""
        self.sent = [0] * team.world
        self._peaks: list[int] = []
        self._calls = 0

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The whole output of whole inputs."""
        out: Tensor = _Shared.apply(self, q, k, v)  # type: ignore[no-untyped-call]
        return out

    def note(self) -> str:
        """How many there are, and what the variant says of itself."""
        threads = f"{self.team.threads} thread" + "s" * (self.team.threads > 1)
        who = f"{self.team.world} ranks of {threads} each over {self.team.backend}"
        return f"{who}; {self._note}" if self._note else who

    def begin(self) -> None:
        """What ranks spend and send counts from here."""
        self.spent, self.sent = [0.0] * self.team.world, [0] * self.team.world

    def forward(self, inputs: Sequence[Tensor]) -> tuple[Tensor, int]:
        """The output, and the number of the call."""
        self._lay(("q", "k", "v"), inputs)
        self._count(self.team.ask("forward", self._of, "forward pass"))
        self._calls += 1
        return self._taken("out"), self._calls

    def backward(self, call: int, dout: Tensor) -> tuple[Tensor, ...]:
        """The gradients of the call with this number, which must be the last."""
        if call != self._calls:
            raise RuntimeError("the ranks keep what the last forward pass left, no other's")
        self._lay(("dout",), (dout,))
        self._count(self.team.ask("backward", self._of, "backward pass"))
        return tuple(self._taken(name) for name in GRADIENTS)

    def check(self) -> None:
        """Raise :class:`Wrong` where a rank left something changed that all its variants share."""
        self.team.ask("look", self._of, "last look")

    def clock(self) -> RanksClock:
        """The clock of its calls."""
        return RanksClock(self)

    def observe(self, inputs: Ends, dout: Tensor | None, expected: int | None) -> Observed:
        """One call of each rank under its profiler: the memory of the one that needs most."""
        self._lay(("q", "k", "v"), inputs)
        if dout is not None:
            self._lay(("dout",), (dout,))
        for _ in range(SURE):
            seen = self.team.ask("observe", self._of, "call under the profiler")
            memories = [Memory.from_dict(rank["memory"]) for rank in seen]
            if not any(found.method == HIGH_WATER for found in memories):
                break
        self._peaks = [found.peak_bytes for found in memories]
        names = ("out", *GRADIENTS) if self.problem.gradients else ("out",)
        results = {"forward" if n == "out" else n: self._taken(n) for n in names}
        results["forward"].requires_grad_(self.problem.gradients)  # as each rank's own did
        ran = frozenset(name for rank in seen for name in rank["ran"])
        return Observed(_largest(memories, expected), seen[0]["kernels"], ran, results, 0)

    def ranks(self, clock: RanksClock, time: Time) -> Ranks:
        """What each of them did of the calls that a time was taken from."""
        kept = set(time.samples_s)
        taken = [each for each in clock.taken if max(each) in kept]
        return Ranks(
            world=self.team.world, time_s=[median(one) for one in zip(*taken, strict=True)],
            peak_bytes=self._peaks, sent_bytes=list(self.sent), backend=self.team.backend,
        )  # fmt: skip

    def _lay(self, names: Sequence[str], tensors: Sequence[Tensor]) -> None:
        for name, tensor in zip(names, tensors, strict=True):
            self._pages[name].copy_(tensor.detach())

    def _taken(self, name: str) -> Tensor:
        return self._pages[name].to(self.problem.device, copy=True)

    def _count(self, answers: Sequence[dict[str, Any]]) -> None:
        for rank, answer in enumerate(answers):
            self.spent[rank] += answer["seconds"]
            self.sent[rank] += answer["sent"]


class _Shared(torch.autograd.Function):
    """A team's call as autograd sees it."""

    @staticmethod
    def forward(ctx: Any, together: Together, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out, ctx.call = together.forward((q, k, v))
        ctx.together = together
        return out

    @staticmethod
    def backward(ctx: Any, *dout: Tensor) -> tuple[Tensor | None, ...]:
        return (None, *ctx.together.backward(ctx.call, dout[0]))


def _largest(memories: Sequence[Memory], expected: int | None) -> Memory:
    """The memory of the rank that needs most, with what must be known of any."""
    most = max(memories, key=lambda found: found.peak_bytes)
    flags = [f"rank {i}: {flag}" for i, found in enumerate(memories) for flag in found.flags]
    method = f"the largest of {len(memories)} ranks, each above its share: {most.method}"
    return replace(most, expected_bytes=expected, method=method, flags=flags)


def together(variant: Variant, problem: Problem) -> Together:
    """A variant of several processes, built by the ranks of a team."""
    return Together(team_for(variant.world, problem.device), variant, problem)
