"""A team: the processes that a worker starts, asks, and ends together.

A rank is a fresh interpreter, never a fork of a process that has loaded torch. It dies with the
worker, whatever it is at, and with the team: as soon as one of them is in trouble the others wait
in vain, so all are ended. The next who needs a team gets a new one.

A question is one message to each rank, and the answer one back; what a rank prints is kept for the
record of its end.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import IO, Any

import torch

from attnbench.measure.settings import Settings, environment
from attnbench.measure.team import losses

START_LIMIT_S = 120.0
"""For all ranks to load torch and to find each other."""
CALL_LIMIT_S = 240.0
"""For a call, a build or a look; less than a whole cell may take."""
GRACE_S = 1.0
"""So long the others may take to be in trouble too, before one is blamed."""
SAY_S = 0.3
"""For a rank that is stuck to say where."""
MESSAGE = 1 << 20
LAST_WORDS = 2000
"""Bytes of a rank's error stream that go into the record."""


@dataclass
class _Rank:
    """One process of a team."""

    number: int
    process: subprocess.Popen[bytes]
    line: socket.socket
    words: IO[bytes]

    def last_words(self) -> str:
        """The end of what it said."""
        size = self.words.seek(0, os.SEEK_END)
        self.words.seek(max(0, size - LAST_WORDS))
        return self.words.read().decode(errors="replace")


class Team:
    """``world`` processes that have found each other."""

    def __init__(self, world: int, device: str) -> None:
        """``device``: ``cpu``, or ``cuda``: then each rank has a GPU of its own number."""
        self.world, self.device = world, device
        self.backend = "gloo" if device == "cpu" else "nccl"
        self.threads = max(1, torch.get_num_threads() // world)
        """Of each rank: those that the worker was given are shared out."""
        self._over: list[int] = []
        self._built = 0
        self._selector = selectors.DefaultSelector()
        self._ranks: list[_Rank] = []
        for number in range(world):
            self._ranks.append(rank := _start(number, self.threads))
            self._selector.register(rank.line, selectors.EVENT_READ, rank)
        told = {
            "do": "join", "world": world, "device": device,
            "backend": self.backend, "settings": asdict(_settings(self.threads)),
        }  # fmt: skip
        meeting = os.memfd_create("attnbench-meeting")  # unlike a socket, for the ranks alone
        try:
            self._ask([{**told, "rank": number} for number in range(world)], "start", (meeting,))
        finally:
            os.close(meeting)

    @property
    def alive(self) -> bool:
        """Whether all of them are there."""
        return bool(self._ranks) and all(r.process.poll() is None for r in self._ranks)

    @property
    def processes(self) -> list[int]:
        """Their numbers."""
        return [rank.process.pid for rank in self._ranks]

    def load(self, build: str) -> None:
        """Have each import a variant's code, which is no part of building it."""
        self._ask([{"do": "load", "build": build}] * self.world, "import")

    def build(self, variant: Mapping[str, Any], problem: Mapping[str, Any],
              pages: int) -> tuple[int, list[dict[str, Any]]]:  # fmt: skip
        """Have each build a variant; under which number it is asked for later, and the answers."""
        self._built += 1
        asked = {"do": "build", "of": self._built, "variant": variant, "problem": problem}
        return self._built, self._ask([asked] * self.world, "setup", (pages,))

    def ask(self, do: str, of: int, doing: str, **more: Any) -> list[dict[str, Any]]:
        """What each answers, of something that was built; ``doing`` is how that is called."""
        return self._ask([{"do": do, "of": of, **more}] * self.world, doing)

    def let_go(self, of: int) -> None:
        """Nobody will ask for this any more; the ranks are told with the next question."""
        self._over.append(of)

    def close(self) -> None:
        """End them all."""
        for rank in self._ranks:
            rank.process.kill()
        for rank in self._ranks:
            rank.process.wait()
            rank.line.close()
            rank.words.close()
        self._ranks = []
        self._selector.close()

    def _ask(self, asked: Sequence[Mapping[str, Any]], doing: str,
             files: Sequence[int] = ()) -> list[dict[str, Any]]:  # fmt: skip
        if not self._ranks:
            raise losses.ended(doing)
        if not self.alive:
            raise self._lost({}, doing)
        over, self._over = self._over, []
        for rank, question in zip(self._ranks, asked, strict=True):
            message = json.dumps({**question, "over": over}).encode()
            with suppress(BrokenPipeError, ConnectionResetError):  # it is gone: that comes out next
                socket.send_fds(rank.line, [message], list(files))
        limit_s = START_LIMIT_S if doing == "start" else CALL_LIMIT_S
        return self._answers(doing, limit_s)

    def _answers(self, doing: str, limit_s: float) -> list[dict[str, Any]]:
        until, answers = monotonic() + limit_s, dict[int, dict[str, Any]]()
        while len(answers) < self.world:
            if not self._listen(answers, until - monotonic()):
                raise self._silent(answers, doing, limit_s)
            if any("done" not in answer for answer in answers.values()):
                raise self._lost(answers, doing)
        return [answers[rank]["done"] for rank in range(self.world)]

    def _listen(self, answers: dict[int, dict[str, Any]], patience_s: float) -> bool:
        """Take in what ranks have to say; a rank that is gone says nothing, and that is noted."""
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
        """Who is to blame; the team is ended. One that is gone leaves others in the lurch."""
        until = monotonic() + GRACE_S
        while len(answers) < self.world and (left := until - monotonic()) > 0:
            self._listen(answers, left)
        for rank in self._ranks:
            if answers.get(rank.number, {}).get("gone") or rank.process.poll() is not None:
                status = _status(rank.process)
                lost: Exception = losses.died(rank.number, status, doing, rank.last_words())
                break
        else:
            troubles = {rank: said for rank, said in answers.items() if "done" not in said}
            lost = losses.blamed(troubles)
        self.close()
        return lost

    def _silent(self, answers: Mapping[int, Any], doing: str, limit_s: float) -> Exception:
        """Nobody knows why: ask those who have not answered where they stand."""
        missing = [rank for rank in self._ranks if rank.number not in answers]
        for rank in missing:
            rank.process.send_signal(signal.SIGUSR1)
        sleep(SAY_S)
        words = {rank.number: rank.last_words() for rank in missing}
        self.close()
        return losses.silent(words, doing, limit_s)


def _status(process: subprocess.Popen[bytes]) -> int:
    """How it ended; one that has only closed its line is ended now."""
    try:
        return process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _start(number: int, threads: int) -> _Rank:
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    words = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the rank
    command = [
        sys.executable, "-P", "-m", "attnbench.measure.team.rank", str(its.fileno()),
        str(os.getpid()),
    ]  # fmt: skip
    process = subprocess.Popen(
        command, env=_variables(threads), pass_fds=(its.fileno(),), stdin=subprocess.DEVNULL,
        stdout=words, stderr=words,
    )  # fmt: skip
    its.close()
    return _Rank(number, process, ours, words)


def _variables(threads: int) -> dict[str, str]:
    """The worker's own, with each rank's share of its threads; they meet on this machine alone."""
    here = str(Path(__file__).resolve().parents[3])
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), here]))
    return {
        **os.environ, **environment(threads), "PYTHONPATH": path, "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
    }  # fmt: skip


def _settings(threads: int) -> Settings:
    """The worker's own settings, for its ranks."""
    return Settings(
        threads=threads, tf32=torch.get_float32_matmul_precision() == "high",
        reduced_precision_reduction=bool(
            torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
        ),
    )  # fmt: skip


_teams: dict[tuple[int, str], Team] = {}
"""Those that wait for the next cell, by how many they are and on what."""


def team_for(world: int, device: str) -> Team:
    """The team of so many that is there, or a new one."""
    key = (world, device.split(":")[0])
    team = _teams.get(key)
    if team is not None and team.alive and team.threads == max(1, torch.get_num_threads() // world):
        return team
    if team is not None:
        team.close()
    _teams[key] = Team(*key)
    return _teams[key]


def end_teams() -> None:
    """End all that wait."""
    while _teams:
        _teams.popitem()[1].close()
