"""``attnbench reproduce [NAME …]``: claims that others made, put to the test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from attnbench.verbs import INTERRUPTED, say

if TYPE_CHECKING:
    import argparse

    from attnbench.claims.claim import Claim
    from attnbench.claims.outcome import Outcome
    from attnbench.claims.reproduce import Going


def reproduce(given: argparse.Namespace) -> int:
    """All claims or some; the verdicts are kept beside the runs."""
    from attnbench import claims

    some = claims.find(given.names)
    if given.list:
        return _listed(given, some)
    import impls
    from attnbench.claims.reproduce import Going
    from attnbench.machine import this_machine
    from attnbench.store import check_writable
    from attnbench.sweep.start import pinned

    machine = this_machine()
    threads = pinned(given.threads or 1, machine)
    check_writable(Path(given.out), machine)
    going = Going(
        some, machine, impls.table(given.table), seed=given.seed or 0, threads=threads,
        embeddings=given.embeddings,
        budget_s=given.budget,
    )  # fmt: skip
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
        from attnbench.report import reproduce_view

        reproduce_view.listed(some)
    return 0


def _try(going: Going) -> None:
    from attnbench.report.reproduce_view import line
    from attnbench.sweep.plan import duration

    to_try = len(going.to_try)
    say(f"{len(going.claims)} claims, {to_try} of which can be tried here; about "
        f"{duration(60 * going.minutes)}")  # fmt: skip
    try:
        for one in going.all():
            say(line(one))
    except KeyboardInterrupt:
        going.give_up()
    if going.stopped:
        say("stopped: what was found until then is kept")


def _show(found: list[Outcome], *, details: bool) -> None:
    from attnbench.report import reproduce_view

    if details:
        for one in found:
            reproduce_view.details(one.to_dict())
    reproduce_view.table([one.to_dict() for one in found])


def _kept(out: Path, going: Going) -> Path:
    """The evidence, and a picture of each attention table beside it."""
    from attnbench.report import map_picture
    from attnbench.store.evidence import Evidence, made_here, save_evidence

    made = made_here(going.machine, **going.how())
    path = save_evidence(out, Evidence("reproduce", made, [one.to_dict() for one in going.found]))
    for one in going.found:
        for each in one.found.maps:
            picture = path.with_name(f"{path.stem}-{each.name}.svg")
            map_picture.draw(each.words, each.weights, each.title, picture)
            say(f"drawn in {picture}")
    return path


def _status(found: list[Outcome]) -> int:
    """1 where a claim is not reproduced; 2 where none could be tried."""
    from attnbench.claims.verdict import Verdict

    verdicts = {one.verdict for one in found}
    if Verdict.NOT_REPRODUCED in verdicts:
        return 1
    if Verdict.REPRODUCED not in verdicts:
        say("attnbench: no claim was put to the test, for the reasons said")
        return 2
    return 0
