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
        sites=gathered.sites(),
        header=_header(parts),
        unseen=list(dict.fromkeys(said for part in parts for said in part.unseen)),
        complete=all(part.complete for part in parts),
        wall_s=sum(part.wall_s for part in parts),
        attention_s=sum(part.attention_s for part in parts),
        steps=steps.steps, step_s=steps.step_s, step_share=steps.step_share,
        step_share_between=steps.step_share_between,
    )  # fmt: skip
    shares = _shares(whole)
    whole.sites = [_told(site, share) for site, share in zip(whole.sites, shares, strict=True)]
    if whole.overlap:
        whole.unseen.append(OVERLAP)
    return whole


def _shares(whole: Calls) -> list[float | None]:
    """What is known of the time, split among the sites that it is of."""
    spent = [site.seconds + site.backward_s for site in whole.sites]
    total = whole.attention_s
    if whole.step_share is not None and any(s.problem.phase == "train" for s in whole.sites):
        spent = [s * (site.problem.phase == "train")
                 for s, site in zip(spent, whole.sites, strict=True)]  # fmt: skip
        total = sum(spent)
    known = whole.share if total > 0 else None
    return [known * s / total if s > 0 and known is not None else None for s in spent]


def _told(site: Site, share: float | None) -> Site:
    """With its share, and its samples as the problem's inputs."""
    problem = site.problem
    if site.samples:
        problem = problem.with_(inputs=f"captured:{site.samples}")
    return replace(site, share=share, problem=problem)


OVERLAP = (
    "calls overlap, so that together they took longer than the time in which they were made: "
    "attention's share of the time is not known"
)
"""Said where threads, or a GPU's streams, compute at the same time."""


def _header(parts: Iterable[Calls]) -> dict[str, object]:
    found: dict[str, object] = {}
    counted = {"processes": 0, "threads": 0}
    for part in parts:
        found = {**part.header, **found}
        for name in counted:
            counted[name] += int(part.header.get(name, 1))
    return {**found, **counted}
