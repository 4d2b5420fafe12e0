"""The attention calls of a program, as data: which problems, where, how often, for how long.

A **site** is a place in the program with one problem: ``seconds`` is the time of all its forward
calls together, ``backward_s`` of their gradients. Where the program trains, ``share`` is the site's
part of a step (from one optimizer's step to the next: the median over the steps of what attention
takes of one, split by their seconds among the sites that want gradients; the others have none).
Otherwise it is the part of the window from the start of the first call to the end of the last. On
a GPU, whose seconds are read later than its steps end, it is always of the window. It is None where
no time could be taken, and where calls of several threads, or of a GPU's streams, overlap so that
their seconds are more than there were. A site whose problem does not describe all of the call
(``faithful`` is false; ``note`` says what is missing) counts in the share and is not in
:meth:`SeenCalls.problems`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta, field
from msgspec.structs import replace

from attnbench.core.call import CallForm
from attnbench.core.disk import from_json, write_whole
from attnbench.core.format import counted, duration, percent
from attnbench.core.stats import Interval
from attnbench.core.wire import convert, plain
from impls.errors import CantBeDone
from impls.operators import PARAMETERS
from impls.problem import Problem

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 1
MANY = 1_000  # in so many calls, the first few don't move the mean

Count = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0, le=1e300)]


class Site(msgspec.Struct, frozen=True):
    """A place in a program where attention is called, with one problem."""

    problem: Problem
    site: str  # ``model.py:56 Attention.forward from train.py:30``
    via: str  # which function: ``sdpa``, ``mha``, ``flex``, ``transformers eager`` …
    calls: Count
    seconds: Seconds
    backward_s: Seconds = 0.0
    share: float | None = None
    note: str = ""
    call: CallForm | None = None
    """The form of the call; None where it could not be seen."""
    new_masks: Count = 0  # calls whose mask was a tensor that was not seen before
    changes: bool = False  # whether the mask hides other keys in other calls of the place
    faithful: bool = True
    """True where the problem describes all that the call computes, but for dropout."""

    @property
    def label(self) -> str:
        """``model.py:56 attend · b2 h4/4 …``"""
        return f"{self.site} · {self.problem}"

    @property
    def total_s(self) -> float:
        """Forward and backward."""
        return self.seconds + self.backward_s

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Site:
        """The site from its JSON values; fields that a later version added are ignored. Raises
        KeyError, TypeError, AttributeError or ValueError for what is none.
        """
        fields = {name: values["problem"][name] for name in plain(Problem())}
        set_ones = PARAMETERS.keys() & values["problem"].keys()
        fields |= {name: values["problem"][name] for name in set_ones}
        site = convert({**values, "problem": fields}, cls)
        if site.calls < 1 and not site.via.endswith("compiled"):
            raise ValueError(f"calls of {site.site} is {site.calls}")
        return site

    def plus(self, other: Site) -> Site:
        """This site with another's calls too."""
        return replace(
            self,
            calls=self.calls + other.calls,
            seconds=self.seconds + other.seconds,
            backward_s=self.backward_s + other.backward_s,
            new_masks=self.new_masks + other.new_masks,
        )


class SeenCalls(msgspec.Struct):
    """A program's attention calls, and sentences about what was not seen."""

    sites: list[Site] = field(default_factory=list)
    header: dict[str, Any] = field(default_factory=dict)
    """The command, versions, how many processes and threads were seen, how many calls were met."""
    unseen: list[str] = field(default_factory=list)  # sentences: what may be missing, and why
    complete: bool = True  # false while the program runs, and where it was cut off
    wall_s: Seconds = 0.0
    """From the first call's start to the last one's end, summed over processes; on the CPU less
    what recording took."""
    attention_s: Seconds = 0.0  # forward and backward of all calls that could be timed
    steps: Count = 0
    step_s: Seconds | None = None  # the median from one optimizer's step to the next
    step_share: Seconds | None = None
    """The median of the part of a step that is attention, forward and backward."""
    step_share_between: list[float] | None = None  # the interval of that median, by the steps alone

    def to_frame(self) -> pd.DataFrame:
        """A row a site: all its calls' time together, forward and backward, and that of one."""
        from attnbench.report import tidy

        return tidy.frame(
            {
                "site": s.site,
                "via": s.via,
                **tidy.flat(s),
                **tidy.flat({"call_s": self.a_call_s(s)}),
            }
            for s in self.sites
        )

    def sentence(self) -> str:
        """A sentence: attention's share of a step, or of the window."""
        if self.step_share is not None and self.step_s is not None:
            return (
                f"attention takes {percent(self.step_share)} of a training step of "
                f"{duration(self.step_s)} (medians over {self.steps} steps, from one optimizer's "
                "step to the next)"
            )
        if self.share is not None:
            return (
                f"attention takes {percent(self.share)} of {duration(self.wall_s)}, from the first "
                "call's beginning to the last one's end"
            )
        if not self.sites:
            return "attention calls were met, and none could be recorded: their share is not known"
        return "no call could be timed, so attention's share of the time is not known"

    def __repr__(self) -> str:
        return f"<{counted(len(self.sites), 'site')} of attention calls: {self.sentence()}>"

    def _repr_html_(self) -> str:
        from attnbench.report import tidy

        # of calls that overlap, a sentence about what could not be seen says so
        lines = self.unseen if self.overlap else [self.sentence(), *self.unseen]
        below = "".join(f"<p>{escape(line)}</p>" for line in lines)
        return (tidy.html(self.to_frame()) if self.sites else "") + below

    def share_of(self, site: Site) -> Interval | None:
        """The share of a site, with the interval of the median over the steps."""
        if site.share is None:
            return None
        if not self.step_share or self.step_share_between is None:
            return Interval.exactly(site.share)
        low, high = (site.share * x / self.step_share for x in self.step_share_between)
        return Interval(site.share, low, min(1.0, high))

    @property
    def share(self) -> float | None:
        """Attention's share of a step, or of the window where there are no steps."""
        part = self._part_of_time
        return min(part, 1.0) if part is not None and part <= 1.0 + 1e-6 else None

    @property
    def overlap(self) -> bool:
        """True where calls took more seconds together than there were."""
        return self._part_of_time is not None and self.share is None

    @property
    def _part_of_time(self) -> float | None:
        if self.step_share is not None:
            return self.step_share
        return self.attention_s / self.wall_s if self.wall_s > 0 < self.attention_s else None

    def a_call_s(self, site: Site) -> float | None:
        """Seconds of a call of a site, forward and backward; None where no time could be taken.

        The first calls, which warm up, would move the mean of few. So where the site's calls are
        few, of one process that trains, the time is that of a median step; there is one step more
        than times between two.
        """
        few = site.calls < MANY and self.header.get("processes") == 1
        if few and site.backward_s and self.step_share:
            in_a_step = (site.share or 0.0) * (self.step_s or 0.0)
            if in_a_step:
                return in_a_step * (self.steps + 1) / site.calls
        return site.total_s / site.calls or None

    def others_at(self, site: Site) -> list[tuple[CallForm, Problem]]:
        """The other calls that the same line makes."""
        here = (s for s in self.sites if (s.site, s.via) == (site.site, site.via) and s is not site)
        return [(s.call, s.problem) for s in here if s.call is not None]

    def problems(self) -> list[Problem]:
        """The problems that describe all of their calls, each once, by falling seconds."""
        spent: dict[Problem, float] = {}
        for site in self.sites:
            if site.faithful:
                spent[site.problem] = spent.get(site.problem, 0.0) + site.total_s
        return sorted(spent, key=lambda p: -spent[p])

    def facts(self) -> dict[str, Any]:
        """As its file holds them."""
        return {"calls": FORMAT, **plain(self)}

    def write(self, path: Path) -> None:
        """Replace the file as a whole; raises :class:`CantBeDone` where it can't be written."""
        try:
            write_whole(path, (json.dumps(self.facts(), indent=1) + "\n").encode(), sync=False)
        except OSError as error:
            raise CantBeDone(f"can't write {path}: {error.strerror}") from None

    @classmethod
    def read(cls, path: Path) -> SeenCalls:
        """The calls of a file; raises :class:`CantBeDone` for any other."""
        if path.exists() and not path.is_file():
            raise CantBeDone(f"can't read calls from {path}: it is no file")
        try:
            values = from_json(path.read_text())
        except OSError as error:
            raise CantBeDone(f"can't read calls from {path}: {error.strerror}") from None
        except ValueError:
            values = None
        if not isinstance(values, dict) or values.get("calls") != FORMAT:
            raise CantBeDone(
                f"{path} holds no captured calls; 'attnbench capture -- PROGRAM' makes such a file"
            )
        try:
            sites = [Site.read(s) for s in values.get("sites", [])]
            return msgspec.convert({**values, "sites": sites}, cls)
        except KeyError as error:
            raise CantBeDone(f"the calls in {path} are damaged: {error} is missing") from None
        except (TypeError, AttributeError, ValueError) as error:
            raise CantBeDone(f"the calls in {path} are damaged: {error}") from None


FEW = 4  # so many problems of a place that differ in lengths alone are kept apart
MOST = 48  # problems of one octave that are counted one by one
Sums = dict[Problem, Site]


class Gathered:
    """Sums by place, kind and octave, bounded however long the program runs."""

    def __init__(self) -> None:
        self._sums: dict[Any, dict[tuple[int, int], Sums]] = {}

    def add_all(self, sites: Iterable[Site]) -> Gathered:
        """Count these with those before that differ in lengths and a named mask's numbers alone;
        returns itself.
        """
        for site in sites:
            p = site.problem
            bare = p.with_(q_len=1, kv_len=1, mask=p.mask.of(()))
            names = str(p.mask) if any(m.file for m in p.mask.parts) else p.mask.kinds
            how = site.call and site.call.kind
            kind = site.site, site.via, site.note, site.faithful, bare, names, how
            some = self._sums.setdefault(kind, {}).setdefault(octave(p), {})
            if p not in some and len(some) >= MOST:
                p = min(some, key=lambda x: abs(x.kv_len - site.problem.kv_len))
                site = replace(site, problem=p)
            some[p] = some[p].plus(site) if p in some else site
        return self

    def sites(self) -> list[Site]:
        """Those of most seconds first, then those called most; many lengths are one an octave."""
        sites: list[Site] = []
        for octaves in self._sums.values():
            few = sum(map(len, octaves.values())) <= FEW
            for some in octaves.values():
                sites += some.values() if few or len(some) == 1 else [_one_of(some)]
        return sorted(sites, key=lambda s: (-s.total_s, -s.calls))

    def each(self) -> list[Site]:
        """One by one, before octaves are made of them."""
        octaves = [some for kind in self._sums.values() for some in kind.values()]
        return [site for some in octaves for site in some.values()]


def octave(problem: Problem) -> tuple[int, int]:
    """The powers of two that its lengths are within."""
    return (problem.q_len - 1).bit_length(), (problem.kv_len - 1).bit_length()


def _one_of(some: Sums) -> Site:
    """One site of a whole octave, that of most calls."""
    ordered = sorted(some.values(), key=lambda s: (-s.calls, str(s.problem)))
    total = reduce(Site.plus, ordered)
    lengths = sorted({site.problem.kv_len for site in ordered})
    span = " to ".join(map(str, dict.fromkeys((lengths[0], lengths[-1]))))
    note = (
        f"stands for {len(some)} problems of {span} keys{' and more' if len(some) >= MOST else ''}"
    )
    notes = "; ".join(filter(None, (total.note, note)))
    several = len({str(site.problem.mask) for site in ordered}) > 1
    return replace(total, note=notes, changes=several or total.changes)


def merged(parts: Sequence[SeenCalls]) -> SeenCalls:
    """All processes' calls in one, with shares; steps are of the process with most of them."""
    trained = max(parts, key=lambda c: c.steps, default=SeenCalls())
    header: dict[str, Any] = {}
    for part in reversed(parts):
        header |= part.header
    for name in ("processes", "threads"):
        header[name] = sum(int(part.header.get(name, 1)) for part in parts)
    if met := sum(int(part.header.get("met", 0)) for part in parts):
        header["met"] = met
    whole = replace(
        trained,
        header=header,
        unseen=list(dict.fromkeys(sentence for part in parts for sentence in part.unseen)),
        complete=all(part.complete for part in parts),
        wall_s=sum(part.wall_s for part in parts),
        attention_s=sum(part.attention_s for part in parts),
    )
    if whole.overlap:  # threads, or a GPU's streams, compute at the same time
        whole.unseen.append(
            "calls overlap, so that together they took longer than the time in which they were "
            "made: attention's share of the time is not known"
        )
    sites = Gathered().add_all(site for part in parts for site in part.sites).sites()
    masks: dict[tuple[str, str], set[str]] = {}
    for site in sites:
        masks.setdefault((site.site, site.via), set()).add(str(site.problem.mask))
    sites = [replace(s, changes=len(masks[s.site, s.via]) > 1 or s.changes) for s in sites]
    trains = [site for site in sites if site.problem.phase == "train"]
    of_training = whole.step_share is not None and bool(trains)
    total = sum(site.total_s for site in trains) if of_training else whole.attention_s
    share_of_all, whole.sites = whole.share if total > 0 else None, []
    for site in sites:
        counts = site.total_s > 0 and (site.problem.phase == "train" or not of_training)
        share = None if share_of_all is None or not counts else share_of_all * site.total_s / total
        whole.sites.append(replace(site, share=share))
    return whole
