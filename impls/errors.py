"""What was asked can't be done."""


class CantBeDone(Exception):
    """The text is a sentence for the user: the cause, and what can be done instead."""
