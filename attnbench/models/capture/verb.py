"""``attnbench capture [--out FILE] [--samples] -- PROGRAM ARGS…``: a program's attention calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from attnbench.command.terminal import INTERRUPTED, say
from impls.asked import CantBeDone

if TYPE_CHECKING:
    import argparse


def capture(given: argparse.Namespace) -> int:
    """``attnbench capture -- PROGRAM``"""
    from attnbench.models.capture.program import how, ran

    if not given.program:
        raise CantBeDone(
            "capture needs a program after --, as in: attnbench capture -- python train.py"
        )
    out = Path(given.out)
    found = ran(given.program, out, samples=given.samples, quiet=given.json)
    if given.json:
        print(json.dumps(found.calls.to_dict()))
    else:
        from attnbench.models.capture import view

        view.show(found.calls, out)
    if found.status:
        say(
            f"attnbench: the program ended with {how(found.status)}; what it called until then is "
            f"in {out}"
        )
        return INTERRUPTED if found.status in (-2, INTERRUPTED) else 2
    return 0
