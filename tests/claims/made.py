"""Claims, figures and machines made up for tests."""

from attnbench.features.claims.claim import Claim, ClaimPoint, ClaimRule, Needs

SOURCE = {"title": "a page", "author": "somebody", "where": "nowhere", "read": "all of it"}


def point(name="one", rule=ClaimRule.AT_MOST, published=1.0, tolerance=0.0, **more):
    return ClaimPoint(name, f"what {name} says", ClaimRule(rule), published, tolerance, **more)


def claim(*points, name="made-up", measure="tests.claims.deeds:environment", needs=None, **more):
    points, needs = points or (point(),), needs or Needs()
    return Claim(name, "it is so", SOURCE, "as it is", points, measure, needs, **more)
