"""The command line. A verb's code is loaded when it is called.

Data goes to stdout, prose to stderr. Exit status: 0 done, 1 a finding, 2 usage or environment.
"""

from __future__ import annotations

import sys
import warnings
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

VERBS = {
    "list": "features.show.verb:show_list",
    "show": "features.show.verb:show",
    "env": "features.show.verb:env",
    "check": "features.selfcheck.verb:check",
    "selfcheck": "features.selfcheck.verb:selfcheck",
    "run": "features.run.verb:run",
    "tune": "features.tune.verb:tune",
    "limits": "features.limits.verb:limits",
    "compare": "features.commits.verb:compare",
    "history": "features.commits.verb:history",
    "profile": "features.profile.verb:profile",
    "choose": "features.choose.verb:choose",
    "report": "features.report.verb:report",
    "crossover": "features.crossover.verb:crossover",
    "capture": "models.capture.program:capture",
    "reproduce": "features.claims.verb:reproduce",
    "quality": "features.quality.verb:quality",
}
"""The module and function of each verb."""


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status of one verb. Imports are inside, so that Ctrl-C never shows a traceback."""
    try:
        from attnbench.command.terminal import kept_open

        with kept_open():
            return _status(argv)
    except KeyboardInterrupt:
        print("attnbench: stopped", file=sys.stderr)
        return 130


def _status(argv: Sequence[str] | None) -> int:
    """The exit status of a verb; an exception becomes a sentence."""
    import os

    from attnbench.command.terminal import say
    from attnbench.core.record import DamagedRun
    from impls.errors import CantBeDone

    def show_warning(
        message: Any, category: type[Warning], filename: str, lineno: int, *_: Any, **__: Any
    ) -> None:
        if issubclass(category, DamagedRun):
            say(f"note: {message}")
        else:
            sys.stderr.write(warnings.formatwarning(message, category, filename, lineno))

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default", DamagedRun)
            warnings.showwarning = show_warning
            status = _call(argv)
        sys.stdout.flush()
    except CantBeDone as error:
        say(f"attnbench: {error}")
        return 2
    except Exception as error:
        if os.environ.get("ATTNBENCH_TRACEBACK"):
            raise
        say(f"attnbench: {_unexpected(error)}")
        return 2
    return status


def _unexpected(error: Exception) -> str:
    """A sentence for an error that has none of its own."""
    from traceback import walk_tb

    again = "ATTNBENCH_TRACEBACK=1 in the environment shows all of it"
    if isinstance(error, MemoryError):
        return "there is not enough memory for this; ask for less"
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}, so this can't be done; {again}"
    frame, line = [*walk_tb(error.__traceback__)][-1]
    text = (str(error).splitlines() or [""])[0][:300]
    return (
        f"unexpected {type(error).__name__} ({text}) in {frame.f_globals.get('__name__')}, line "
        f"{line}: an input is not what it should be, or attnbench has a fault; {again}"
    )


def _call(argv: Sequence[str] | None) -> int:
    from attnbench import __version__
    from attnbench.command import arguments
    from attnbench.command.terminal import as_ctrl_c, say

    options = arguments.parser().parse_args(argv)
    if options.version:
        print(__version__)
        return 0
    if options.completion:
        import shtab

        print(shtab.complete(arguments.parser(), options.completion))
        return 0
    if options.help or options.verb is None:
        print(arguments.help_text())
        return 0 if options.help else 2
    with as_ctrl_c():
        if options.verb != "env" and getattr(options, "device", "") is None:
            from attnbench.core.machine import idle_gpu, this_machine

            if note := idle_gpu(this_machine()):  # where no device was given and there is one
                say(f"note: {note}")
        module, function = VERBS[options.verb].split(":")
        call = getattr(import_module(f"attnbench.{module}"), function)
        if getattr(options, "tables", False):
            from attnbench.report.tables import as_markdown

            with as_markdown():
                return int(call(options))
        return int(call(options))
