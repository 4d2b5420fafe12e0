"""What several processes recorded, put together: sites gathered, their shares worked out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from attnbench.models.calls import Calls, Site
from attnbench.models.gathered import Gathered


def merged(parts: Sequence[Calls]) -> Calls:
    """One account of all. Steps are those of the process with most of them."""
    steps = max(parts, key=lambda c: c.steps, default=Calls())
    gathered = Gathered().add_all(site for part in parts for site in part.sites)
    whole = Calls(
        header=_header(parts),
        unseen=list(dict.fromkeys(said for part in parts for said in part.unseen)),
        complete=all(part.complete for part in parts),
        wall_s=sum(part.wall_s for part in parts),
        attention_s=sum(part.attention_s for part in parts),
        steps=steps.steps, step_s=steps.step_s, step_share=steps.step_share,
    )  # fmt: skip
    whole.sites = [_told(site, whole) for site in gathered.sites()]
    return whole


def _told(site: Site, whole: Calls) -> Site:
    """With its share, and its samples as the problem's inputs."""
    spent, share = site.seconds + site.backward_s, None
    if spent > 0 and whole.attention_s > 0 and whole.share is not None:
        share = whole.share * spent / whole.attention_s
    problem = site.problem
    if site.samples:
        problem = problem.with_(inputs=f"captured:{site.samples}")
    return replace(site, share=share, problem=problem)


def _header(parts: Iterable[Calls]) -> dict[str, object]:
    found: dict[str, object] = {}
    counted = {"processes": 0, "threads": 0}
    for part in parts:
        found = {**part.header, **found}
        for name in counted:
            counted[name] += int(part.header.get(name, 1))
    return {**found, **counted}
