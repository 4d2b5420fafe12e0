"""What a test asks of calls."""

from attnbench.models.capture.calls import SeenCalls, Site


def only(calls: SeenCalls) -> Site:
    (site,) = calls.sites
    return site


def said(calls: SeenCalls) -> list[tuple[str, str, int]]:
    """Problems by their slugs, how they were called, how often; in order of the slugs."""
    return sorted((str(s.problem), s.via, s.calls) for s in calls.sites)
