"""One of the processes that share a call."""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import signal
import socket
import sys
from typing import Any

DIE_WITH_PARENT = 1
"""prctl's PR_SET_PDEATHSIG."""
MESSAGE, FILES = 1 << 20, 1


def _answer(member: Any, asked: dict[str, Any], files: list[int]) -> dict[str, Any]:
    from attnbench.gate.findings import Wrong
    from attnbench.meter.cell import failure
    from attnbench.meter.ranks import EXCHANGE
    from impls.spec import Unavailable, Unsupported

    try:
        return {"done": member.answer(asked, files)}
    except Wrong as wrong:
        return {"wrong": str(wrong)}
    except Unsupported as why:
        return {"unsupported": str(why)}
    except Unavailable as why:
        return {"unavailable": [why.reason, why.remedy]}
    except Exception as error:
        failed = failure(error)
        exchanging = bool(EXCHANGE.search(failed.get("detail", "")))
        return {"failed": failed, "exchanging": exchanging}


def main(line: int, worker: int) -> None:
    """Answer until the worker closes the line, or is gone."""
    ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != worker:  # it went before that was asked for
        return
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # says where it stands, also from within a library
    with socket.socket(fileno=line) as asking:
        from attnbench.meter.rank_member import Member

        member = Member()
        while True:
            message, files, _, _ = socket.recv_fds(asking, MESSAGE, FILES)
            if not message:
                os._exit(0)  # its threads wait for nobody
            answer = _answer(member, json.loads(message), files)
            asking.send(json.dumps(answer).encode())


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
