"""``attnbench quality``: what a variant costs a model, in the form that was asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from impls.asked import CantBeDone

if TYPE_CHECKING:
    import argparse

FORMS = {"model": "quality_model:model", "real": "quality_real:real"}
"""Where the function of each is, among the verbs."""


class NoForm(CantBeDone):
    """Nothing was said of what is to be asked; a sentence."""


def quality(given: argparse.Namespace) -> int:
    """``attnbench quality FORM``"""
    if given.form not in FORMS:
        raise NoForm(f"say what of: attnbench quality {' or '.join(FORMS)}")
    module, function = FORMS[given.form].split(":")
    status: int = getattr(import_module(f"attnbench.verbs.{module}"), function)(given)
    return status
