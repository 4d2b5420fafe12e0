"""Planted faults: variants that do one thing that no variant may, and are honest otherwise.

The ruler tests itself with them: each has to be caught, with the right status and by a reason that
names the deed. They are data here, and no torch; their code is in :mod:`attnbench.gate.plant_code`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attnbench.core.record import Status
from impls.masks import Mask
from impls.problem import Problem
from impls.spec import Variant


@dataclass(frozen=True)
class Plant:
    """A fault, where it is planted, and how it has to be caught."""

    deed: str
    """What it does, in words."""
    kind: str
    row: Variant
    problem: Problem
    status: Status = Status.WRONG
    said: str = ""
    """What the reason has to match, or what it is wrong on, as a regular expression."""
    shows: tuple[str, float] | None = None
    """Of a deed that is no fault but has a price: where in the record it stands, and at least how
    much."""
    limit_s: float = 60.0
    """For the cell."""


def _problem(mask: str = "none", **changes: Any) -> Problem:
    extent = {"batch": 1, "heads": 2, "kv_heads": 2, "head_dim": 16, "v_head_dim": 16}
    return Problem(**{**extent, "q_len": 32, "kv_len": 32, **changes}, mask=Mask.parse(mask))


PLAIN, TRAIN = _problem(), _problem("causal", phase="train")
CAUSAL, WINDOW = _problem("causal"), _problem("window:3,2")
CROSS, ODD, LONG = _problem("causal", q_len=9), _problem(kv_len=33), _problem(q_len=80, kv_len=80)
BROAD = _problem(heads=8, kv_heads=8, q_len=256, kv_len=256)
"""Large enough that computing takes longer than finding what was computed before."""

MOVED = r"row \d+ .* (moved|did not move) when key \d+ changed"
OFF = "error of forward is"
CHANGED = "its output was not what it was when it was judged"
LATE = "after it had (been )?returned"
UNDONE = f"{LATE}|{OFF}|{MOVED}"  # on a busy machine work may be so late that a result is read

FAULTS: dict[str, list[tuple[str, str, Problem, dict[str, Any]]]] = {
    "nothing": [
        ("no fault at all, forward", "nothing", PLAIN, {"status": Status.MEASURED, "said": "^$"}),
        ("no fault at all, training", "nothing", TRAIN, {"status": Status.MEASURED, "said": "^$"}),
    ],
    "masks": [
        ("the mask inverted", "inverted", CAUSAL, {"said": MOVED}),
        ("the mask ignored", "ignored", CAUSAL, {"said": "moved .* which the mask causal hides"}),
        ("upper-left for lower-right", "upper_left", CROSS, {"said": MOVED}),
        ("a window one too wide on the left", "window_left", WINDOW, {"said": MOVED}),
        ("a window one too wide on the right", "window_right", WINDOW, {"said": MOVED}),
        ("the last key dropped", "last_key_dropped", PLAIN,
         {"said": "did not move when key 31 changed"}),
    ],
    "values": [
        ("one head wrong", "one_head", PLAIN, {"said": r"of forward is .* head 1\)"}),
        ("wrong only at odd lengths", "odd_lengths", ODD, {"said": OFF}),
        ("wrong only past a length", "past_a_length", LONG, {"said": OFF}),
        ("NaN in one row", "nan", PLAIN, {"said": "not finite in the output: row 5 "}),
        ("half precision inside float32", "half_inside", PLAIN,
         {"said": "of forward is .*the plain form in float32"}),
        ("zeros", "zeros", PLAIN, {"said": MOVED}),
    ],
    "every kind": [
        ("right on ordinary inputs alone", "overflows", PLAIN,
         {"status": Status.MEASURED, "said": r"^peaky: \d+ rows are not finite in the output"}),
    ],
    "gradients": [
        ("a wrong gradient with a right output", "scaled", TRAIN, {"said": "of dk is 0.01"}),
        ("keys detached", "detached_keys", TRAIN, {"said": "of dk is 1,"}),
        ("the output detached", "detached", TRAIN, {"said": "the output is detached"}),
    ],
    "forms": [
        ("an output in another dtype", "dtype", PLAIN, {"said": "the output is float64"}),
        ("an output of another shape", "shape", PLAIN, {"said": "the output has the shape"}),
        ("an output in another layout", "layout", PLAIN, {"said": "the output has the layout"}),
        ("a lazy tensor", "lazy", PLAIN, {"said": "is a Lazy, not a plain"}),
    ],
    "memories": [
        ("a result kept by shape", "by_shape", PLAIN, {"said": "did not move"}),
        ("a result kept by address", "by_address", PLAIN, {"said": "did not move"}),
        ("a result kept by a few numbers", "by_few_numbers", PLAIN, {"said": "did not move"}),
        ("a result kept by a digest that signs don't change", "by_digest", BROAD,
         {"said": "on values that it has seen"}),
        ("one buffer for every output", "one_buffer", PLAIN,
         {"said": "is overwritten by a later call"}),
        ("one workspace for every backward pass", "one_workspace", TRAIN,
         {"said": "a later call changed what its d[qkv] is made from"}),
        ("an input handed back as the output", "value_itself", _problem(q_len=1, kv_len=1),
         {"said": "its output lies in the memory of its input v"}),
    ],
    "aside": [
        ("a thread for each call that works on after it", "thread_a_call", PLAIN, {"said": UNDONE}),
        ("a standing thread that works on after the call", "standing_thread", PLAIN,
         {"said": UNDONE}),
        ("more threads than it was given", "pool", BROAD.with_(q_len=512, kv_len=512),
         {"status": Status.IMPLAUSIBLE, "said": r"processors busy and was given"}),
        ("a stream that is not waited for", "stream",
         BROAD.with_(q_len=1024, kv_len=1024, device="cuda"), {"said": UNDONE}),
        ("a child left running", "fork", PLAIN, {"said": "left a copy of its process"}),
        ("a child that answers", "child_answers", PLAIN,
         {"said": "another process answered"}),
        ("a forged answer", "forged", PLAIN, {"said": "answered twice"}),
    ],
    "inputs": [
        ("inputs changed", "left_changed", PLAIN, {"said": "it changed its input v"}),
        ("inputs written to and put back", "in_place", PLAIN, {"said": "wrote to its input q"}),
        ("inputs written to through .data and put back", "through_data", PLAIN,
         {"said": "wrote to its inputs .* write-protected"}),
    ],
    "rewritten": [
        ("time.perf_counter patched", "perf_counter", PLAIN,
         {"said": r"replaced time\.perf_counter$"}),
        ("time.perf_counter_ns patched", "perf_counter_ns", PLAIN,
         {"said": r"replaced time\.perf_counter_ns$"}),
        ("the ruler's own clock patched", "rulers_clock", PLAIN,
         {"said": r"replaced attnbench\.meter\.clocks\.perf_counter_ns"}),
        ("torch.cuda.synchronize patched", "synchronize", PLAIN,
         {"said": r"replaced torch\.cuda\.synchronize"}),
        ("torch.allclose patched", "allclose", PLAIN,
         {"said": r"replaced torch\.allclose"}),
        ("torch.equal patched", "equal", PLAIN, {"said": r"replaced torch\.equal"}),
        ("a function of the ruler replaced", "budget", PLAIN,
         {"said": r"replaced attnbench\.gate\.budget\.check"}),
        ("a method of the ruler replaced", "verdict", PLAIN,
         {"said": r"replaced attnbench\.meter\.timer\.Timed\.wrong"}),
        ("the inside of a function of the ruler replaced", "insides", PLAIN,
         {"said": r"replaced the inside of attnbench\.gate\.hygiene\.check_finite"}),
        ("a number of the ruler changed", "budget_factor", PLAIN,
         {"said": r"changed .*attnbench\.gate\.budget\.EPSILON"}),
        ("the function that would notice replaced", "guard", PLAIN,
         {"said": r"replaced attnbench\.gate\.watch\.replaced"}),
        ("a mode put around torch's functions", "mode", PLAIN,
         {"said": "modes around torch's functions"}),
    ],
    "watched": [
        ("right for the first calls alone", "counts", PLAIN, {"said": CHANGED}),
        ("right only where the check is looking", "looks_up_the_stack", PLAIN, {"said": CHANGED}),
    ],
    "peeks": [
        ("the clock's start moved in its frame", "start", BROAD,
         {"status": Status.IMPLAUSIBLE, "said": "while something else was looked at"}),
        ("the truth taken from the ruler while it is timed", "truth", BROAD,
         {"status": Status.IMPLAUSIBLE, "said": "while something else was looked at"}),
        ("anything for values that it was not shown, but the last", "unseen", PLAIN,
         {"said": "on values that it had not seen its output is off"}),
        ("no gradients for values that it was not shown", "gradients", TRAIN,
         {"said": "on values that it had not seen its dq is off"}),
        ("backward's work done in the forward pass before it", "prepared",
         BROAD.with_(phase="backward", heads=4, kv_heads=4),
         {"said": "that it has seen|that it had not seen"}),
        ("its code run between calls", "between", PLAIN,
         {"said": "its code ran between calls, where no clock looks: plant_code.py:_prepare"}),
    ],
    "shared": [
        ("gradients looked through for NaN from now on", "anomaly", PLAIN,
         {"said": r"anomaly detection \(False → True\)"}),
        ("another kernel in place of torch's", "kernel", PLAIN,
         {"said": "torch's kernels"}),
        ("flash attention switched off", "sdpa", PLAIN, {"said": "what sdpa may use"}),
        ("torch's random state changed", "seeds_torch", PLAIN,
         {"said": "torch's random state"}),
        ("NumPy's random state changed", "draws_from_numpy", PLAIN,
         {"said": "numpy's random state"}),
        ("Python's random state changed", "seeds_random", PLAIN,
         {"said": "random's state"}),
        ("the number of threads left changed", "threads", PLAIN,
         {"said": r"threads \(1 → 2\)"}),
        ("the default dtype left changed", "default_dtype", PLAIN,
         {"said": r"default dtype \(torch\.float32 → torch\.float64\)"}),
    ],
    "costs": [
        ("memory taken by torch and given back", "hog_torch", PLAIN,
         {"status": Status.MEASURED, "shows": ("memory.peak_bytes", 96 << 20)}),
        ("memory taken by NumPy and given back", "hog_numpy", PLAIN,
         {"status": Status.MEASURED, "shows": ("memory.peak_bytes", 96 << 20)}),
        ("memory taken past both and given back", "hog_mmap", PLAIN,
         {"status": Status.MEASURED, "shows": ("memory.peak_bytes", 90 << 20)}),
        ("no work while memory is observed", "profiled", PLAIN,
         {"said": "while its memory was observed its output was not what it was"}),
        ("a sleep in every call", "sleep", PLAIN,
         {"status": Status.MEASURED, "shows": ("time.median_s", 0.02)}),
        ("the process ended", "exit", PLAIN,
         {"status": Status.CRASHED, "said": "ended with status 7"}),
        ("a hang", "hang", PLAIN,
         {"status": Status.TIMED_OUT, "said": "still running after 4 s", "limit_s": 4.0}),
        ("a segmentation fault", "segfault", PLAIN,
         {"status": Status.CRASHED, "said": "SIGSEGV"}),
    ],
}  # fmt: skip


PLANTED = "attnbench.gate.plant_code"
"""The module that holds their code, which the audit takes for a variant's."""


def _row(name: str, title: str, **more: Any) -> Variant:
    return Variant(
        f"planted.{name}", title, "planted", "softmax", f"{PLANTED}:build_{name}", **more
    )


PLANTS = tuple(
    Plant(
        deed,
        kind,
        _row(name, deed, devices=(problem.device,), options={"deed": True}),
        problem,
        **more,
    )
    for kind, faults in FAULTS.items()
    for deed, name, problem, more in faults
)

SLOW_DOWNS = (0, 1, 2, 5, 10)
"""Per cent more of the same work; none is a slow-down that isn't there."""
SLICES_PROBLEM = _problem(q_len=100, kv_len=100)


def slices(extra: int) -> Variant:
    """Attention in a hundred like slices, ``extra`` of which are computed twice."""
    options = {"extra": extra} if extra else {}
    return _row("slices", "attention in a hundred slices", options={"extra": 0}, given=options)
