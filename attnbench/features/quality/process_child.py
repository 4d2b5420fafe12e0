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
from typing import Any

from attnbench.core import settings
from attnbench.core.process_child import Tell, die_with_parent, teller
from impls.asked import CantBeDone

Answer = Callable[[Mapping[str, Any]], Iterator[dict[str, Any]]]


def main(answer: Answer) -> None:
    """Answer each line of standard input to the pipe whose number is the only argument."""
    die_with_parent()
    tell = teller(allow_nan=False)
    for line in sys.stdin.buffer:
        child = os.fork()
        if child == 0:
            try:
                die_with_parent()
                os.setsid()
                _answered(json.loads(line), answer, tell)
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(0)
        _, status = os.waitpid(child, 0)
        tell({"ended": os.waitstatus_to_exitcode(status)})


def _answered(asked: Mapping[str, Any], answer: Answer, tell: Tell) -> None:
    """One question's stages. A sentence for whoever asked ends them as ``refused``, anything else
    that is raised as ``failed``; neither is this process's own failure.
    """
    tell({"child": os.getpid()})
    if asked["memory"]:
        resource.setrlimit(resource.RLIMIT_DATA, (asked["memory"], asked["memory"]))
    settings.apply(settings.Settings(**asked["settings"]))
    try:
        for stage in answer(asked["question"]):
            tell(stage)
    except CantBeDone as why:
        tell({"refused": str(why)})
    except Exception as error:
        said = f"{type(error).__name__}: {error}".rstrip(": ").splitlines()[0]
        tell({"failed": said})
