"""Operators: what is computed, as data. A row of the table names one; nothing here imports torch.

An operator lists its inputs by name, and each input its axes by name, so that whatever draws,
slices, shifts, shares out or differentiates an input follows the names. The output of a core is
[batch, heads, q_len, v_head_dim], that of a layer [batch, q_len, width].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from impls.problem import Problem

Computes = Literal[
    "softmax",
    "softmax on its own pattern",
    "approximates softmax",
    "its own operator",
]
Axis = Literal[
    "batch", "heads", "kv_heads", "q_len", "kv_len", "tokens", "head_dim", "v_head_dim", "width",
    "index_heads", "index_dim",
]  # fmt: skip
"""``tokens`` are a layer's own: its queries where a context has the keys, else all it can see.
``index_heads`` and ``index_dim`` are an indexer's: half as many heads as ``heads``, as wide.
"""
Draw = Literal["normal", "unit", "log decay", "rate"]
"""Standard normal; that divided by its length; the logarithm of a share that is kept; a share
between 0 and 1.
"""
KV_DTYPES = ("int8", "int4", "fp8")
KV_SCALES = ("token", "head", "block")
"""What a cache in few bits holds, and what one scale is of: :mod:`impls.codes`."""
OUTPUT = "out"
OUTPUT_AXES: tuple[Axis, ...] = ("batch", "heads", "q_len", "v_head_dim")
"""A core's output. What it may give besides is in :data:`OUTPUTS`."""


@dataclass(frozen=True)
class TensorSpec:
    """An input: its axes, how it is drawn, and whether its gradient is judged."""

    axes: tuple[Axis, ...]
    draw: Draw = "normal"
    gradient: bool = True
    dtype: str = ""
    """Empty: the problem's."""
    keyword: bool = False
    """Passed to ``attend`` by its name, after the inputs that are passed by place."""
    least: float = -inf
    most: float = inf
    """What its values lie between, ends included."""
    holds: tuple[str, int] | None = None
    """The input that is a view of its first channels, and of how many."""

    def __post_init__(self) -> None:
        for what, words, known in (("axis", self.axes, Axis), ("draw", (self.draw,), Draw)):
            for word in words:
                if word not in get_args(known):
                    raise ValueError(f"{what} {word!r} is not one of {', '.join(get_args(known))}")

    def shape(self, problem: Problem) -> tuple[int, ...]:
        """The sizes of its axes."""
        return tuple(size(problem, axis) for axis in self.axes)

    def dtype_on(self, problem: Problem) -> str:
        """Its own dtype, or the problem's; in float64 all are float64."""
        return problem.dtype if problem.dtype == "float64" else self.dtype or problem.dtype


def size(problem: Problem, axis: Axis) -> int:
    """The size of an axis."""
    if axis == "tokens":
        return problem.q_len if problem.crosses else problem.kv_len
    return int(getattr(problem, axis))


@dataclass(frozen=True)
class Signs:
    """Random signs along an axis of some tensors: a change of values that leaves the truth known.

    Where the output is among them, it comes out under the same signs; else it stays as it is.
    """

    axis: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class Operator:
    """An operator: the mathematics that rows compute, and its inputs."""

    name: str
    computes: Computes
    inputs: Mapping[str, TensorSpec]
    numbers: tuple[str, ...] = ()
    """The numbers and words that problems may set, of :data:`PARAMETERS`."""
    further: Mapping[str, TensorSpec] = field(default_factory=dict)
    """The inputs of :data:`PARAMETERS` that problems may have besides."""
    outputs: Mapping[str, TensorSpec] = field(default_factory=dict)
    """The outputs of :data:`PARAMETERS` that problems may ask for besides."""
    views: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """By parameter, the input that lies in another's first channels, and that other."""
    signs: tuple[Signs, ...] = ()
    """Changes that keep the truth known, so that every timed call has values of its own."""

    @property
    def parameters(self) -> tuple[str, ...]:
        """All that problems may set of it."""
        return (*self.numbers, *self.further, *self.outputs, *self.views)


@dataclass(frozen=True)
class Parameter:
    """What a problem may set of its operator: a number above 0, a word, or a further tensor."""

    about: str
    is_flag: bool = False
    """True where it has no number: an input or an output is there or left out."""
    words: tuple[str, ...] = ()
    """What it may be, where it is a word."""

    def fault(self, value: object) -> str | None:
        """None for a value that it takes, else what it must be."""
        if self.is_flag:
            return None if value is True else "given or left out"
        if self.words:
            return None if value in self.words else f"one of {', '.join(self.words)}"
        number = value if isinstance(value, int | float) and value is not True else -1
        return None if 0 < number < inf else "a number above 0"


PARAMETERS = {
    "scale": Parameter("the factor of the scores; head_dim**-0.5 if not given"),
    "softcap": Parameter("scores s become N tanh(s / N), before the mask"),
    "sinks": Parameter("a learned logit a head beside the scores, that no value follows", True),
    "state": Parameter("a recurrence begins with a state that comes as an input", True),
    "lse": Parameter("the log-sum-exp of each row's scores, as a second output", True),
    "v_in_k": Parameter("values are the first v_head_dim channels of the keys, one tensor", True),
    "kv_dtype": Parameter("in decode, the cache is kept in codes of this dtype", words=KV_DTYPES),
    "kv_scale": Parameter("what one scale of that cache is of; token if not given",
                          words=KV_SCALES),
}  # fmt: skip
"""By name, as the command line, a problem, its records and keywords of calls have it."""
QKV = {
    "q": TensorSpec(("batch", "heads", "q_len", "head_dim")),
    "k": TensorSpec(("batch", "kv_heads", "kv_len", "head_dim")),
    "v": TensorSpec(("batch", "kv_heads", "kv_len", "v_head_dim")),
}
TOKENS = {"x": TensorSpec(("batch", "tokens", "width"))}
CROSSED = {**TOKENS, "context": TensorSpec(("batch", "kv_len", "width"))}
"""A layer's inputs where keys and values come from other tokens than queries."""
_ON_SCORES = Signs("head_dim", ("q", "k"))
"""Products of queries and keys stay as they are."""
_ON_VALUES = Signs("v_head_dim", ("v", OUTPUT))
_ON_BOTH = Signs("head_dim", ("q", "k", OUTPUT))
"""The same where values are the first channels of keys: the output has their signs."""


def _of_values(name: Computes) -> Operator:
    """An operator whose rows have definitions of their own; its output is linear in v."""
    numbers: tuple[str, ...] = () if name == "its own operator" else ("scale",)
    if name == "approximates softmax":
        numbers = (*numbers, "kv_dtype", "kv_scale")
    return Operator(name, name, QKV, numbers, signs=(_ON_VALUES,))


def _recurrent(name: str, draw: Draw = "normal", states: Axis = "kv_heads",
               **gates: TensorSpec) -> Operator:  # fmt: skip
    """States that are written and read token by token, under gates that come by keyword; as many
    as there are values' heads, ``states``.
    """
    keys: tuple[Axis, ...] = ("batch", "kv_heads", "kv_len", "head_dim")
    values: tuple[Axis, ...] = ("batch", states, "kv_len")
    queries: Axis = "heads" if states == "kv_heads" else "kv_heads"
    inputs = {
        "q": TensorSpec(("batch", queries, "q_len", "head_dim"), draw),
        "k": TensorSpec(keys, draw),
        "v": TensorSpec((*values, "v_head_dim")),
        **{n: replace(gate, axes=(*values, *gate.axes)) for n, gate in gates.items()},
    }
    state = TensorSpec(("batch", states, "head_dim", "v_head_dim"), dtype="float32", keyword=True)
    signs = (Signs("v_head_dim", ("v", "state", OUTPUT)),)
    return Operator(name, "its own operator", inputs, ("scale",), {"state": state}, signs=signs)


def _gate(draw: Draw, *axes: Axis, least: float = -inf, most: float = inf) -> TensorSpec:
    """A number a token and state, or one for each channel; float32 as models have it."""
    return TensorSpec(axes, draw, dtype="float32", keyword=True, least=least, most=most)


DECAY = _gate("log decay", most=0.0)
DECAYS = _gate("log decay", "head_dim", most=0.0)
"""One for each channel."""
BETA = _gate("rate", least=0.0, most=2.0)
DT = _gate("rate", least=0.0)


_branch = TensorSpec(("batch", "heads", "q_len"), "rate", keyword=True)
NSA = {**QKV, "g_cmp": _branch, "g_slc": _branch, "g_swa": _branch}
"""With how much of each branch a query's head takes."""


def _index(*axes: Axis) -> TensorSpec:
    """An indexer's, which is trained by a loss of its own."""
    return TensorSpec(("batch", *axes), gradient=False, keyword=True)


DSA = {
    **QKV,
    "iq": _index("q_len", "index_heads", "index_dim"),
    "ik": _index("kv_len", "index_dim"),
    "iw": _index("q_len", "index_heads"),
}
"""With the queries, keys and weights of the indexer that selects."""
EVICT = {
    **QKV,
    "past_q": TensorSpec(("batch", "heads", "kv_len", "head_dim"), gradient=False, keyword=True),
}
"""With the queries of the tokens before, by which a memory chooses what it holds."""
SINKS = {"sinks": TensorSpec(("heads",), keyword=True)}
OUTPUTS = {"lse": TensorSpec(("batch", "heads", "q_len"), dtype="float32")}
"""What ``attend`` gives besides the output, where a problem asks for it: (out, lse).

``lse`` is the natural logarithm of what a row's weights are divided by: the sum of the exponentials
of its scores, scaled, capped and masked, and of its sink. A row that sees nothing, not even a sink,
has -inf, so that a merge gives it no weight. In float64 it is float64.
"""
OPERATORS = {
    operator.name: operator
    for operator in (
        Operator(
            "softmax",
            "softmax",
            QKV,
            ("scale", "softcap"),
            SINKS,
            OUTPUTS,
            {"v_in_k": ("v", "k")},
            (_ON_SCORES, _ON_VALUES),
        ),
        _of_values("softmax on its own pattern"),
        _of_values("approximates softmax"),
        _of_values("its own operator"),
        _recurrent("gla", g=DECAYS),
        _recurrent("retention", g=DECAY),
        _recurrent("delta", "unit", beta=BETA),
        _recurrent("ssd", g=DECAY, dt=DT),
        _recurrent("gated_delta", "unit", "heads", g=DECAY, beta=BETA),
        _recurrent("kda", "unit", "heads", g=DECAYS, beta=BETA),
        Operator("nsa", "its own operator", NSA, ("scale",), signs=(_ON_VALUES,)),
        Operator("dsa", "softmax on its own pattern", DSA, ("scale",), signs=(_ON_VALUES,)),
        Operator("evict", "softmax on its own pattern", EVICT, ("scale",), signs=(_ON_VALUES,)),
    )
}


def further(name: str) -> tuple[str, ...]:
    """The inputs of an operator that come by keyword, after q, k and v."""
    return tuple(n for n, spec in OPERATORS[name].inputs.items() if spec.keyword)


def inputs(name: str, problem: Problem) -> Mapping[str, TensorSpec]:
    """The inputs of an operator's rows on a problem; a layer's are tokens."""
    if problem.level != "core":
        return CROSSED if problem.crosses else TOKENS
    own, parameters = OPERATORS[name], problem.parameters
    specs = {**own.inputs, **{n: x for n, x in own.further.items() if n in parameters}}
    for part, whole in (pair for name, pair in own.views.items() if name in parameters):
        channels = specs.pop(part).shape(problem)[-1]
        specs[whole] = replace(specs[whole], holds=(part, channels))
    return specs


def signs(name: str, problem: Problem) -> tuple[Signs, ...]:
    """The changes of an operator's inputs on a problem that keep the truth known."""
    if problem.level != "core":
        return ()
    return (_ON_BOTH,) if problem.v_in_k else OPERATORS[name].signs


def outputs(problem: Problem) -> Mapping[str, TensorSpec]:
    """What a problem asks for besides the output."""
    return {name: spec for name, spec in OUTPUTS.items() if getattr(problem, name)}
