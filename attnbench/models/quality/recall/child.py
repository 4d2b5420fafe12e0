"""The process of one training: a job comes in on standard input, lines of JSON go out.

What a variant prints would come between them, so the lines get the stream that was standard output
when the process began, and everything printed goes to standard error.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

DIE_WITH_PARENT = 1
"""prctl's PR_SET_PDEATHSIG."""


def main() -> int:
    """Train; the last line is how it ended."""
    ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def tell(what: Mapping[str, Any]) -> None:
        print(json.dumps(what), file=lines, flush=True)

    tell(_trained(json.load(sys.stdin), tell))
    return 0


def _trained(sent: Mapping[str, Any], tell: Any) -> dict[str, str]:
    """How it ended: a status and, unless it was trained, a sentence."""
    from attnbench.models.built import NotServed
    from attnbench.models.quality.recall.setting import Job
    from attnbench.models.quality.recall.train import Training

    job = Job.from_dict(sent)
    try:
        why = Training(job).run(tell)
    except NotServed as refused:
        return {"status": "unsupported", "reason": str(refused)}
    except Exception as error:
        said = " ".join(str(error).split())[:500]
        return {"status": "failed", "reason": f"{type(error).__name__}: {said}"}
    return {"status": "cut_short" if why else "trained", "reason": why}


if __name__ == "__main__":
    sys.exit(main())
