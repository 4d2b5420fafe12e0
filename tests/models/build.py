"""Tensors to call with, and what a test asks of captured calls."""

import torch


def qkv(n=16, m=None, *, batch=2, heads=4, kv_heads=None, width=8, seed=0, grad=False, **more):
    source, m, kv_heads = torch.Generator().manual_seed(seed), m or n, kv_heads or heads
    sizes = (heads, n), (kv_heads, m), (kv_heads, m)
    made = (torch.randn(batch, *size, width, generator=source, **more) for size in sizes)
    return [x.requires_grad_(grad) for x in made]


def only(calls):
    (site,) = calls.sites
    return site


def said(calls):
    """Problems by their slugs, how they were called, how often; in order of the slugs."""
    return sorted((str(s.problem), s.via, s.calls) for s in calls.sites)
