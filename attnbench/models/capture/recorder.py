"""What is recorded of a program while it runs: one recorder a process, and at most one at a time.

A call is looked at after it was made, outside of its clock, and the time that looking takes is
taken off what the program took. Whatever goes wrong in looking is counted and reported, never
raised: the program goes on as it would have.
"""

from __future__ import annotations

import os
import platform
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from math import prod
from pathlib import Path
from time import perf_counter, time_ns
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from msgspec.structs import replace
from torch import Tensor
from torch._C import _functorch as functorch

from attnbench.core.call import CallForm
from attnbench.meter.audit import owner_of
from attnbench.models.capture import clocks
from attnbench.models.capture.calls import SeenCalls, Site, octave
from attnbench.models.capture.clocks import Entry, Span, Steps, Tally, ThreadState, watch_gradient
from attnbench.models.capture.kernels import (
    HowCalled,
    chosen,
    observed,
    repeated_heads,
    why_math,
)
from attnbench.models.capture.masks import FoundMask, Masks
from attnbench.models.capture.met import CompiledCalls, Place, in_generated, is_generated
from attnbench.models.mask_of import has_data, phase_of, problem_of
from impls.errors import CantBeDone
from impls.masks import Shape
from impls.problem import Problem, is_usual

if TYPE_CHECKING:
    from attnbench.models.capture.advice import Advice

Where = tuple[Place | None, Place | None]
"""The model's line and the user's; None where there is no such, or it is the same."""


def where() -> Where:
    """Where the call comes from that is being recorded."""
    model: Place | None = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        kind = KINDS.get(file) or _kind_of(file)
        if kind == "other" or (kind == "library" and model is None):
            place = file, frame.f_lineno, frame.f_code.co_qualname
            if kind == "other":
                return model, place
            model = place
        frame = frame.f_back
    return model, None


def first_of(places: Iterable[Place]) -> Where:
    """The first line of a model among these, the innermost first, and the first of the user's."""
    model: Place | None = None
    for place in places:
        kind = _kind_of(place[0])
        if kind == "other":
            return model, place
        if kind == "library" and model is None:
            model = place
    return model, None


KINDS: dict[str, str] = {}
"""Of each file that was asked about: whose it is."""


def _kind_of(file: str) -> str:
    """Whose file it is; of transformers, its models alone count as a library's."""
    if file not in KINDS:
        generated = file.startswith("<") and not file.startswith(OWN_WORDS)
        of_transformers = "/transformers/" in file and "/diffusers/" not in file
        passed = of_transformers and "/transformers/models/" not in file
        if generated or passed or is_generated(file):
            KINDS[file] = "torch"
        else:
            KINDS[file] = "library" if of_transformers else owner_of(file)
    return KINDS[file]


OWN_WORDS = ("<stdin>", "<ipython", "<string>")
"""How files begin that hold a user's own code, and are none."""


def place_text(found: Where) -> str:
    """``modeling_llama.py:262 LlamaAttention.forward from train.py:30``"""
    lines = [f"{Path(place[0]).name}:{place[1]}" for place in found if place is not None]
    if not lines:
        return "nowhere that could be told"
    name = next(place[2] for place in found if place is not None).replace("<locals>.", "")
    named = lines[0] + (f" {name}" if name != "<module>" else "")
    return " from ".join([named, *lines[1:]])


Form = tuple[int, ...]


class SiteRequest(NamedTuple):
    """All that the site of a call follows from."""

    where: Where
    via: str
    q: Form
    k: Form
    v: Form
    dtype: torch.dtype
    device: torch.device
    gradients: bool
    found: FoundMask
    scale: float | None = None
    dropout: float = 0.0
    note: str = ""
    faithful: bool = True
    how: HowCalled | None = None

    def phase(self, *, gradient: bool) -> str:
        """The phase of the call; ``gradient``: whether a backward pass follows."""
        shape = Shape(self.q[0], self.q[1], self.q[2], self.v[2])
        return phase_of(shape, self.found.mask, gradient=gradient)

    def site(self) -> Site:
        """A site without calls; raises CantBeDone where there is no such problem."""
        meta = self.device.type == "meta"
        mask = self.found.mask
        phase = self.phase(gradient=self.gradients)
        device = "cpu" if meta else self.device.type
        problem = problem_of(self.q, self.v, self.dtype, device, mask, phase)
        scaled = self.scale is not None and not is_usual(self.scale, problem.head_dim)
        notes = {
            self.found.note: True,
            self.note: True,
            f"it drops {self.dropout:g} of the weights, and the problem none": self.dropout > 0,
            f"its scores are scaled by {self.scale or 0:.4g}, and not as the problem's": scaled,
            "on the meta device: nothing was computed": meta,
        }
        return Site(
            problem,
            place_text(self.where),
            self.via,
            calls=0,
            seconds=0.0,
            scale=problem.scale if self.scale is None else float(self.scale),
            note="; ".join(note for note, so in notes.items() if note and so),
            faithful=self.faithful and not self.found.note,
        )


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
    find_mask: Callable[[Masks, Shape], FoundMask] | None = None
    """What finds the mask, where it isn't a tensor."""
    note: str = ""
    faithful: bool = True
    heads: int = 0  # where batch and heads are one axis: how many heads
    whole: bool = False  # whether it does more than attention, so that its seconds say nothing
    how: HowCalled | None = None
    ends: tuple[Tensor, ...] = ()
    """Where the gradient ends, if not at q, k and v: those are then views in another layout."""
    most_nodes: int = clocks.MOST_NODES  # of its gradient, where that is to be timed
    weights_kept: bool = False  # whether the program was seen to use the weights it wrote out

    def request(self, where: Where, masks: Masks) -> tuple[SiteRequest, bool]:
        """What its site follows from, in the dtype that attention runs in under autocast; and
        whether its mask is a tensor that was not seen before.
        """
        q, k, v = (_four(x, self.heads) for x in (self.q, self.k, self.v))
        gradients = any(x.requires_grad for x in self.ends or (self.q, self.k, self.v))
        gradients = torch.is_grad_enabled() and gradients
        new = False
        if self.find_mask is not None:
            found = self.find_mask(masks, Shape(q[0], q[1], q[2], k[2]))
        else:
            seen, new = self.look(where, masks)
            found = seen or masks.of(None, self.is_causal, Shape(q[0], q[1], q[2], k[2]))
        dtype, device = self.q.dtype, self.q.device
        known = device.type in ("cpu", "cuda") and dtype != torch.float64
        if known and torch.is_autocast_enabled(device.type):
            dtype = torch.get_autocast_dtype(device.type)
        more = self.scale, self.dropout, self.note, self.faithful, self.how
        request = SiteRequest(where, self.via, q, k, v, dtype, device, gradients, found, *more)
        return request, new

    def look(self, where: Where, masks: Masks) -> tuple[FoundMask | None, bool]:
        """Its mask, and whether that is a tensor that was not seen before; None for no tensor."""
        mask = self.attn_mask
        if mask is None and self.bias is None:
            return None, False
        q, k = _four(self.q, self.heads), _four(self.k, self.heads)
        if mask is not None and len(self.q.shape) == 3 and mask.dim() == 3:
            heads = self.heads if mask.shape[0] > 1 else 0
            mask = mask.unflatten(0, (-1, heads)) if heads else mask[:, None]
        shape = Shape(q[0], q[1], q[2], k[2])
        return masks.look(mask, self.is_causal, shape, where, self.bias)


def _four(x: Tensor, heads: int) -> Form:
    """[batch, heads, length, width] of what may have fewer axes, or more."""
    shape = tuple(x.shape)
    if len(shape) == 4:
        return shape
    if heads:
        return (shape[0] // heads, heads, *shape[1:])
    if len(shape) == 3:
        return (shape[0], 1, *shape[1:])
    return (prod(shape[:-3]), *shape[-3:]) if len(shape) > 3 else (1, 1, *shape)


SAMPLES_MOST = 32
SAMPLES_BYTES = 2**30


class Samples:
    """Files in a folder, each with the q, k and v of one call of a place and kind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.skipped = False
        self._lock = threading.Lock()
        self._kinds: set[Any] = set()
        self._left = SAMPLES_BYTES

    def keep(self, place: str, problem: Problem, qkv: tuple[Tensor, Tensor, Tensor]) -> str:
        """The file of this call's tensors; "" where there is one of its kind, or no room."""
        kind = (place, problem.phase, octave(problem), problem.heads, problem.head_dim)
        size = sum(x.numel() * min(x.element_size() * 2, 8) for x in qkv)
        with self._lock:
            if kind in self._kinds:
                return ""
            if len(self._kinds) >= SAMPLES_MOST or size > self._left:
                self.skipped = True
                return ""
            self._kinds.add(kind)
            self._left -= size
        wide = [x.float() if x.dtype == torch.bfloat16 else x for x in qkv]
        arrays: list[Any] = [x.detach().cpu().numpy() for x in wide]
        if not all(np.isfinite(x).all() for x in arrays):
            return ""
        self.folder.mkdir(parents=True, exist_ok=True)
        file, (q, k, v) = self.folder / f"{os.getpid()}-{time_ns()}.npz", arrays
        np.savez(file, q=q, k=k, v=v)
        return str(file)


ENTRIES, CAUSES = 4096, 256
"""Calls unlike each other that are known at a time, and reasons why calls are not recorded."""
RUNS = {
    "mha": "math",
    "fast path": "math",
    "eager": "written out",
    "products": "written out",
    "flex": "flex, not compiled",
    "flex compiled": "flex",
}
"""What runs, by the function that is called, where torch chooses no kernel."""
LOOKING = 0.01
"""The part of a program's time that looking at masks again may take."""
HOST, NONE = clocks.SpanClock(), clocks.NoClock()


class Recorder:
    """Counts calls until it is asked for them."""

    def __init__(self, masks: Path | None = None, samples: Path | None = None) -> None:
        self.advice: Advice | None = None
        self.masks = Masks(masks, self.affordable)
        self.samples = None if samples is None else Samples(samples)
        self.restart()

    def restart(self) -> None:
        """Forget all calls; what masks are is still known."""
        self.gpu, self.tally = clocks.GpuClock(), Tally()
        self.steps = Steps(self.tally)
        self.compiled = CompiledCalls()
        self.outputs: dict[int, Entry] = {}
        """What computed an output in compiled code, where its gradient is a call of its own."""
        self.failures: Counter[str] = Counter()  # calls that could not be recorded, by reason
        self.graphs = compiled_graphs()  # what had been compiled before
        self.whole = 0  # calls that do more than attention
        self.kernels: dict[HowCalled, tuple[str, tuple[str, ...]]] = {}
        """What ran in calls of a form, and what kept a fused kernel from it."""
        self._entries: dict[Any, Entry] = {}
        self._lock = threading.Lock()
        self.replaced: Callable[[], list[str]] = list
        """Functions in whose place the program has put one of its own."""
        self.on_first: Callable[[], None] | None = None
        """Called once, as soon as there is anything to report."""

    def affordable(self) -> bool:
        """Whether the program has time for another look at a mask."""
        first = self.tally.first
        spent = self.tally.mine.looked
        return first is None or spent < LOOKING * (perf_counter() - first)

    def advised(
        self, original: Callable[..., Any], arguments: dict[str, Any]
    ) -> tuple[Callable[..., Any], dict[str, Any]]:
        """The function and the arguments with which a call is made where there is advice."""
        assert self.advice is not None
        place = where()

        def mask() -> str:
            q, k = (_four(arguments[name], 0) for name in ("query", "key"))
            mask, causal = arguments["attn_mask"], arguments["is_causal"]
            shape = Shape(q[0], q[1], q[2], k[2])
            return str(self.masks.of(mask, causal, shape, place).mask)

        return self.advice.changed(place_text(place), mask, original, arguments)

    def begin(self, x: Tensor) -> Span:
        """Just before a call on this tensor."""
        clock = (self.gpu if x.is_cuda else HOST) if has_data(x) else NONE
        since = perf_counter()
        return Span(clock, clock.now(), since=since, looked=self.tally.mine.looked)

    def run(self, how: HowCalled, call: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        """What a call of torch's function returns; the first of a form is watched."""
        if how in self.kernels or self.advice is not None:  # which may compile, unwatched
            return call(**arguments)
        out, kernel = observed(partial(call, **arguments), arguments["query"])
        self.know(how, kernel, arguments)
        return out

    def know(self, how: HowCalled, kernel: str, arguments: dict[str, Any]) -> None:
        """Keep what ran in calls of a form; where that could not be seen, what torch chooses."""
        try:
            kernel = kernel or chosen(arguments)
            why = why_math(arguments) if kernel == "math" else ()
        except Exception as error:
            self.failed(error)
            why = ()
        if len(self.kernels) >= ENTRIES:
            self.kernels.clear()
        self.kernels[how] = kernel, why

    def made(self, call: Callable[[], CapturedCall], out: Any, begun: Span) -> None:
        """Record a call that was made; ``call`` returns which."""
        until = perf_counter()
        try:
            span = begun
            if span.ended is None:
                span = begun._replace(ended=begun.clock.now())
            until = perf_counter()  # the call's seconds lie within its window
            self._record(call(), out, until, span)
        except Exception as error:
            self.failed(error)
        self.tally.mine.looked += perf_counter() - until

    def _record(self, call: CapturedCall, out: Any, until: float, span: Span) -> None:
        place, how = where(), call.how
        if how is None or call.find_mask is not None or call.bias is not None:
            request, new = call.request(place, self.masks)
            entry = self._entries.get(request) or self._entry(request, call, request)
        else:  # what nearly all calls are: their site is known by what costs little to compare
            found, new = call.look(place, self.masks)
            key = place, call.via, how, found, call.note, call.heads, call.k.shape
            known = self._entries.get(key)
            entry = known or self._entry(call.request(place, self.masks)[0], call, key)
        self._watch_weights(entry, call, out)
        if call.whole:
            self.whole += 1
        else:
            span.clock.add(span, self.tally, entry, backward=False)
            within = self.tally.mine.within
            if within is not None and len(within) < clocks.WITHIN:
                within.append(span)
            if entry.site is None:
                self.failures[entry.why] += 1
        self.tally.called(entry, span, until, new_mask=new)
        self.noticed()
        out = out[0] if isinstance(out, tuple) else out
        if not isinstance(out, Tensor):
            return
        if out.requires_grad:
            ends = (*(call.ends or (call.q, call.k, call.v)), call.attn_mask, call.bias)
            watch_gradient(out, ends, entry, self.tally, span.clock, call.most_nodes)
        elif entry.unasked is not None and has_data(out):
            if len(self.outputs) >= ENTRIES:
                self.outputs.clear()
            self.outputs[out.data_ptr()] = entry

    def _watch_weights(self, entry: Entry, call: CapturedCall, out: Any) -> None:
        """See whether those of the last such call are still alive, as they are if they are used."""
        known = self.tally.mine.weights
        alive = known.pop(entry, None)
        entry.weights_kept |= call.weights_kept or (alive is not None and alive() is not None)
        eager = call.how is not None and call.how.api == "eager" and isinstance(out, tuple)
        weights = next(iter(out[1:2]), None) if eager and len(known) < ENTRIES else None
        if isinstance(weights, Tensor) and not weights.requires_grad:  # gradients hold them too
            known[entry] = weakref.ref(weights)

    def _entry(self, request: SiteRequest, call: CapturedCall, key: Any) -> Entry:
        try:
            site = request.site()
            of_torch = call.via == "sdpa" or call.via.startswith("aten ")
            if of_torch and self.compiled.met and in_generated(sys._getframe(1)):
                place = self.compiled.ran(site.problem)
                where = request.where if place is None else (place, request.where[1])
                if place is not None and _kind_of(place[0]) == "other":  # the user's own line
                    where = None, place
                site = replace(site, site=place_text(where), via="sdpa, compiled")
        except CantBeDone as error:
            entry = Entry(why=str(error))
        else:
            qkv = (call.q, call.k, call.v)
            if self.samples and all(map(has_data, qkv)) and call.q.dim() == 4:
                file = self.samples.keep(site.site, site.problem, qkv)
                site = replace(site, samples=file)
            entry = Entry(replace(site, call=self._form(call)))
            if request.gradients:
                unasked = site.problem.with_(phase=request.phase(gradient=False))
                form = entry.site and entry.site.call
                form = form and replace(form, asked=False)
                entry.unasked = replace(site, problem=unasked, call=form)
        with self._lock:
            if len(self._entries) >= ENTRIES:
                self._entries.clear()
            self._entries[key] = entry
        return entry

    def _form(self, call: CapturedCall) -> CallForm | None:
        if (how := call.how) is None:
            return None
        kernel, why = self.kernels.get(how, (RUNS.get(how.api, ""), ()))
        if how.api == "fast path" and call.q.is_cuda:  # where it may take a fused one
            kernel = ""
        repeated = repeated_heads(call.k, call.v) if has_data(call.k) else 1
        return how.form(kernel, why, repeated)

    def noticed(self) -> None:
        """There is something to report."""
        if self.on_first is not None:
            first, self.on_first = self.on_first, None
            first()

    def failed(self, error: Exception) -> None:
        """Something went wrong in recording."""
        first = (str(error) or "no more is known").splitlines()[0]
        self.refused(f"{type(error).__name__}: {first[:160]}")

    def refused(self, why: str) -> None:
        """A call was met that is not recorded."""
        more = why not in self.failures and len(self.failures) >= CAUSES
        self.failures["for more reasons than are kept" if more else why] += 1
        self.noticed()

    def met_compiled(self, site: Site | None = None, where: Where = (None, None)) -> None:
        """Torch's compiler met a call; ``site`` and ``where`` as far as they are known."""
        self.compiled.meet(site, where[0] or where[1])
        self.noticed()

    def calls(self, *, complete: bool) -> SeenCalls:
        """What was recorded so far, its sites still to be gathered."""
        passed = self.gpu.read(wait=complete) if self.gpu.used else None
        if passed is not None:
            self.tally.last = max(self.tally.last, passed)
        versions = {"torch": torch.__version__, "python": platform.python_version()}
        sites = [*self.tally.sites(), *self.compiled.sites()]
        met = self.compiled.met + sum(self.failures.values())
        met += len(self.replaced())
        return SeenCalls(
            sites=sites,
            header={
                **versions,
                "threads": self.tally.threads,
                "processes": 1,
                "torch_threads": torch.get_num_threads(),
                "met": met,
            },
            unseen=_unseen(self),
            complete=complete,
            wall_s=self.tally.window(looking=self.gpu.used),
            attention_s=self.tally.attention_s,
            **self.steps.summary(by_host=not self.gpu.used),
        )


class Now:
    """The recorder of this process, if there is one."""

    recorder: Recorder | None = None

    def state(self) -> ThreadState:
        """What this thread is in the middle of, also where recording has ended meanwhile."""
        recorder = self.recorder
        return ThreadState() if recorder is None else recorder.tally.mine

    def begin(self, query: Any, *, nested: bool = False) -> Span | None:
        """Just before a call; None where it will not be recorded."""
        recorder = self.taking(query, nested=nested)
        return None if recorder is None else recorder.begin(query)

    def taking(self, query: Any, *, nested: bool = False) -> Recorder | None:
        """The recorder, where a call on this tensor can be recorded; else it notes why not."""
        recorder = self.recorder
        if recorder is None or not isinstance(query, Tensor):
            return None
        if torch.jit.is_tracing():
            why = "torch.jit traced it, and what is traced is not called by its sizes"
        elif functorch.maybe_current_level() is not None:
            why = "torch.func transformed it, and no shape says of how many calls it is one"
        elif query.is_nested and not nested:
            why = "its tensors are nested, and a problem's are not"
        elif query.is_cuda and torch.cuda.is_current_stream_capturing():
            # to read a value now, as that of a mask, would break the graph
            why = "a CUDA graph holds it, and how often that is replayed is not known"
        else:
            return recorder
        recorder.refused(why)
        return None

    def made(self, call: Callable[[], CapturedCall], out: Any, begun: Span) -> None:
        """Just after a call; ``call`` returns which it was. Inside a library's it is a part.

        A function that returns nothing has left the work to another.
        """
        if (recorder := self.recorder) is None or out is None:
            return
        state = recorder.tally.mine
        if state.outer is not None:
            state.inner.append(call)
        else:
            recorder.made(call, out, begun)


NOW = Now()


def compiled_graphs() -> int:
    """How many graphs torch's compiler has made in this process."""
    # which another thread may be importing just now
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    return int(counters["stats"]["unique_graphs"]) if counters else 0


KERNELS = ("flashinfer", "natten", "transformer_engine")
"""Libraries with attention functions of their own that nothing stands for."""
PLACES, REASONS = 3, 5
"""Places of calls, and reasons for failures, that are named at most."""


def _places(met: Counter[Place | None]) -> str:
    """Those with most calls."""
    named = ", ".join(place_text((place, None)) for place, _ in met.most_common(PLACES))
    return named + (f" and {len(met) - PLACES} more places" if len(met) > PLACES else "")


def _of_graphs(compiled: CompiledCalls) -> str:
    """What all compiled code took, which is the most that they can have taken."""
    if not compiled.seconds:
        return ""
    return f" (all that was compiled ran {compiled.runs:,} times and took {compiled.seconds:.3g} s)"


def _unseen(recorder: Recorder) -> list[str]:
    graphs, unknown = compiled_graphs() - recorder.graphs, recorder.compiled.unknown
    imported = ", ".join(name for name in KERNELS if name in sys.modules)
    replaced = ", ".join(recorder.replaced())
    told = {
        f"torch.compile compiled graphs: {graphs:,}; nn.MultiheadAttention in them, and attention "
        "that is written out, has no site; the former is recorded without compiling": graphs,
        f"attention calls that torch.compile compiled into larger code: {unknown.total():,} "
        f"({_places(unknown)}); how often they ran, and for how long, is not known"
        + _of_graphs(recorder.compiled)
        + "; run without compiling to have their share": unknown,
        f"calls of torch's fast path for nn.MultiheadAttention and TransformerEncoder: "
        f"{recorder.whole:,}; they computed projections, or a whole layer, in the same operator: "
        "counted, but their seconds are not in the share": recorder.whole,
        **{
            f"calls that could not be put as a problem: {n:,}: {reason}": n
            for reason, n in recorder.failures.most_common(REASONS)
        },
        f"the program imported {imported}: calls of their own functions are seen only where "
        "transformers makes them": imported,
        f"masks that were not looked at, to save the program's time: {recorder.masks.passed_over:,}"
        "; each is taken for the last one of its place and shape": recorder.masks.passed_over,
        f"the program put functions of its own in the place of others: {replaced}; what they do by "
        "themselves is not seen": replaced,
        "there was no room for samples of all places: the first were kept": (
            recorder.samples is not None and recorder.samples.skipped
        ),
    }
    return [sentence for sentence, so in told.items() if so]
