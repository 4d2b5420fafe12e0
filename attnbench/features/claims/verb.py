"""``attnbench reproduce [NAME …]``: test published claims."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from attnbench.command.terminal import INTERRUPTED, say

if TYPE_CHECKING:
    import argparse

    from attnbench.features.claims.claim import Claim
    from attnbench.features.claims.reproduce import Reproduction


def reproduce(given: argparse.Namespace) -> int:
    """Test all claims or some; the outcomes are kept beside the runs.

    1 where a claim is not reproduced; 2 where none could be tried.
    """
    from attnbench.features.claims import claim as claims
    from attnbench.features.claims import view

    some = claims.find(given.names)
    if given.list and given.json:
        print(json.dumps([claim.to_dict() for claim in some], indent=1))
    elif given.list:
        view.list_claims(some)
    if given.list:
        return 0
    series = _run(given, some)
    say(f"kept in {_keep(Path(given.out), series)}")
    rows = [one.to_dict() for one in series.outcomes]
    if given.json:
        print(json.dumps(rows, indent=1))
    else:
        for row in rows if given.names else ():
            view.details(row)
        view.table(rows)
    verdicts = {one.verdict for one in series.outcomes}
    if series.stopped:
        return INTERRUPTED
    if not verdicts & {claims.ClaimVerdict.REPRODUCED, claims.ClaimVerdict.NOT_REPRODUCED}:
        say("attnbench: no claim was put to the test, for the reasons said")
        return 2
    return int(claims.ClaimVerdict.NOT_REPRODUCED in verdicts)


def _run(given: argparse.Namespace, some: list[Claim]) -> Reproduction:
    import impls
    from attnbench.core.evidence import check_writable
    from attnbench.core.machine import this_machine
    from attnbench.features.claims.reproduce import Reproduction
    from attnbench.features.claims.view import line
    from attnbench.sweep.plan import duration
    from attnbench.sweep.start import pinned

    machine = this_machine()
    threads = pinned(given.threads or 1, machine)
    check_writable(Path(given.out), machine)
    series = Reproduction(
        some,
        machine,
        impls.table(given.table),
        seed=given.seed or 0,
        threads=threads,
        embeddings=given.embeddings,
        budget_s=given.budget,
    )
    say(
        f"{len(series.claims)} claims, {len(series.to_try)} of which can be tried here; about "
        f"{duration(60 * series.minutes)}"
    )
    try:
        for one in series.run():
            say(line(one))
    except KeyboardInterrupt:  # between two claims
        series.stopped = True
        list(series.run())
    if series.stopped:
        say("stopped: what was found until then is kept")
    return series


def _keep(out: Path, series: Reproduction) -> Path:
    """Write the evidence, and a picture of each attention table beside it."""
    from attnbench.core.evidence import Evidence, made_here, save_evidence
    from attnbench.features.show import view

    made = made_here(series.machine, **series.settings())
    rows = [one.to_dict() for one in series.outcomes]
    path = save_evidence(out, Evidence("reproduce", made, rows))
    for one in series.outcomes:
        for each in one.findings.maps:
            picture = path.with_name(f"{path.stem}-{each.name}.svg")
            view.draw(each.words, each.weights, each.title, picture)
            say(f"drawn in {picture}")
    return path
