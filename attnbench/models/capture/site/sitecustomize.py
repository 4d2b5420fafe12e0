"""Found by every Python that a captured program starts, because its folder is in ``PYTHONPATH``.

It stands before the ``sitecustomize`` that may be there besides, so it runs that first. Whatever
goes wrong here is left as a note: the program begins as it would have.
"""

import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path

_HERE = Path(__file__).parent.resolve()  # the file itself may be a link
_ROOT = str(_HERE.parents[3])
_KNOWN_BY = {"attnbench": "models/capture/child.py", "impls": "masks.py"}


class _Ours:
    """Finds the package that captures, whichever one is installed there, and nothing else."""

    @staticmethod
    def find_spec(name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name.partition(".")[0] not in _KNOWN_BY or (path is None and _its_own(name)):
            return None
        return importlib.machinery.PathFinder.find_spec(name, path or [_ROOT], target)


def _its_own(name: str) -> str | None:
    finders = [x for x in sys.meta_path if x is not _Ours and hasattr(x, "find_spec")]
    spec = next((spec for x in finders if (spec := x.find_spec(name, None))), None)
    some = [*(spec.submodule_search_locations or ()), spec.origin] if spec else []
    places = [place for place in some if place]
    ours = any((Path(place) / _KNOWN_BY[name]).is_file() for place in places)
    return None if ours or not places else places[0]


def _why_not() -> str | None:
    for name in _KNOWN_BY:
        if (place := _its_own(name)) is not None:
            return (
                f"it has a package {name} of its own, {place}, and recording needs ours; rename it"
            )
    return None


rest = [p for p in sys.path if Path(p or ".").resolve() != _HERE]
spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
if spec is not None and spec.loader is not None:
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
folder = Path(os.environ.get("ATTNBENCH_CAPTURE", os.devnull))
if folder.is_dir():
    try:
        sys.meta_path.insert(0, _Ours)
        from attnbench.models.capture import child

        child.begin(_why_not)
        for name in [n for n in sys.modules if n.partition(".")[0] in _KNOWN_BY]:
            del sys.modules[name]  # the program may have modules of these names
    except Exception as error:
        (folder / f"{os.getpid()}.error").write_text(f"{type(error).__name__}: {error}")
