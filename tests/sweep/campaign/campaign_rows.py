"""How the campaign's tables say of a hostile variant what it does and how its cell should end."""

from dataclasses import dataclass
from pathlib import Path

from impls.spec import Variant


def honest(problem, n=0):
    """What is right; ``n`` tells one such row from another."""
    from impls.dense.einsum import build

    return build(problem)


def beside(module):
    """The ``build`` of a module that lies beside the tables."""
    return f"{Path(__file__).with_name(module)}.py:build"


def at_first_call(problem, deed):
    """What is right, but for a deed when it is called the first time."""
    inner, done = honest(problem), []

    def attend(q, k, v):
        if not done:
            done.append(True)
            deed()
        return inner(q, k, v)

    return attend


@dataclass(frozen=True)
class Kind:
    """A fault: the statuses that its cell may end with, and a word of the reason or the note."""

    name: str
    statuses: tuple[str, ...]
    word: str = ""
    hangs: bool = False
    """It is given a short time."""
    quick: bool = False
    """Its worker lives, or it is of those that are tried by default though it does not."""

    @property
    def label(self):
        return f"c.{self.name}"


class Kinds:
    """The kinds of one table, and its rows."""

    def __init__(self, **always):
        self.all, self.rows, self._always = [], [], always

    def __call__(self, statuses, word="", *, row=None, **more):
        """The function that follows is the ``build`` of such a kind."""

        def take(function):
            name = function.__name__
            kind = Kind(name, tuple(statuses.split()), word, **{**self._always, **more})
            self.all.append(kind)
            self.rows.append(
                Variant(
                    name=kind.label,
                    title=name.replace("_", " "),
                    family="campaign",
                    **{"computes": "softmax", "build": f":{name}", **(row or {})},
                )
            )
            return function

        return take
