"""The process that measures one claim: it is told what, and leaves what it found in a file.

Whoever started it holds its standard input open; when that closes, whoever it was is gone, and the
process ends with all that it started.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from threading import Thread
from typing import Any

from attnbench.claims.figures import Asked
from impls.asked import CantBeDone
from impls.loading import load_function


def main() -> None:
    """One line of JSON in, one file of JSON out."""
    line = b""
    while not line.endswith(b"\n"):
        if not (part := os.read(0, 1 << 16)):
            return  # whoever asked is gone
        line += part
    Thread(target=_end_with_parent, daemon=True).start()
    asked = json.loads(line)
    os.dup2(2, 1)  # what a library prints is no answer
    try:
        answer = _answer(asked)
    except CantBeDone as error:
        answer = {"cant": str(error)}
    draft = Path(asked["answer"] + ".new")
    draft.write_text(json.dumps(answer))
    draft.rename(asked["answer"])


def _answer(asked: dict[str, Any]) -> dict[str, Any]:
    told = Asked(**asked["asked"])
    if asked["torch"]:
        from attnbench.measure.settings import Settings, apply

        apply(Settings(threads=told.threads))
    found: dict[str, Any] = load_function(asked["how"])(told).to_dict()
    return found


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
