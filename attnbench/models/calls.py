"""The attention calls of a program, as data: which problems, where, how often, for how long.

On disk one JSON object, the sites last, so that of a file that was cut off the sites before the
cut can still be read. It is replaced as a whole at each writing: who is killed leaves the last one.

A **site** is a place in the program with one problem: ``seconds`` are of all its forward calls
together, ``backward_s`` of their gradients. ``share`` is its part of a step where the program
trains (from one optimizer's step to the next: the median over the steps of what attention takes of
one, split by their seconds among the sites that want gradients, the others having none), else of
the window from the beginning of the first call to the end of the last. On a GPU, whose seconds are
read later than its steps end, it is of the window also where the program trains. It is None where
no time could be taken, and where calls of several threads, or of a GPU's streams, overlap so that
their seconds are more than there were. A site whose problem does not say
all of the call (``faithful`` is false; ``note`` says what is missing) counts in the share and is
not in :meth:`Calls.problems`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from math import isfinite
from pathlib import Path
from typing import Any

from attnbench.store.disk import is_no_file, write_whole
from impls.asked import CantBeDone
from impls.problem import Problem

FORMAT = 1
ROUNDING = 1e-6
"""By how much sums of seconds may be off, as a share."""
MANY = 1_000
"""Calls, of which the first few don't move the mean."""


@dataclass(frozen=True, slots=True)
class Site:
    """A place in a program where attention is called, with one problem."""

    problem: Problem
    site: str
    """``model.py:56 Attention.forward from train.py:30``"""
    via: str
    """Which function: ``sdpa``, ``mha``, ``flex``, ``transformers eager`` …"""
    calls: int
    seconds: float
    backward_s: float = 0.0
    share: float | None = None
    scale: float = 0.0
    samples: str = ""
    """A file of the q, k and v of one call."""
    note: str = ""
    faithful: bool = True
    """Whether the problem says all of what the call computes, but for dropout and scale."""

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {**asdict(self), "problem": self.problem.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Site:
        """Back from :meth:`to_dict`; what a later version added is left out."""
        known = {f.name: values[f.name] for f in fields(cls) if f.name in values}
        told = {f.name: values["problem"][f.name] for f in fields(Problem)}  # nothing is filled in
        return cls(**{**known, "problem": Problem.from_dict(told)})


@dataclass
class Calls:
    """What was seen of a program's attention, and what was not."""

    sites: list[Site] = field(default_factory=list)
    header: dict[str, Any] = field(default_factory=dict)
    """The command, the machine's device, versions, how many processes and threads were seen."""
    unseen: list[str] = field(default_factory=list)
    """Sentences: what may be missing, and why."""
    complete: bool = True
    """False while the program runs, and where it, or the file, was cut off."""
    wall_s: float = 0.0
    """From the first call's beginning to the last one's end, summed over processes; on the CPU less
    what recording took."""
    attention_s: float = 0.0
    """Forward and backward of all calls that could be timed."""
    steps: int = 0
    step_s: float | None = None
    """The median from one optimizer's step to the next."""
    step_share: float | None = None
    """The median of the part of it that is attention, forward and backward."""
    step_share_between: list[float] | None = None
    """Between what that median lies, by the steps alone."""

    @property
    def off(self) -> tuple[float, float]:
        """By what factors the share may be smaller and larger."""
        if not self.step_share or self.step_share_between is None:
            return 1.0, 1.0
        low, high = self.step_share_between
        return low / self.step_share, high / self.step_share

    @property
    def share(self) -> float | None:
        """What attention takes of a step, or of the window where there are no steps."""
        found = self._of_the_time
        return min(found, 1.0) if found is not None and found <= 1.0 + ROUNDING else None

    @property
    def overlap(self) -> bool:
        """Whether calls took more seconds together than there were."""
        return self._of_the_time is not None and self.share is None

    @property
    def _of_the_time(self) -> float | None:
        if self.step_share is not None:
            return self.step_share
        return self.attention_s / self.wall_s if self.wall_s > 0 < self.attention_s else None

    def a_call_s(self, site: Site) -> float | None:
        """What a call of a site took, forward and backward; None where no time could be taken.

        Of few calls the first, which warm up, would move the mean: where they are of one process
        that trains, it is of a median step, of which there is one more than times between two.
        """
        calls = site.calls
        if calls < MANY and self.header.get("processes") == 1 and site.backward_s:
            of_a_step = (site.share or 0.0) * (self.step_s or 0.0) if self.step_share else 0.0
            if of_a_step:
                return of_a_step * (self.steps + 1) / calls
        return (site.seconds + site.backward_s) / calls or None

    def problems(self) -> list[Problem]:
        """The problems that say all of their calls, each once, those of most seconds first."""
        spent: dict[Problem, float] = {}
        for site in self.sites:
            if site.faithful:
                spent[site.problem] = spent.get(site.problem, 0.0) + site.seconds + site.backward_s
        return sorted(spent, key=lambda p: -spent[p])

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values, the sites last."""
        rest = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "sites"}
        return {"calls": FORMAT, **rest, "sites": [s.to_dict() for s in self.sites]}

    def write(self, path: Path) -> None:
        """Replace the file as a whole."""
        try:
            write_whole(path, (json.dumps(self.to_dict(), indent=1) + "\n").encode(), sync=False)
        except OSError as error:
            raise CantBeDone(f"can't write {path}: {error.strerror}") from None

    @classmethod
    def read(cls, path: Path) -> Calls:
        """The calls of a file; of one that was cut off, what can be read, with a sentence."""
        if is_no_file(path):
            raise CantBeDone(f"can't read calls from {path}: it is no file")
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text"
            raise CantBeDone(f"can't read calls from {path}: {why}") from None
        try:
            values, cut = json.loads(text), False
        except (ValueError, RecursionError):
            values, cut = _before_the_cut(text), True
        if not isinstance(values, dict) or values.get("calls") != FORMAT:
            raise CantBeDone(
                f"{path} holds no captured calls; 'attnbench capture -- PROGRAM' makes such a file"
            )
        try:
            found = cls._of(values, path, cut=cut)
        except KeyError as error:
            raise CantBeDone(f"the calls in {path} are damaged: {error} is missing") from None
        except (TypeError, AttributeError) as error:
            raise CantBeDone(f"the calls in {path} are damaged ({error})") from None
        if said := next(_impossible(found), None):
            raise CantBeDone(f"the calls in {path} are damaged: {said}")
        return found

    @classmethod
    def _of(cls, values: dict[str, Any], path: Path, *, cut: bool) -> Calls:
        known = {f.name: values[f.name] for f in fields(cls) if f.name in values}
        calls = cls(**{**known, "sites": [Site.from_dict(s) for s in values.get("sites", [])]})
        if cut:
            calls.complete = False
            calls.unseen = [
                *calls.unseen,
                f"{path} was cut off: {len(calls.sites)} sites could be read, and there were more",
            ]
        return calls


def _impossible(calls: Calls) -> Iterator[str]:
    """Counts and seconds that can't be; shares are looked at where something is made of them."""
    for name in ("wall_s", "attention_s", "steps", "step_s", "step_share"):
        value = getattr(calls, name)
        if value is not None and not _counted(value):
            yield f"{name} is {value!r}"
    for site in calls.sites:
        for name in ("calls", "seconds", "backward_s"):
            value = getattr(site, name)
            uncounted = site.via.endswith("compiled")  # met when its code was compiled
            if not _counted(value) or (name == "calls" and value < 1 and not uncounted):
                yield f"{name} of {site.site} is {value!r}"


def _counted(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and isfinite(value) and value >= 0


def _before_the_cut(text: str) -> dict[str, Any]:
    """The values of an object whose end is missing, and those of its sites that are whole."""
    found: dict[str, Any] = {}
    for name, value in _members(text):
        found[name] = value
    return found


def _members(text: str) -> Iterator[tuple[str, Any]]:
    """Names and values one by one, for as long as they can be read."""
    decoder = json.JSONDecoder()
    at = text.find("{") + 1
    while at > 0:
        try:
            name, at = decoder.raw_decode(text, _past(text, at, ","))
            start = _past(text, at, ":")
            if name == "sites":
                yield name, list(_elements(text, text.index("[", start) + 1))
                return
            value, at = decoder.raw_decode(text, start)
        except (ValueError, IndexError, RecursionError):
            return
        yield name, value


def _elements(text: str, at: int) -> Iterator[Any]:
    """The whole elements of a list that begins there."""
    decoder = json.JSONDecoder()
    while True:
        try:
            value, at = decoder.raw_decode(text, _past(text, at, ","))
        except (ValueError, IndexError, RecursionError):
            return
        yield value


def _past(text: str, at: int, mark: str) -> int:
    """Where the next value begins, past blanks and one mark."""
    while text[at].isspace() or text[at] == mark:
        at += 1
    return at
