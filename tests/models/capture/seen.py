"""What a test asks of calls, and inputs to call with."""

import torch

from attnbench.models.capture.calls import SeenCalls, Site


def only(calls: SeenCalls) -> Site:
    (site,) = calls.sites
    return site


def said(calls: SeenCalls) -> list[tuple[str, str, int]]:
    """Problems by their slugs, how they were called, how often; in order of the slugs."""
    return sorted((str(s.problem), s.via, s.calls) for s in calls.sites)


def qkv(heads=4, kv_heads=4, n=16, m=16, d=8, **more):
    some = torch.Generator().manual_seed(0)
    return [
        torch.randn(2, h, length, d, generator=some, **more)
        for h, length in ((heads, n), (kv_heads, m), (kv_heads, m))
    ]
