"""Measuring functions that behave well, and ones that do not."""

import math
import os
import signal
import subprocess
import sys
import time

from attnbench.claims.figures import Asked, Figure, Found, Table
from impls.asked import CantBeDone


def _found(value: float = 0.5) -> Found:
    return Found({"one": Figure(value)})


def well(asked: Asked) -> Found:
    print("a library says hello")
    return _found()


def environment(asked: Asked) -> Found:
    import torch

    rows = [[name, os.environ.get(name)] for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS",
                                                      "OMP_WAIT_POLICY")]  # fmt: skip
    rows.append(["torch", str(torch.get_num_threads())])
    return Found({"one": Figure(0.0)}, [str(asked.seed)], [Table("seen", ["name", "is"], rows)])


def refuses(asked: Asked) -> Found:
    raise CantBeDone("the file is not UTF-8 text; give one that is")


def raises(asked: Asked) -> Found:
    raise ZeroDivisionError("a fault of ours")


def exits(asked: Asked) -> Found:
    os._exit(3)


def segfaults(asked: Asked) -> Found:
    os.kill(os.getpid(), signal.SIGSEGV)
    return _found()


def hangs(asked: Asked) -> Found:
    time.sleep(600)
    return _found()


def leaves(asked: Asked) -> Found:
    """A process of its own that outlives it, unless somebody ends it."""
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    return Found({"one": Figure(0.5)}, [str(left.pid)])


def nan(asked: Asked) -> Found:
    return _found(math.nan)
