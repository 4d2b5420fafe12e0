"""Found by every Python that a captured program starts, because its folder is in ``PYTHONPATH``.

It stands before the ``sitecustomize`` that may be there besides, so it runs that first. Whatever
goes wrong here is left as a note: the program begins as it would have.
"""

import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_ROOT = str(_HERE.parents[3])


class _Ours:
    """Finds the package that captures, whichever one is installed there, and nothing else."""

    @staticmethod
    def find_spec(name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name.partition(".")[0] not in ("attnbench", "impls"):
            return None
        return importlib.machinery.PathFinder.find_spec(name, path or [_ROOT], target)


def _the_other() -> None:
    """The ``sitecustomize`` that would have been found without this one."""
    rest = [p for p in sys.path if Path(p or ".").resolve() != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def _begin() -> None:
    folder = Path(os.environ["ATTNBENCH_CAPTURE"])
    try:
        sys.meta_path.insert(0, _Ours)
        from attnbench.models.capture import child

        child.begin()
    except Exception as error:
        note = folder / f"{os.getpid()}.amiss"
        note.write_text(f"{type(error).__name__}: {error}")


_the_other()
if "ATTNBENCH_CAPTURE" in os.environ and Path(os.environ["ATTNBENCH_CAPTURE"]).is_dir():
    _begin()
