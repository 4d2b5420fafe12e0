"""``attnbench quality FORM``: what a variant costs a model. A room for each form."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from impls.asked import CantBeDone

if TYPE_CHECKING:
    import argparse

FORMS = {"recall": "quality_recall:recall"}
"""Where the function of each is, among the verbs."""


class NoSuchForm(CantBeDone):
    """Nothing, or something else, was named after the verb; a sentence."""


def quality(given: argparse.Namespace) -> int:
    """The form that was asked for."""
    if given.form not in FORMS:
        what = f"there is no quality {given.asked!r}" if given.asked else "quality of what kind?"
        raise NoSuchForm(f"{what}; its forms are {', '.join(FORMS)}: attnbench quality recall")
    module, function = FORMS[given.form].split(":")
    status: int = getattr(import_module(f"attnbench.verbs.{module}"), function)(given)
    return status
