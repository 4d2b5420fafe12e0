"""``attnbench reproduce [NAME …]``: claims that others made, put to the test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from attnbench.command.terminal import INTERRUPTED, say

if TYPE_CHECKING:
    import argparse

    from attnbench.features.claims.claim import Claim, ClaimOutcome
    from attnbench.features.claims.reproduce import Reproduction


def reproduce(given: argparse.Namespace) -> int:
    """All claims or some; the verdicts are kept beside the runs."""
    from attnbench.features.claims import claim as claims

    some = claims.find(given.names)
    if given.list:
        return _listed(given, some)
    import impls
    from attnbench.core.evidence import check_writable
    from attnbench.core.machine import this_machine
    from attnbench.features.claims.reproduce import Reproduction
    from attnbench.sweep.start import pinned

    machine = this_machine()
    threads = pinned(given.threads or 1, machine)
    check_writable(Path(given.out), machine)
    going = Reproduction(
        some,
        machine,
        impls.table(given.table),
        seed=given.seed or 0,
        threads=threads,
        embeddings=given.embeddings,
        budget_s=given.budget,
    )
    _try(going)
    kept = _kept(Path(given.out), going)
    say(f"kept in {kept}")
    if given.json:
        print(json.dumps([one.to_dict() for one in going.found], indent=1))
    else:
        _show(going.found, details=bool(given.names))
    return INTERRUPTED if going.stopped else _status(going.found)


def _listed(given: argparse.Namespace, some: list[Claim]) -> int:
    if given.json:
        print(json.dumps([claim.to_dict() for claim in some], indent=1))
    else:
        from attnbench.features.claims import view

        view.listed(some)
    return 0


def _try(going: Reproduction) -> None:
    from attnbench.features.claims.view import line
    from attnbench.sweep.plan import duration

    to_try = len(going.to_try)
    say(
        f"{len(going.claims)} claims, {to_try} of which can be tried here; about "
        f"{duration(60 * going.minutes)}"
    )
    try:
        for one in going.all():
            say(line(one))
    except KeyboardInterrupt:
        going.give_up()
    if going.stopped:
        say("stopped: what was found until then is kept")


def _show(found: list[ClaimOutcome], *, details: bool) -> None:
    from attnbench.features.claims import view

    if details:
        for one in found:
            view.details(one.to_dict())
    view.table([one.to_dict() for one in found])


def _kept(out: Path, going: Reproduction) -> Path:
    """The evidence, and a picture of each attention table beside it."""
    from attnbench.core.evidence import Evidence, made_here, save_evidence
    from attnbench.features.show import view

    made = made_here(going.machine, **going.how())
    path = save_evidence(out, Evidence("reproduce", made, [one.to_dict() for one in going.found]))
    for one in going.found:
        for each in one.found.maps:
            picture = path.with_name(f"{path.stem}-{each.name}.svg")
            view.draw(each.words, each.weights, each.title, picture)
            say(f"drawn in {picture}")
    return path


def _status(found: list[ClaimOutcome]) -> int:
    """1 where a claim is not reproduced; 2 where none could be tried."""
    from attnbench.features.claims.claim import ClaimVerdict

    verdicts = {one.verdict for one in found}
    if ClaimVerdict.NOT_REPRODUCED in verdicts:
        return 1
    if ClaimVerdict.REPRODUCED not in verdicts:
        say("attnbench: no claim was put to the test, for the reasons said")
        return 2
    return 0
