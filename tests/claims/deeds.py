"""Measuring functions that behave well, and ones that do not."""

import os
import signal
import time

from attnbench.features.claims.claim import ClaimFigure, ClaimFindings, ClaimTable
from impls.errors import CantBeDone


def environment(request):
    import torch

    print("a library says hello")
    rows = [[name, os.environ.get(name)] for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY")]
    rows.append(["torch", str(torch.get_num_threads())])
    seen = ClaimTable("seen", ["name", "is"], rows)
    return ClaimFindings({"one": ClaimFigure(0.0)}, [str(request.seed)], [seen])


def refuses(request):
    raise CantBeDone("the file is not UTF-8 text; give one that is")


def raises(request):
    raise ZeroDivisionError("a fault of ours")


def segfaults(request):
    os.kill(os.getpid(), signal.SIGSEGV)


def hangs(request):
    time.sleep(600)
