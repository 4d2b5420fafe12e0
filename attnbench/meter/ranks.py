"""A call that several processes share: how they are started, questioned, timed and ended."""

from __future__ import annotations

import math
import os
import signal
import weakref
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from attnbench.core import process
from attnbench.core.device import Step, device_for
from attnbench.core.format import counted, roughly
from attnbench.core.record import Memory, Ranks, Status, Time
from attnbench.core.settings import Settings
from attnbench.core.wire import convert, plain
from attnbench.gate.findings import Wrong
from attnbench.gate.inputs import Attend, Inputs
from attnbench.gate.reference import Defines
from attnbench.gate.selection import judged_by
from attnbench.meter.clocks import Clock
from attnbench.meter.memory import HIGH_WATER, SURE, Observed
from impls.loading import load_function
from impls.operators import OUTPUT, OUTPUT_AXES, OUTPUTS, QKV, TensorSpec, outputs
from impls.operators import inputs as inputs_of
from impls.problem import Problem
from impls.spec import Unavailable, Unsupported, Variant


class RankLost(Exception):
    """A rank died, hung or raised: the message is a sentence that names it."""

    def __init__(self, reason: str, status: Status, detail: str = "", remedy: str = "") -> None:
        super().__init__(reason)
        self.fields = {"status": status, "reason": reason, "detail": detail, "remedy": remedy}
        """Of the record."""


class _Troubled(Exception):
    """What a rank answers in place of what it was asked for."""

    def __init__(self, answer: Mapping[str, Any]) -> None:
        super().__init__()
        self.answer = answer


def fault(troubles: Mapping[int, BaseException], doing: str, limit_s: float) -> Exception:
    """The error of the rank at fault, of those that failed, the first one first.

    One that died is to blame for what the others say then; of ranks that are stuck some may only
    wait for another, so all are named, and the detail shows where each stands.
    """
    lost = {n: one for n, one in troubles.items() if isinstance(one, process.WorkerLost)}
    for number, end in lost.items():
        if not end.timed_out:
            how = end.reason.removeprefix("the worker ")
            return RankLost(f"rank {number} {how} in its {doing}", Status.CRASHED, end.output)
    rank, error = next(iter(troubles.items()))
    if not isinstance(error, _Troubled):
        reason = f"its ranks were still at their {doing} after {roughly(limit_s)}"
        detail = "\n".join(f"rank {n}:\n{end.output}" for n, end in lost.items())
        return RankLost(reason, Status.TIMED_OUT, detail)
    match error.answer:
        case {"wrong": why}:
            return Wrong(f"rank {rank}: {why}")
        case {"unsupported": why}:
            return Unsupported(why)
        case {"unavailable": why}:
            return Unavailable(*why)
    failed = error.answer["failed"]
    own = failed["reason"].removeprefix("it ")
    reason = f"rank {rank}{'' if own != failed['reason'] else ':'} {own}"
    return RankLost(**{**failed, "reason": reason, "status": Status(failed["status"])})


GRADIENTS = tuple(f"d{name}" for name in QKV)
PAGES = {**QKV, OUTPUT: TensorSpec(OUTPUT_AXES), **OUTPUTS}
PAGES |= {f"d{name}": spec for name, spec in PAGES.items()}
"""The inputs and results that ranks share."""


def pages(problem: Problem, place: str) -> dict[str, Tensor]:
    """Inputs and results of one problem by name, in a file that any process may map."""
    names = [*QKV, OUTPUT, *outputs(problem)]
    names += [f"d{name}" for name in names] if problem.gradients else []
    dtypes = {n: getattr(torch, PAGES[n].dtype_on(problem)) for n in names}
    shapes = {n: PAGES[n].shape(problem) for n in names}
    sizes = [math.prod(shapes[n]) * dtypes[n].itemsize for n in names]
    room = [-(-each // 8) * 8 for each in sizes]  # each begins where any number may
    parts = torch.from_file(place, shared=True, size=sum(room), dtype=torch.uint8).split(room)
    each = zip(names, parts, sizes, strict=True)
    return {n: part[:used].view(dtypes[n]).view(shapes[n]) for n, part, used in each}


@contextmanager
def shared_file(name: str) -> Iterator[str]:
    """A file in memory, at the place where the ranks, which this process started, can open it."""
    file = os.memfd_create(name)
    try:
        yield f"/proc/{os.getpid()}/fd/{file}"
    finally:
        os.close(file)


MODULE = "attnbench.sweep.worker"  # what a rank runs: a worker, which loads torch once it is asked
START_LIMIT_S = 120.0  # for all ranks to load torch and to find each other
CALL_LIMIT_S = 240.0  # for any other question; less than a whole cell may take
GRACE_S, SAY_S = 1.0, 0.5
"""For the others to fail too, before one is blamed, and for one that is stuck to say where."""
VARIABLES = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "PYTHONFAULTHANDLER": "1"}
"""Ranks meet on this machine alone, and say where they crashed."""


class Team:
    """``world`` processes that have found each other."""

    def __init__(self, world: int, device: str) -> None:
        """``device``: ``cpu``, or ``cuda``: then each rank has a GPU of its own number."""
        self.world, self.backend = world, device_for(device).backend
        self.threads = max(1, torch.get_num_threads() // world)  # they share the worker's
        self._over: list[int] = []
        self._built = 0
        self._ranks = [
            process.Worker(MODULE, self.threads, limited=False, variables=VARIABLES)
            for _ in range(world)
        ]
        reduces = torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
        settings = Settings(
            threads=self.threads,
            tf32=torch.get_float32_matmul_precision() == "high",
            reduced_precision_reduction=bool(reduces),
        )
        join = {"world": world, "device": device, "backend": self.backend}
        with shared_file("attnbench-meeting") as place:
            join |= {"settings": asdict(settings), "file": place}
            self._ask([{"rank": "join", **join, "number": n} for n in range(world)], "start")

    @property
    def alive(self) -> bool:
        """Whether all of them run."""
        return all(pid and Path(f"/proc/{pid}").exists() for pid in self.processes)

    @property
    def processes(self) -> list[int]:
        """Their numbers; 0 of one that has ended."""
        return [rank.pid or 0 for rank in self._ranks]

    def load(self, build: str) -> None:
        """Have each import a variant's code, no part of building it; raises as :meth:`ask`."""
        self._ask([{"rank": "load", "build": build}] * self.world, "import")

    def build(self, variant: Variant, problem: Problem, file: str) -> tuple[int, str]:
        """Have each build a variant; returns the number of what was built, and its note. Raises as
        :meth:`ask`.
        """
        self._built += 1
        job = {"variant": plain(variant), "problem": plain(problem), "file": file}
        built = self._ask([{"rank": "build", "of": self._built, **job}] * self.world, "setup")
        return self._built, built[0]["note"]

    def ask(self, deed: str, of: int, doing: str) -> list[dict[str, Any]]:
        """What each answers about something that was built; ``doing`` names it in an error.

        Raises the :func:`fault`: :class:`RankLost`, or Wrong, Unsupported or Unavailable as one of
        them says.
        """
        return self._ask([{"rank": deed, "of": of}] * self.world, doing)

    def release(self, of: int) -> None:
        """This is not needed any more; the next question tells the ranks."""
        self._over.append(of)

    def close(self) -> None:
        """End them all."""
        for rank in self._ranks:
            rank.close()

    def _ask(self, questions: Sequence[Mapping[str, Any]], doing: str) -> list[dict[str, Any]]:
        if doing != "start" and not self.alive:
            self.close()
            raise RankLost(f"its ranks had ended before its {doing}", Status.CRASHED)
        over, self._over = self._over, []
        limit_s = START_LIMIT_S if doing == "start" else CALL_LIMIT_S

        def ask(rank: process.Worker, question: Mapping[str, Any]) -> dict[str, Any]:
            question_ = {**question, "over": over, "limit_s": limit_s}
            answer = rank.ask(question_, limit_s + SAY_S)
            if "done" not in answer:
                raise _Troubled(answer)
            done: dict[str, Any] = answer["done"]
            return done

        with ThreadPoolExecutor(self.world) as pool:
            futures = [pool.submit(ask, *each) for each in zip(self._ranks, questions, strict=True)]
            first = {f for f in wait(futures, return_when=FIRST_EXCEPTION).done if f.exception()}
            if not first:
                return [one.result() for one in futures]
            late = wait(futures, GRACE_S).done - first
            failed = sorted(first, key=futures.index) + sorted(late, key=futures.index)
            troubles = {futures.index(f): error for f in failed if (error := f.exception())}
            for pid in filter(None, self.processes):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.close()
        raise fault(troubles, doing, limit_s)


_teams: dict[tuple[int, str], Team] = {}
"""Those that wait for the next cell, by their number of ranks and their device."""


def team_for(world: int, device: str) -> Team:
    """The team of so many ranks that waits, or a new one."""
    key = (world, device.split(":")[0])
    team, threads = _teams.get(key), max(1, torch.get_num_threads() // world)
    if team is None or not team.alive or team.threads != threads:
        if team is not None:
            team.close()
        team = _teams[key] = Team(*key)
    return team


class RanksClock(Clock):
    """Seconds of the slowest rank."""

    name = "ranks"

    def __init__(self, ranks: Together) -> None:
        self.ranks = ranks
        self.taken: list[list[float]] = []  # of every sample, what each rank took

    def samples(self, before: Step, call: Step, count: int) -> list[float]:
        """One call a sample; a forward pass that ``before`` makes is not counted."""
        for _ in range(count):
            before()
            self.ranks.begin()
            result = call()
            self.taken.append(list(self.ranks.spent))  # what comes next adds to it
            del result
        return [max(each) for each in self.taken[-count:]]

    def did(self, time: Time) -> Ranks:
        """What each rank did in the calls whose samples were kept."""
        samples, ranks = set(time.samples_s), self.ranks
        seconds = [each for each in self.taken if max(each) in samples]
        return Ranks(
            world=ranks.team.world,
            time_s=[median(one) for one in zip(*seconds, strict=True)],
            peak_bytes=ranks.peaks,
            sent_bytes=list(ranks.sent),
            backend=ranks.team.backend,
        )


class Together:
    """A variant that every rank of a team has built for its share of a problem."""

    def __init__(self, team: Team, variant: Variant, problem: Problem) -> None:
        self.team, self.problem = team, problem
        with shared_file("attnbench-pages") as place:
            self._pages = pages(problem, place)
            self._of, self._note = team.build(variant, problem, place)
        weakref.finalize(self, team.release, self._of)
        self.begin()
        self.peaks: list[int] = []
        self._calls = 0

    def __call__(self, *inputs: Tensor) -> Any:
        """The whole output of whole inputs, or all that the problem asks for."""
        return _Shared.apply(self, *inputs)  # type: ignore[no-untyped-call]

    def note(self) -> str:
        """The number of ranks, and the variant's own note."""
        threads = counted(self.team.threads, "thread")
        ranks = f"{self.team.world} ranks of {threads} each over {self.team.backend}"
        return f"{ranks}; {self._note}" if self._note else ranks

    def begin(self) -> None:
        """Count the seconds that each rank spends, and the bytes that it sends, from here."""
        self.spent, self.sent = [0.0] * self.team.world, [0] * self.team.world

    @property
    def _outputs(self) -> tuple[str, ...]:
        """The names of all that a call gives."""
        return (OUTPUT, *outputs(self.problem))

    def forward(self, inputs: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], int]:
        """The outputs, and the number of the call."""
        self._passed("forward", dict(zip(QKV, inputs, strict=True)))
        self._calls += 1
        return tuple(map(self._taken, self._outputs)), self._calls

    def backward(self, call: int, *above: Tensor) -> tuple[Tensor, ...]:
        """The gradients of the call with this number; raises if it is not the last."""
        if call != self._calls:
            raise RuntimeError("the ranks keep what the last forward pass left, no other's")
        names = (f"d{name}" for name in self._outputs)
        self._passed("backward", dict(zip(names, above, strict=True)))
        return tuple(self._taken(name) for name in GRADIENTS)

    def _passed(self, deed: str, tensors: Mapping[str, Tensor]) -> None:
        """Have all ranks make a pass, and count what it took."""
        self._lay(tensors)
        for rank, answer in enumerate(self.team.ask(deed, self._of, f"{deed} pass")):
            self.spent[rank] += answer["seconds"]
            self.sent[rank] += answer["sent"]

    def check(self) -> None:
        """Raise :class:`Wrong` where a rank left something changed that variants share."""
        self.team.ask("look", self._of, "last look")

    def observe(self, inputs: Inputs, dout: Tensor | None, expected: int | None) -> Observed:
        """One call of each rank under its profiler: the memory of the one that needs most."""
        self._lay(inputs)
        if dout is not None:
            self._lay({f"d{OUTPUT}": dout})
        for _ in range(SURE):
            answers = self.team.ask("observe", self._of, "call under the profiler")
            memories = [convert(rank["memory"], Memory) for rank in answers]
            if all(each.method != HIGH_WATER for each in memories):
                break
        self.peaks = [each.peak_bytes for each in memories]
        most = max(memories, key=lambda each: each.peak_bytes)
        most = most.with_(
            expected_bytes=expected,
            method=f"the largest of {len(answers)} ranks, each above its share: {most.method}",
            flags=[f"rank {i}: {flag}" for i, each in enumerate(memories) for flag in each.flags],
        )
        names = ("forward", *outputs(self.problem))
        results = dict(zip(names, map(self._taken, self._outputs), strict=True))
        for x in results.values():
            x.requires_grad_(self.problem.gradients)  # as each rank's own did
        if self.problem.gradients:
            results |= {name: self._taken(name) for name in GRADIENTS}
        ran = frozenset(name for rank in answers for name in rank["ran"])
        return Observed(most, answers[0]["kernels"], ran, results)

    def _lay(self, tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            self._pages[name].copy_(tensor.detach())

    def _taken(self, name: str) -> Tensor:
        return self._pages[name].to(self.problem.device, copy=True)


class _Shared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, together: Together, *inputs: Tensor) -> Any:
        outputs, ctx.call = together.forward(inputs)
        ctx.together = together
        return outputs if len(outputs) > 1 else outputs[0]

    @staticmethod
    def backward(ctx: Any, *above: Tensor) -> tuple[Tensor | None, ...]:
        return (None, *ctx.together.backward(ctx.call, *above))


def attend_of(variant: Variant, problem: Problem) -> Attend:
    """What ``build`` returns; of a row of several processes, what calls its ranks."""
    if variant.ranks:
        return Together(team_for(variant.world, problem.device), variant, problem)
    attend: Attend = load_function(variant.build)(problem, **variant.chosen)
    return attend


def define_of(variant: Variant, problem: Problem, attend: Attend) -> Defines | None:
    """Its own definition, on what ``attend`` selects if it does; None of what computes exact
    softmax.
    """
    if variant.definition is None:
        return None
    define: Defines = load_function(variant.definition)(problem, **variant.chosen)
    return judged_by(problem, define, attend, inputs_of(variant.operator, problem))


def note_of(attend: Attend) -> str:
    """What a variant says of itself once it is built."""
    note = getattr(attend, "note", None)
    return str(note()) if callable(note) else ""
