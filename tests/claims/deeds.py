"""Measuring functions that behave well, and ones that do not."""

import os
import signal
import subprocess
import sys
import time

from attnbench.features.claims.claim import ClaimFigure, ClaimFindings, ClaimRequest, ClaimTable
from impls.asked import CantBeDone


def _found(value: float = 0.5) -> ClaimFindings:
    return ClaimFindings({"one": ClaimFigure(value)})


def well(request: ClaimRequest) -> ClaimFindings:
    print("a library says hello")
    return _found()


def environment(request: ClaimRequest) -> ClaimFindings:
    import torch

    rows = [
        [name, os.environ.get(name)]
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_WAIT_POLICY")
    ]
    rows.append(["torch", str(torch.get_num_threads())])
    return ClaimFindings(
        {"one": ClaimFigure(0.0)}, [str(request.seed)], [ClaimTable("seen", ["name", "is"], rows)]
    )


def refuses(request: ClaimRequest) -> ClaimFindings:
    raise CantBeDone("the file is not UTF-8 text; give one that is")


def raises(request: ClaimRequest) -> ClaimFindings:
    raise ZeroDivisionError("a fault of ours")


def segfaults(request: ClaimRequest) -> ClaimFindings:
    os.kill(os.getpid(), signal.SIGSEGV)
    return _found()


def hangs(request: ClaimRequest) -> ClaimFindings:
    time.sleep(600)
    return _found()


def leaves(request: ClaimRequest) -> ClaimFindings:
    """A process of its own that outlives it, unless somebody ends it."""
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    return ClaimFindings({"one": ClaimFigure(0.5)}, [str(left.pid)])
