"""The other end of :mod:`attnbench.models.quality.apart`: the process that answers in stages."""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from attnbench.measure import settings
from impls.asked import CantBeDone

Answer = Callable[[Mapping[str, Any]], Iterator[dict[str, Any]]]


def main(answer: Answer) -> None:
    """Answer the question on standard input to the pipe whose number is the only argument.

    A sentence for whoever asked ends it as ``refused``, anything else that is raised as
    ``failed``; neither is this process's own failure.
    """
    asked = json.loads(sys.stdin.buffer.read())
    if asked["memory"]:
        resource.setrlimit(resource.RLIMIT_DATA, (asked["memory"], asked["memory"]))
    settings.apply(settings.Settings(**asked["settings"]))
    with os.fdopen(int(sys.argv[1]), "w") as pipe:

        def say(stage: Mapping[str, Any]) -> None:
            pipe.write(json.dumps(stage, allow_nan=False) + "\n")
            pipe.flush()

        try:
            for stage in answer(asked["question"]):
                say(stage)
        except CantBeDone as why:
            say({"refused": str(why)})
        except Exception as error:
            said = f"{type(error).__name__}: {error}".rstrip(": ").splitlines()[0]
            say({"failed": said})
