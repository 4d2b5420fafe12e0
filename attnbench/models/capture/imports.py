"""Something to be done as soon as a module has been imported, whenever that is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Deed = Callable[[], None]


class After(MetaPathFinder):
    """Finds nothing of its own: it asks those who do, and stays by while the module is loaded."""

    def __init__(self, deeds: dict[str, Deed], failed: Callable[[Exception], None]) -> None:
        """``failed`` is told of what goes wrong in a deed; whoever imports is not."""
        self._deeds, self._failed = deeds, failed

    def begin(self) -> None:
        """Do what is due of modules that are there already; wait for the others."""
        for name in [n for n in self._deeds if n in sys.modules]:
            self._do(self._deeds.pop(name))
        sys.meta_path.insert(0, self)

    def end(self) -> None:
        """Wait no longer."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def _do(self, deed: Deed) -> None:
        try:
            deed()
        except Exception as error:
            self._failed(error)

    def _loaded(self, name: str) -> None:
        if (deed := self._deeds.pop(name, None)) is not None:
            self._do(deed)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a module that is waited for, its loader watched; many ask and never load."""
        if name not in self._deeds:
            return None
        for finder in sys.meta_path:
            found = None if finder is self else finder.find_spec(name, path, target)
            if found is not None:
                if found.loader is not None:
                    found.loader = _Watched(found.loader, lambda: self._loaded(name))
                return found
        return None


class _Watched(Loader):
    """A loader that says when it is done, and is gone then."""

    def __init__(self, loader: Loader, deed: Deed) -> None:
        self._loader, self._deed = loader, deed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As it does."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """As it does; then the deed."""
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._deed()
