"""Planted faults: variants that do one thing that no variant may, and are honest otherwise.

The ruler tests itself with them: each has to be caught, with the right status and by a reason that
names the deed. They are data here, and no torch; their code is in :mod:`attnbench.gate.plant_code`
and :mod:`attnbench.gate.plant_code_operators`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from attnbench.core.record import Status
from impls.masks import Mask
from impls.operators import PARAMETERS
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
TIED = _problem("causal", inputs="equal_keys", q_len=256, kv_len=256)
CROSS, ODD, LONG = _problem("causal", q_len=9), _problem(kv_len=33), _problem(q_len=80, kv_len=80)
BROAD = _problem(heads=8, kv_heads=8, q_len=256, kv_len=256)
"""Large enough that computing takes longer than finding what was computed before."""

ONE_KEY, BROADER = _problem(q_len=1, kv_len=1), BROAD.with_(q_len=512, kv_len=512)
ON_GPU = BROAD.with_(q_len=1024, kv_len=1024, device="cuda")
BACKWARD = BROAD.with_(phase="backward", heads=4, kv_heads=4)
PADDED = TRAIN.with_(mask=Mask(), q_len=320, kv_len=320)
"""Half a block more than blocks of 128 hold."""

SUNK, SUMMED = TRAIN.with_(sinks=True), TRAIN.with_(lse=True)
CAPPED, HELD = CAUSAL.with_(softcap=2.0), TRAIN.with_(v_head_dim=8, v_in_k=True)
SET = HELD.with_(sinks=True, softcap=2.0, lse=True)
GATED = TRAIN.with_(q_len=64, kv_len=64)
"""Four chunks of :data:`RECURRENCE`."""
STATED = GATED.with_(state=True)

MOVED = r"row \d+ .* (moved|did not move) when key \d+ changed"
OFF = "error of forward is"
CHANGED = "its output was not what it was when it was judged"
LATE = "after it had (been )?returned"
UNDONE = f"{LATE}|{OFF}|{MOVED}|overwritten by a later call"
"""On a busy machine work may be so late that a result is read first, or that other calls ran."""
UNLIKE = "while something else was looked at"
MEASURED, IMPLAUSIBLE, CRASHED = (
    {"status": status} for status in (Status.MEASURED, Status.IMPLAUSIBLE, Status.CRASHED)
)
HUNGRY = {**MEASURED, "shows": ("memory.peak_bytes", 90 << 20)}
SLOW = {**MEASURED, "shows": ("time.median_s", 0.02)}
SELECTS: dict[str, Any] = {
    "row": {
        "operator": "softmax on its own pattern",
        "definition": "impls.sparse.moba:definition",
        "options": {"block": 4, "top": 3},
    }
}
LATE_END = {"status": Status.TIMED_OUT, "limit_s": 4.0}
RECURRENCE: dict[str, Any] = {
    "row": {
        "operator": "gla",
        "definition": "impls.linear.gla:definition",
        "masks": ("causal",),
        "options": {"chunk": 16, "seed": 0, "gates": "input"},
        "parameters": ("scale", "state"),
    }
}

FAULTS: dict[str, list[tuple[Any, ...]]] = {
    "nothing": [
        ("no fault at all, forward", "nothing", "^$", PLAIN, MEASURED),
        ("no fault at all, training", "nothing", "^$", TRAIN, MEASURED),
    ],
    "masks": [
        ("the mask inverted", "inverted", MOVED, CAUSAL),
        ("the mask ignored", "ignored", "moved .* which the mask causal hides", CAUSAL),
        ("upper-left for lower-right", "upper_left", MOVED, CROSS),
        ("a window one too wide on the left", "window_left", MOVED, WINDOW),
        ("a window one too wide on the right", "window_right", MOVED, WINDOW),
        ("the last key dropped", "last_key_dropped", "did not move when key 31 changed"),
    ],
    "values": [
        ("one head wrong", "one_head", "of forward is .* head 1\\)"),
        ("wrong only at odd lengths", "odd_lengths", OFF, ODD),
        ("wrong only past a length", "past_a_length", OFF, LONG),
        ("NaN in one row", "nan", "not finite in the output: row 5 "),
        ("half precision inside float32", "half_inside", "plain form in float32"),
        ("zeros", "zeros", MOVED),
    ],
    "parameters": [
        ("no fault at all, all set", "everything_set", "^$", SET, MEASURED),
        ("a sink ignored", "sink_ignored", OFF, SUNK),
        ("a soft cap after the mask", "cap_after_mask", "which the mask causal hides", CAPPED),
        ("values in keys without their gradient", "values_detached", "of dk is", HELD),
    ],
    "second outputs": [
        ("a log-sum-exp in base two", "base_two", "error of lse is 0.44", SUMMED),
        ("a log-sum-exp without the scale", "no_scale", "error of lse is", SUMMED),
        ("a log-sum-exp that ignores the mask", "no_mask", "of its lse moved when", SUMMED),
        ("no gradient through the log-sum-exp", "no_gradient", "error of dq is", SUMMED),
    ],
    "recurrences": [
        ("no fault at all, a recurrence", "recurrence", "^$", GATED, {**MEASURED, **RECURRENCE}),
        ("a decay in base two", "base_two_decay", OFF, GATED, RECURRENCE),
        ("the last chunk's state dropped", "last_state_dropped", OFF, GATED, RECURRENCE),
        ("its first state ignored", "first_state_ignored", OFF, STATED, RECURRENCE),
        ("a gate detached", "gate_detached", "error of dg is", GATED, RECURRENCE),
    ],
    "every kind": [
        ("right on ordinary inputs alone", "overflows", "^peaky: .* not finite", PLAIN, MEASURED),
        ("padding scored 0", "padding", "^sunk: .* not finite in dq", PADDED, MEASURED),
    ],
    "selections": [
        ("the later of blocks that tie", "picks_later", "^$", TIED, {**MEASURED, **SELECTS}),
        (
            "the blocks it likes least, attended rightly",
            "picks_least",
            "picks block \\d, .* and leaves out block",
            CAUSAL,
            SELECTS,
        ),
        ("blocks it did not say, attended rightly", "picks_untold", OFF, CAUSAL, SELECTS),
    ],
    "gradients": [
        ("a wrong gradient with a right output", "scaled", "of dk is 0.01", TRAIN),
        ("keys detached", "detached_keys", "of dk is 1,", TRAIN),
        ("the output detached", "detached", "the output is detached", TRAIN),
    ],
    "forms": [
        ("an output in another dtype", "dtype", "the output is float64"),
        ("an output of another shape", "shape", "the output has the shape"),
        ("an output in another layout", "layout", "the output has the layout"),
        ("a lazy tensor", "lazy", "is a Lazy, not a plain"),
    ],
    "memories": [
        ("a result kept by shape", "by_shape", "did not move"),
        ("a result kept by address", "by_address", "did not move"),
        ("a result kept by a few numbers", "by_few_numbers", "did not move"),
        ("a result kept by a digest without signs", "by_digest", "that it has seen", BROAD),
        ("one buffer for every output", "one_buffer", "is overwritten by a later call"),
        ("one workspace for every backward pass", "one_workspace", "a later call changed", TRAIN),
        ("an input handed back as the output", "value_itself", "memory of its input v", ONE_KEY),
    ],
    "aside": [
        ("a thread for each call that works on after it", "thread_a_call", UNDONE),
        ("a standing thread that works on after the call", "standing_thread", UNDONE),
        ("more threads than it was given", "pool", "processors busy", BROADER, IMPLAUSIBLE),
        ("a stream that is not waited for", "stream", UNDONE, ON_GPU),
        ("a child left running", "fork", "left a copy of its process"),
        ("a child that answers", "child_answers", "another process answered"),
        ("a forged answer", "forged", "answered twice"),
    ],
    "inputs": [
        ("inputs changed", "left_changed", "it changed its input v"),
        ("inputs written to and put back", "in_place", "wrote to its input q"),
        ("inputs written to through .data and put back", "through_data", "were write-protected"),
    ],
    "rewritten": [
        ("time.perf_counter patched", "perf_counter", "replaced time\\.perf_counter$"),
        ("time.perf_counter_ns patched", "perf_counter_ns", "replaced time\\.perf_counter_ns$"),
        ("the ruler's own clock patched", "rulers_clock", r"replaced .*clocks\.perf_counter_ns"),
        ("torch.cuda.synchronize patched", "synchronize", "replaced torch\\.cuda\\.synchronize"),
        ("torch.allclose patched", "allclose", "replaced torch\\.allclose"),
        ("torch.equal patched", "equal", "replaced torch\\.equal"),
        ("a function of the ruler replaced", "budget", r"replaced .*budget\.check$"),
        ("a method of the ruler replaced", "verdict", r"replaced .*Timed\.wrong"),
        ("the inside of a function of the ruler replaced", "insides", "inside of .*check_finite"),
        ("a number of the ruler changed", "budget_factor", r"changed .*budget\.EPSILON"),
        ("the function that would notice replaced", "guard", r"replaced .*watch\.replaced"),
        ("a mode put around torch's functions", "mode", "modes around torch's functions"),
    ],
    "watched": [
        ("right for the first calls alone", "counts", CHANGED),
        ("right only where the check is looking", "looks_up_the_stack", CHANGED),
    ],
    "peeks": [
        ("the clock's start moved in its frame", "start", UNLIKE, BROAD, IMPLAUSIBLE),
        ("the truth taken from the ruler while it is timed", "truth", UNLIKE, BROAD, IMPLAUSIBLE),
        ("anything for values not shown before", "unseen", "had not seen its output"),
        (
            "no gradients for values not shown before",
            "gradients",
            "had not seen its dq",
            TRAIN,
        ),
        ("backward's work done in the forward pass", "prepared", "has seen|had not seen", BACKWARD),
        ("its code run between calls", "between", "between calls, .*_prepare"),
    ],
    "shared": [
        ("gradients looked through for NaN from now on", "anomaly", "detection .False → True"),
        ("another kernel in place of torch's", "kernel", "torch's kernels"),
        ("flash attention switched off", "sdpa", "what sdpa may use"),
        ("torch's random state changed", "seeds_torch", "torch's random state"),
        ("NumPy's random state changed", "draws_from_numpy", "numpy's random state"),
        ("Python's random state changed", "seeds_random", "random's state"),
        ("the number of threads left changed", "threads", "threads \\(1 → 2\\)"),
        ("the default dtype left changed", "default_dtype", "dtype .*32 → .*64"),
    ],
    "costs": [
        ("memory taken by torch and given back", "hog_torch", "", PLAIN, HUNGRY),
        ("memory taken by NumPy and given back", "hog_numpy", "", PLAIN, HUNGRY),
        ("memory taken past both and given back", "hog_mmap", "", PLAIN, HUNGRY),
        ("no work while memory is observed", "profiled", "memory was observed"),
        ("a sleep in every call", "sleep", "", PLAIN, SLOW),
        ("the process ended", "exit", "ended with status 7", PLAIN, CRASHED),
        ("a hang", "hang", "still running after 4 s", PLAIN, LATE_END),
        ("a segmentation fault", "segfault", "SIGSEGV", PLAIN, CRASHED),
    ],
}
"""By kind: the deed, the name of its code, and the reason for its refusal; then, where they are not
the usual ones, its problem and more of the :class:`Plant`, ``row`` being more of its row."""

PLANTED = "attnbench.gate.plant_code"
"""How the modules begin that hold their code, which the audit takes for a variant's."""
OF_OPERATORS = ("parameters", "second outputs", "recurrences")
"""The kinds whose code is in the second of them."""


def _plant(
    kind: str,
    deed: str,
    name: str,
    said: str,
    problem: Problem = PLAIN,
    more: Mapping[str, Any] = MappingProxyType({}),
) -> Plant:
    module = f"{PLANTED}_operators" if kind in OF_OPERATORS else PLANTED
    plant = {"said": said, **more}
    own = {"operator": "softmax", "parameters": tuple(PARAMETERS), **plant.pop("row", {})}
    build, devices = f"{module}:build_{name}", (problem.device,)
    row = Variant(f"planted.{name}", deed, "planted", build=build, devices=devices, **own)
    return Plant(deed, kind, row, problem, **plant)


PLANTS = tuple(_plant(kind, *fault) for kind, faults in FAULTS.items() for fault in faults)
