"""A row that says little, and what a test changes of it."""

from impls.spec import Variant


def row(**changes):
    values = {
        "name": "some.row",
        "title": "a row",
        "family": "dense",
        "computes": "softmax",
        "build": "some.module:build",
    }
    return Variant(**{**values, **changes})
