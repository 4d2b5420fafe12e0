"""A call that several processes share: how they are started, questioned, timed and ended."""

from __future__ import annotations

import json
import math
import mmap
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import accumulate
from statistics import median
from time import monotonic, sleep
from typing import Any

import torch
from torch import Tensor

from attnbench.core import process
from attnbench.core.record import Memory, Ranks, Status, Time
from attnbench.core.settings import Settings
from attnbench.gate.findings import Wrong
from attnbench.gate.inputs import Attend, Ends
from attnbench.meter.clocks import Clock, Step
from attnbench.meter.memory import HIGH_WATER, SURE, Observed
from impls.loading import load_function
from impls.problem import Problem
from impls.spec import Unavailable, Unsupported, Variant

EXCHANGE = re.compile(r"impls/parallel/ranks\.py|torch/distributed/")
"""The files in whose frames a rank stands that waits for others."""


class RankLost(Exception):
    """A rank died, hung or raised: the message is a sentence that names it."""

    def __init__(self, reason: str, status: Status, detail: str = "", remedy: str = "") -> None:
        super().__init__(reason)
        self.fields = {"status": status, "reason": reason, "detail": detail, "remedy": remedy}
        """Of the record."""


def silent(words: Mapping[int, str], doing: str, limit_s: float) -> RankLost:
    """Ranks that have not answered in time; ``words``: where each stands."""
    waiting = [rank for rank, stack in words.items() if EXCHANGE.search(stack)]
    stuck = [rank for rank in words if rank not in waiting]
    their = "its" if len(stuck or waiting) == 1 else "their"
    if stuck:
        reason = f"{_listed(stuck)} still at {their} {doing} after {limit_s:.0f} s"
        reason += f", and {_listed(waiting)} waiting" if waiting else ""
    else:
        whom = "waiting for each other" if len(waiting) > 1 else "still waiting for others"
        reason = f"{_listed(waiting)} {whom} in {their} {doing} after {limit_s:.0f} s"
    detail = "\n".join(f"rank {rank}:\n{stack}" for rank, stack in words.items())
    return RankLost(reason, Status.TIMED_OUT, detail)


def blamed(troubles: Mapping[int, Mapping[str, Any]]) -> Exception:
    """The error of the rank at fault: of those that failed, one that didn't wait for another."""
    rank = min(troubles, key=lambda each: (troubles[each].get("exchanging", False), each))
    answer = troubles[rank]
    if "wrong" in answer:
        return Wrong(f"rank {rank}: {answer['wrong']}")
    if "unsupported" in answer:
        return Unsupported(answer["unsupported"])
    if "unavailable" in answer:
        return Unavailable(*answer["unavailable"])
    failed = answer["failed"]
    own = failed["reason"].removeprefix("it ")
    reason = f"rank {rank}{'' if own != failed['reason'] else ':'} {own}"
    return RankLost(**{**failed, "reason": reason, "status": Status(failed["status"])})


def _listed(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]} was"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]} were"


ALIGNED = 64
"""Bytes: where a tensor may begin."""


class Pages:
    """Inputs and results of one problem by name, wherever they are mapped."""

    def __init__(self, problem: Problem, file: int | None = None) -> None:
        """``file``: the descriptor of pages that exist already; without it, new ones."""
        p, dtype = problem, getattr(torch, problem.dtype)
        q, out = (p.batch, p.heads, p.q_len, p.head_dim), p.output_shape
        k, v = ((p.batch, p.kv_heads, p.kv_len, n) for n in (p.head_dim, p.v_head_dim))
        shapes = {"q": q, "k": k, "v": v, "out": out}
        if problem.gradients:
            shapes |= {"dout": out, "dq": q, "dk": k, "dv": v}
        sizes = [math.prod(shape) * problem.item_bytes for shape in shapes.values()]
        ends = list(accumulate(-(-size // ALIGNED) * ALIGNED for size in sizes))
        self.file = os.memfd_create("attnbench-pages") if file is None else file
        if file is None:
            os.ftruncate(self.file, ends[-1])
        memory = mmap.mmap(self.file, ends[-1])
        self._tensors = {
            name: torch.frombuffer(memory, dtype=dtype, count=math.prod(shape), offset=offset).view(
                shape
            )
            for (name, shape), offset in zip(shapes.items(), [0, *ends], strict=False)
        }

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def close_file(self) -> None:
        """Let no other process map them; what is mapped stays."""
        os.close(self.file)


START_LIMIT_S = 120.0
"""For all ranks to load torch and to find each other."""
CALL_LIMIT_S = 240.0
"""For any other question; less than a whole cell may take."""
GRACE_S, SAY_S = 1.0, 0.3
"""For the others to fail too, before one is blamed, and for one that is stuck to write where."""
MESSAGE, LAST_WORDS = 1 << 20, 2000
"""Bytes of a message, and of a rank's error stream that go into the record."""


class _Rank:
    """One process of a team, with a line to it and the file of what it writes."""

    def __init__(self, number: int, threads: int) -> None:
        self.number = number
        self.line, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the rank
        code = f"from attnbench.meter.rank import main; main({its.fileno()}, {os.getpid()})"
        on_this_machine = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
        self.process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-P", "-c", code],
            env={**process.variables_of(threads), **on_this_machine},
            pass_fds=(its.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=self._words,
            stderr=self._words,
        )
        its.close()

    def last_words(self) -> str:
        """The end of what it wrote."""
        size = self._words.seek(0, os.SEEK_END)
        self._words.seek(max(0, size - LAST_WORDS))
        return self._words.read().decode(errors="replace")

    def ended(self) -> int:
        """Its exit status; one that has only closed its line is killed."""
        try:
            return self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def close(self) -> None:
        """Once it is killed."""
        self.process.wait()
        self.line.close()
        self._words.close()


class Team:
    """``world`` processes that have found each other."""

    def __init__(self, world: int, device: str) -> None:
        """``device``: ``cpu``, or ``cuda``: then each rank has a GPU of its own number."""
        self.world, self.backend = world, "gloo" if device == "cpu" else "nccl"
        self.threads = max(1, torch.get_num_threads() // world)
        """Of each rank: they share the worker's."""
        self._over: list[int] = []
        self._built = 0
        self._selector = selectors.DefaultSelector()
        self._ranks = [_Rank(number, self.threads) for number in range(world)]
        for rank in self._ranks:
            self._selector.register(rank.line, selectors.EVENT_READ, rank)
        settings = Settings(
            threads=self.threads,
            tf32=torch.get_float32_matmul_precision() == "high",
            reduced_precision_reduction=bool(
                torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
            ),
        )
        join = {"do": "join", "world": world, "device": device, "backend": self.backend}
        questions = [{**join, "settings": asdict(settings), "rank": n} for n in range(world)]
        meeting = os.memfd_create("attnbench-meeting")  # unlike a socket, for the ranks alone
        try:
            self._ask(questions, "start", meeting)
        finally:
            os.close(meeting)

    @property
    def alive(self) -> bool:
        """Whether all of them run."""
        return bool(self._ranks) and all(r.process.poll() is None for r in self._ranks)

    @property
    def processes(self) -> list[int]:
        """Their numbers."""
        return [rank.process.pid for rank in self._ranks]

    def load(self, build: str) -> None:
        """Have each import a variant's code, which is no part of building it."""
        self._ask([{"do": "load", "build": build}] * self.world, "import")

    def build(
        self, variant: Mapping[str, Any], problem: Mapping[str, Any], pages: int
    ) -> tuple[int, list[dict[str, Any]]]:
        """Have each build a variant; returns the number of what was built, and the answers."""
        self._built += 1
        question = {"do": "build", "of": self._built, "variant": variant, "problem": problem}
        return self._built, self._ask([question] * self.world, "setup", pages)

    def ask(self, do: str, of: int, doing: str) -> list[dict[str, Any]]:
        """What each answers about something that was built; ``doing`` names it in an error."""
        return self._ask([{"do": do, "of": of}] * self.world, doing)

    def release(self, of: int) -> None:
        """This is not needed any more; the next question tells the ranks."""
        self._over.append(of)

    def close(self) -> None:
        """End them all."""
        for rank in self._ranks:
            rank.process.kill()
        for rank in self._ranks:
            rank.close()
        self._ranks = []
        self._selector.close()

    def _ask(
        self, questions: Sequence[Mapping[str, Any]], doing: str, *files: int
    ) -> list[dict[str, Any]]:
        if not self._ranks:
            raise RankLost(f"its ranks had ended before its {doing}", Status.CRASHED)
        if not self.alive:
            raise self._lost({}, doing)
        over, self._over = self._over, []
        for rank, question in zip(self._ranks, questions, strict=True):
            message = json.dumps({**question, "over": over}).encode()
            with suppress(BrokenPipeError, ConnectionResetError):  # it is gone: the answers show it
                socket.send_fds(rank.line, [message], files)
        limit_s = START_LIMIT_S if doing == "start" else CALL_LIMIT_S
        until, answers = monotonic() + limit_s, dict[int, dict[str, Any]]()
        while len(answers) < self.world:
            if not self._listen(answers, until - monotonic()):
                raise self._silent(answers, doing, limit_s)
            if any("done" not in answer for answer in answers.values()):
                raise self._lost(answers, doing)
        return [answers[rank]["done"] for rank in range(self.world)]

    def _listen(self, answers: dict[int, dict[str, Any]], patience_s: float) -> bool:
        """Read what ranks answer, or that they are gone; False where none did in time."""
        ready = self._selector.select(max(0.0, patience_s))
        for key, _ in ready:
            rank: _Rank = key.data
            try:
                message = rank.line.recv(MESSAGE)
            except ConnectionResetError:
                message = b""
            answers[rank.number] = json.loads(message) if message else {"gone": True}
            if not message:
                self._selector.unregister(rank.line)
        return bool(ready)

    def _lost(self, answers: dict[int, dict[str, Any]], doing: str) -> Exception:
        """The error of the rank at fault, which may be gone; ends the team."""
        until = monotonic() + GRACE_S
        while len(answers) < self.world and (left := until - monotonic()) > 0:
            self._listen(answers, left)
        for rank in self._ranks:
            if answers.get(rank.number, {}).get("gone") or rank.process.poll() is not None:
                reason = f"rank {rank.number} {process.ended(rank.ended())} in its {doing}"
                lost: Exception = RankLost(reason, Status.CRASHED, rank.last_words())
                break
        else:
            lost = blamed({rank: one for rank, one in answers.items() if "done" not in one})
        self.close()
        return lost

    def _silent(self, answers: Mapping[int, Any], doing: str, limit_s: float) -> Exception:
        """Have those that have not answered write where they stand; ends the team."""
        missing = [rank for rank in self._ranks if rank.number not in answers]
        for rank in missing:
            rank.process.send_signal(signal.SIGUSR1)
        sleep(SAY_S)
        words = {rank.number: rank.last_words() for rank in missing}
        self.close()
        return silent(words, doing, limit_s)


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


def end_teams() -> None:
    """End all teams."""
    while _teams:
        _teams.popitem()[1].close()


class RanksClock(Clock):
    """Seconds of the slowest rank."""

    name = "ranks"

    def __init__(self, ranks: Together) -> None:
        self.ranks = ranks
        self.taken: list[list[float]] = []
        """Of every sample, what each rank took."""

    def samples(self, before: Step, call: Step, count: int) -> list[float]:
        """One call a sample; a forward pass that ``before`` makes is not counted."""
        for _ in range(count):
            before()
            self.ranks.begin()
            kept = call()
            self.taken.append(list(self.ranks.spent))  # what comes next adds to it
            del kept
        return [max(each) for each in self.taken[-count:]]


GRADIENTS = ("dq", "dk", "dv")


class Together:
    """A variant that every rank of a team has built for its share of a problem."""

    def __init__(self, team: Team, variant: Variant, problem: Problem) -> None:
        self.team, self.problem = team, problem
        self._pages = Pages(problem)
        self._of, built = team.build(variant.to_dict(), problem.to_dict(), self._pages.file)
        self._pages.close_file()
        weakref.finalize(self, team.release, self._of)
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
        """The number of ranks, and the variant's own note."""
        threads = f"{self.team.threads} thread" + "s" * (self.team.threads > 1)
        ranks = f"{self.team.world} ranks of {threads} each over {self.team.backend}"
        return f"{ranks}; {self._note}" if self._note else ranks

    def begin(self) -> None:
        """Count what ranks spend and send from here."""
        self.spent, self.sent = [0.0] * self.team.world, [0] * self.team.world

    def forward(self, inputs: Sequence[Tensor]) -> tuple[Tensor, int]:
        """The output, and the number of the call."""
        self._lay(("q", "k", "v"), inputs)
        self._count(self.team.ask("forward", self._of, "forward pass"))
        self._calls += 1
        return self._taken("out"), self._calls

    def backward(self, call: int, dout: Tensor) -> tuple[Tensor, ...]:
        """The gradients of the call with this number; raises if it is not the last."""
        if call != self._calls:
            raise RuntimeError("the ranks keep what the last forward pass left, no other's")
        self._lay(("dout",), (dout,))
        self._count(self.team.ask("backward", self._of, "backward pass"))
        return tuple(self._taken(name) for name in GRADIENTS)

    def check(self) -> None:
        """Raise :class:`Wrong` where a rank left something changed that variants share."""
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
            if all(each.method != HIGH_WATER for each in memories):
                break
        self._peaks = [each.peak_bytes for each in memories]
        most = max(memories, key=lambda each: each.peak_bytes)
        most = most.with_(
            expected_bytes=expected,
            method=f"the largest of {len(seen)} ranks, each above its share: {most.method}",
            flags=[f"rank {i}: {flag}" for i, each in enumerate(memories) for flag in each.flags],
        )
        results = {"forward": self._taken("out")}
        results["forward"].requires_grad_(self.problem.gradients)  # as each rank's own did
        if self.problem.gradients:
            results |= {name: self._taken(name) for name in GRADIENTS}
        ran = frozenset(name for rank in seen for name in rank["ran"])
        return Observed(most, seen[0]["kernels"], ran, results, 0)

    def ranks(self, clock: RanksClock, time: Time) -> Ranks:
        """What each rank did in the calls whose samples were kept."""
        kept = set(time.samples_s)
        taken = [each for each in clock.taken if max(each) in kept]
        return Ranks(
            world=self.team.world,
            time_s=[median(one) for one in zip(*taken, strict=True)],
            peak_bytes=self._peaks,
            sent_bytes=list(self.sent),
            backend=self.team.backend,
        )

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


def runs_over_ranks(variant: Variant) -> bool:
    """Whether a row runs over several processes; rows of an earlier commit lack the field."""
    return getattr(variant, "ranks", False)


def attend_of(variant: Variant, problem: Problem) -> Attend:
    """What ``build`` returns; of a row of several processes, what calls its ranks."""
    if runs_over_ranks(variant):
        return Together(team_for(variant.world, problem.device), variant, problem)
    attend: Attend = load_function(variant.build)(problem, **variant.chosen)
    return attend
