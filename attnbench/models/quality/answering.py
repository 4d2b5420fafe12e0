"""The other end of :mod:`attnbench.models.quality.apart`: a process that forks for each question.

What it imports before is there in each child at once. It computes nothing itself: a thread that
torch had started would not be there after a fork.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

from attnbench.measure import settings
from impls.asked import CantBeDone

Answer = Callable[[Mapping[str, Any]], Iterator[dict[str, Any]]]


def main(answer: Answer) -> None:
    """Answer each line of standard input to the pipe whose number is the only argument."""
    with os.fdopen(int(sys.argv[1]), "w") as pipe:
        for line in sys.stdin.buffer:
            child = os.fork()
            if child == 0:
                try:
                    os.setsid()
                    _answered(json.loads(line), answer, pipe)
                finally:
                    sys.stdout.flush()
                    sys.stderr.flush()
                    os._exit(0)
            _, status = os.waitpid(child, 0)
            _say(pipe, {"ended": os.waitstatus_to_exitcode(status)})


def _answered(asked: Mapping[str, Any], answer: Answer, pipe: IO[str]) -> None:
    """One question's stages. A sentence for whoever asked ends them as ``refused``, anything else
    that is raised as ``failed``; neither is this process's own failure.
    """
    _say(pipe, {"child": os.getpid()})
    if asked["memory"]:
        resource.setrlimit(resource.RLIMIT_DATA, (asked["memory"], asked["memory"]))
    settings.apply(settings.Settings(**asked["settings"]))
    try:
        for stage in answer(asked["question"]):
            _say(pipe, stage)
    except CantBeDone as why:
        _say(pipe, {"refused": str(why)})
    except Exception as error:
        said = f"{type(error).__name__}: {error}".rstrip(": ").splitlines()[0]
        _say(pipe, {"failed": said})


def _say(pipe: IO[str], stage: Mapping[str, Any]) -> None:
    pipe.write(json.dumps(stage, allow_nan=False) + "\n")
    pipe.flush()
