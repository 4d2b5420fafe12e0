"""What the plain form is off by: on a problem's own inputs, and on more where that is not enough.

Trying it on more inputs can only make it worse. So whoever stays within what it makes of the
problem's own stays within what it makes of all, and those are tried only for whoever does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from attnbench.record import Error
from attnbench.truth.errors import worse
from attnbench.truth.findings import Wrong

Errors = Mapping[str, Error]


class Plain(dict[str, Error]):
    """The plain form's errors by tensor, on the problem's own inputs."""

    def __init__(self, near: Errors, others: Callable[[], Iterator[Errors]]) -> None:
        """``others``: what it makes of more inputs, found when they are asked for."""
        super().__init__(near)
        self._others = others
        self._wide: dict[str, Error] | None = None

    def wide(self) -> Errors:
        """The worst of all inputs, measure by measure."""
        if self._wide is None:
            wide = dict(self)
            for errors in self._others():
                wide = {name: worse(error, errors[name]) for name, error in wide.items()}
            self._wide = wide
        return self._wide


def within(plain: Errors, check: Callable[[Errors], None]) -> None:
    """Raise :class:`Wrong` as ``check`` does under what the plain form makes of all inputs."""
    if not isinstance(plain, Plain):
        check(plain)
        return
    try:
        check(plain)
    except Wrong:
        check(plain.wide())
