"""The recorder of a program's calls while it runs: one a process, and at most one at a time.

A call is looked at after it was made, outside of its clock, and the time that looking takes is
taken off what the program took. Whatever goes wrong in looking is counted and reported, never
raised: the program goes on as it would have.
"""

from __future__ import annotations

import platform
import sys
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from msgspec.structs import replace
from torch import Tensor
from torch._C import _functorch as functorch

from attnbench.core.call import CallForm
from attnbench.models.capture import clocks
from attnbench.models.capture.calls import SeenCalls
from attnbench.models.capture.captured_call import CapturedCall
from attnbench.models.capture.clocks import Entry, Span, Steps, Tally, ThreadState, watch_gradient
from attnbench.models.capture.kernels import QKV, observe, repeated_heads, torch_choice, why_math
from attnbench.models.capture.masks import FoundMask, Masks
from attnbench.models.capture.places import (
    CompiledCalls,
    Place,
    Where,
    heads_of,
    in_generated,
    locate,
    of_user,
    place_text,
)
from attnbench.models.mask_of import has_data
from impls.errors import CantBeDone

if TYPE_CHECKING:
    from attnbench.models.capture.advice import Advice

ENTRIES = 4096  # calls unlike each other that are known at a time
RUNS = {
    "mha": "math",
    "fast path": "math",
    "eager": "written out",
    "products": "written out",
    "flex": "flex, not compiled",
    "flex compiled": "flex",
}
"""The kernel by the function that is called, where torch chooses none."""
LOOKING = 0.01
"""The part of a program's time that looking at masks again may take."""
HOST, NONE = clocks.SpanClock(), clocks.NoClock()


class Recorder:
    """Counts calls until it is asked for them."""

    def __init__(self, masks: Path | None = None) -> None:
        self.advice: Advice | None = None
        self.masks = Masks(masks, self.affordable)
        self.restart()

    def restart(self) -> None:
        """Forget all calls; what masks are is still known."""
        self.gpu, self.tally = clocks.GpuClock(), Tally()
        self.steps = Steps(self.tally)
        self.compiled = CompiledCalls()
        self.outputs: dict[int, Entry] = {}
        """Entries by an output of compiled code, where its gradient is a call of its own."""
        self.failures: Counter[str] = Counter()  # calls that could not be recorded, by reason
        self.graphs = compiled_graphs()  # what had been compiled before
        self.whole = 0  # calls that do more than attention
        self.kernels: dict[tuple[CallForm, torch.device], tuple[str, tuple[str, ...]]] = {}
        """The kernel of calls of a form, and the reasons why it is no fused one."""
        self._entries: dict[Any, Entry] = {}
        self._lock = threading.Lock()
        self.replaced: Callable[[], list[str]] = list
        """Functions in whose place the program has put one of its own."""
        self.on_first: Callable[[], None] | None = None
        """Called once, as soon as there is anything to report."""

    def affordable(self) -> bool:
        """True while the program has time for another look at a mask."""
        first = self.tally.first
        spent = self.tally.mine.looked
        return first is None or spent < LOOKING * (perf_counter() - first)

    def advised(
        self, original: Callable[..., Any], arguments: dict[str, Any]
    ) -> tuple[Callable[..., Any], dict[str, Any]]:
        """The function and the arguments with which a call is made where there is advice."""
        assert self.advice is not None
        where, (q, k, v) = locate(), (arguments[name] for name in QKV)
        call = CapturedCall("", q, k, v, arguments["attn_mask"], arguments["is_causal"])

        def mask() -> str:
            return str(call.look(where, self.masks)[0].mask)

        return self.advice.changed(place_text(where), mask, original, arguments)

    def begin(self, x: Tensor) -> Span:
        """Just before a call on this tensor."""
        clock = (self.gpu if x.is_cuda else HOST) if has_data(x) else NONE
        since = perf_counter()
        return Span(clock, clock.now(), since=since, looked=self.tally.mine.looked)

    def run(self, form: CallForm, call: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        """Call torch's function, and watch the first call of a form."""
        query = arguments["query"]
        if (form, query.device) in self.kernels or self.advice is not None:  # it may compile
            return call(**arguments)
        out, kernel = observe(partial(call, **arguments), query)
        self.note_kernel(form, kernel, arguments)
        return out

    def note_kernel(self, form: CallForm, kernel: str, arguments: dict[str, Any]) -> None:
        """Keep what ran in calls of a form; where that could not be seen, what torch chooses."""
        try:
            kernel = kernel or torch_choice(arguments)
            why = why_math(arguments) if kernel == "math" else ()
        except Exception as error:
            self.report_failure(error)
            why = ()
        if len(self.kernels) >= ENTRIES:
            self.kernels.clear()
        self.kernels[form, arguments["query"].device] = kernel, why

    def record(self, call: Callable[[], CapturedCall], out: Any, span: Span) -> None:
        """Record a call that was made; ``call`` returns which."""
        until = perf_counter()
        try:
            if span.end is None:
                span = span._replace(end=span.clock.now())
            until = perf_counter()  # the call's seconds lie within its window
            self._record(call(), out, until, span)
        except Exception as error:
            self.report_failure(error)
        self.tally.mine.looked += perf_counter() - until

    def _record(self, call: CapturedCall, out: Any, until: float, span: Span) -> None:
        where, form = locate(), call.full_form()
        mask, new = call.look(where, self.masks)
        parameters, _ = call.parameters(mask)
        its = *parameters.items(), mask, call.note, call.k.shape
        key = where, call.via, form, call.q.device, its
        entry = self._entries.get(key) or self._add_entry(key, call, where, mask, form)
        entry.weights_used |= call.weights_used
        if call.api == "fast path":
            self.whole += 1
        else:
            span.clock.add(span, self.tally, entry, backward=False)
            inside = torch._C._current_graph_task_id() >= 0  # of what computes gradients
            if (gradient := self.tally.mine.gradient) is not None and inside:
                span.clock.add(span, self.tally, gradient, sign=-1.0, backward=True)
        if entry.site is None:
            self.failures[entry.why] += 1
        self.tally.count(entry, span, until, new_mask=new)
        self.notice()
        out = out[0] if isinstance(out, tuple) else out
        if not isinstance(out, Tensor):
            return
        if out.requires_grad:
            ends = (*(call.ends or (call.q, call.k, call.v)), call.attn_mask, call.bias)
            watch_gradient(out, ends, entry, self.tally, span.clock)
        elif entry.unasked is not None and has_data(out):
            if len(self.outputs) >= ENTRIES:
                self.outputs.clear()
            self.outputs[out.data_ptr()] = entry

    def _add_entry(
        self, key: Any, call: CapturedCall, where: Where, mask: FoundMask, form: CallForm
    ) -> Entry:
        try:
            site = call.site(where, mask, form)
        except CantBeDone as error:
            entry = Entry(why=str(error))
        else:
            of_torch = call.via == "sdpa" or call.via.startswith("aten ")
            if of_torch and self.compiled.met and in_generated(sys._getframe(1)):
                place = self.compiled.ran(heads_of(call.q.shape, call.v.shape))
                where = where if place is None else (place, where[1])
                if place is not None and of_user(place):
                    where = None, place
                site = replace(site, site=place_text(where), via="sdpa, compiled")
            site = replace(site, call=self._completed_form(call, form))
            entry = Entry(site)
            if form.gradient:
                problem = site.problem.with_(phase=call.phase(mask, gradient=False))
                unasked = site.call and replace(site.call, asked=False)
                entry.unasked = replace(site, problem=problem, call=unasked)
        with self._lock:
            if len(self._entries) >= ENTRIES:
                self._entries.clear()
            self._entries[key] = entry
        return entry

    def _completed_form(self, call: CapturedCall, form: CallForm) -> CallForm | None:
        """Its form, with what was found out about it."""
        if call.form is None and call.api == "other":
            return None
        kernel, why = self.kernels.get((form, call.q.device), (RUNS.get(form.api, ""), ()))
        if form.api == "fast path" and call.q.is_cuda:  # where it may take a fused one
            kernel = ""
        repeated = repeated_heads(call.k, call.v) if has_data(call.k) else 1
        return replace(form, kernel=kernel, why=why, repeated=repeated)

    def notice(self) -> None:
        """There is something to report."""
        if self.on_first is not None:
            first, self.on_first = self.on_first, None
            first()

    def report_failure(self, error: Exception) -> None:
        """Something went wrong in recording."""
        first = (str(error) or "no more is known").splitlines()[0]
        self.refuse(f"{type(error).__name__}: {first[:160]}")

    def refuse(self, why: str) -> None:
        """A call was met that is not recorded."""
        self.failures[why] += 1
        self.notice()

    def calls(self, *, complete: bool) -> SeenCalls:
        """The record so far, its sites still to be gathered."""
        end = self.gpu.read(wait=complete) if self.gpu.used else None
        if end is not None:
            self.tally.last = max(self.tally.last, end)
        versions = {"torch": torch.__version__, "python": platform.python_version()}
        met = self.compiled.met.total() + sum(self.failures.values())
        met += len(self.replaced())
        return SeenCalls(
            sites=self.tally.sites(),
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
        """The state of this thread, also where recording has ended meanwhile."""
        recorder = self.recorder
        return ThreadState() if recorder is None else recorder.tally.mine

    def begin(self, query: Any) -> Span | None:
        """Just before a call; None where it will not be recorded."""
        recorder = self.recorder_for(query)
        return None if recorder is None else recorder.begin(query)

    def recorder_for(self, query: Any) -> Recorder | None:
        """The recorder, where a call on this tensor can be recorded; else it notes why not."""
        recorder = self.recorder
        if recorder is None or not isinstance(query, Tensor):
            return None
        if torch.jit.is_tracing():
            why = "torch.jit traced it, and what is traced is not called by its sizes"
        elif functorch.maybe_current_level() is not None:
            why = "torch.func transformed it, and no shape says of how many calls it is one"
        elif query.is_nested:
            why = "its tensors are nested, and a problem's are not"
        elif query.is_cuda and torch.cuda.is_current_stream_capturing():
            # to read a value now, as that of a mask, would break the graph
            why = "a CUDA graph holds it, and how often that is replayed is not known"
        else:
            return recorder
        recorder.refuse(why)
        return None

    def record(self, call: Callable[[], CapturedCall], out: Any, span: Span) -> None:
        """Just after a call; ``call`` returns which it was. Inside a library's it is a part.

        A function that returns nothing has left the work to another.
        """
        if (recorder := self.recorder) is None or out is None:
            return
        state = recorder.tally.mine
        if state.outer is not None:
            state.inner.append(call)
        else:
            recorder.record(call, out, span)


NOW = Now()


def call_recorded(
    run: Callable[..., Any],
    query: Any,
    read: Callable[[], CapturedCall],
    **meanwhile: Any,
) -> Any:
    """Call ``run``, and record it as ``read()``; the thread's state is ``meanwhile``."""
    span = None if torch.compiler.is_compiling() else NOW.begin(query)
    if span is None:
        return run()
    state = NOW.state()
    before = {name: getattr(state, name) for name in meanwhile}
    vars(state).update(meanwhile)
    out = None
    try:
        out = run()
    except Exception as error:
        if type(error).__name__ == "_StopRecomputationError":  # of a checkpoint: it is computed
            out = error
        raise
    finally:
        vars(state).update(before)
        NOW.record(read, out, span)
    return out


def compiled_graphs() -> int:
    """The number of graphs that torch's compiler has made in this process."""
    # which another thread may be importing just now
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    return int(counters["stats"]["unique_graphs"]) if counters else 0


KERNELS = ("flashinfer", "natten", "transformer_engine")
"""Libraries with attention functions of their own that nothing stands for."""
PLACES, REASONS = 3, 5
"""Places of calls, and reasons for failures, that are named at most."""


def _most_frequent(places: Counter[Place | None]) -> str:
    """Those with most calls."""
    names = ", ".join(place_text((place, None)) for place, _ in places.most_common(PLACES))
    return names + (f" and {len(places) - PLACES} more places" if len(places) > PLACES else "")


def _unseen(recorder: Recorder) -> list[str]:
    graphs, unknown = compiled_graphs() - recorder.graphs, recorder.compiled.unknown
    imported = ", ".join(name for name in KERNELS if name in sys.modules)
    replaced = ", ".join(recorder.replaced())
    sentences = {
        f"torch.compile compiled graphs: {graphs:,}; nn.MultiheadAttention in them, and attention "
        "that is written out, has no site; the former is recorded without compiling": graphs,
        f"attention calls that torch.compile compiled into larger code: {unknown.total():,} "
        f"({_most_frequent(unknown)}); how often they ran, and for how long, is not known; run "
        "without compiling to have their share": unknown,
        f"calls of torch's fast path for nn.MultiheadAttention and TransformerEncoder: "
        f"{recorder.whole:,}; they computed projections, or a whole layer, in the same operator: "
        "counted, but their seconds are not in the share; torch.backends.mha.set_fastpath_enabled("
        "False) has attention computed apart": recorder.whole,
        **{
            f"calls that could not be described as a problem: {n:,}: {reason}": n
            for reason, n in recorder.failures.most_common(REASONS)
        },
        f"the program imported {imported}: calls of their own functions are seen only where "
        "transformers makes them": imported,
        f"masks that were not looked at, to save the program's time: {recorder.masks.passed_over:,}"
        "; each is taken for the last one of its place and shape": recorder.masks.passed_over,
        f"the program put functions of its own in the place of others: {replaced}; what they do by "
        "themselves is not seen": replaced,
    }
    return [sentence for sentence, so in sentences.items() if so]
