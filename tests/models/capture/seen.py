"""What a test asks of calls."""

from attnbench.models.calls import Calls, Site


def only(calls: Calls) -> Site:
    (site,) = calls.sites
    return site


def said(calls: Calls) -> list[tuple[str, str, int]]:
    """Problems by their slugs, how they were called, how often; in order of the slugs."""
    return sorted((str(s.problem), s.via, s.calls) for s in calls.sites)
