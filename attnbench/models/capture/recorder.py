"""What is recorded of a program while it runs: one recorder a process, at the most one at a time.

A call is looked at after it was made, outside of its clock, and the time that looking takes is
taken off what the program took. Whatever goes wrong in looking is counted and said, never raised:
the program goes on as it would have.
"""

from __future__ import annotations

import os
import platform
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from math import prod
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch._C import _functorch as functorch

from attnbench.models.capture.calls import SeenCalls, Site, octave
from attnbench.models.capture.masks import FoundMask, Masks
from attnbench.models.capture.originals import Place, Where, found_in, place_of, told, where
from attnbench.models.capture.tally import (
    WHOLE,
    Compiled,
    Later,
    SiteEntry,
    StepTimes,
    Tally,
    ThreadCounts,
    sentences,
)
from attnbench.models.mask_of import FULL, causal_of, has_data, phase_of, problem_of
from impls.asked import CantBeDone
from impls.masks import Shape
from impls.problem import Problem

if TYPE_CHECKING:
    from collections.abc import Callable

    pass
    pass


class SiteRequest(NamedTuple):
    """All that the site of a call follows from."""

    where: Where
    via: str
    q: tuple[int, ...]
    k: tuple[int, ...]
    v: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    gradients: bool
    found: FoundMask
    scale: float | None
    dropout: float
    note: str
    faithful: bool


class CapturedCall(NamedTuple):
    """The arguments of one call, as it was made."""

    via: str
    q: Tensor
    k: Tensor
    v: Tensor
    attn_mask: Tensor | None = None
    is_causal: bool = False
    scale: float | None = None
    dropout: float = 0.0
    bias: Tensor | None = None
    found: Callable[[Masks, Shape], FoundMask] | None = None
    """What finds the mask, where it isn't a tensor."""
    note: str = ""
    faithful: bool = True
    heads: int = 0
    """Where batch and heads are one axis: how many heads."""
    whole: bool = False
    """Whether it does more than attention, so that its seconds say nothing."""

    def asked(self, where: Where, masks: Masks) -> SiteRequest:
        """What it asks."""
        forms = [four(x, self.heads) for x in (self.q, self.k, self.v)]
        times = mapped(self.q, self.k, self.v)
        q, k, v = ((times * form[0], *form[1:]) for form in forms)
        shape = Shape(q[0], q[1], q[2], k[2])
        mask = self.attn_mask
        if mask is not None and self.q.dim() == 3 and mask.dim() == 3:
            heads = self.heads if mask.shape[0] > 1 else 0
            mask = mask.unflatten(0, (-1, heads)) if heads else mask[:, None]
        if times > 1 and (mask is not None or self.found is not None):
            found = FoundMask(FULL, "torch.vmap maps it, and what its mask hides is not known")
        elif self.found is not None:
            found = self.found(masks, shape)
        else:
            found = masks.of(mask, self.is_causal, shape, where, self.bias)
        return SiteRequest(
            where,
            self.via,
            q,
            k,
            v,
            _dtype(self.q),
            self.q.device,
            wants_gradients(self),
            found,
            self.scale,
            self.dropout,
            self.note,
            self.faithful,
        )


def mapped(*given: Tensor) -> int:
    """How many calls torch.vmap makes one of: no tensor says so in its shape."""
    sizes: dict[int, int] = {}
    for x in given:
        while functorch.is_functorch_wrapped_tensor(x):
            inner = functorch.get_unwrapped(x)
            if functorch.is_batchedtensor(x):
                level = functorch.maybe_get_level(x)
                sizes[level] = inner.shape[functorch.maybe_get_bdim(x)]
            x = inner
    return prod(sizes.values())


def wants_gradients(call: CapturedCall) -> bool:
    """Whether a backward pass may come of it."""
    given = (call.q, call.k, call.v)
    return torch.is_grad_enabled() and any(x.requires_grad for x in given)


def four(x: Tensor, heads: int) -> tuple[int, ...]:
    """[batch, heads, length, width] of what may have fewer axes, or more."""
    shape = tuple(x.shape)
    if len(shape) == 4:
        return shape
    if heads:
        return (shape[0] // heads, heads, *shape[1:])
    if len(shape) == 3:
        return (shape[0], 1, *shape[1:])
    return (prod(shape[:-3]), *shape[-3:]) if len(shape) > 3 else (1, 1, *shape)


def _dtype(x: Tensor) -> torch.dtype:
    """The dtype that attention runs in: autocast's where that is on."""
    kind = x.device.type
    if kind in ("cpu", "cuda") and x.dtype != torch.float64 and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return x.dtype


def site_of(asked: SiteRequest) -> Site:
    """A site without calls; raises a sentence where there is no such problem."""
    device = asked.device.type if asked.device.type != "meta" else "cpu"
    shape = Shape(asked.q[0], asked.q[1], asked.q[2], asked.v[2])
    phase = phase_of(shape, asked.found.mask, gradient=asked.gradients)
    problem = problem_of(asked.q, asked.v, asked.dtype, device, asked.found.mask, phase)
    scale = problem.scale if asked.scale is None else float(asked.scale)
    return Site(
        problem,
        told(asked.where),
        asked.via,
        0,
        0.0,
        scale=scale,
        note=_note(asked, problem),
        faithful=asked.faithful and not asked.found.note,
    )


def _note(asked: SiteRequest, problem: Problem) -> str:
    notes = [asked.found.note, asked.note]
    if asked.dropout:
        notes.append(f"it drops {asked.dropout:g} of the weights, and the problem none")
    if asked.scale is not None and abs(asked.scale - problem.scale) > 1e-6 * problem.scale:
        notes.append(f"its scores are scaled by {asked.scale:.4g}, the problem's by their own rule")
    if asked.device.type == "meta":
        notes.append("on the meta device: nothing was computed")
    return "; ".join(filter(None, notes))


PENDING = 512
"""Pairs of events that may wait before those that have passed are read."""


class ClockSum(Protocol):
    """Where seconds are added."""

    def add(self, seconds: float, *, backward: bool) -> None:
        """Count these seconds."""


class HostSpan:
    """Around a call that has been computed when it returns."""

    def begin(self) -> Any:
        """What :meth:`end` needs."""
        return perf_counter()

    def end(self, begun: Any, to: ClockSum, *, backward: bool, less: float = 0.0) -> None:
        """Add the seconds since, less those that the program would not have taken."""
        to.add(perf_counter() - begun - less, backward=backward)


class Nothing(HostSpan):
    """Around a call that computes nothing."""

    def end(self, begun: Any, to: ClockSum, *, backward: bool, less: float = 0.0) -> None:
        """No time."""


class Events(HostSpan):
    """Around a call that is queued on a GPU."""

    def __init__(self) -> None:
        self._pending: deque[tuple[Any, Any, ClockSum, bool]] = deque()
        self._lock = threading.Lock()
        self.used = False

    def begin(self) -> Any:
        """An event, recorded; none while a graph is captured, where it would be part of it."""
        if torch.cuda.is_current_stream_capturing():
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def end(self, begun: Any, to: ClockSum, *, backward: bool, less: float = 0.0) -> None:
        """Another event; the seconds between them are added when both have passed.

        ``less`` is the host's time, meanwhile the GPU goes on.
        """
        event = self.begin() if begun is not None else None
        if event is None:
            return
        self.used = True
        with self._lock:
            self._pending.append((begun, event, to, backward))
        if len(self._pending) > PENDING:
            self.read(wait=False)

    def read(self, *, wait: bool) -> float | None:
        """Add what has passed; all of it if it may wait. When it had passed, if it did wait."""
        waited = False
        with self._lock:
            while self._pending and (self._pending[0][1].query() or wait):
                begun, ended, to, backward = self._pending.popleft()
                if not ended.query():
                    ended.synchronize()
                    waited = True
                to.add(begun.elapsed_time(ended) / 1e3, backward=backward)
        return perf_counter() if waited else None


class Begun(NamedTuple):
    """A call that is being made: its clock, what that has read, and the host's time."""

    clock: HostSpan
    mark: Any
    since: float


class Clocks:
    """The clock for each kind of tensor."""

    def __init__(self) -> None:
        self.events = Events()
        self._host, self._nothing = HostSpan(), Nothing()

    def begin(self, x: Tensor) -> Begun:
        """Just before a call on this tensor."""
        clock = (self.events if x.is_cuda else self._host) if has_data(x) else self._nothing
        since = perf_counter()
        return Begun(clock, clock.begin(), since)


MOST = 48
"""Nodes of a call; where there are more, nobody waits for its gradient."""


class Gradient:
    """The hooks of one call."""

    __slots__ = ("_begun", "_clock", "_entry", "_looked", "_tally", "_within")

    def __init__(self, entry: SiteEntry, tally: Tally, clock: HostSpan) -> None:
        self._entry, self._tally, self._clock = entry, tally, clock
        self._begun: Any = None
        self._looked = 0.0
        self._within: list[Later] = []

    def enter(self, _: Any) -> None:
        """Before the first node."""
        counts = self._tally.mine()
        self._looked = counts.looked
        self._within = counts.within = []
        self._begun = self._clock.begin()

    def leave(self, *_: Any) -> None:
        """After the oldest one."""
        if self._begun is not None:
            begun, self._begun = self._begun, None
            counts = self._tally.mine()
            less = counts.looked - self._looked
            self._clock.end(begun, self._entry, backward=True, less=less)
            counts.ended(perf_counter())
            for call in self._within:
                call.off(self._entry)
            if counts.within is self._within:
                counts.within = None


def watch(
    out: Tensor, ends: Iterable[Tensor | None], entry: SiteEntry, tally: Tally, clock: HostSpan
) -> None:
    """Put the hooks on what a call added to the graph."""
    first = out.grad_fn
    if first is None:
        return
    stop = {x.grad_fn for x in ends if x is not None and x.grad_fn is not None}
    oldest = _oldest(first, stop)
    if oldest is not None:
        gradient = Gradient(entry, tally, clock)
        first.register_prehook(gradient.enter)
        oldest.register_hook(gradient.leave)


def _oldest(first: Any, stop: set[Any]) -> Any:
    found, todo = set[Any](), [first]
    while todo:
        node = todo.pop()
        if node in stop or node in found or type(node).__name__ == "AccumulateGrad":
            continue
        if len(found) >= MOST:
            return None
        found.add(node)
        todo += [n for n, _ in node.next_functions if n is not None]
    return min(found, key=lambda n: n._sequence_nr(), default=None)


SAMPLES_MOST = 32
BYTES = 2**30


class Samples:
    """Files of one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._had: set[Any] = set()
        self._left = BYTES
        self.skipped = 0

    def keep(self, place: str, problem: Problem, qkv: tuple[Tensor, Tensor, Tensor]) -> str:
        """The file of this call's tensors; nothing where there is one of its kind, or no room."""
        kind = (place, problem.phase, octave(problem), problem.heads, problem.head_dim)
        size = sum(x.numel() * min(x.element_size() * 2, 8) for x in qkv)
        with self._lock:
            if kind in self._had:
                return ""
            if len(self._had) >= SAMPLES_MOST or size > self._left:
                self.skipped += 1
                return ""
            self._had.add(kind)
            self._left -= size
        arrays = {name: _array(x) for name, x in zip("qkv", qkv, strict=True)}
        if not all(np.isfinite(x).all() for x in arrays.values()):
            return ""
        file = self._new_file()
        np.savez(file, **arrays)
        return str(file)

    def _new_file(self) -> Path:
        """By a number that no file has: earlier captures of this process may have left some."""
        self.folder.mkdir(parents=True, exist_ok=True)
        names = (self.folder / f"{os.getpid()}-{number:02}.npz" for number in count(1))
        with self._lock:
            file = next(name for name in names if not name.exists())
            file.touch()
        return file


def _array(x: Tensor) -> Any:
    x = x.detach()
    return (x.float() if x.dtype == torch.bfloat16 else x).cpu().numpy()


ENTRIES = 4096


class Recorder:
    """Counts calls until it is asked what they were."""

    def __init__(self, masks: Path | None = None, samples: Path | None = None) -> None:
        self._masks = Masks(masks)
        self.samples = None if samples is None else Samples(samples)
        self.restart()

    def restart(self) -> None:
        """Nothing was called yet; what masks are is still known."""
        self.clocks = Clocks()
        self.tally = Tally()
        self.steps = StepTimes(self.tally)
        self.compiled = Compiled()
        self.amiss: Counter[str] = Counter()
        """What could not be recorded, by reason."""
        self.written: Counter[str] = Counter()
        """Attention that was written out as products and a softmax, by its place."""
        self._entries: dict[SiteRequest, SiteEntry] = {}
        self._lock = threading.Lock()
        self.on_first: Callable[[], None] | None = None
        """Called once, as soon as there is anything to tell."""

    def made(self, call: Callable[[], CapturedCall], out: Any, begun: Begun) -> None:
        """Record a call that was made; ``call`` says which."""
        ended, until = Later(), perf_counter()
        try:
            begun.clock.end(begun.mark, ended, backward=False)  # before anything else takes time
            until = perf_counter()  # the call's seconds lie within its window
            self._made(call(), out, begun, ended, until)
        except Exception as error:
            self.failed(error)
        self.tally.mine().looked += perf_counter() - until

    def _begun(self) -> None:
        if self.on_first is not None:
            first, self.on_first = self.on_first, None
            first()

    def wrote_out(self, place: str) -> None:
        """Attention was written out there, once more."""
        self.written[place] += 1
        self._begun()

    def not_put(self, reason: str, times: int = 1) -> None:
        """So many calls have no site, for this reason."""
        if times:
            self.amiss[reason] += times
            self._begun()

    def failed(self, error: Exception) -> None:
        """Something went wrong in recording."""
        first = (str(error) or "no more is known").splitlines()[0]
        self.amiss[f"{type(error).__name__}: {first[:160]}"] += 1

    def _made(self, call: CapturedCall, out: Any, begun: Begun, ended: Later, until: float) -> None:
        asked = call.asked(where(), self._masks)
        entry = self._entries.get(asked) or self._entry(asked, call)
        if not call.whole:
            ended.to(entry)
            self.tally.within_gradient(ended)
        self.tally.called(entry, begun.since, until)
        self._begun()
        if entry.site is None or call.whole:
            self.amiss[WHOLE if call.whole else entry.why] += 1
        out = out[0] if isinstance(out, tuple) else out
        if asked.gradients and isinstance(out, Tensor) and out.requires_grad:
            ends = (call.q, call.k, call.v, call.attn_mask, call.bias)
            watch(out, ends, entry, self.tally, begun.clock)

    def _entry(self, asked: SiteRequest, call: CapturedCall) -> SiteEntry:
        site, samples, why = None, "", ""
        try:
            site = site_of(asked)
        except CantBeDone as error:
            why = str(error)
        plain = has_data(call.q) and call.q.dim() == 4 and mapped(call.q, call.k, call.v) == 1
        if site and self.samples and plain:
            samples = self.samples.keep(site.site, site.problem, (call.q, call.k, call.v))
        entry = SiteEntry(site, self.tally, samples or why)
        with self._lock:
            if len(self._entries) >= ENTRIES:
                self._entries.clear()
            self._entries[asked] = entry
        return entry

    def calls(self, *, complete: bool) -> SeenCalls:
        """What was recorded so far, its sites still to be gathered."""
        passed = self.clocks.events.read(wait=complete) if self.clocks.events.used else None
        if passed is not None:
            self.tally.lasted(passed)
        by_host = not self.clocks.events.used
        steps = self.steps.told(by_host=by_host)
        skipped = self.samples is not None and bool(self.samples.skipped)
        return SeenCalls(
            sites=[*self.tally.sites(), *self.compiled.sites],
            header={
                "torch": torch.__version__,
                "python": platform.python_version(),
                "threads": self.tally.working_threads(),
                "processes": 1,
            },
            unseen=sentences(self.compiled, self.amiss, self.written, skipped=skipped),
            complete=complete,
            wall_s=self.tally.window(looking=not by_host),
            attention_s=self.tally.attention_s(),
            **steps,
        )


class Now:
    """One for a process: its recorder, or none."""

    def __init__(self) -> None:
        self.recorder: Recorder | None = None

    @property
    def on(self) -> bool:
        """Whether anybody records."""
        return self.recorder is not None

    def state(self) -> ThreadCounts:
        """What this thread is in the middle of, also where recording has ended meanwhile."""
        recorder = self.recorder
        return ThreadCounts() if recorder is None else recorder.tally.mine()

    def begin(self, query: Any, *, nested: bool = False) -> Begun | None:
        """Just before a call; None where it will not be recorded."""
        recorder = self.recorder
        if recorder is None or not isinstance(query, Tensor):
            return None
        if torch.jit.is_tracing():
            recorder.amiss[
                "torch.jit traced it, and what is traced is not called by its sizes"
            ] += 1
            return None
        if query.is_nested and not nested:
            recorder.amiss["its tensors are nested, and a problem's are not"] += 1
            return None
        return recorder.clocks.begin(query)

    def made(self, call: Callable[[], CapturedCall], out: Any, begun: Begun) -> None:
        """Just after it; ``call`` says which it was. Inside of a library's it is a part of that."""
        if (recorder := self.recorder) is None:
            return
        state = recorder.tally.mine()
        if state.outer is not None:
            state.calls.append(call)
        else:
            recorder.made(call, out, begun)

    def written_out(self, place: str) -> None:
        """Attention that was written out there."""
        if (recorder := self.recorder) is not None:
            recorder.wrote_out(place)

    def met(self, context: Any, read: Callable[[Any, Recorder], Any]) -> None:
        """A call that torch's compiler met, and what reads its arguments."""
        if (recorder := self.recorder) is not None:
            read(context, recorder)


NOW = Now()


NOTE = "compiled into larger code: how often it ran, and for how long, is not known"


def sdpa_call(context: Any, recorder: Recorder) -> None:
    """A call of ``F.scaled_dot_product_attention``, by its arguments' names."""
    site = None
    try:
        site = site_of(_asked(context))
    except CantBeDone as error:
        recorder.amiss[str(error)] += 1
    except Exception as error:  # how the compiler keeps its values may change with its version
        recorder.amiss[f"torch.compile did not say what it is: {error!r:.120}"] += 1
    recorder.compiled.add(site)


def _asked(context: Any) -> SiteRequest:
    q, k, v = (context.get_local(name).as_fake() for name in ("query", "key", "value"))
    masked, causal, scale, dropout = (
        _constant(context, name) for name in ("attn_mask", "is_causal", "scale", "dropout_p")
    )
    forms = (four(q, 0), four(k, 0), four(v, 0))
    shape = Shape(forms[0][0], forms[0][1], forms[0][2], forms[1][2])
    found = FoundMask(causal_of(shape) if causal is True else FULL)
    if masked is not None:
        found = FoundMask(FULL, "its mask has no values while it is compiled")
    return SiteRequest(
        found_in(_places(context)),
        "sdpa, compiled",
        *forms,
        q.dtype,
        q.device,
        torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)),
        found,
        scale if isinstance(scale, float) else None,
        dropout if isinstance(dropout, float) else 0.0,
        NOTE,
        True,
    )


def nameless(_: Any, recorder: Recorder) -> None:
    """A call of which nothing is asked."""
    recorder.compiled.add(None)


def _constant(context: Any, name: str) -> Any:
    """The value of an argument that is one, or something that is none of them."""
    try:
        return context.get_local(name).as_python_constant()
    except Exception:
        return ...


def _places(context: Any) -> Iterator[Place]:
    """The frames that are being traced, the innermost first."""
    frame = context._i_will_not_complain_if_bc_breaks_InstructionTranslator()
    while frame is not None:
        yield place_of(frame.f_code, frame.lineno)
        frame = getattr(frame, "parent", None)
