"""The command line, which reads as the product: a verb is loaded when it is called.

Data goes to stdout, prose to stderr. Exit status: 0 done, 1 a finding, 2 usage or environment.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from importlib import import_module
from typing import TYPE_CHECKING

from attnbench import __version__, arguments
from attnbench.verbs import INTERRUPTED, say
from attnbench.verbs.sigterm import as_ctrl_c
from attnbench.verbs.stdout import kept_open
from impls.asked import CantBeDone

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

VERBS = {
    "list": "see:show_list", "show": "see:show", "env": "env:env", "check": "check:check",
    "selfcheck": "selfcheck:selfcheck", "run": "run:run", "limits": "limits:limits",
    "compare": "compare:compare", "history": "history:history", "profile": "profile:profile",
    "choose": "choose:choose", "report": "report:report", "crossover": "crossover:crossover",
    "capture": "capture:capture", "reproduce": "reproduce:reproduce", "quality": "quality:quality",
}  # fmt: skip
"""Where the function of each is, among the verbs."""
KEEPS_A_PART = {"quality", "reproduce"}
"""Who keeps what was found until SIGTERM; the others write as they go."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb."""
    with kept_open():
        try:
            status = _called(arguments.parser().parse_args(argv))
            sys.stdout.flush()
        except KeyboardInterrupt:
            say("attnbench: stopped")
            return INTERRUPTED
        except CantBeDone as error:
            say(f"attnbench: {error}")
            return 2
        return status


def _called(given: argparse.Namespace) -> int:
    if given.version:
        print(__version__)
        return 0
    if given.help or given.verb is None:
        print(arguments.help_text())
        return 0 if given.help else 2
    if given.verb != "env" and getattr(given, "device", "") is None:
        _tell_of_an_idle_gpu()
    module, function = VERBS[given.verb].split(":")
    verb = getattr(import_module(f"attnbench.verbs.{module}"), function)
    with as_ctrl_c() if given.verb in KEEPS_A_PART else nullcontext():
        status: int = verb(given)
    return status


def _tell_of_an_idle_gpu() -> None:
    """Nobody said where: before all is measured on the CPU, say what keeps it from the GPU."""
    from attnbench.amiss import idle
    from attnbench.machine import this_machine

    if said := idle(this_machine()):
        say(f"note: {said}")
