"""Errors for requests that can't be met."""


class CantBeDone(Exception):
    """The text is a sentence for the user: the cause, and what can be done instead."""
