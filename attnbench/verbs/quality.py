"""``attnbench quality FORM``: what a variant costs a model. A room for each form."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from impls.asked import CantBeDone

if TYPE_CHECKING:
    import argparse

FORMS = {
    "recall": "quality_recall:recall", "model": "quality_model:model", "real": "quality_real:real",
}  # fmt: skip
"""Where the function of each is, among the verbs."""


class NoSuchForm(CantBeDone):
    """Nothing, or something else, was named after the verb; a sentence."""


def quality(given: argparse.Namespace) -> int:
    """The form that was asked for."""
    if given.form not in FORMS:
        what = f"there is no quality {given.asked!r}" if given.asked else "quality of what kind?"
        *some, last = (f"attnbench quality {form}" for form in FORMS)
        raise NoSuchForm(f"{what}; there are {', '.join(some)} and {last}")
    module, function = FORMS[given.form].split(":")
    status: int = getattr(import_module(f"attnbench.verbs.{module}"), function)(given)
    return status
