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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from attnbench.core.disk import is_no_file, write_whole
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
class SeenCalls:
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
    def read(cls, path: Path) -> SeenCalls:
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
    def _of(cls, values: dict[str, Any], path: Path, *, cut: bool) -> SeenCalls:
        known = {f.name: values[f.name] for f in fields(cls) if f.name in values}
        calls = cls(**{**known, "sites": [Site.from_dict(s) for s in values.get("sites", [])]})
        if cut:
            calls.complete = False
            calls.unseen = [
                *calls.unseen,
                f"{path} was cut off: {len(calls.sites)} sites could be read, and there were more",
            ]
        return calls


def _impossible(calls: SeenCalls) -> Iterator[str]:
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


FEW = 4
"""Problems of a place that differ in lengths alone and are still told apart."""
MOST = 48


class Kind(NamedTuple):
    """What calls have in common that are gathered."""

    site: str
    via: str
    scale: float
    note: str
    faithful: bool
    problem: Problem
    """With the lengths of one, and without the mask's numbers."""
    kinds: str


@dataclass(slots=True)
class CallSum:
    """Calls and their seconds."""

    calls: int = 0
    seconds: float = 0.0
    backward_s: float = 0.0
    samples: str = ""

    def add(self, other: CallSum) -> None:
        """Those of another too."""
        self.calls += other.calls
        self.seconds += other.seconds
        self.backward_s += other.backward_s
        self.samples = self.samples or other.samples


Octave = tuple[int, int]


class Gathered:
    """Sums by place, kind and octave, bounded however long the program runs."""

    def __init__(self) -> None:
        self._sums: dict[Kind, dict[Octave, dict[Problem, CallSum]]] = {}

    def add(self, site: Site) -> None:
        """Count these calls with those before."""
        octaves = self._sums.setdefault(_kind(site), {})
        some = octaves.setdefault(octave(site.problem), {})
        problem = site.problem
        if problem not in some and len(some) >= MOST:
            problem = min(some, key=lambda p: abs(p.kv_len - problem.kv_len))
        kept = site.samples if problem == site.problem else ""  # else it is of other lengths
        more = CallSum(site.calls, site.seconds, site.backward_s, kept)
        some.setdefault(problem, CallSum()).add(more)

    def add_all(self, sites: Iterable[Site]) -> Gathered:
        """All of these; gives itself back."""
        for site in sites:
            self.add(site)
        return self

    def sites(self) -> list[Site]:
        """Those of most seconds first, then those called most."""
        found = [s for kind, octaves in self._sums.items() for s in _told(kind, octaves)]
        return sorted(found, key=lambda s: (-(s.seconds + s.backward_s), -s.calls))

    def each(self) -> Iterator[Site]:
        """One by one, before octaves are made of them."""
        for kind, octaves in self._sums.items():
            for some in octaves.values():
                for problem, total in some.items():
                    yield _site(kind, problem, total, kind.note)


def _kind(site: Site) -> Kind:
    p = site.problem
    bare = p.with_(q_len=1, kv_len=1, mask=replace(p.mask, parts=()))
    names = str(p.mask) if any(m.file for m in p.mask.parts) else "+".join(p.mask.kinds)
    return Kind(site.site, site.via, site.scale, site.note, site.faithful, bare, names)


def octave(problem: Problem) -> Octave:
    """Which one its lengths are in."""
    return (problem.q_len - 1).bit_length(), (problem.kv_len - 1).bit_length()


def _told(kind: Kind, octaves: dict[Octave, dict[Problem, CallSum]]) -> Iterator[Site]:
    """Each problem by itself while they are few, else one of each octave."""
    few = sum(map(len, octaves.values())) <= FEW
    for some in octaves.values():
        if few or len(some) == 1:
            for problem, total in some.items():
                yield _site(kind, problem, total, kind.note)
        else:
            yield _one(kind, some)


def _one(kind: Kind, some: dict[Problem, CallSum]) -> Site:
    """One site of a whole octave."""
    total = CallSum()
    for each in some.values():
        total.add(each)
    chosen = _middle(some)
    kept = some[chosen].samples
    keys = [p.kv_len for p in some]
    span = f"{min(keys)} to {max(keys)} keys" if min(keys) < max(keys) else f"{keys[0]} keys"
    said = f"stands for {len(some)} problems of {span}" + " and more" * (len(some) >= MOST)
    note = "; ".join(filter(None, (kind.note, said)))
    return replace(_site(kind, chosen, total, note), samples=kept)


def _middle(some: dict[Problem, CallSum]) -> Problem:
    """The problem of the middle call by length, or the nearest to it that has a sample."""
    ordered = sorted(some, key=lambda p: (p.kv_len, p.q_len, str(p.mask)))
    left = sum(s.calls for s in some.values()) / 2
    at = -1
    while left > 0:
        at += 1
        left -= some[ordered[at]].calls
    at = max(at, 0)
    sampled = [n for n, p in enumerate(ordered) if some[p].samples]
    return ordered[min(sampled, key=lambda n: abs(n - at)) if sampled else at]


def _site(kind: Kind, problem: Problem, total: CallSum, note: str) -> Site:
    return Site(
        problem,
        kind.site,
        kind.via,
        total.calls,
        total.seconds,
        total.backward_s,
        scale=kind.scale,
        samples=total.samples,
        note=note,
        faithful=kind.faithful,
    )


def merged(parts: Sequence[SeenCalls]) -> SeenCalls:
    """One account of all. Steps are those of the process with most of them."""
    steps = max(parts, key=lambda c: c.steps, default=SeenCalls())
    gathered = Gathered().add_all(site for part in parts for site in part.sites)
    whole = SeenCalls(
        sites=gathered.sites(),
        header=_header(parts),
        unseen=list(dict.fromkeys(said for part in parts for said in part.unseen)),
        complete=all(part.complete for part in parts),
        wall_s=sum(part.wall_s for part in parts),
        attention_s=sum(part.attention_s for part in parts),
        steps=steps.steps,
        step_s=steps.step_s,
        step_share=steps.step_share,
        step_share_between=steps.step_share_between,
    )
    shares = _shares(whole)
    whole.sites = [
        _told_of_merged(site, share) for site, share in zip(whole.sites, shares, strict=True)
    ]
    if whole.overlap:
        whole.unseen.append(OVERLAP)
    return whole


def _shares(whole: SeenCalls) -> list[float | None]:
    """What is known of the time, split among the sites that it is of."""
    spent = [site.seconds + site.backward_s for site in whole.sites]
    total = whole.attention_s
    if whole.step_share is not None and any(s.problem.phase == "train" for s in whole.sites):
        spent = [
            s * (site.problem.phase == "train") for s, site in zip(spent, whole.sites, strict=True)
        ]
        total = sum(spent)
    known = whole.share if total > 0 else None
    return [known * s / total if s > 0 and known is not None else None for s in spent]


def _told_of_merged(site: Site, share: float | None) -> Site:
    """With its share, and its samples as the problem's inputs."""
    problem = site.problem
    if site.samples:
        problem = problem.with_(inputs=f"captured:{site.samples}")
    return replace(site, share=share, problem=problem)


OVERLAP = (
    "calls overlap, so that together they took longer than the time in which they were made: "
    "attention's share of the time is not known"
)
"""Said where threads, or a GPU's streams, compute at the same time."""


def _header(parts: Iterable[SeenCalls]) -> dict[str, object]:
    found: dict[str, object] = {}
    counted = {"processes": 0, "threads": 0}
    for part in parts:
        found = {**part.header, **found}
        for name in counted:
            counted[name] += int(part.header.get(name, 1))
    return {**found, **counted}
